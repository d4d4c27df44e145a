// What every launcher does around its kernel: arguments are checked before, the launch itself after.
#pragma once
#include <string>

#include "base/error.h"
#include "cuda/common/device_buffer.h"

namespace tandem::cuda {

// Throws Error(kRange) "<kernel>: <what>".
inline void check_argument(bool ok, const char* kernel, const char* what) {
  if (!ok) throw Error(ErrorKind::kRange, std::string(kernel) + ": " + what);
}

// Throws Error(kState) when the launch failed; a fault inside the kernel shows at a later call.
inline void check_launch([[maybe_unused]] const char* kernel) {
#ifndef TANDEM_GPU_EMULATION
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw Error(ErrorKind::kState, std::string(kernel) + ": " + cudaGetErrorString(error));
#endif
}

// Lets a kernel use more than 48 KiB of shared memory. Throws Error(kUnsupported) where the device has less.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, size_t bytes, const char* name) {
  if (bytes <= 48 << 10) return;
#ifdef TANDEM_GPU_EMULATION
  const bool there = gpu_emulation::allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
#else
  const bool there = worked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
#endif
  if (!there) throw Error(ErrorKind::kUnsupported, std::string(name) + ": the device has too little shared memory");
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tandem::cuda
