#include "simd/isa.h"

#include <cpuid.h>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace tandem::simd {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Vnni: return "avx512_vnni";
    case Isa::kAvx512Bf16: return "avx512_bf16";
    case Isa::kAmx: return "amx";
  }
  return "scalar";
}

namespace {

// What Clang 14 has no names for. Whether the system keeps such registers is known from the sets that these belong to.
bool has_bf16() {
  constexpr unsigned kBf16 = 1u << 5;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kBf16) != 0;
}
bool has_f16c() {
  constexpr unsigned kF16c = 1u << 29;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16c) != 0;
}

}  // namespace

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl");
  bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  bool bf16 = vnni && has_bf16();
  static const bool tiles = bf16 && has_tiles();
  // Intel's cores begin a vdpbf16ps every other cycle and two fused multiply-adds in each, so that floats do twice as much: of an Emerald Rapids
  // 86 and 173 Gflop/s per thread. AMD's do at least as many of the one as of the other.
  const bool slow_bf16 = __builtin_cpu_is("intel");
  if (tiles) found.push_back(Isa::kAmx);
  if (bf16 && !slow_bf16) found.push_back(Isa::kAvx512Bf16);
  if (vnni) found.push_back(Isa::kAvx512Vnni);
  if (bf16 && slow_bf16) found.push_back(Isa::kAvx512Bf16);
  if (avx512) found.push_back(Isa::kAvx512);
  if (avx2) found.push_back(Isa::kAvx2);
  found.push_back(Isa::kScalar);
  return found;
}

Isa selected_isa() {
  std::vector<Isa> supported = supported_isas();
  const char* forced = std::getenv("TANDEM_ISA");
  if (!forced || !*forced) return supported.front();
  std::string names;
  for (Isa isa : supported) {
    if (std::string(forced) == isa_name(isa)) return isa;
    names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  }
  throw Error(ErrorKind::kUnsupported,
              "TANDEM_ISA=" + std::string(forced).substr(0, 32) + " is not supported here; choose one of: " + names);
}

}  // namespace tandem::simd
