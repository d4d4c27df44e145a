// The kernels that only training needs, as one table per instruction set, beside Kernels (kernels.h), under the same reduction contract.
#pragma once
#include <cstdint>

#include "simd/kernels.h"

namespace tandem::simd {

// Keys in a row of positions whose gradients lie one row after another: position first + i at dk + i * ld, dv + i * ld.
struct KeySpan {
  int32_t first, count;
  float* dk;
  float* dv;
  int64_t ld;
};

// The backward pass of AttendArgs: the same rows, pages and limits.
//   d_out  rows x dim of T: the gradient of `out`
//   dq     rows x dim floats, written
//   spans  every position that a row sees, each once; dk and dv are added to, dim floats each
//   scratch: attend_backward_scratch(last position + 1, dim) floats, 64-byte aligned
template <typename T>
struct AttendBackwardArgs {
  const T* q;
  const T* d_out;
  const T* const* key_pages;
  const T* const* value_pages;
  const int32_t* first;
  const int32_t* last;
  int rows;
  int dim;
  float scale;
  float* dq;
  const KeySpan* spans;
  int span_count;
  float* scratch;
};

// Four matrices of kAttendRows x keys, a tile of turned pages and the paired rows.
inline int64_t attend_backward_scratch(int64_t keys, int64_t dim) {
  int64_t padded = (keys + kKeyTile - 1) / kKeyTile * kKeyTile;
  return 4 * kAttendRows * padded + (kKeyTile + kAttendRows) * dim;
}

struct BackwardKernels {
  // [k/2][n][2] to [n/2][k][2] (bf16; the rows of pairs ld elements apart), and [rows][columns] to [columns][rows] (float).
  // All sizes are multiples of 16.
  void (*transpose_pairs)(const uint16_t* in, int64_t ld_in, int64_t k, int64_t n, uint16_t* out, int64_t ld_out);
  void (*transpose_floats)(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float* out, int64_t ld_out);
  void (*widen)(const uint16_t* x, int64_t n, float* out);
  // dx += the gradient of rms_norm (kernels.h) with respect to x, given d, that of its output.
  void (*rms_norm_backward)(const float* x, const float* weight, const float* d, int64_t n, float eps, float* dx);
  // The gradients of silu_mul (kernels.h) with respect to gate and up.
  void (*silu_mul_backward_bf16)(const uint16_t* gate, const uint16_t* up, const float* d, int64_t n, uint16_t* d_gate, uint16_t* d_up);
  void (*silu_mul_backward_f32)(const float* gate, const float* up, const float* d, int64_t n, float* d_gate, float* d_up);
  // tile_exp (kernels.h) at scale 1, the terms as T, and per tile also the sum of term * (x - max).
  void (*tile_softmax_bf16)(const float* x, int64_t n, float max, uint16_t* out, float* sums, float* weighted);
  void (*tile_softmax_f32)(const float* x, int64_t n, float max, float* out, float* sums, float* weighted);
  void (*attend_backward_bf16)(const AttendBackwardArgs<uint16_t>& args);
  void (*attend_backward_f32)(const AttendBackwardArgs<float>& args);
};

// The table of one set; throws Error(kUnsupported) if the build lacks it.
const BackwardKernels& backward_kernels_for(Isa isa);

}  // namespace tandem::simd
