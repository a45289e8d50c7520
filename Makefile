# make demo    the main job: train a GPT inside a byte budget, and show what it costs
# make test    the suite, C++ and Python: each mechanism, on the programs and budgets that show it soonest
# make test-sweeps  the same for more programs and budgets; before the search, a planner or an engine changes
# make lint    formatting, lint and types, Python and C++; FIX=1 formats and mends first
# make pytest  the Python tests alone
# make test-jax  what of it depends on JAX, for another JAX than the one that all of it was run on
# make oldest-test-jax  that on the oldest JAX that is supported; oldest- goes before any target with tests
# make nightly-test-jax  that on last night's JAX, for a job of its own: it may fail on what JAX is changing
# make wheel   the sdist and this platform's wheel, and that wheel tried in an empty environment; files in build/dist
# make cc-test the C++ unit tests alone
# make test-targets  the tests that compile for TPUs and GPUs, which need not be there; fetches 400 MB of compilers
# make test-browser  the report in headless Chromium; installs one from Debian if there is none
# make native-test  what links to XLA itself; fetches a TensorFlow wheel (270 MB) for its headers and libraries
# make fuzz    mutated modules through the HLO pass under sanitizers, FUZZ_RUNS of them through all; needs Clang 16
# make bazel-test  the same C++ and the planners' tests, built and run by Bazel, without a network
# make bench   the README's measured tables, peers beside us, in more than an hour; fetches PyTorch (TORCH="torch==2.13.0")
# make maxtext  MaxText itself as a client, in an environment of its own: its trainer on the CPU, its compile for a v5e pod
# make bench-planners  planners beside each other; TABLES="fastsa exact" for some of the tables
# make clean   remove everything that was built or installed here
#
# A Python 3.12+ is looked for (PYTHON=/path/to/python3 names one, PYTHON_VERSION=3.12 narrows the search)
# and a virtual environment made in $(VENV), with the JAX that the pip requirement $(JAX) asks for.
VENV ?= .venv
JAX ?= jax
PYTHON ?=
PYTHON_VERSION ?=
JOBS ?= 2
TABLES ?=
TORCH ?= torch
TORCH_PYTHON ?= python3
MAXTEXT ?= maxtext[tpu]==0.2.5
FUZZ_RUNS ?= 4000
FIX ?=
OLDEST := VENV=.venv-floor PYTHON_VERSION=3.12 JAX="jax==0.11.2"
# `test-jax` leaves out what comes out the same on any JAX; benchmarks, examples and documents, which we run on the
# newest; how good plans are, and what our files and messages say. It asks whether programs are read, rewritten and
# compiled as they were: all of conformance, jaxpr, xla and hlo_engine but a benchmark, all transformations, and whole
# plans of each engine by each door: function, step, scan, mesh, several processes, offload, enable, library, command.
WITHOUT_JAX := $(addprefix --ignore=tests/,planners \
  $(addprefix api/,test_libraries.py test_one_plan.py test_stability.py) \
  $(addprefix house/,test_benchmarks.py test_build.py test_calibrated.py test_cpp.py test_cpp_layers.py \
  test_device_benchmark.py test_docs.py test_docstrings.py test_hand_ladder.py test_hlo_pass_benchmark.py \
  test_ladder_frontiers.py test_layers.py test_no_clock.py test_one_plan_benchmark.py test_planned_modules.py \
  test_planning_time.py test_random_bits.py test_reachable_budgets.py test_rooms.py test_workers.py) \
  $(addprefix planning/,test_batch_search.py test_cache.py test_counted_runs.py test_decision.py test_frontier.py \
  test_least_bytes.py test_missed_once.py test_policy_names.py test_progress.py test_regions.py test_request.py) \
  $(addprefix policy_engine/,test_apart.py test_calls.py test_hand_forms.py test_hand_rungs.py test_inside.py \
  test_nesting.py test_offload_costs.py test_predictions.py test_repeats.py test_rungs.py test_scans.py test_search.py \
  test_summed_residuals.py test_written_forms.py)) \
  $(addprefix --deselect=tests/,\
  $(addprefix api/test_remat.py::test_,auto_comes_as_near plans_are_deterministic a_budget_too_small_names) \
  $(addprefix api/test_transform_bytes.py::test_,fits_its_budget_by transformed_it) \
  $(addprefix house/test_examples.py::test_,batches_are benchmark_measures demo_ two_hosts) \
  $(addprefix planning/test_argnums.py::test_,a_best_effort a_share_of they_differ) \
  planning/test_around.py::test_a_step_repeats_no_more planning/test_existing.py::test_replaced_at_the_hands_bytes \
  planning/test_many_hosts.py::test_four_processes planning/test_plan_steps.py::test_a_trainer_under \
  $(addprefix policy_engine/test_groups.py::test_,budgets_below at_the_bytes) \
  $(addprefix planning/test_steps.py::test_,the_region_that_is_cheap a_total_out_of_reach) \
  $(addprefix policy_engine/test_compiled_profile.py::test_,estimates_are_near the_public_door) \
  policy_engine/test_policy_engine.py::test_no_more_recompute)
PYTEST = $(VENV)/bin/python -m pytest -n $(JOBS) --durations=30 \
  -m "not browser and not targets and not native and not sweep"

export PATH := $(abspath $(VENV))/bin:$(PATH)
# Rebuilt when the C++ or the package's own description changes; Python files are used where they lie.
INSTALLED := $(VENV)/.installed-$(shell printf '%s' '$(JAX)' | tr -c 'A-Za-z0-9.' '-')
BUILD_INPUTS := pyproject.toml .ci/make-venv $(shell find xla_pass -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(INSTALLED): $(BUILD_INPUTS)
	@.ci/make-venv '$(VENV)' '$(JAX)' '$(PYTHON)' '$(PYTHON_VERSION)'
	@rm -f $(VENV)/.installed-*
	@touch $@

# The environment alone. Those of several JAX versions share the core, which is built by the first.
venv: $(INSTALLED)

demo: $(INSTALLED)
	$(VENV)/bin/python examples/train_gpt.py

test-browser: $(INSTALLED)
	.ci/install-browser
	$(VENV)/bin/python -m pytest -m browser

# The longest begins: `make --jobs` takes them in this order.
test: pytest cc-test

# `cc-test` runs what test_cpp would run.
pytest: $(INSTALLED)
	$(PYTEST) --ignore=tests/house/test_cpp.py

test-sweeps: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n $(JOBS) --durations=30 -m sweep

test-jax: $(INSTALLED)
	$(PYTEST) $(WITHOUT_JAX)

lint: $(INSTALLED)
	JOBS=$(JOBS) .ci/lint '$(VENV)' $(if $(FIX),--fix)

test-targets: $(INSTALLED)
	.ci/install-targets '$(VENV)'
	JAX_PLATFORMS=cpu $(VENV)/bin/python -m pytest -n $(JOBS) -m targets

# From where JAX's own pages say its nightly releases are; other packages may be ahead of their releases there, too.
nightly-%:
	PIP_PRE=1 PIP_EXTRA_INDEX_URL=https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/ \
	$(MAKE) $* VENV=.venv-nightly

wheel: $(INSTALLED)
	.ci/make-wheel '$(VENV)'

oldest-%:
	$(MAKE) $* $(OLDEST)

oldest-native-test: native-test  # both build in build/cc

# What installs into the tests' environments, or configures their build anew, waits for them where one make is to do both.
test-targets native-test: | $(filter test,$(MAKECMDGOALS))
oldest-test-targets: | $(filter oldest-test-jax,$(MAKECMDGOALS))

cc-test: $(INSTALLED)
	cmake -S xla_pass -B build/cc -G Ninja -DCOOPJAX_PYTHON=OFF && \
	cmake --build build/cc --parallel $(JOBS) && \
	ctest --test-dir build/cc --output-on-failure --parallel $(JOBS)

native-test: $(INSTALLED)
	.ci/fetch-tensorflow build/tensorflow '$(VENV)/bin/python'
	cmake -S xla_pass -B build/cc -G Ninja -DCOOPJAX_PYTHON=OFF -DCOOPJAX_NATIVE='$(CURDIR)/build/tensorflow' && \
	cmake --build build/cc --parallel $(JOBS)
	JAX_PLATFORMS=cpu $(VENV)/bin/python -m pytest -m native

fuzz: $(INSTALLED)
	JOBS=$(JOBS) .ci/fuzz '$(VENV)' '$(FUZZ_RUNS)'

# python3 is the environment's: its directory is the first on the PATH.
bazel-test: $(INSTALLED)
	.ci/install-bazel
	bazel test --jobs=$(JOBS) //...

# PyTorch stays out of our environment: another Python may be the one that it has a build for.
bench: $(INSTALLED)
	$(TORCH_PYTHON) -m venv build/torch
	build/torch/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' numpy
	$(VENV)/bin/python examples/train_gpt.py
	cp out/train_gpt.json out/train_gpt.png benchmarks/results
	$(VENV)/bin/python benchmarks/torch_peer.py --torch build/torch/bin/python
	$(VENV)/bin/python benchmarks/peers.py
	$(VENV)/bin/python benchmarks/training_run.py
	$(MAKE) bench-planners TABLES=packing
	$(VENV)/bin/python benchmarks/readme_tables.py

# It brings the JAX that it wants, libtpu included.
maxtext:
	$(MAKE) venv VENV=build/maxtext JAX='$(MAXTEXT)'
	build/maxtext/bin/python benchmarks/maxtext_client.py --again

bench-planners: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(VENV)/bin/python benchmarks/planners.py $(TABLES)

clean:
	rm -rf .venv .venv-* build out .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help venv demo wheel test test-sweeps test-jax lint test-browser test-targets cc-test native-test bazel-test fuzz bench maxtext bench-planners clean
