#include "no_cuda/cuda_info.h"

namespace tandem::cuda {

CudaInfo cuda_info() { return {false, 0, "this build has no CUDA back-end"}; }

}  // namespace tandem::cuda
