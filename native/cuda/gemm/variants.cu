#include "cuda/gemm/variants.h"

namespace tandem::cuda {
namespace {

// The first that a device has the instructions for is its default. None is put there before it has passed scripts/gpu-check on a device.
constexpr MatMulVariant kVariants[] = {
    {MatMulKernel::kWgmma, "wgmma", 9, 9, matmul_wgmma, split_transposed_wgmma, matmul_transposed_wgmma},
    {MatMulKernel::kMma, "mma", 8, 99, matmul_mma, split_transposed_mma, matmul_transposed_mma},
};

}  // namespace

const MatMulVariant& variant_of(MatMulKernel kernel) { return variant_with(kVariants, kernel); }

MatMulKernel matmul_kernel(const char* name, int major, int minor) {
  return choose_variant("TANDEM_CUDA_MATMUL", kVariants, name, major, minor).kernel;
}

}  // namespace tandem::cuda
