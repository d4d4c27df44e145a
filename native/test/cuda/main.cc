// Runs every kernel test, those whose names hold all arguments (behind a '!': hold it not; behind a '=', after that: are it), or every second
// one ('1/2', '2/2'), and names the slow ones; the last line counts. --list only names them, --device only says which device they would run
// on, and fails where there is none. In tests of whole engines, which take long, the emulation watches accesses where TANDEM_WATCH_ENGINES
// is set. Where TANDEM_TEST_SECONDS is, a test that takes longer ends the program.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/common/device_info.h"
#include "deadline.h"
#include "harness.h"
#ifdef TANDEM_GPU_EMULATION
#include "emulation/shared_races.h"
#endif

namespace tandem::test {
namespace {

bool named(const Case& test, const char* filter) {
  if (*filter == '!') return !named(test, filter + 1);
  return *filter == '=' ? std::strcmp(test.name, filter + 1) == 0 : std::strstr(test.name, filter) != nullptr;
}

std::vector<Case> wanted(const std::vector<const char*>& filters) {
  const std::string which = filters.empty() ? "" : filters[0];
  const std::vector<Case>& all = cases();
  std::vector<Case> some;
  const bool halves = which == "1/2" || which == "2/2";
  for (size_t i = 0; i < all.size(); ++i) {
    const bool named_so = std::all_of(filters.begin(), filters.end(), [&](const char* filter) { return named(all[i], filter); });
    if (halves ? i % 2 == size_t(which[0] - '1') : named_so) some.push_back(all[i]);
  }
  return some;
}

int run_all(const std::vector<const char*>& filters) {
  int passed = 0, failed = 0;
  for (const Case& test : wanted(filters)) {
    Deadline::begin(test.name);
#ifdef TANDEM_GPU_EMULATION
    gpu_emulation::watch_accesses(test.sets != Sets::kAllUnlessSanitized || std::getenv("TANDEM_WATCH_ENGINES") != nullptr);
#endif
    const bool ok = run_case(test);
    std::printf("%s %s\n", ok ? "ok    " : "FAILED", test.name);
    (ok ? passed : failed)++;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}

int list_all() {
  for (const Case& test : cases()) std::printf("%s\n", test.name);
  return 0;
}

int show_device() {
  const cuda::DeviceInfo found = cuda::device_info();
  std::printf("%s, compute capability %d.%d\n", found.message.c_str(), found.major, found.minor);
  return found.devices > 0 ? 0 : 1;
}

int run(const std::vector<const char*>& arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "--list") return list_all();
  if (first == "--device") return show_device();
  return run_all(arguments);
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) {
  // A process that is ended has said what it did.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
#ifdef TANDEM_GPU_EMULATION
  // The emulated device has Hopper's instructions too; what tests do not choose runs by those that every device has.
  for (const char* setting : {"TANDEM_CUDA_MATMUL", "TANDEM_CUDA_ATTENTION"}) setenv(setting, "mma", 0);
#endif
  return tandem::test::run({argv + 1, argv + argc});
}
