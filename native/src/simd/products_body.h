// Products of rows with packed panels; part of kernels_body.h, which includes it.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

// The two element types behind one name: a "step" is one k for float, a pair of k for bf16.
struct Bf16Step {
  using T = uint16_t;
  using X = XP;
  static constexpr int kDepth = 2;
  static X broadcast(const T* x) { return set_pair(x); }
  static VF fma(X x, const T* w, VF acc) { return fma_pair(x, load_pairs(w), acc); }
};
struct F32Step {
  using T = float;
  using X = VF;
  static constexpr int kDepth = 1;
  static X broadcast(const T* x) { return vset(*x); }
  static VF fma(X x, const T* w, VF acc) { return vfma(x, vload(w), acc); }
};

// How near weights are fetched that are read once, and how many bytes ahead of the reader, as hardware prefetchers stop at the end of each 4 KiB
// page. 3 is L1 with the levels behind it, 2 is L2, 0 is L1 past the other levels (prefetchnta). quant_tile_body.h has those of 8 and 4 bits.
// L1 alone, for the set that AMD's cores get: measured on a Zen 5, 1.02x. On an Emerald Rapids, whose lines on their way to L1 are few, it reads
// half of what L2 does: 13.7 and 29.4 GB/s per two threads of 31.2 (avx2: 14.6 and 22.1), 27.9 where 8 KiB ahead.
#if TANDEM_AMX
constexpr int kAheadLevel = 3;
constexpr int64_t kStreamAhead = 8192;
#elif TANDEM_DOT_BF16
constexpr int kAheadLevel = 0;
constexpr int64_t kStreamAhead = 8192;
#else
constexpr int kAheadLevel = 2;
constexpr int64_t kStreamAhead = 4096;
#endif

// R rows x one panel, `steps` steps from the running values in y. Weights are fetched with every step: Lines lines from `prefetch` on, one
// step's behind the other's, or with 0 the tile's own, further on.
template <typename S, int R, int Lines>
inline void gemm_tile(const typename S::T* x, int64_t ldx, const typename S::T* w, int64_t steps, float* y, int64_t ldy, bool accumulate,
                      const char* prefetch) {
  constexpr int64_t kStepBytes = kPanel * S::kDepth * int64_t(sizeof(typename S::T));
  VF acc[R][kPanelRegs];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = accumulate ? vload(y + r * ldy + c * kLanes) : vset(0.0f);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const typename S::T* row = w + s * kPanel * S::kDepth;
    if constexpr (Lines == 0) {
      const char* ahead = reinterpret_cast<const char*>(row) + kStreamAhead;
      for (int64_t line = 0; line < kStepBytes; line += 64) __builtin_prefetch(ahead + line, 0, kAheadLevel);
    } else {
      for (int64_t line = 0; line < Lines; ++line) __builtin_prefetch(prefetch + (s * Lines + line) * 64, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      typename S::X b = S::broadcast(x + r * ldx + s * S::kDepth);
#pragma GCC unroll 4
      for (int c = 0; c < kPanelRegs; ++c) acc[r][c] = S::fma(b, row + c * kLanes * S::kDepth, acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < kPanelRegs; ++c) vstore(y + r * ldy + c * kLanes, acc[r][c]);
  }
}

// A row tile has kRowTile rows at most: the cases above that are the highest tile again.
template <typename S, int Lines>
inline void gemm_rows(int rows, const typename S::T* x, int64_t ldx, const typename S::T* w, int64_t steps, float* y, int64_t ldy,
                      bool accumulate, const char* prefetch) {
  constexpr auto height = [](int wanted) { return wanted < kRowTile ? wanted : kRowTile; };
  switch (rows) {
    case 1: return gemm_tile<S, height(1), Lines>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 2: return gemm_tile<S, height(2), Lines>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 3: return gemm_tile<S, height(3), Lines>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 4: return gemm_tile<S, height(4), Lines>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    case 5: return gemm_tile<S, height(5), Lines>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
    default: return gemm_tile<S, kRowTile, Lines>(x, ldx, w, steps, y, ldy, accumulate, prefetch);
  }
}

// One panel, all rows. With more than one row tile the inner dimension is cut in blocks, the running sums going through y:
// stores and loads of a float are exact, so the chain of additions is the same as without the cut.
template <typename S>
void gemm(const typename S::T* x, int64_t ldx, int64_t m, const typename S::T* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  // A lone row tile is bound by memory: it fetches its own weights further on.
  if (m <= kRowTile) return gemm_rows<S, 0>(int(m), x, ldx, w, k / S::kDepth, y, ldy, accumulate, nullptr);
  constexpr int64_t kLines = kPanel * int64_t(sizeof(typename S::T)) * S::kDepth / 64;
  constexpr int64_t kHalf = kLines > 1 ? kLines / 2 : 1;
  int64_t block = kInnerBlock, tiles = (m + kRowTile - 1) / kRowTile;
  for (int64_t k0 = 0; k0 < k; k0 += block) {
    int64_t inner = k - k0 < block ? k - k0 : block;
    const typename S::T* wb = w + k0 * kPanel;
    const char* after = reinterpret_cast<const char*>(wb + inner * kPanel);
    int64_t steps = inner / S::kDepth;
    // Tiles of nearly equal height: a low one would wait for its own sums.
    for (int64_t tile = 0, i = 0; tile < tiles; ++tile) {
      int rows = int((tile + 1) * m / tiles - i);
      const bool go_on = accumulate || k0 > 0;
      // The next block of weights is fetched while this one is used, the row tiles taking turns: so many turns fetch it once.
      if (tiles >= kLines) {
        gemm_rows<S, 1>(rows, x + i * ldx + k0, ldx, wb, steps, y + i * ldy, ldy, go_on, after + tile % kLines * steps * 64);
      } else {
        gemm_rows<S, 2>(rows, x + i * ldx + k0, ldx, wb, steps, y + i * ldy, ldy, go_on, after + tile % kHalf * steps * 128);
      }
      i += rows;
    }
  }
}

// Rows whose sums lie side by side while a panel is multiplied: rows of y, often a power of two apart, would push each other out of every
// cache.
constexpr int64_t kSumRows = 96;

inline void copy_rows(const float* from, int64_t ld_from, float* to, int64_t ld_to, int64_t m) {
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < kPanel; c += kLanes) vstore(to + r * ld_to + c, vload(from + r * ld_from + c));
  }
}

#if !TANDEM_DOT_BF16
// Without a product of bf16 pairs a step would spend more instructions on widening its operands than on products. Here both sides are
// widened once per block, and row tiles only load and multiply: the chain of an element is the same, k by k. A block of weights as floats
// (16 KiB at 64 columns) and the rows of a tile stay in L1; the sums of a block of rows lie side by side in L2, where rows of y, often a
// power of two apart, would push each other out.
constexpr int64_t kWideBlock = 64;

inline void widen_weights(const uint16_t* block, int64_t inner, float* weights) {
  for (int64_t i = 0; i < inner * kPanel; i += 2 * kLanes) {
    VP pairs = load_pairs(block + i);
    float* out = weights + i / (2 * kPanel) * (2 * kPanel) + i % (2 * kPanel) / 2;
    vstore(out, low_halves(pairs));
    vstore(out + kPanel, high_halves(pairs));
  }
}

// At most kSumRows rows.
void gemm_wide_rows(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  alignas(64) float weights[kWideBlock * kPanel];
  alignas(64) float rows[kRowTile * kWideBlock];
  alignas(64) float sums[kSumRows * kPanel];
  if (accumulate) copy_rows(y, ldy, sums, kPanel, m);
  const int64_t tiles = (m + kRowTile - 1) / kRowTile, line_turns = kPanel / 32 > 1 ? kPanel / 32 : 1;
  for (int64_t start = 0; start < k; start += kWideBlock) {
    int64_t inner = k - start < kWideBlock ? k - start : kWideBlock;
    const uint16_t* block = w + start * kPanel;
    const char* after = reinterpret_cast<const char*>(block + inner * kPanel);
    widen_weights(block, inner, weights);
    for (int64_t tile = 0, first = 0; tile < tiles; ++tile) {
      int64_t end = (tile + 1) * m / tiles;
      for (int64_t r = first; r < end; ++r) {
        const uint16_t* from = x + r * ldx + start;
        float* to = rows + (r - first) * kWideBlock;
        for (int64_t i = 0; i < inner; i += kLanes) vstore(to + i, vwiden(from + i));
      }
      const char* ahead = after + tile % line_turns * inner * 64;
      float* to_sums = sums + first * kPanel;
      gemm_rows<F32Step, 1>(int(end - first), rows, kWideBlock, weights, inner, to_sums, kPanel, accumulate || start > 0, ahead);
      first = end;
    }
  }
  copy_rows(sums, kPanel, y, ldy, m);
}

inline void gemm_widened(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate) {
  // Measured on an Emerald Rapids: it pays from two row tiles on (8 rows 1.1x, 12 rows 1.15x), with registers of 8 lanes from three.
  constexpr int kFewTiles = kLanes == 16 ? 1 : 2;
  if (m <= kFewTiles * kRowTile) return gemm<Bf16Step>(x, ldx, m, w, k, y, ldy, accumulate);
  const int64_t blocks = (m + kSumRows - 1) / kSumRows;
  for (int64_t block = 0, first = 0; block < blocks; ++block) {
    int64_t end = (block + 1) * m / blocks;
    gemm_wide_rows(x + first * ldx, ldx, end - first, w, k, y + first * ldy, ldy, accumulate);
    first = end;
  }
}
#endif

}  // namespace
}  // namespace TANDEM_SIMD_NS
