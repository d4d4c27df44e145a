// Who makes what the adapters of few rows add to a product (LoraPart), with the same bits.
#pragma once
#include "cuda/common/variant.h"

namespace tandem::cuda {

enum class AdapterKernel : uint8_t {
  kBehind,  // launches behind the product (lora_part)
  kWithin,  // blocks of the product's own launch (lora_within) for one adapter, where matmul_takes_adapters(); behind all others
};

const NamedVariant<AdapterKernel>& variant_of(AdapterKernel kernel);

// By its name in TANDEM_CUDA_ADAPTERS, as choose_variant (common/variant.h).
AdapterKernel adapter_kernel(const char* name, int major, int minor);

}  // namespace tandem::cuda
