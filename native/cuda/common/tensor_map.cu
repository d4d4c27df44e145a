#include "cuda/common/tensor_map.h"

#include <string>

#include "base/error.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION

TensorMap tensor_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows) {
  return {data, rows, columns, ld, box_rows};
}

TensorMap panels_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows, int halves, int panels) {
  return {data, rows, columns, ld, box_rows, halves, panels};
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

constexpr cuuint32_t kColumns = 64;  // of a box

TensorMap encoded(const bf16* data, cuuint32_t rank, const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box) {
  static const Encode encode = find_encode();
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1};
  TensorMap map;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<bf16*>(data), sizes, strides, box, kSteps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw Error(ErrorKind::kState, "cuTensorMapEncodeTiled: error " + std::to_string(int(result)));
  return map;
}

}  // namespace

TensorMap tensor_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows) {
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[] = {cuuint64_t(ld) * sizeof(bf16)};
  const cuuint32_t box[] = {kColumns, cuuint32_t(box_rows)};
  return encoded(data, 2, sizes, strides, box);
}

TensorMap panels_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows, int halves, int panels) {
  const int64_t half = rows / halves;
  const cuuint64_t sizes[] = {kColumns, cuuint64_t(half), cuuint64_t(halves), cuuint64_t(columns / kColumns)};
  const cuuint64_t row = cuuint64_t(ld) * sizeof(bf16), strides[] = {row, row * cuuint64_t(half), kColumns * sizeof(bf16)};
  const cuuint32_t box[] = {kColumns, cuuint32_t(box_rows), cuuint32_t(halves), cuuint32_t(panels)};
  return encoded(data, 4, sizes, strides, box);
}

#endif

}  // namespace tandem::cuda
