#include "cuda/experts/expert_variants.h"

namespace tandem::cuda {
namespace {

// The first that a device has the instructions for is its default. None is put there before it has passed scripts/gpu-check on a device.
constexpr NamedVariant<ExpertKernel> kExpertVariants[] = {
    {ExpertKernel::kMma, "mma", 8, 99},
    {ExpertKernel::kWgmma, "wgmma", 9, 9},
};

}  // namespace

const NamedVariant<ExpertKernel>& variant_of(ExpertKernel kernel) { return variant_with(kExpertVariants, kernel); }

ExpertKernel expert_kernel(const char* name, int major, int minor) {
  return choose_variant("TANDEM_CUDA_EXPERTS", kExpertVariants, name, major, minor).kernel;
}

}  // namespace tandem::cuda
