#include "cuda/norm/rms_norm.h"

#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/gemm/sum_parts.h"

namespace tandem::cuda {
namespace {

// Of rows that no thread can hold its share of.
constexpr int kWideThreads = 1024;
constexpr int64_t kHeld = 8192;

// Parts whose loads are under way at a time, at most: all that a product of such rows has, as far as registers allow.
template <int kThreads, int kFours>
constexpr int kMostAtOnce = kThreads > 256 ? 4
                            : kFours == 4  ? 8
                            : kFours == 2  ? 12
                                           : 16;

// One block per row, which its threads hold, and the weights: they are on their way before the row is there. kAtOnce: 0, there are no parts.
template <int kThreads, int kFours, bool kWhole, int kAtOnce>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNorm a) {
  int column[kFours], left[kFours];
  Four weight[kFours], v[kFours];
  [[maybe_unused]] Four product[kFours] = {};
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    column[j] = 4 * (int(threadIdx.x) + j * kThreads);
    left[j] = int(a.width) - column[j];
    weight[j] = load_four<kWhole>(a.weight + column[j], left[j]);
  }
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) v[j] = load_four<kWhole>(a.x + row * a.ldx + column[j], left[j]);
  if constexpr (kAtOnce > 0) {
    if (a.parts.count > 0) {
      sum_parts<kWhole, kAtOnce>(a.parts, row, column, left, product);
      GPU_UNROLL
      for (int j = 0; j < kFours; ++j) {
        GPU_UNROLL
        for (int c = 0; c < 4; ++c) v[j].at[c] += product[j].at[c];
        store_four<kWhole>(a.sums + row * a.ldx + column[j], left[j], v[j]);
      }
    }
  }
  float squares[1] = {0};
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) squares[0] = fmaf(v[j].at[c], v[j].at[c], squares[0]);
  }
  block_sums_once<kThreads>(squares);
  const float scale = rsqrtf(squares[0] / float(a.width) + a.eps);
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) v[j].at[c] = v[j].at[c] * scale * weight[j].at[c];
    store_four<kWhole>(a.y + row * a.ldy + column[j], left[j], v[j]);
  }
}

// Each thread reads what it has written itself.
__global__ void __launch_bounds__(kWideThreads) rms_norm_wide_kernel(RmsNorm a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x, first = 4 * int64_t(threadIdx.x), step = 4 * kWideThreads;
  const float* x = a.x + row * a.ldx;
  float squares[1] = {0};
  for (int64_t i = first; i < a.width; i += step) {
    const int column[1] = {int(i)}, left[1] = {int(a.width - i)};
    Four v = load_four<false>(x + i, left[0]), product[1] = {};
    if (a.parts.count > 0) {
      sum_parts<false, 4>(a.parts, row, column, left, product);
      for (int c = 0; c < 4; ++c) v.at[c] += product[0].at[c];
      store_four<false>(a.sums + row * a.ldx + i, left[0], v);
    }
    for (int c = 0; c < 4; ++c) squares[0] = fmaf(v.at[c], v.at[c], squares[0]);
  }
  block_sums_once<kWideThreads>(squares);
  const float scale = rsqrtf(squares[0] / float(a.width) + a.eps);
  for (int64_t i = first; i < a.width; i += step) {
    for (int64_t k = i; k < i + 4 && k < a.width; ++k) a.y[row * a.ldy + k] = to_bf16(x[k] * scale * a.weight[k]);
  }
}

// Loads of few parts are few instructions.
template <int kThreads, int kFours>
void launch_held(const RmsNorm& a, bool whole, cudaStream_t stream) {
  constexpr int kMost = kMostAtOnce<kThreads, kFours>;
  const dim3 grid(unsigned(a.rows)), block(kThreads);
  const int64_t parts = a.parts.count;
  const auto launch = [&](auto* kernel) { GPU_LAUNCH_EARLY(kernel, grid, block, 0, stream, a); };
  if (!whole) return launch(&rms_norm_kernel<kThreads, kFours, false, kMost>);
  if (parts == 0) return launch(&rms_norm_kernel<kThreads, kFours, true, 0>);
  if (parts <= 4) return launch(&rms_norm_kernel<kThreads, kFours, true, 4>);
  if (parts <= 8) return launch(&rms_norm_kernel<kThreads, kFours, true, std::min(kMost, 8)>);
  launch(&rms_norm_kernel<kThreads, kFours, true, kMost>);
}

// By the width alone, as the order of a row's sum.
void launch_rms_norm(const RmsNorm& a, bool whole, cudaStream_t stream) {
  if (a.width <= 1024) launch_held<256, 1>(a, whole, stream);
  else if (a.width <= 2048) launch_held<256, 2>(a, whole, stream);
  else if (a.width <= 4096) launch_held<256, 4>(a, whole, stream);
  else if (a.width <= kHeld) launch_held<512, 4>(a, whole, stream);
  else GPU_LAUNCH_EARLY(rms_norm_wide_kernel, dim3(unsigned(a.rows)), dim3(kWideThreads), 0, stream, a);
}

}  // namespace

void rms_norm(const RmsNorm& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "rms_norm", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy && a.width < 1 << 30, "rms_norm", "width");
  check_argument(a.eps > 0, "rms_norm", "eps");
  const bool fits = a.parts.count == 0 || (a.sums == a.x && a.parts.rows == a.rows && a.parts.columns == a.width);
  check_argument(fits, "rms_norm", "parts");
  if (a.rows == 0) return;
  const bool whole = a.width % 4 == 0 && in_fours(a.x, a.ldx) && in_fours(a.weight) && in_fours(a.y, a.ldy) && in_fours(a.parts);
  launch_rms_norm(a, whole, stream);
  check_launch("rms_norm");
}

}  // namespace tandem::cuda
