// The kernels that compute a product of BF16 weights (matmul.h). One serves all of an engine's products, whatever their number of tokens:
// which one it is may change bits. Quantised weights have one kernel and take no part in this.
#pragma once
#include "cuda/common/variant.h"
#include "cuda/gemm/split.h"

namespace tandem::cuda {

struct MatMulVariant {
  MatMulKernel kernel;
  const char* name;
  int least_major, most_major;  // compute capabilities that it runs on
  void (*launch)(const MatMul& args, const Split& split, cudaStream_t stream);
  // The way back.
  Split (*split_transposed)(int64_t n, int64_t k);
  void (*launch_transposed)(const MatMul& args, const Split& split, cudaStream_t stream);
};

// What matmul() checks is checked. mma.sync, also of quantised weights; and Hopper's own instructions.
void matmul_mma(const MatMul& args, const Split& split, cudaStream_t stream);
void matmul_wgmma(const MatMul& args, const Split& split, cudaStream_t stream);

// Likewise matmul_transposed(). With several parts the first adds them within a block, the second has a block for each.
Split split_transposed_mma(int64_t n, int64_t k);
void matmul_transposed_mma(const MatMul& args, const Split& split, cudaStream_t stream);
Split split_transposed_wgmma(int64_t n, int64_t k);
void matmul_transposed_wgmma(const MatMul& args, const Split& split, cudaStream_t stream);

const MatMulVariant& variant_of(MatMulKernel kernel);

// By its name in TANDEM_CUDA_MATMUL, as choose_variant (common/variant.h).
MatMulKernel matmul_kernel(const char* name, int major, int minor);

}  // namespace tandem::cuda
