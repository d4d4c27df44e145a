// A small test harness: TEST registers a body, CHECKs print what they saw, main.cc runs all and ends with one line of counts.
#pragma once
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace tandem::test {

// Under which instruction sets a test runs.
enum class Sets {
  kAll,
  kAllUnlessSanitized,  // a whole engine, many draws: under sanitizers, where it takes long, the best one does; tests of kernels cover the others
  kBest,                // no vector kernel has a part: it would do the same under each
};

struct Case {
  const char* name;
  void (*body)();
  Sets sets;
};

std::vector<Case>& cases();
// Whether the code under test was compiled with the address sanitizer. The tests' own code never is, so it asks.
bool sanitized();
// Marks the running test as failed; only the first few messages of a test are printed.
void fail(const char* file, int line, const std::string& message);

struct Register {
  Register(const char* name, void (*body)(), Sets sets) { cases().push_back({name, body, sets}); }
};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  out.precision(9);
  if constexpr (std::is_enum_v<T>) {
    out << int64_t(value);
  } else {
    out << +value;
  }
  return out.str();
}
inline std::string show(const std::string& value) { return '"' + value + '"'; }

// Runs `body`, which must throw an Error of that kind whose text holds `text`.
void expect_error(const char* file, int line, ErrorKind kind, const std::string& text, const std::function<void()>& body);

}  // namespace tandem::test

#define TEST_UNDER(sets, name)                                              \
  static void name();                                                       \
  static const ::tandem::test::Register register_##name(#name, name, sets); \
  static void name()

#define TEST(name) TEST_UNDER(::tandem::test::Sets::kAll, name)
#define TEST_ENGINE(name) TEST_UNDER(::tandem::test::Sets::kAllUnlessSanitized, name)
#define TEST_ONCE(name) TEST_UNDER(::tandem::test::Sets::kBest, name)

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) ::tandem::test::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_EQ(a, b)                                                                                                              \
  do {                                                                                                                              \
    const auto seen_ = (a);                                                                                                         \
    const auto wanted_ = (b);                                                                                                       \
    if (!(seen_ == wanted_)) {                                                                                                      \
      ::tandem::test::fail(__FILE__, __LINE__, #a " is " + ::tandem::test::show(seen_) + ", not " + ::tandem::test::show(wanted_)); \
    }                                                                                                                               \
  } while (false)

#define CHECK_NEAR(a, b, tolerance)                                                                                          \
  do {                                                                                                                       \
    const double seen_ = double(a), wanted_ = double(b);                                                                     \
    if (!(std::fabs(seen_ - wanted_) <= double(tolerance))) {                                                                \
      ::tandem::test::fail(__FILE__, __LINE__,                                                                               \
                           #a " is " + ::tandem::test::show(seen_) + ", not " + ::tandem::test::show(wanted_) + " within " + \
                               ::tandem::test::show(double(tolerance)));                                                     \
    }                                                                                                                        \
  } while (false)

#define CHECK_ERROR(kind, text, ...) ::tandem::test::expect_error(__FILE__, __LINE__, ::tandem::ErrorKind::kind, text, [&] { __VA_ARGS__; })
