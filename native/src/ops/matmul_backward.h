// The gradients of matmul (ops/matmul.h) from the same packed weights, and of low-rank factors.
#pragma once
#include <cstdint>

#include "base/thread_pool.h"
#include "ops/matmul.h"

namespace tandem::ops {

// Floats between rows of dx: whole panels.
inline int64_t ld_backward(const PackedMatrix& w) { return round_up(w.columns_padded(), w.panel()); }
// All panels of dx.
inline PanelRange backward_panels(const PackedMatrix& w) { return {0, ld_backward(w) / w.panel()}; }

// dx[m, k] (+)= dy[m, n] . w[n, k], n over the panels of `range`, k over the panels of `columns`. dy: rows of element(w) type, ld_dy
// apart, beginning with the outputs of panel `dy_panel` and as long as `range` asks for, what pads them zero. dx: rows of floats, ld_dx
// apart (>= ld_backward(w); all of `columns` is written).
// Quantised weights are dequantised tile by tile, rounded to element(w).
// Panels are turned tile by tile into the layout of the forward product, so no second copy of the weights exists. Each dx[i][j] is one
// chain over n ascending: calls over consecutive ranges with `accumulate` give the bits of one call over them all.
void matmul_backward(const simd::Kernels& kernels, ThreadPool& pool, const void* dy, int64_t ld_dy, int64_t m, const PackedMatrix& w,
                     PanelRange range, PanelRange columns, float* dx, int64_t ld_dx, bool accumulate, int64_t dy_panel = 0);

// The naive truth in double, dy as floats.
void matmul_backward_reference(const float* dy, int64_t ld_dy, int64_t m, const PackedMatrix& w, PanelRange range, float* dx, int64_t ld_dx,
                               bool accumulate);

// grad[r][j] += sum over rows t ascending of u[t][r] * x[t][j]: the gradient of a factor. u: m rows of `ranks` floats, ldu apart;
// x: m rows of n elements, ldx apart; grad: rows of floats, ld_grad apart (>= n rounded up to kernels.panel, what pads it is written).
// Only the columns j in those panels of kernels.panel each.
void accumulate_outer(const simd::Kernels& kernels, ThreadPool& pool, const float* u, int64_t ldu, int64_t ranks, const void* x,
                      int64_t ldx, Element element, int64_t m, int64_t n, PanelRange columns, float* grad, int64_t ld_grad);

}  // namespace tandem::ops
