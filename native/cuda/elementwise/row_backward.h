// The way back through the operations between products, and what it needs beside: roundings and copies.
#pragma once
#include "cuda/attention/kv_layout.h"
#include "cuda/common/gpu.h"

namespace tandem::cuda {

// y[t][i] = bf16(x[t][i] + bias[i]).
struct Narrow {
  const float* x;  // rows, ldx floats apart
  int64_t ldx;
  const float* bias;  // width, or null
  bf16* y;            // rows, ldy elements apart
  int64_t ldy;
  int64_t rows, width;
};
void narrow(const Narrow& args, cudaStream_t stream);

// dx[t] += the gradient of rms_norm at x[t], given factors[i] * d[i], that of its output; t = at[i], or i where `at` is null.
struct RmsNormBackward {
  const float* x;  // rows, ldx floats apart
  int64_t ldx;
  const float* weight;  // width
  const float* d;       // `rows` rows, ldd floats apart
  int64_t ldd;
  float* dx;  // rows, lddx floats apart
  int64_t lddx;
  int64_t rows, width;
  float eps;
  const int32_t* at = nullptr;     // rows; negative: left out
  const float* factors = nullptr;  // rows; null: 1
};
void rms_norm_backward(const RmsNormBackward& args, cudaStream_t stream);

// silu_multiply from rounded rows of gate and up; and its gradient, that of gate beside that of up.
struct SiluBackward {
  const bf16* x;   // [rows][2 * width]
  const float* d;  // of the output: rows, ldd floats apart; null: none is wanted
  int64_t ldd;
  bf16* dx;  // [rows][2 * width]
  bf16* y;   // [rows][width], or null
  int64_t rows, width;
};
void silu_multiply_backward(const SiluBackward& args, cudaStream_t stream);

// The gradient of the q, k and v product from those of queries, keys and values: turned back, then through the norm of a head.
struct RopeBackward {
  const bf16* qk;       // [rows][heads + kv_heads][dim] before norm and rotation; null where there is no norm
  const float* q_norm;  // dim, or null: no q/k norm
  const float* k_norm;
  float eps;
  const float* cosines;  // [positions][dim / 2]
  const float* sines;
  const int32_t* positions;            // rows, each in [0, table_positions)
  const float* dq;                     // [rows][heads][dim]
  const float* dk;                     // [rows][kv_heads][dim]
  const float* dv;                     // [rows][kv_heads][dim]
  bf16* d;                             // [rows][heads + 2 kv_heads][dim]
  int64_t rows, heads, kv_heads, dim;  // dim even, at most 256
  int64_t table_positions;
};
void rope_backward(const RopeBackward& args, cudaStream_t stream);

// Keys and values from one slot (page * 16 + offset) of a layer to another; a slot outside the pages is left out.
struct SlotCopy {
  int32_t from, to;
};
void copy_slots(const KvLayer& kv, const SlotCopy* copies, int64_t count, cudaStream_t stream);

// Keys and values of slots as rows: [rows][kv_heads][dim]. A slot outside the pages gives zeros.
struct GatherSlots {
  KvLayer kv;
  const int32_t* slots;  // rows
  bf16* keys;
  bf16* values;
  int64_t rows;
};
void gather_slots(const GatherSlots& args, cudaStream_t stream);

}  // namespace tandem::cuda
