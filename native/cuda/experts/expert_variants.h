// The kernels that multiply pairs with the BF16 weights of their experts (experts.h). One serves all of an engine's: which one it is may change bits.
#pragma once
#include "cuda/common/variant.h"

namespace tandem::cuda {

enum class ExpertKernel : uint8_t { kMma, kWgmma };

const NamedVariant<ExpertKernel>& variant_of(ExpertKernel kernel);
// By its name in TANDEM_CUDA_EXPERTS, as choose_variant (common/variant.h).
ExpertKernel expert_kernel(const char* name, int major, int minor);

}  // namespace tandem::cuda
