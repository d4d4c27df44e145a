#include "ops/adamw.h"

#include <cmath>

namespace tandem::ops {

void adamw(const AdamW& o, int64_t step, float grad_scale, int64_t n, const float* grad, float* value, float* m, float* v) {
  double correction1 = 1 - std::pow(o.beta1, double(step)), correction2 = 1 - std::pow(o.beta2, double(step));
  float keep = float(1 - o.learning_rate * o.weight_decay), step_size = float(o.learning_rate / correction1);
  float root2 = float(std::sqrt(correction2)), beta2 = float(o.beta2), eps = float(o.eps);
  float weight1 = float(1 - o.beta1), weight2 = float(1 - o.beta2);
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * grad_scale;
    m[i] += weight1 * (g - m[i]);
    v[i] = v[i] * beta2 + weight2 * g * g;
    value[i] = value[i] * keep - step_size * (m[i] / (std::sqrt(v[i]) / root2 + eps));
  }
}

void adamw_reference(const AdamW& o, int64_t step, double grad_scale, int64_t n, const float* grad, double* value, double* m, double* v) {
  for (int64_t i = 0; i < n; ++i) {
    double g = grad[i] * grad_scale;
    value[i] -= o.learning_rate * o.weight_decay * value[i];
    m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
    v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
    double corrected_m = m[i] / (1 - std::pow(o.beta1, double(step))), corrected_v = v[i] / (1 - std::pow(o.beta2, double(step)));
    value[i] -= o.learning_rate * corrected_m / (std::sqrt(corrected_v) + o.eps);
  }
}

double sum_of_squares(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * double(x[i]);
  return sum;
}

}  // namespace tandem::ops
