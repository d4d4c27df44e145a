#include "cuda/common/early_launch.h"
#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/experts/experts.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 4 * kThreads;
constexpr int kAtOnce = 4;  // pairs whose loads are under way at a time

// Blocks of a row beside each other.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineExperts a, unsigned runs) {
  wait_for_inputs();
  const ColumnPlace place = place_of(runs, kRun);
  const int64_t pair = place.row * a.used, at = place.row * a.ldy + place.column;
  const int left = int(a.width) - place.column, used = int(a.used);
  if (left <= 0 || a.chosen[pair] < 0) return;
  Four sum{}, old{};
  if (a.onto != nullptr) old = load_four<kWhole>(a.onto + at, left);
  for (int first = 0; first < used; first += kAtOnce) {
    Four z[kAtOnce];
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      z[i] = load_four<kWhole>(a.z + (pair + first + i) * a.ldz + place.column, first + i < used ? left : 0);
    }
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= used) break;
      const float weight = a.weights != nullptr ? a.weights[pair + first + i] : 1.0f;
      GPU_UNROLL
      for (int c = 0; c < 4; ++c) sum.at[c] = fmaf(weight, z[i].at[c], sum.at[c]);
    }
  }
  GPU_UNROLL
  for (int c = 0; c < 4; ++c) sum.at[c] = a.onto != nullptr ? old.at[c] + sum.at[c] : sum.at[c];
  store_four<kWhole>(a.y + at, left, sum);
}

// A block has a pair, a thread two columns at a time.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads) silu_backward_kernel(ExpertsSiluBackward a) {
  const int64_t pair = a.order != nullptr ? a.order[blockIdx.x] : int64_t(blockIdx.x);
  if (pair < 0) return;
  const int width = int(a.width);
  const bf16* x = a.x + pair * 2 * width;
  const float* d = a.d + pair * a.ldd;
  bf16* dx = a.dx + int64_t(blockIdx.x) * 2 * width;
  const float weight = a.weights[pair];
  float sums[1] = {0};
  for (int i = 2 * int(threadIdx.x); i < width; i += 2 * kThreads) {
    const int left = 2 * (width - i);
    const Four both = load_four<kWhole>(x + 2 * i, left);
    Four out;
    GPU_UNROLL
    for (int c = 0; c < 4; c += 2) {
      const float of_y = c < left ? d[i + c / 2] : 0.0f;
      const SwigluBack back = swiglu_back(both.at[c], both.at[c + 1], weight * of_y);
      out.at[c] = back.d_gate, out.at[c + 1] = back.d_up;
      // As rounded as the product had it.
      sums[0] = fmaf(of_y, to_float(to_bf16(back.y)), sums[0]);
    }
    store_four<kWhole>(dx + 2 * i, left, out);
  }
  block_sums_once<kThreads>(sums);
  if (threadIdx.x == 0) a.d_weights[pair] = sums[0];
}

__global__ void __launch_bounds__(kThreads) gather_kernel(GatherPairs a) {
  wait_for_inputs();
  const int32_t pair = a.order[blockIdx.x];
  if (pair < 0) return;
  const bf16* x = a.x + pair / a.shared * a.ldx;
  bf16* y = a.y + int64_t(blockIdx.x) * a.width;
  for (int64_t i = int64_t(threadIdx.x) * 8; i < a.width; i += kThreads * 8) {
    *reinterpret_cast<uint4*>(y + i) = *reinterpret_cast<const uint4*>(x + i);
  }
}

}  // namespace

void gather_pairs(const GatherPairs& a, cudaStream_t stream) {
  const char* name = "gather_pairs";
  check_argument(a.pairs >= 0 && a.pairs < 1 << 30, name, "pairs");
  check_argument(a.shared >= 1, name, "shared");
  check_argument(a.width >= 8 && a.width % 8 == 0 && a.width <= a.ldx && a.ldx % 8 == 0, name, "width");
  check_argument((reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.y)) % 16 == 0, name, "x");
  if (a.pairs == 0) return;
  GPU_LAUNCH_EARLY(gather_kernel, dim3(unsigned(a.pairs)), dim3(kThreads), 0, stream, a);
  check_launch(name);
}

void combine_experts(const CombineExperts& a, cudaStream_t stream) {
  const char* name = "combine_experts";
  check_argument(a.used >= 1 && a.rows >= 0 && a.rows * a.used < 1 << 30, name, "rows");
  check_argument(a.width >= 1 && a.width <= a.ldz && a.width <= a.ldy && a.width < 1 << 24, name, "width");
  if (a.rows == 0) return;
  const unsigned runs = unsigned(ceil_div(a.width, kRun));
  check_argument(a.rows * runs < int64_t(1) << 31, name, "rows");
  const bool whole = a.width % 4 == 0 && in_fours(a.z, a.ldz) && in_fours(a.onto, a.ldy) && in_fours(a.y, a.ldy);
  const dim3 grid(unsigned(a.rows) * runs), block(kThreads);
  if (whole) GPU_LAUNCH_EARLY(combine_kernel<true>, grid, block, 0, stream, a, runs);
  else GPU_LAUNCH_EARLY(combine_kernel<false>, grid, block, 0, stream, a, runs);
  check_launch(name);
}

void experts_silu_backward(const ExpertsSiluBackward& a, cudaStream_t stream) {
  const char* name = "experts_silu_backward";
  check_argument(a.pairs >= 0 && a.pairs < 1 << 30, name, "pairs");
  check_argument(a.width >= 1 && a.width <= a.ldd && a.width < 1 << 24, name, "width");
  if (a.pairs == 0) return;
  const bool whole = a.width % 2 == 0 && in_fours(a.x) && in_fours(a.dx);
  const dim3 grid{unsigned(a.pairs)}, block(kThreads);
  if (whole) GPU_LAUNCH(silu_backward_kernel<true>, grid, block, 0, stream, a);
  else GPU_LAUNCH(silu_backward_kernel<false>, grid, block, 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
