// Runs every kernel test, or those whose name holds the first argument (with a leading '!': holds it not); the last line counts.
#include <cstdio>
#include <cstring>
#include <exception>

#include "test.h"

extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tandem::test {
namespace {
int failures = 0;
}

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
  if (++failures <= 8) std::printf("  %s:%d: %s\n", file, line, message.c_str());
}

void expect_error(const char* file, int line, ErrorKind kind, const std::string& text, const std::function<void()>& body) {
  try {
    body();
    fail(file, line, "did not throw");
  } catch (const Error& error) {
    const bool right = error.kind() == kind && std::string(error.what()).find(text) != std::string::npos;
    if (!right) fail(file, line, std::string("threw another error: ") + error.what());
  }
}

static bool run_case(const Case& test) {
  failures = 0;
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("threw: ") + error.what());
  }
  std::printf("%s %s\n", failures > 0 ? "FAILED" : "ok    ", test.name);
  return failures == 0;
}

static bool wanted(const char* name, const char* filter) {
  if (!filter) return true;
  return *filter == '!' ? !std::strstr(name, filter + 1) : std::strstr(name, filter) != nullptr;
}

}  // namespace tandem::test

int main(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const auto& test : tandem::test::cases()) {
    if (!tandem::test::wanted(test.name, argc > 1 ? argv[1] : nullptr)) continue;
    if (tandem::test::sanitized() && test.sets == tandem::test::Sets::kAllUnlessSanitized) continue;
    tandem::test::run_case(test) ? ++passed : ++failed;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}
