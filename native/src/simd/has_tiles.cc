// Compiled apart, as kernels_amx.cc is: the emulation of tiles takes the place of both (native/test/amx).
#include "simd/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tandem::simd {

// Tiles with products of bf16 and of bytes, and the kernel's leave to use their 8 KiB of state (Linux 5.16; a sandbox may refuse).
bool has_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & (kBf16 | kTile | kInt8)) != (kBf16 | kTile | kInt8)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace tandem::simd
