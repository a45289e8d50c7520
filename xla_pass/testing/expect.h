// The least a unit test needs: CHECK macros that print both sides, and a main that counts.
// (The core has no dependency, so its tests have none either.)
#pragma once

#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace coopjax::testing {

struct Test {
  const char* name;
  std::function<void()> run;
};
inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}
inline int& Failures() {
  static int failures = 0;
  return failures;
}
struct Registrar {
  Registrar(const char* name, std::function<void()> run) { Tests().push_back({name, std::move(run)}); }
};

}  // namespace coopjax::testing

#define TEST(name)                                                           \
  static void test_##name();                                                 \
  static ::coopjax::testing::Registrar registrar_##name(#name, test_##name); \
  static void test_##name()

#define EXPECT_TRUE(condition)                                                 \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::cerr << __FILE__ << ":" << __LINE__ << ": false: " #condition "\n"; \
      ++::coopjax::testing::Failures();                                        \
    }                                                                          \
  } while (0)

#define EXPECT_EQ(actual, expected)                                                                    \
  do {                                                                                                 \
    const auto actual_value = (actual);                                                                \
    const auto expected_value = (expected);                                                            \
    if (!(actual_value == expected_value)) {                                                           \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " #actual " is " << actual_value << ", expected " \
                << expected_value << "\n";                                                             \
      ++::coopjax::testing::Failures();                                                                \
    }                                                                                                  \
  } while (0)

int main() {
  for (const auto& test : ::coopjax::testing::Tests()) {
    const int before = ::coopjax::testing::Failures();
    test.run();
    std::cerr << (::coopjax::testing::Failures() == before ? "ok   " : "FAIL ") << test.name << "\n";
  }
  return ::coopjax::testing::Failures() == 0 ? 0 : 1;
}
