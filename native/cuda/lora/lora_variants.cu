#include "cuda/lora/lora_variants.h"

namespace tandem::cuda {
namespace {

// The first that a device has the instructions for is its default. None is put there before it has passed scripts/gpu-check on a device.
constexpr NamedVariant<AdapterKernel> kAdapterVariants[] = {
    {AdapterKernel::kWithin, "within", 9, 9},
    {AdapterKernel::kBehind, "behind", 8, 99},
};

}  // namespace

const NamedVariant<AdapterKernel>& variant_of(AdapterKernel kernel) { return variant_with(kAdapterVariants, kernel); }

AdapterKernel adapter_kernel(const char* name, int major, int minor) {
  return choose_variant("TANDEM_CUDA_ADAPTERS", kAdapterVariants, name, major, minor).kernel;
}

}  // namespace tandem::cuda
