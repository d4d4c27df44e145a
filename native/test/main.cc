// Runs every test, or those whose name holds the first argument, and names the slow ones. Exit code 77: TANDEM_ISA names a set that this
// machine lacks.
// With emulated tiles (amx_tests): the AMX kernels, unless it names others. Under sanitizers tiles are emulated in any case.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "harness.h"
#include "simd/isa.h"
#include "simd/kernels.h"

namespace tandem::test {
namespace {

#ifdef TANDEM_TILE_EMULATION
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

bool known_isa(const std::string& name) {
  for (simd::Isa isa :
       {simd::Isa::kScalar, simd::Isa::kAvx2, simd::Isa::kAvx512, simd::Isa::kAvx512Vnni, simd::Isa::kAvx512Bf16, simd::Isa::kAmx}) {
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
  if (kEmulated && !sanitized() && (!forced || !*forced)) forced = simd::isa_name(simd::Isa::kAmx);
  if (forced && known_isa(forced) && !supported_isa(forced)) {
    std::printf("skipped: this machine lacks %s\n", forced);
    return 77;
  }
  const char* used = simd::isa_name(simd::kernels_for(simd::selected_isa()).isa);
  const bool emulated = kEmulated && std::strcmp(used, simd::isa_name(simd::Isa::kAmx)) == 0;
  std::printf("kernels: %s%s\n", used, emulated ? " (tiles emulated)" : forced ? " (forced)" : "");
  if (!forced || !*forced || std::strcmp(forced, used) == 0) return 0;
  std::printf("FAILED TANDEM_ISA asks for %s\n", forced);
  return 1;
}

bool runs(Sets sets) {
  // What runs once does so in the other program, where there is one.
  bool best = (!kEmulated || sanitized()) && simd::selected_isa() == simd::supported_isas().front();
  return best || sets == Sets::kAll || (sets == Sets::kAllUnlessSanitized && !sanitized());
}

int run_all(const char* filter) {
  if (int code = prove_path(); code != 0) return code;
  int passed = 0, failed = 0;
  for (const Case& test : cases()) {
    if (filter && !std::strstr(test.name, filter)) continue;
    if (!runs(test.sets)) continue;
    const bool ok = run_case(test);
    if (!ok) std::printf("FAILED %s\n", test.name);
    (ok ? passed : failed)++;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0 || passed == 0 ? 1 : 0;
}

}  // namespace

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
