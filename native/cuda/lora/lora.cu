#include "cuda/lora/lora.h"

#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

__device__ __forceinline__ LoraWeights weights_of(const Lora& a, int64_t row) {
  const int32_t index = a.row_adapters[row];
  if (index < 0 || index >= a.adapter_count) return {nullptr, nullptr, 0, 0};
  LoraWeights w = a.adapters[index];
  w.rank = min(w.rank, int32_t(a.most_rank));
  return w;
}

// Block (row, group of ranks): a warp per rank.
__global__ void __launch_bounds__(kThreads) shrink_kernel(Lora a) {
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
  const int64_t row = blockIdx.x, output = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  const LoraWeights w = weights_of(a, row);
  if (output >= a.out || w.rank == 0) return;
  const float* u = a.u + row * a.most_rank;
  float sum = 0;
  for (int r = 0; r < w.rank; ++r) sum = fmaf(to_float(w.b[r * a.out + output]), u[r], sum);
  a.y[row * a.ldy + output] += sum;
}

}  // namespace

void lora_add(const Lora& a, cudaStream_t stream) {
  const char* name = "lora_add";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.in >= 1 && a.in <= a.ldx, name, "in");
  check_argument(a.out >= 1 && a.out <= a.ldy && a.out < 1 << 23, name, "out");
  check_argument(a.most_rank >= 0 && a.most_rank <= 1024, name, "most_rank");
  if (a.rows == 0 || a.most_rank == 0 || a.adapter_count == 0) return;
  const dim3 shrink(unsigned(a.rows), unsigned(ceil_div(a.most_rank, kWarps)));
  GPU_LAUNCH(shrink_kernel, shrink, dim3(kThreads), 0, stream, a);
  check_launch("lora_add: shrink");
  const dim3 expand(unsigned(a.rows), unsigned(ceil_div(a.out, kThreads)));
  GPU_LAUNCH(expand_kernel, expand, dim3(kThreads), 0, stream, a);
  check_launch("lora_add: expand");
}

}  // namespace tandem::cuda
