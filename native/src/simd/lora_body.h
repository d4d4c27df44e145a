// The kernels of low-rank adapters; part of kernels_table.h, which includes it.
// Rows come by index: an adapter's rows lie anywhere in a batch. Every u[i][r] and y[i][n] is a chain of its own, so no tile shows.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

constexpr int kLoraRows = kAttendTileRows;
constexpr int kLoraRanks = 4;

// One vector of inputs: kLanes floats, or kLanes pairs of bf16.
struct PairDot {
  using T = uint16_t;
  using V = VP;
  static constexpr int kStep = 2 * kLanes;
  static V load(const T* p) { return load_pairs(p); }
  static VF fma(V a, V b, VF acc) { return dot_pairs(a, b, acc); }
};
struct FloatDot {
  using T = float;
  using V = VF;
  static constexpr int kStep = kLanes;
  static V load(const T* p) { return vload(p); }
  static VF fma(V a, V b, VF acc) { return vfma(a, b, acc); }
};

template <typename D, int R, int C>
inline void shrink_tile(const LoraShrinkArgs<typename D::T>& args, int64_t row, int64_t rank) {
  const typename D::T* x[R];
  for (int i = 0; i < R; ++i) x[i] = args.x + int64_t(args.rows[row + i]) * args.ldx;
  const typename D::T* a = args.a + rank * args.k;
  VF acc[R][C];
  for (int i = 0; i < R; ++i) {
    for (int c = 0; c < C; ++c) acc[i][c] = vset(0.0f);
  }
  for (int64_t k = 0; k < args.k; k += D::kStep) {
    typename D::V w[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) w[c] = D::load(a + c * args.k + k);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      typename D::V v = D::load(x[i] + k);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[i][c] = D::fma(v, w[c], acc[i][c]);
    }
  }
  for (int i = 0; i < R; ++i) {
    for (int c = 0; c < C; ++c) args.u[(row + i) * args.ldu + rank + c] = args.scale * horizontal_sum(acc[i][c]);
  }
}

template <typename D, int R>
inline void shrink_rows(const LoraShrinkArgs<typename D::T>& args, int64_t row) {
  int64_t rank = 0;
  for (; rank + kLoraRanks <= args.ranks; rank += kLoraRanks) shrink_tile<D, R, kLoraRanks>(args, row, rank);
  for (; rank < args.ranks; ++rank) shrink_tile<D, R, 1>(args, row, rank);
}

template <typename D>
void lora_shrink(const LoraShrinkArgs<typename D::T>& args) {
  int64_t row = 0;
  for (; row + kLoraRows <= args.m; row += kLoraRows) shrink_rows<D, kLoraRows>(args, row);
  for (; row < args.m; ++row) shrink_rows<D, 1>(args, row);
}

// acc += u[0 .. kDepth) . (kDepth ranks of kLanes outputs), in ascending order.
struct PairOuter {
  using T = uint16_t;
  static constexpr int kDepth = 2;
  static VF fma(const float* u, const T* b, VF acc) {
    VP pairs = load_pairs(b);
    return vfma(vset(u[1]), high_halves(pairs), vfma(vset(u[0]), low_halves(pairs), acc));
  }
};
struct FloatOuter {
  using T = float;
  static constexpr int kDepth = 1;
  static VF fma(const float* u, const T* b, VF acc) { return vfma(vset(u[0]), vload(b), acc); }
};

template <typename O, int R>
inline void expand_tile(const LoraExpandArgs<typename O::T>& args, int64_t row) {
  VF acc[R][kPanelRegs];
  for (int i = 0; i < R; ++i) {
    for (int c = 0; c < kPanelRegs; ++c) acc[i][c] = vset(0.0f);
  }
  for (int64_t rank = 0; rank < args.ranks; rank += O::kDepth) {
    const typename O::T* b = args.b + rank * kPanel;
#pragma GCC unroll 4
    for (int c = 0; c < kPanelRegs; ++c) {
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) acc[i][c] = O::fma(args.u + (row + i) * args.ldu + rank, b + c * kLanes * O::kDepth, acc[i][c]);
    }
  }
  for (int i = 0; i < R; ++i) {
    float* y = args.y + (args.rows[row + i] - args.first_row) * args.ldy;
    for (int c = 0; c < kPanelRegs; ++c) vstore(y + c * kLanes, vadd(vload(y + c * kLanes), acc[i][c]));
  }
}

template <typename O>
void lora_expand(const LoraExpandArgs<typename O::T>& args) {
  int64_t row = 0;
  for (; row + kLoraRows <= args.m; row += kLoraRows) expand_tile<O, kLoraRows>(args, row);
  for (; row < args.m; ++row) expand_tile<O, 1>(args, row);
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
