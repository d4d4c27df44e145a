// Runs every kernel test, or those whose name holds the first argument (with a leading '!': holds it not); the last line counts.
#include <cstdio>
#include <cstring>

#include "harness.h"

namespace tandem::test {
namespace {

bool wanted(const Case& test, const char* filter) {
  if (sanitized() && test.sets == Sets::kAllUnlessSanitized) return false;
  if (!filter) return true;
  return *filter == '!' ? !std::strstr(test.name, filter + 1) : std::strstr(test.name, filter) != nullptr;
}

int run_all(const char* filter) {
  int passed = 0, failed = 0;
  for (const Case& test : cases()) {
    if (!wanted(test, filter)) continue;
    const bool ok = run_case(test);
    std::printf("%s %s\n", ok ? "ok    " : "FAILED", test.name);
    (ok ? passed : failed)++;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) { return tandem::test::run_all(argc > 1 ? argv[1] : nullptr); }
