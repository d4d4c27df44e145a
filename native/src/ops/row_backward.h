// Gradients of the row-wise operations, as the kernels give them (simd/backward_kernels.h).
#pragma once
#include "ops/element.h"
#include "simd/backward_kernels.h"

namespace tandem::ops {

// dx += the gradient of the RMS norm of x, given d, that of its output.
inline void rms_norm_backward(const simd::Kernels& kernels, const float* x, const float* weight, const float* d, int64_t n, float eps,
                              float* dx) {
  simd::backward_kernels_for(kernels.isa).rms_norm_backward(x, weight, d, n, eps, dx);
}

// n elements of gate and, after them, n of up; the gradients likewise.
inline void silu_mul_backward(const simd::Kernels& kernels, Element element, const void* gate_up, const float* d, int64_t n, void* out) {
  const simd::BackwardKernels& backward = simd::backward_kernels_for(kernels.isa);
  if (element == Element::kBf16) {
    auto* gate = static_cast<const uint16_t*>(gate_up);
    auto* to = static_cast<uint16_t*>(out);
    backward.silu_mul_backward_bf16(gate, gate + n, d, n, to, to + n);
  } else {
    auto* gate = static_cast<const float*>(gate_up);
    auto* to = static_cast<float*>(out);
    backward.silu_mul_backward_f32(gate, gate + n, d, n, to, to + n);
  }
}

}  // namespace tandem::ops
