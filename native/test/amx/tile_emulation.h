// AMX's tiles for machines with AVX-512 alone: stands for the intrinsics and for the functions of simd/tiles.h in amx_tests and in the sanitized
// native_tests. Follows Intel's manual: products are rounded as described there, and what the hardware would refuse throws: shapes that do not
// fit each other, tiles without a shape, numbers that no tile has. It reads memory as any code does, so a missing tile_fence does not show, nor
// does speed.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace tandem::tile_emulation {

// Of the calling thread, 64 bytes as ldtilecfg reads them; all tiles are zero.
void configure(const void* shape);
void release();
void zero(int tile);
// `stride`: bytes from one row to the next.
void load(int tile, const void* from, int64_t stride);
void store(int tile, void* to, int64_t stride);
// sum += x . w of bf16, and of signed bytes.
void add_bf16(int sum, int x, int w);
void add_int8(int sum, int x, int w);

template <int Tile>
void tile_load(const void* from, int64_t stride) {
  load(Tile, from, stride);
}
template <int Tile>
void tile_store(void* to, int64_t stride) {
  store(Tile, to, stride);
}
template <int Sum, int X, int W>
void tile_product() {
  zero(Sum);
  add_int8(Sum, X, W);
}

}  // namespace tandem::tile_emulation

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(shape) ::tandem::tile_emulation::configure(shape)
#define _tile_release() ::tandem::tile_emulation::release()
#define _tile_loadd(tile, from, stride) ::tandem::tile_emulation::load(tile, from, int64_t(stride))
// The same with a hint for the caches.
#define _tile_stream_loadd(tile, from, stride) _tile_loadd(tile, from, stride)
#define _tile_stored(tile, to, stride) ::tandem::tile_emulation::store(tile, to, int64_t(stride))
#define _tile_zero(tile) ::tandem::tile_emulation::zero(tile)
#define _tile_dpbf16ps(sum, x, w) ::tandem::tile_emulation::add_bf16(sum, x, w)
