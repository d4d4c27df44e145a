#include "cuda/common/tensor_map.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace tandem::cuda {
namespace {

constexpr uint64_t kColumns = 64;  // of a box

// A matrix as the driver is told of it, from the innermost dimension on; strides in bytes.
struct Boxes {
  uint32_t rank;
  uint64_t sizes[4], strides[3];
  uint32_t box[4];
};

Boxes boxes_of(int64_t rows, int64_t columns, int64_t ld, int box_rows) {
  return {2, {uint64_t(columns), uint64_t(rows)}, {uint64_t(ld) * sizeof(bf16)}, {kColumns, uint32_t(box_rows)}};
}

Boxes panels_of(int64_t rows, int64_t columns, int64_t ld, int box_rows, int halves, int panels) {
  const uint64_t half = uint64_t(rows / halves), row = uint64_t(ld) * sizeof(bf16);
  return {4,
          {kColumns, half, uint64_t(halves), uint64_t(columns) / kColumns},
          {row, row * half, kColumns * sizeof(bf16)},
          {kColumns, uint32_t(box_rows), uint32_t(halves), uint32_t(panels)}};
}

#ifdef TANDEM_GPU_EMULATION

// Refuses what the driver does (CUDA driver API, cuTensorMapEncodeTiled).
void check(const bf16* data, const Boxes& boxes) {
  bool ok = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (uint32_t i = 0; i < boxes.rank; ++i) {
    ok = ok && boxes.sizes[i] >= 1 && boxes.sizes[i] <= uint64_t(1) << 32 && boxes.box[i] >= 1 && boxes.box[i] <= 256;
  }
  for (uint32_t i = 0; i + 1 < boxes.rank; ++i) ok = ok && boxes.strides[i] % 16 == 0 && boxes.strides[i] < uint64_t(1) << 40;
  require(ok, ErrorKind::kState, "cuTensorMapEncodeTiled: the data, its strides, sizes or boxes");
}

#else

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

TensorMap encode(const bf16* data, const Boxes& boxes) {
  static_assert(sizeof(cuuint64_t) == sizeof(uint64_t) && sizeof(cuuint32_t) == sizeof(uint32_t));
  static const Encode driver = find_encode();
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1};
  cuuint64_t sizes[4], strides[3];
  std::copy(boxes.sizes, boxes.sizes + 4, sizes);
  std::copy(boxes.strides, boxes.strides + 3, strides);
  TensorMap map;
  const CUresult result = driver(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, boxes.rank, const_cast<bf16*>(data), sizes, strides, boxes.box,
                                 kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw Error(ErrorKind::kState, "cuTensorMapEncodeTiled: error " + std::to_string(int(result)));
  return map;
}

#endif

}  // namespace

TensorMap tensor_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows) {
  const Boxes boxes = boxes_of(rows, columns, ld, box_rows);
#ifdef TANDEM_GPU_EMULATION
  check(data, boxes);
  return {data, rows, columns, ld, box_rows};
#else
  return encode(data, boxes);
#endif
}

TensorMap panels_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows, int halves, int panels) {
  const Boxes boxes = panels_of(rows, columns, ld, box_rows, halves, panels);
#ifdef TANDEM_GPU_EMULATION
  check(data, boxes);
  return {data, rows, columns, ld, box_rows, halves, panels};
#else
  return encode(data, boxes);
#endif
}

}  // namespace tandem::cuda
