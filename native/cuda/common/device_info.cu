#include "cuda/common/device_info.h"

#include "base/error.h"
#include "cuda/common/device_buffer.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION

// Of the emulation, which has every instruction that a kernel uses.
DeviceInfo device_info() { return {1, "emulated", gpu_emulation::kDeviceBytes, 9, 0}; }
// Few, so that a block has many things to do.
int device_multiprocessors() { return 2; }
size_t device_free_bytes() { return gpu_emulation::free_bytes(); }

#else

// sm_80: bf16 tensor cores, asynchronous copies.
constexpr int kLeastMajor = 8;

DeviceInfo device_info() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver)
    return {0, "no NVIDIA driver is installed, or it is older than the CUDA of this build", 0, 0, 0};
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) return {0, "the machine has no NVIDIA GPU", 0, 0, 0};
  cudaDeviceProp properties;
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) return {0, cudaGetErrorString(error), 0, 0, 0};
  if (properties.major < kLeastMajor) return {0, std::string(properties.name) + " is older than compute capability 8.0", 0, 0, 0};
  return {count, properties.name, properties.totalGlobalMem, properties.major, properties.minor};
}

int device_multiprocessors() {
  static const int count = [] {
    int device = 0, found = 0;
    check_call(cudaGetDevice(&device), "cudaGetDevice");
    check_call(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return found;
  }();
  return count;
}

size_t device_free_bytes() {
  size_t free = 0, total = 0;
  check_call(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

#endif

}  // namespace tandem::cuda
