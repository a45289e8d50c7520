# cmake -DBUILD=directory -P xla_pass/build_core.cmake: builds the core there. One at a time: others wait, and find it.
cmake_minimum_required(VERSION 3.25)
file(MAKE_DIRECTORY "${BUILD}")
file(LOCK "${BUILD}" DIRECTORY GUARD PROCESS)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${BUILD}" -G Ninja -DCOOPJAX_PYTHON=OFF
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" --target coopjax_core COMMAND_ERROR_IS_FATAL ANY)
