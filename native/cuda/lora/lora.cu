#include "cuda/lora/lora.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Of a block that gathers a factor's gradient.
constexpr int kOuterColumns = 2 * kWarp;
constexpr int kOuterRanks = 8;

__device__ __forceinline__ LoraWeights weights_of(const Lora& a, int64_t row) {
  const int32_t index = a.row_adapters[row];
  if (index < 0 || index >= a.adapter_count) return {nullptr, nullptr, 0, 0};
  LoraWeights w = a.adapters[index];
  w.rank = min(w.rank, int32_t(a.most_rank));
  return w;
}

// Block (row, group of ranks): a warp per rank.
__global__ void __launch_bounds__(kThreads) shrink_kernel(Lora a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const LoraWeights w = weights_of(a, row);
  const int rank = int(blockIdx.y) * kWarps + int(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (rank >= w.rank) return;
  const bf16* x = a.x + row * a.ldx;
  const bf16* factor = w.a + rank * a.in;
  float sum = 0;
  for (int64_t k = lane; k < a.in; k += kWarp) sum = fmaf(to_float(x[k]), to_float(factor[k]), sum);
  sum = warp_sum(sum);
  if (lane == 0) a.u[row * a.most_rank + rank] = w.scale * sum;
}

// Block (row, tile of outputs): a thread per output.
__global__ void __launch_bounds__(kThreads) expand_kernel(Lora a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x, output = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  const LoraWeights w = weights_of(a, row);
  if (output >= a.out || w.rank == 0) return;
  const float* u = a.u + row * a.most_rank;
  float sum = 0;
  for (int r = 0; r < w.rank; ++r) sum = fmaf(to_float(w.b[r * a.out + output]), u[r], sum);
  a.y[row * a.ldy + output] += sum;
}

void check(const Lora& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.in >= 1 && a.in <= a.ldx, name, "in");
  check_argument(a.out >= 1 && a.out <= a.ldy && a.out < 1 << 23, name, "out");
  check_argument(a.most_rank >= 0 && a.most_rank <= 1024, name, "most_rank");
}

bool nothing_to_do(const Lora& a) { return a.rows == 0 || a.most_rank == 0 || a.adapter_count == 0; }

// Block (tile of columns, group of ranks): a lane per column and another one 32 further, each warp every eighth row; then the warps' sums
// in order.
__global__ void __launch_bounds__(kThreads) outer_kernel(LoraOuter a) {
  __shared__ float parts[kWarps][kOuterRanks][kOuterColumns];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = int64_t(blockIdx.x) * kOuterColumns, first_rank = int64_t(blockIdx.y) * kOuterRanks;
  float sums[kOuterRanks][2] = {};
  for (int64_t row = warp; row < a.rows; row += kWarps) {
    const bf16* x = a.x + row * a.ldx + first;
    const float low = first + lane < a.columns ? to_float(x[lane]) : 0.0f;
    const float high = first + lane + kWarp < a.columns ? to_float(x[lane + kWarp]) : 0.0f;
    GPU_UNROLL
    for (int r = 0; r < kOuterRanks; ++r) {
      const float u = first_rank + r < a.ranks ? a.u[row * a.ldu + first_rank + r] : 0.0f;
      sums[r][0] = fmaf(u, low, sums[r][0]);
      sums[r][1] = fmaf(u, high, sums[r][1]);
    }
  }
  for (int r = 0; r < kOuterRanks; ++r) {
    parts[warp][r][lane] = sums[r][0];
    parts[warp][r][lane + kWarp] = sums[r][1];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kOuterRanks * kOuterColumns; i += kThreads) {
    const int64_t rank = first_rank + i / kOuterColumns, column = first + i % kOuterColumns;
    if (rank >= a.ranks || column >= a.columns) continue;
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += parts[w][i / kOuterColumns][i % kOuterColumns];
    a.gradient[rank * a.columns + column] += sum;
  }
}

}  // namespace

void lora_shrink(const Lora& a, cudaStream_t stream) {
  check(a, "lora_shrink");
  if (nothing_to_do(a)) return;
  const dim3 grid(unsigned(a.rows), unsigned(ceil_div(a.most_rank, kWarps)));
  GPU_LAUNCH_EARLY(shrink_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch("lora_shrink");
}

void lora_expand(const Lora& a, cudaStream_t stream) {
  check(a, "lora_expand");
  if (nothing_to_do(a)) return;
  const dim3 grid(unsigned(a.rows), unsigned(ceil_div(a.out, kThreads)));
  GPU_LAUNCH_EARLY(expand_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch("lora_expand");
}

void lora_add(const Lora& a, cudaStream_t stream) {
  lora_shrink(a, stream);
  lora_expand(a, stream);
}

void lora_outer(const LoraOuter& a, cudaStream_t stream) {
  const char* name = "lora_outer";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.ranks >= 1 && a.ranks <= a.ldu && a.ranks <= 1024, name, "ranks");
  check_argument(a.columns >= 1 && a.columns <= a.ldx && a.columns < 1 << 26, name, "columns");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(ceil_div(a.columns, kOuterColumns)), unsigned(ceil_div(a.ranks, kOuterRanks)));
  GPU_LAUNCH(outer_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
