// What this build knows of CUDA devices.
#pragma once
#include <string>

namespace tandem::cuda {

struct CudaInfo {
  bool built;
  int devices;
  std::string message;
};

CudaInfo cuda_info();

}  // namespace tandem::cuda
