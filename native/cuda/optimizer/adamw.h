// AdamW (Loshchilov and Hutter 2019) with float state, as PyTorch's: decay first, then the bias-corrected step.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

struct AdamW {
  float* weights;    // count
  float* gradients;  // count; zero afterwards
  float* m;          // first moment
  float* v;          // second moment
  bf16* rounded;     // the weights as they serve
  int64_t count;
  float learning_rate, beta1, beta2, eps, weight_decay;
  int64_t step;        // 1, 2, ...
  const float* scale;  // in device memory: gradients are multiplied by it (clipping); 0 leaves everything as it is
};
void adamw(const AdamW& args, cudaStream_t stream);

// Sum of squares in a fixed order, added to *total; NaN or infinity of a gradient stays in it.
struct SumSquares {
  const float* values;
  int64_t count;
  float* parts;  // kSumParts floats of scratch
  float* total;
};
constexpr int64_t kSumParts = 256;
void add_sum_squares(const SumSquares& args, cudaStream_t stream);

// *norm = sqrt(*total); *scale = the factor that clips to `largest`, or 0 where the norm is not finite: the step is then skipped.
void clip_scale(const float* total, float largest, float* norm, float* scale, cudaStream_t stream);

}  // namespace tandem::cuda
