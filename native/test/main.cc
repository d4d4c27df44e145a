// Runs every test, or those whose name holds the first argument, and names the slow ones. Exit code 77: TANDEM_ISA names a set that this machine lacks.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "simd/isa.h"
#include "simd/kernels.h"
#include "test.h"

// A request for more memory than there is must reach the code under test as a failed allocation.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tandem::test {
namespace {

constexpr int kMessages = 8;
constexpr double kSlowSeconds = 1;
int failures = 0;

bool run_case(const Case& test) {
  failures = 0;
  try {
    test.body();
  } catch (const std::exception& error) {
    fail(test.name, 0, std::string("threw: ") + error.what());
  }
  if (failures > kMessages) std::printf("  ... %d more\n", failures - kMessages);
  if (failures > 0) std::printf("FAILED %s\n", test.name);
  return failures == 0;
}

bool known_isa(const std::string& name) {
  for (simd::Isa isa : {simd::Isa::kScalar, simd::Isa::kAvx2, simd::Isa::kAvx512, simd::Isa::kAvx512Vnni, simd::Isa::kAvx512Bf16}) {
    if (name == simd::isa_name(isa)) return true;
  }
  return false;
}

bool supported_isa(const std::string& name) {
  for (simd::Isa isa : simd::supported_isas()) {
    if (name == simd::isa_name(isa)) return true;
  }
  return false;
}

// Prints the path that the kernels take; 0 when it is the forced one.
int prove_path() {
  const char* forced = std::getenv("TANDEM_ISA");
  if (forced && known_isa(forced) && !supported_isa(forced)) {
    std::printf("skipped: this machine lacks %s\n", forced);
    return 77;
  }
  const char* used = simd::isa_name(simd::kernels_for(simd::selected_isa()).isa);
  std::printf("kernels: %s%s\n", used, forced ? " (forced)" : "");
  if (!forced || !*forced || std::strcmp(forced, used) == 0) return 0;
  std::printf("FAILED TANDEM_ISA asks for %s\n", forced);
  return 1;
}

bool runs(Sets sets) {
  bool best = simd::selected_isa() == simd::supported_isas().front();
  return best || sets == Sets::kAll || (sets == Sets::kAllUnlessSanitized && !sanitized());
}

int run_all(const char* filter) {
  if (int code = prove_path(); code != 0) return code;
  int passed = 0, failed = 0;
  for (const Case& test : cases()) {
    if (filter && !std::strstr(test.name, filter)) continue;
    if (!runs(test.sets)) continue;
    auto start = std::chrono::steady_clock::now();
    (run_case(test) ? passed : failed)++;
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (taken.count() > kSlowSeconds) std::printf("%6.1f s %s\n", taken.count(), test.name);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}

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

}  // namespace tandem::test

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return tandem::test::run_all(argc > 1 ? argv[1] : nullptr);
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n", error.what());
    return 1;
  }
}
