// After the q, k and v product of one layer: q/k norm where the model has it, rotation (RoPE, Su et al. 2021, halves layout), and the
// new keys and values into their pages.
#pragma once
#include "cuda/attention/kv_layout.h"
#include "cuda/gemm/parts.h"

namespace tandem::cuda {

struct RopeStore {
  const float* qkv;  // rows of q (heads * dim), k and v (kv_heads * dim each), ld floats apart
  int64_t ld;
  const float* bias;    // of the whole row, or null
  const float* q_norm;  // dim, or null: no q/k norm
  const float* k_norm;
  float eps;
  const float* cosines;  // [positions][dim / 2]
  const float* sines;
  const int32_t* positions;  // rows
  const int32_t* slots;      // rows: page * 16 + offset of the row's position
  bf16* queries;             // [rows][heads][dim]
  KvLayer kv;
  int64_t rows, heads, dim;  // dim even, at most 256
  int64_t table_positions;   // rows of cosines and sines
  Parts parts = {};          // instead of qkv, where there are any
  bf16* qk = nullptr;        // [rows][heads + kv_heads][dim]: q and k before norm and rotation; null: not wanted
};

// A position outside the tables or a slot outside the pages writes nothing and gives NaN queries: the row's sequence then ends with an
// error, nobody else is touched. Throws Error(kRange) naming the argument.
void rope_store(const RopeStore& args, cudaStream_t stream);

// Whether all that it reads and writes is taken four elements at a time.
bool rope_in_fours(const RopeStore& args);

}  // namespace tandem::cuda
