// The instructions on tiles that the kernels use: the intrinsics, by which those of amx_body.h work, and what these cannot say. Tests on machines
// without AMX put an emulation in the place of both (native/test/amx). Only kernels_amx.cc includes it.
//
// The intrinsics are used as they are: behind functions, even always inlined ones, GCC 12 inlines less all over that file.
#pragma once
#include <cstdint>

#ifdef TANDEM_TILE_EMULATION
#include "amx/tile_emulation.h"
#else
#include <immintrin.h>
#endif

namespace TANDEM_SIMD_NS {
namespace {

#ifdef TANDEM_TILE_EMULATION
using tile_emulation::tile_load;
using tile_emulation::tile_product;
using tile_emulation::tile_store;
#else
// Tiles by number, as parameters. They order memory, which the intrinsics that load do not.
template <int Tile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
}
// Sum = X . W of signed bytes.
template <int Sum, int X, int W>
inline void tile_product() {
  asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(X), "i"(W));
}
#endif

}  // namespace
}  // namespace TANDEM_SIMD_NS
