// Runs every kernel test, those whose name holds the first argument (with a leading '!': holds it not), or every second one ('1/2', '2/2'), and
// names the slow ones; the last line counts. --list only names them, --device only says which device they would run on, and fails where
// there is none. In tests of whole engines, which take long, the emulation watches accesses where TANDEM_WATCH_ENGINES is set.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/common/device_info.h"
#include "harness.h"
#ifdef TANDEM_GPU_EMULATION
#include "emulation/shared_races.h"
#endif

namespace tandem::test {
namespace {

bool named(const Case& test, const char* filter) {
  return *filter == '!' ? !std::strstr(test.name, filter + 1) : std::strstr(test.name, filter) != nullptr;
}

std::vector<Case> wanted(const char* filter) {
  const std::string which = filter ? filter : "";
  std::vector<Case> all, some;
  for (const Case& test : cases()) {
    if (!sanitized() || test.sets != Sets::kAllUnlessSanitized) all.push_back(test);
  }
  if (which.empty()) return all;
  const bool halves = which == "1/2" || which == "2/2";
  for (size_t i = 0; i < all.size(); ++i) {
    if (halves ? i % 2 == size_t(which[0] - '1') : named(all[i], filter)) some.push_back(all[i]);
  }
  return some;
}

int run_all(const char* filter) {
  int passed = 0, failed = 0;
  for (const Case& test : wanted(filter)) {
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

int run(const char* argument) {
  if (argument && std::strcmp(argument, "--list") == 0) return list_all();
  if (argument && std::strcmp(argument, "--device") == 0) return show_device();
  return run_all(argument);
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
  return tandem::test::run(argc > 1 ? argv[1] : nullptr);
}
