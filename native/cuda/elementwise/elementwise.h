// The small operations between products.
#pragma once
#include "cuda/gemm/parts.h"
#include "cuda/gemm/quant_weights.h"

namespace tandem::cuda {

// y[t] = embedding[tokens[t]]: rows of `width` bf16 weights to floats. Below -1 a token names a place: -2 - i is last[i], which the host does
// not know yet. An id outside [0, vocab) gives a row of NaN, never a stray read.
struct EmbedTokens {
  const int32_t* tokens;  // rows
  const bf16* embedding;  // [vocab][width]
  int64_t vocab, width, rows;
  float* y;  // rows, ldy floats apart
  int64_t ldy;
  QuantWeights quantised = {};  // instead of `embedding`; `width` is a multiple of 8 then
  const int32_t* last = nullptr;
  int64_t last_count = 0;
};
void embed_tokens(const EmbedTokens& args, cudaStream_t stream);

// y[t][i] = silu(x[t][i]) * x[t][width + i] with silu(v) = v / (1 + exp(-v)) (SwiGLU, Shazeer 2020).
struct SiluMultiply {
  const float* x;  // rows of gate then up, ldx floats apart
  int64_t ldx;
  bf16* y;  // rows, ldy elements apart
  int64_t ldy;
  int64_t rows, width;
  Parts parts = {};      // instead of x, where there are any
  bf16* kept = nullptr;  // [rows][2 width]: gate and up, rounded; null: not wanted
};
void silu_multiply(const SiluMultiply& args, cudaStream_t stream);

// y[t][i] += bias[i].
struct AddBias {
  float* y;  // rows, ldy floats apart
  int64_t ldy;
  const float* bias;  // width
  int64_t rows, width;
};
void add_bias(const AddBias& args, cudaStream_t stream);

// y[t] = x[from[t]]; a row whose `from` lies outside [0, x_rows) is left as it is.
struct GatherRows {
  const float* x;  // x_rows, ldx floats apart
  int64_t ldx, x_rows;
  const int32_t* from;  // rows
  float* y;             // rows, ldy floats apart
  int64_t ldy;
  int64_t rows, width;
};
void gather_rows(const GatherRows& args, cudaStream_t stream);

}  // namespace tandem::cuda
