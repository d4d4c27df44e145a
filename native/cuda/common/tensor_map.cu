#include "cuda/common/tensor_map.h"

#include <string>

#include "base/error.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION

TensorMap tensor_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows) {
  return {data, rows, columns, ld, box_rows};
}

#else

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: nothing links to the driver.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  const bool there = error == cudaSuccess && found == cudaDriverEntryPointSuccess && function != nullptr;
  require(there, ErrorKind::kState, "the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

TensorMap tensor_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows) {
  static const Encode encode = find_encode();
  constexpr cuuint32_t kColumns = 64;
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[] = {cuuint64_t(ld) * sizeof(bf16)};
  const cuuint32_t box[] = {kColumns, cuuint32_t(box_rows)}, steps[] = {1, 1};
  TensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw Error(ErrorKind::kState, "cuTensorMapEncodeTiled: error " + std::to_string(int(result)));
  return map;
}

#endif

}  // namespace tandem::cuda
