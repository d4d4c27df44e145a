// AdamW with decoupled weight decay (Loshchilov and Hutter), the arithmetic of PyTorch's torch.optim.AdamW in FP32.
#pragma once
#include <cstdint>

namespace tandem::ops {

struct AdamW {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

// One step over n values: their moments m and v, `step` counted from 1, gradients taken times grad_scale.
void adamw(const AdamW& options, int64_t step, float grad_scale, int64_t n, const float* grad, float* value, float* m, float* v);

// The naive truth in double.
void adamw_reference(const AdamW& options, int64_t step, double grad_scale, int64_t n, const float* grad, double* value, double* m,
                     double* v);

// Sum of squares, ascending, in double. Not finite where a value is not.
double sum_of_squares(const float* x, int64_t n);

}  // namespace tandem::ops
