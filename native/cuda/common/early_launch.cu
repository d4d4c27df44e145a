#include "cuda/common/early_launch.h"

#include <cstdlib>

#include "cuda/common/device_buffer.h"

namespace tandem::cuda {

#ifndef TANDEM_GPU_EMULATION

bool early_launches_wanted() {
  const char* value = std::getenv("TANDEM_CUDA_EARLY_LAUNCH");
  return !value || std::strcmp(value, "0") != 0;
}

bool waits_for_inputs(const void* kernel) {
  cudaFuncAttributes attributes{};
  return worked(cudaFuncGetAttributes(&attributes, kernel)) && attributes.ptxVersion >= 90 && attributes.binaryVersion >= 90;
}

#endif

}  // namespace tandem::cuda
