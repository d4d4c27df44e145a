#include "harness.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>

// A request for more memory than there is must reach the code under test as a failed allocation.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tandem::test {
namespace {

constexpr int kMessages = 8;
constexpr double kSlowSeconds = 1;
int failures = 0;

}  // namespace

bool sanitized() {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  return false;
#endif
}

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

void fail(const char* file, int line, const std::string& message) {
  if (++failures > kMessages) return;
  const char* slash = std::strrchr(file, '/');
  std::printf("  %s:%d: %s\n", slash ? slash + 1 : file, line, message.c_str());
}

void expect_error(const char* file, int line, ErrorKind kind, const std::string& text, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() != kind) fail(file, line, "error of kind " + show(error.kind()) + ": " + error.what());
    if (std::string(error.what()).find(text) == std::string::npos) {
      fail(file, line, "error '" + std::string(error.what()) + "' does not hold '" + text + "'");
    }
    return;
  }
  fail(file, line, "no error, expected '" + text + "'");
}

bool run_case(const Case& test) {
  failures = 0;
  const auto start = std::chrono::steady_clock::now();
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("threw: ") + error.what());
  }
  if (failures > kMessages) std::printf("  ... %d more\n", failures - kMessages);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  if (taken.count() > kSlowSeconds) std::printf("%6.1f s %s\n", taken.count(), test.name);
  return failures == 0;
}

}  // namespace tandem::test
