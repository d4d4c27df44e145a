// Products of bf16 by AMX: a tile holds 16 rows of 64 bytes, and one instruction adds the product of 16 rows of x (32 inputs each) with 16
// columns of weights to 16 x 16 sums. The layouts of panels and pages (pairs of inputs, column by column) are those of its operands already.
//
// The chain of an element: 32 inputs at a time, k ascending, in one instruction, whose order is fixed; rows do not meet. Part of
// kernels_body.h, which includes it.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kTileRows = 16;
constexpr int64_t kTileInputs = 32;
constexpr int64_t kPanelStride = kPanel * 4;  // bytes from one pair of inputs to the next
// Rows whose sums lie side by side; part of no result.
constexpr int64_t kTileSumRows = 256;

// The shapes of the tiles while this lives, on this thread: 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 weights. `upper` rows (1 to 16) of
// the first row tile, `lower` (0 to 16) of the second, `inputs` (16 or 32) per product.
class TileShapes {
 public:
  TileShapes(int upper, int lower, int inputs) {
    alignas(64) uint8_t shape[64] = {};
    shape[0] = 1;
    auto set = [&](int tile, int rows, int bytes) {
      shape[16 + 2 * tile] = uint8_t(rows > 0 ? bytes : 0);
      shape[48 + tile] = uint8_t(rows);
    };
    // A lone row tile has all four sums.
    for (int tile = 0; tile < 4; ++tile) set(tile, tile < 2 || lower == 0 ? upper : lower, 64);
    set(4, upper, 2 * inputs);
    set(5, lower, 2 * inputs);
    set(6, inputs / 2, 64);
    set(7, inputs / 2, 64);
    asm volatile("" : : "r"(shape) : "memory");  // the intrinsic of GCC 12 says that it reads eight bytes
    _tile_loadconfig(shape);
  }
  ~TileShapes() { _tile_release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
};

// Lines that are fetched while `steps` steps run: so many per step.
struct TileFetch {
  const char* from;
  int64_t lines;
  void step(int64_t s) const {
    for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + (s * lines + line) * 64, 0, 2);
  }
};

// One row tile x the four column tiles of a panel.
inline void tile_row(const uint16_t* x, int64_t ldx, const uint16_t* w, int64_t steps, float* y, int64_t ldy, bool begins,
                     TileFetch fetch) {
  const size_t x_stride = size_t(ldx) * 2, y_stride = size_t(ldy) * 4;
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, y, y_stride);
    _tile_loadd(1, y + 16, y_stride);
    _tile_loadd(2, y + 32, y_stride);
    _tile_loadd(3, y + 48, y_stride);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const uint16_t* block = w + s * kTileInputs * kPanel;
    fetch.step(s);
    _tile_loadd(4, x + s * kTileInputs, x_stride);
    _tile_loadd(6, block, kPanelStride);
    _tile_loadd(7, block + 32, kPanelStride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, block + 64, kPanelStride);
    _tile_loadd(7, block + 96, kPanelStride);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 4, 7);
  }
  _tile_stored(0, y, y_stride);
  _tile_stored(1, y + 16, y_stride);
  _tile_stored(2, y + 32, y_stride);
  _tile_stored(3, y + 48, y_stride);
}

// Two row tiles x two column tiles, half a panel.
inline void tile_square(const uint16_t* x, int64_t ldx, const uint16_t* w, int64_t steps, float* y, int64_t ldy, bool begins,
                        TileFetch fetch) {
  const size_t x_stride = size_t(ldx) * 2, y_stride = size_t(ldy) * 4;
  const uint16_t* x_low = x + kTileRows * ldx;
  float* y_low = y + kTileRows * ldy;
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, y, y_stride);
    _tile_loadd(1, y + 16, y_stride);
    _tile_loadd(2, y_low, y_stride);
    _tile_loadd(3, y_low + 16, y_stride);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const uint16_t* block = w + s * kTileInputs * kPanel;
    fetch.step(s);
    _tile_loadd(4, x + s * kTileInputs, x_stride);
    _tile_loadd(6, block, kPanelStride);
    _tile_loadd(7, block + 32, kPanelStride);
    _tile_loadd(5, x_low + s * kTileInputs, x_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, y, y_stride);
  _tile_stored(1, y + 16, y_stride);
  _tile_stored(2, y_low, y_stride);
  _tile_stored(3, y_low + 16, y_stride);
}

inline int lower_rows(int64_t rows) { return rows <= kTileRows ? 0 : rows >= 2 * kTileRows ? kTileRows : int(rows) - kTileRows; }

// Two row tiles or less of some inputs of a panel.
inline void tile_rows(int64_t rows, const uint16_t* x, int64_t ldx, const uint16_t* w, int64_t steps, float* y, int64_t ldy, bool begins,
                      TileFetch fetch) {
  if (rows <= kTileRows) return tile_row(x, ldx, w, steps, y, ldy, begins, fetch);
  TileFetch second{fetch.from + steps * fetch.lines * 64, fetch.lines};
  tile_square(x, ldx, w, steps, y, ldy, begins, fetch);
  tile_square(x, ldx, w + 64, steps, y + 32, ldy, begins, second);
}

// More than one row tile, at most kTileSumRows rows. The inner dimension is cut in blocks that stay in L1 while all rows use them; the sums go
// through memory, which is exact.
void gemm_tile_sums(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  alignas(64) float sums[kTileSumRows * kPanel];
  if (accumulate) copy_rows(y, ldy, sums, kPanel, m);
  const int64_t pairs = (m + 2 * kTileRows - 1) / (2 * kTileRows), left = m - (pairs - 1) * 2 * kTileRows;
  auto block = [&](int64_t pair, int64_t k0) {
    int64_t steps = (k - k0 < kInnerBlock ? k - k0 : kInnerBlock) / kTileInputs, row = pair * 2 * kTileRows;
    const uint16_t* weights = w + k0 * kPanel;
    // The next block is fetched while this one is used, the row tiles taking turns: steps * 64 lines of it.
    int64_t lines = (64 + 2 * pairs - 1) / (2 * pairs);
    const char* next = reinterpret_cast<const char*>(weights + steps * kTileInputs * kPanel) + pair * 2 * steps * lines * 64;
    tile_rows(pair < pairs - 1 ? 2 * kTileRows : left, x + row * ldx + k0, ldx, weights, steps, sums + row * kPanel, kPanel,
              !accumulate && k0 == 0, {next, lines});
  };
  if (left < 2 * kTileRows && pairs > 1) {
    {
      TileShapes whole(kTileRows, kTileRows, kTileInputs);
      for (int64_t k0 = 0; k0 < k; k0 += kInnerBlock) {
        for (int64_t pair = 0; pair < pairs - 1; ++pair) block(pair, k0);
      }
    }
    TileShapes rest(left < kTileRows ? int(left) : kTileRows, lower_rows(left), kTileInputs);
    for (int64_t k0 = 0; k0 < k; k0 += kInnerBlock) block(pairs - 1, k0);
  } else {
    TileShapes shapes(left < kTileRows ? int(left) : kTileRows, lower_rows(left), kTileInputs);
    for (int64_t k0 = 0; k0 < k; k0 += kInnerBlock) {
      for (int64_t pair = 0; pair < pairs; ++pair) block(pair, k0);
    }
  }
  copy_rows(sums, kPanel, y, ldy, m);
}

void gemm_tiles(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  if (m <= kTileRows) {
    TileShapes shapes(int(m), 0, kTileInputs);
    // Bound by memory: it fetches its own weights further on.
    return tile_row(x, ldx, w, k / kTileInputs, y, ldy, !accumulate, {reinterpret_cast<const char*>(w) + kStreamAhead, 64});
  }
  int64_t blocks = (m + kTileSumRows - 1) / kTileSumRows;
  for (int64_t block = 0, first = 0; block < blocks; ++block) {
    int64_t end = (block + 1) * m / blocks;
    gemm_tile_sums(x + first * ldx, ldx, end - first, w, k, y + first * ldy, ldy, accumulate);
    first = end;
  }
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
