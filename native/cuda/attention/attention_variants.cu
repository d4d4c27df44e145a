#include "cuda/attention/attention_variants.h"

namespace tandem::cuda {
namespace {

// The first that a device has the instructions for is its default. None is put there before it has passed scripts/gpu-check on a device.
constexpr AttentionVariant kVariants[] = {
    {AttentionKernel::kWgmma, "wgmma", 9, 9, attention_wgmma, attention_backward_wgmma},
    {AttentionKernel::kMma, "mma", 8, 99, attention_mma, attention_backward_mma},
};

}  // namespace

const AttentionVariant& variant_of(AttentionKernel kernel) { return variant_with(kVariants, kernel); }

AttentionKernel attention_kernel(const char* name, int major, int minor) {
  return choose_variant("TANDEM_CUDA_ATTENTION", kVariants, name, major, minor).kernel;
}

}  // namespace tandem::cuda
