// The products of ops/matmul.h with quantised weights.
#pragma once
#include "ops/matmul.h"

namespace tandem::ops {

// matmul_panels for a quantised w: rows of x are quantised once, each by itself, in groups of 32 (simd/quant_format.h), then every panel
// is multiplied in whole numbers. One arithmetic whatever m: each y[i][j] is one chain over the groups of k (simd/quant_kernels.h).
void quantised_matmul_panels(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                             PanelRange range, float* y, int64_t ldy, bool accumulate, const AfterPanel& after);

// matmul_gated for quantised weights.
void quantised_matmul_gated(const simd::Kernels& kernels, ThreadPool& pool, const void* x, int64_t ldx, int64_t m, const PackedMatrix& w,
                            const AfterGate& after);

// matmul_all for quantised weights.
void quantised_matmul_all(const simd::Kernels& kernels, ThreadPool& pool, const std::vector<MatmulJob>& jobs, const PackedMatrix& w,
                          int64_t ldx, int64_t ldy);

}  // namespace tandem::ops
