#include "cuda/norm/rms_norm.h"

#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

// One block per row.
__global__ void rms_norm_kernel(RmsNorm a) {
  const float* x = a.x + int64_t(blockIdx.x) * a.ldx;
  bf16* y = a.y + int64_t(blockIdx.x) * a.ldy;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) squares = fmaf(x[i], x[i], squares);
  const float scale = rsqrtf(block_sum(squares) / float(a.width) + a.eps);
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) y[i] = to_bf16(x[i] * scale * a.weight[i]);
}

}  // namespace

void rms_norm(const RmsNorm& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "rms_norm", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy, "rms_norm", "width");
  check_argument(a.eps > 0, "rms_norm", "eps");
  if (a.rows == 0) return;
  GPU_LAUNCH(rms_norm_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("rms_norm");
}

}  // namespace tandem::cuda
