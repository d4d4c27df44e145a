// Products of bf16 by AMX: a tile holds 16 rows of 64 bytes, and one instruction adds the product of 16 rows of x (32 inputs each) with 16
// columns of weights to 16 x 16 sums. The layouts of panels and pages (pairs of inputs, column by column) are those of its operands already.
//
// The chain of an element: 32 inputs at a time, k ascending, in one instruction, whose order is fixed; rows do not meet. Part of
// kernels_body.h, which includes it.
#pragma once
#include "simd/tiles.h"

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kTileRows = 16;
constexpr int kTilePairs = 16;
constexpr int64_t kTileInputs = 2 * kTilePairs;
constexpr int64_t kPanelStride = kPanel * 4;  // bytes from one pair of inputs to the next
// Rows whose sums lie side by side; part of no result.
constexpr int64_t kTileSumRows = 256;

// GCC's loads of tiles and of their shape do not say that they read memory: what was stored before has to be there. Stores of tiles say it.
inline void tile_fence() { __asm__ volatile("" ::: "memory"); }

// The shape that the tiles of this thread have: `upper` and `lower` rows, pairs of inputs; 0 when they are released.
thread_local uint32_t tile_shape = 0;

// Comes before every use of tiles. Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 weights. `upper` rows (1 to 16) of the first row tile,
// `lower` (0 to 16) of the second, `pairs` of inputs (1 to 16) per product. To load a shape takes 51 ns, as long as ten products.
inline void shape_tiles(int upper, int lower, int pairs) {
  tile_fence();
  const uint32_t wanted = uint32_t(upper) | uint32_t(lower) << 8 | uint32_t(pairs) << 16;
  if (tile_shape == wanted) return;
  tile_shape = wanted;
  alignas(64) uint8_t shape[64] = {};
  shape[0] = 1;
  auto set = [&](int tile, int rows, int bytes) {
    shape[16 + 2 * tile] = uint8_t(rows > 0 ? bytes : 0);
    shape[48 + tile] = uint8_t(rows);
  };
  // A lone row tile has all four sums.
  for (int tile = 0; tile < 4; ++tile) set(tile, tile < 2 || lower == 0 ? upper : lower, 64);
  set(4, upper, 4 * pairs);
  set(5, lower, 4 * pairs);
  set(6, pairs, 64);
  set(7, pairs, 64);
  tile_fence();
  _tile_loadconfig(shape);
}

// A kernel that uses tiles holds one of these: a thread that waits has no tiles to save.
struct TileUse {
  TileUse() = default;
  ~TileUse() {
    _tile_release();
    tile_shape = 0;
  }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
};

// Lines that are fetched while a product runs: so many per step, into L1 or only into L2.
struct TileFetch {
  const char* from;
  int64_t lines;
};

// A tile of rows of x or of sums. Where weights stay in L1 it is asked not to keep these, which pass by.
#define TANDEM_PASSING_TILE(tile, from, stride)           \
  do {                                                    \
    if constexpr (kToL1) _tile_loadd(tile, from, stride); \
    else _tile_stream_loadd(tile, from, stride);          \
  } while (false)

// Rows of 64 sums: what a strip begins with, null for zero, and where they go.
struct StripSums {
  const float* from;
  int64_t ld_from;
  float* to;
  int64_t ld_to;
};

// One row tile x the four column tiles of a panel.
template <bool kToL1>
inline void tile_strip(const uint16_t* x, int64_t ldx, const uint16_t* w, int64_t steps, const StripSums& sums, TileFetch fetch) {
  const size_t x_stride = size_t(ldx) * 2, from_stride = size_t(sums.ld_from) * 4, to_stride = size_t(sums.ld_to) * 4;
  if (sums.from == nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    TANDEM_PASSING_TILE(0, sums.from, from_stride);
    TANDEM_PASSING_TILE(1, sums.from + 16, from_stride);
    TANDEM_PASSING_TILE(2, sums.from + 32, from_stride);
    TANDEM_PASSING_TILE(3, sums.from + 48, from_stride);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const uint16_t* block = w + s * kTileInputs * kPanel;
    for (int64_t line = 0; line < fetch.lines; ++line) __builtin_prefetch(fetch.from + (s * fetch.lines + line) * 64, 0, kToL1 ? 3 : 2);
    TANDEM_PASSING_TILE(4, x + s * kTileInputs, x_stride);
    _tile_loadd(6, block, kPanelStride);
    _tile_loadd(7, block + 32, kPanelStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, block + 64, kPanelStride);
    _tile_loadd(7, block + 96, kPanelStride);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 7);
  }
  _tile_stored(0, sums.to, to_stride);
  _tile_stored(1, sums.to + 16, to_stride);
  _tile_stored(2, sums.to + 32, to_stride);
  _tile_stored(3, sums.to + 48, to_stride);
}

#undef TANDEM_PASSING_TILE

// The tiles' shape for 1 to 32 rows.
inline void shape_rows(int64_t rows, int pairs = kTilePairs) {
  if (rows <= kTileRows) return shape_tiles(int(rows), 0, pairs);
  shape_tiles(kTileRows, int(rows) - kTileRows, pairs);
}

// More than a row tile and at most kTileSumRows rows. The inner dimension is cut in blocks that stay in L1 while all rows use them; between two
// blocks the sums go through memory, which is exact, side by side: rows of y may be a power of two apart, and would push each other out of the
// caches. Two row tiles by two of columns would load less, but measured no faster: weights miss L1 then.
//
// kEven: whole row tiles. Otherwise strips of equal height, of which the last one begins before the other ends. To shape tiles anew for what
// is left over, and to read the weights again for it, takes longer than the rows that two strips share. Measured: products of 17 to 24 rows are 1.35
// times as fast, of 40 rows 1.15 times. With a height that is not known when it is compiled, products of 32 rows took 5 to 10 % longer.
template <bool kToL1, bool kEven>
void gemm_strips(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, int64_t inner, float* y, int64_t ldy,
                 bool accumulate) {
  alignas(64) float between[kTileSumRows * kPanel];
  const int64_t strips = (m + kTileRows - 1) / kTileRows, height = kEven ? kTileRows : (m + strips - 1) / strips;
  const int64_t lines = (64 + strips - 1) / strips, overlapping = kEven ? strips : strips - 1;
  // The last strip's rows may have been written by then.
  if (!kEven && accumulate) copy_rows(y + (m - height) * ldy, ldy, between + overlapping * height * kPanel, kPanel, height);
  auto multiply = [&](int64_t strip, int64_t k0) {
    const int64_t steps = (k - k0 < inner ? k - k0 : inner) / kTileInputs, row = strip < overlapping ? strip * height : m - height;
    const uint16_t* weights = w + k0 * kPanel;
    float *kept = between + strip * height * kPanel, *own = y + row * ldy;
    StripSums sums{kept, kPanel, kept, kPanel};
    if (k0 == 0 && !accumulate) sums.from = nullptr;
    else if (k0 == 0 && strip < overlapping) sums.from = own, sums.ld_from = ldy;
    if (k0 + inner >= k) sums.to = own, sums.ld_to = ldy;
    // The next block is fetched while this one is used, the strips taking turns.
    const char* next = reinterpret_cast<const char*>(weights + inner * kPanel) + strip * steps * lines * 64;
    tile_strip<kToL1>(x + row * ldx + k0, ldx, weights, steps, sums, {next, lines});
  };
  shape_rows(height);
  for (int64_t k0 = 0; k0 < k; k0 += inner) {
    for (int64_t strip = 0; strip < strips; ++strip) multiply(strip, k0);
  }
}

void gemm_tiles(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  TileUse use;
  if (m <= kTileRows) {
    shape_rows(m);
    // Bound by memory: it fetches its own weights further on.
    const char* ahead = reinterpret_cast<const char*>(w) + kStreamAhead;
    return tile_strip<true>(x, ldx, w, k / kTileInputs, {accumulate ? y : nullptr, ldy, y, ldy}, {ahead, 64});
  }
  int64_t blocks = (m + kTileSumRows - 1) / kTileSumRows;
  for (int64_t block = 0, first = 0; block < blocks; ++block) {
    int64_t end = (block + 1) * m / blocks, rows = end - first;
    const uint16_t* from = x + first * ldx;
    float* to = y + first * ldy;
    const bool even = rows % kTileRows == 0;
    // Measured: few rows leave the memory waiting unless their weights come into L1; many are faster the fewer times their sums come and go.
    if (rows <= 4 * kTileRows) {
      if (even) gemm_strips<true, true>(from, ldx, rows, w, k, 64, to, ldy, accumulate);
      else gemm_strips<true, false>(from, ldx, rows, w, k, 64, to, ldy, accumulate);
    } else {
      const int64_t inner = rows <= 8 * kTileRows ? 192 : 256;
      if (even) gemm_strips<false, true>(from, ldx, rows, w, k, inner, to, ldy, accumulate);
      else gemm_strips<false, false>(from, ldx, rows, w, k, inner, to, ldy, accumulate);
    }
    first = end;
  }
}

// ---------------------------------------------------------------- small products

// One row tile x U units of 16 columns: out += the blocks of a (`inputs` apart) . those of b, b(unit, block) with rows b_stride bytes apart.
template <int U, typename B>
inline void small_tile_row(const uint16_t* a, int64_t lda, int64_t inputs, int64_t blocks, const B& b, size_t b_stride, float* out,
                           int64_t ldo) {
  const size_t a_stride = size_t(lda) * 2, out_stride = size_t(ldo) * 4;
  _tile_loadd(0, out, out_stride);
  if constexpr (U > 1) _tile_loadd(1, out + 16, out_stride);
  if constexpr (U > 2) _tile_loadd(2, out + 32, out_stride);
  if constexpr (U > 3) _tile_loadd(3, out + 48, out_stride);
  for (int64_t i = 0; i < blocks; ++i) {
    _tile_loadd(4, a + i * inputs, a_stride);
    _tile_loadd(6, b(0, i), b_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (U > 1) {
      _tile_loadd(7, b(1, i), b_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (U > 2) {
      _tile_loadd(6, b(2, i), b_stride);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (U > 3) {
      _tile_loadd(7, b(3, i), b_stride);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, out, out_stride);
  if constexpr (U > 1) _tile_stored(1, out + 16, out_stride);
  if constexpr (U > 2) _tile_stored(2, out + 32, out_stride);
  if constexpr (U > 3) _tile_stored(3, out + 48, out_stride);
}

// Two row tiles x one or two units, from unit `unit` on.
template <int U, typename B>
inline void small_tile_square(const uint16_t* a, int64_t lda, int64_t inputs, int64_t blocks, const B& b, int unit, size_t b_stride,
                              float* out, int64_t ldo) {
  const size_t a_stride = size_t(lda) * 2, out_stride = size_t(ldo) * 4;
  const uint16_t* a_low = a + kTileRows * lda;
  float* out_low = out + kTileRows * ldo;
  _tile_loadd(0, out, out_stride);
  _tile_loadd(2, out_low, out_stride);
  if constexpr (U > 1) {
    _tile_loadd(1, out + 16, out_stride);
    _tile_loadd(3, out_low + 16, out_stride);
  }
  for (int64_t i = 0; i < blocks; ++i) {
    _tile_loadd(4, a + i * inputs, a_stride);
    _tile_loadd(6, b(unit, i), b_stride);
    _tile_loadd(5, a_low + i * inputs, a_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (U > 1) {
      _tile_loadd(7, b(unit + 1, i), b_stride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out, out_stride);
  _tile_stored(2, out_low, out_stride);
  if constexpr (U > 1) {
    _tile_stored(1, out + 16, out_stride);
    _tile_stored(3, out_low + 16, out_stride);
  }
}

// U is 1 to 4; 1 to 32 rows. The tiles have their shape.
template <int U, typename B>
inline void small_tiles(int rows, const uint16_t* a, int64_t lda, int64_t inputs, int64_t blocks, const B& b, size_t b_stride, float* out,
                        int64_t ldo) {
  if (rows <= kTileRows) return small_tile_row<U>(a, lda, inputs, blocks, b, b_stride, out, ldo);
  if constexpr (U == 1) return small_tile_square<1>(a, lda, inputs, blocks, b, 0, b_stride, out, ldo);
  if constexpr (U > 1) small_tile_square<2>(a, lda, inputs, blocks, b, 0, b_stride, out, ldo);
  if constexpr (U > 2) small_tile_square<U - 2>(a, lda, inputs, blocks, b, 2, b_stride, out + 32, ldo);
}

// small_gemm_rows (attention_body.h) by tiles: full products first, then one with the pairs that are left.
template <int U>
void small_gemm_tiles(int64_t rows, const uint16_t* a, int64_t lda, const uint16_t* const* b, int64_t stride, int64_t steps, float* out,
                      int64_t ldo) {
  const int64_t blocks = steps / kTilePairs, done = blocks * kTilePairs;
  const size_t b_stride = size_t(stride) * 2;
  auto pass = [&](int64_t first_step, int64_t count, int pairs) {
    auto block_of = [&](int unit, int64_t i) { return b[unit] + (first_step + i * kTilePairs) * stride; };
    for (int64_t r = 0; r < rows; r += 2 * kTileRows) {
      int height = rows - r < 2 * kTileRows ? int(rows - r) : 2 * kTileRows;
      shape_rows(height, pairs);
      small_tiles<U>(height, a + r * lda + 2 * first_step, lda, kTileInputs, count, block_of, b_stride, out + r * ldo, ldo);
    }
  };
  if (blocks > 0) pass(0, blocks, kTilePairs);
  if (steps > done) pass(done, 1, int(steps - done));
}

// out[rows][dim] += weights . values, page by page (AttendArgs): at most 32 rows, weights kKeyTile apart.
void gather_tiles(int rows, const uint16_t* weights, const uint16_t* const* values, int pages, int64_t dim, float* out) {
  shape_rows(rows, kPage / 2);
  const size_t stride = size_t(dim) * 4;
  int64_t d = 0;
  auto page_of = [&](int unit, int64_t page) { return values[page] + (d + 16 * unit) * 2; };
  for (; d + 64 <= dim; d += 64) small_tiles<4>(rows, weights, kKeyTile, kPage, pages, page_of, stride, out + d, dim);
  for (; d < dim; d += 16) small_tiles<1>(rows, weights, kKeyTile, kPage, pages, page_of, stride, out + d, dim);
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
