#include "cuda/optimizer/adamw.h"

#include <cmath>

#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kAdamThreads = 256;

// `rate` and `root` carry the bias corrections: rate = lr / (1 - beta1^t), root = sqrt(1 - beta2^t).
__global__ void __launch_bounds__(kAdamThreads) adamw_kernel(AdamW a, float rate, float root) {
  const int64_t i = int64_t(blockIdx.x) * kAdamThreads + threadIdx.x;
  if (i >= a.count) return;
  const float scale = *a.scale, gradient = a.gradients[i] * scale;
  a.gradients[i] = 0;
  if (scale == 0) return;
  const float m = a.m[i] + (1 - a.beta1) * (gradient - a.m[i]);
  const float v = a.beta2 * a.v[i] + (1 - a.beta2) * gradient * gradient;
  a.m[i] = m;
  a.v[i] = v;
  const float weight = a.weights[i] * (1 - a.learning_rate * a.weight_decay);
  const float moved = weight - rate * m / (sqrtf(v) / root + a.eps);
  a.weights[i] = moved;
  a.rounded[i] = to_bf16(moved);
}

// Block p sums every kSumParts-th run of kAdamThreads values: the order depends on the count alone.
__global__ void __launch_bounds__(kAdamThreads) sum_squares_kernel(SumSquares a) {
  float sum = 0;
  for (int64_t i = int64_t(blockIdx.x) * kAdamThreads + threadIdx.x; i < a.count; i += kSumParts * kAdamThreads) {
    sum = fmaf(a.values[i], a.values[i], sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) a.parts[blockIdx.x] = sum;
}

__global__ void add_sums_kernel(SumSquares a) {
  float sum = 0;
  for (int64_t i = 0; i < kSumParts; ++i) sum += a.parts[i];
  *a.total += sum;
}

__global__ void clip_scale_kernel(const float* total, float largest, float* norm, float* scale) {
  *norm = sqrtf(*total);
  if (!isfinite(*norm)) {
    *scale = 0;
  } else {
    *scale = *norm > largest ? largest / (*norm + 1e-6f) : 1.0f;
  }
}

}  // namespace

void adamw(const AdamW& a, cudaStream_t stream) {
  check_argument(a.count >= 0 && a.count < int64_t(1) << 38, "adamw", "count");
  check_argument(a.step >= 1, "adamw", "step");
  check_argument(a.beta1 >= 0 && a.beta1 < 1 && a.beta2 >= 0 && a.beta2 < 1, "adamw", "beta");
  if (a.count == 0) return;
  const double rate = double(a.learning_rate) / (1 - std::pow(double(a.beta1), double(a.step)));
  const double root = std::sqrt(1 - std::pow(double(a.beta2), double(a.step)));
  const dim3 grid(unsigned(ceil_div(a.count, kAdamThreads)));
  GPU_LAUNCH(adamw_kernel, grid, dim3(kAdamThreads), 0, stream, a, float(rate), float(root));
  check_launch("adamw");
}

void add_sum_squares(const SumSquares& a, cudaStream_t stream) {
  check_argument(a.count >= 0, "add_sum_squares", "count");
  GPU_LAUNCH(sum_squares_kernel, dim3(unsigned(kSumParts)), dim3(kAdamThreads), 0, stream, a);
  check_launch("add_sum_squares");
  GPU_LAUNCH(add_sums_kernel, dim3(1), dim3(1), 0, stream, a);
  check_launch("add_sum_squares");
}

void clip_scale(const float* total, float largest, float* norm, float* scale, cudaStream_t stream) {
  check_argument(largest > 0, "clip_scale", "largest");
  GPU_LAUNCH(clip_scale_kernel, dim3(1), dim3(1), 0, stream, total, largest, norm, scale);
  check_launch("clip_scale");
}

}  // namespace tandem::cuda
