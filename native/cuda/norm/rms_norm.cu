#include "cuda/norm/rms_norm.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
// Of wide rows, of which a step has few.
constexpr int kManyThreads = 1024;
constexpr int64_t kWide = 2048;

// One block per row. Each thread reads what it has written itself.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNorm a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const float* x = a.x + row * a.ldx;
  bf16* y = a.y + row * a.ldy;
  float squares = 0;
  if (a.parts.count > 0) {
    float* sums = a.sums + row * a.ldx;
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
      const float v = sums[i] + a.parts.sum(row, i);
      sums[i] = v;
      squares = fmaf(v, v, squares);
    }
  } else {
    GPU_UNROLL_8
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads) squares = fmaf(x[i], x[i], squares);
  }
  const float scale = rsqrtf(block_sum(squares) / float(a.width) + a.eps);
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) y[i] = to_bf16(x[i] * scale * a.weight[i]);
}

}  // namespace

void rms_norm(const RmsNorm& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "rms_norm", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy, "rms_norm", "width");
  check_argument(a.eps > 0, "rms_norm", "eps");
  const bool fits = a.parts.count == 0 || (a.sums == a.x && a.parts.rows == a.rows && a.parts.columns == a.width);
  check_argument(fits, "rms_norm", "parts");
  if (a.rows == 0) return;
  // By the width alone: the order of a row's sum.
  if (a.width < kWide) GPU_LAUNCH_EARLY(rms_norm_kernel<kThreads>, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  else GPU_LAUNCH_EARLY(rms_norm_kernel<kManyThreads>, dim3(unsigned(a.rows)), dim3(kManyThreads), 0, stream, a);
  check_launch("rms_norm");
}

}  // namespace tandem::cuda
