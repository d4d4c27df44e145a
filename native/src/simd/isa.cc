#include "simd/isa.h"

#include <cstdlib>

#include "base/error.h"

#if defined(TANDEM_X86)
#include <cpuid.h>
#endif
#if defined(TANDEM_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tandem::simd {
namespace {

#if defined(TANDEM_X86) && defined(__linux__)
// Tiles with products of bf16 and of bytes, and the kernel's leave to use their 8 KiB of state (Linux 5.16; a sandbox may refuse).
bool has_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & (kBf16 | kTile | kInt8)) != (kBf16 | kTile | kInt8)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#elif defined(TANDEM_X86)
bool has_tiles() { return false; }
#endif

}  // namespace

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

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
#if defined(TANDEM_X86)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl");
  bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  static const bool tiles = has_tiles();
  if (bf16 && tiles) found.push_back(Isa::kAmx);
  if (bf16) found.push_back(Isa::kAvx512Bf16);
  if (vnni) found.push_back(Isa::kAvx512Vnni);
  if (avx512) found.push_back(Isa::kAvx512);
  if (avx2) found.push_back(Isa::kAvx2);
#endif
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
