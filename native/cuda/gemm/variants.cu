#include "cuda/gemm/variants.h"

#include "base/error.h"

namespace tandem::cuda {
namespace {

// The first is the default. No other becomes it before it has passed scripts/gpu-check on a device.
constexpr MatMulVariant kVariants[] = {
    {MatMulKernel::kMma, "mma", 8, 99, matmul_mma},
    {MatMulKernel::kWgmma, "wgmma", 9, 9, matmul_wgmma},
};

}  // namespace

const MatMulVariant& variant_of(MatMulKernel kernel) { return kVariants[size_t(kernel)]; }

MatMulKernel matmul_kernel(const char* name, int major, int minor) {
  if (!name || !*name) return kVariants[0].kernel;
  std::string names;
  for (const MatMulVariant& variant : kVariants) {
    if (variant.name != std::string(name)) {
      names += names.empty() ? variant.name : std::string(" or ") + variant.name;
      continue;
    }
    if (major >= variant.least_major && major <= variant.most_major) return variant.kernel;
    throw Error(ErrorKind::kUnsupported, std::string("TANDEM_CUDA_MATMUL=") + name + " needs a GPU of compute capability " +
                                             std::to_string(variant.least_major) + ".x, and this one has " + std::to_string(major) + "." +
                                             std::to_string(minor));
  }
  throw Error(ErrorKind::kRange, "TANDEM_CUDA_MATMUL must be " + names);
}

}  // namespace tandem::cuda
