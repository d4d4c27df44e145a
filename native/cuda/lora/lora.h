// Low-rank adapters beside a product: y[t] += B_a (scale_a * A_a x[t]) for every row t with an adapter a, mixed ranks in one batch
// (grouped as S-LoRA and Punica do). What a row gets depends on the row and its factors alone: u = scale * A x is one fixed tree of
// float sums per rank, B u is summed over ranks ascending and added to y once.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

// Factors of one projection in device memory.
struct LoraWeights {
  const bf16* a;  // [rank][in]
  const bf16* b;  // [rank][out]: transposed, so that neighbouring threads read neighbouring outputs
  int32_t rank;   // 0 = this adapter leaves the projection as it is
  float scale;
};

struct Lora {
  const LoraWeights* adapters;  // in device memory
  int64_t adapter_count;
  const int32_t* row_adapters;  // rows; an index outside [0, adapter_count) = none
  int64_t rows, in, out;
  int64_t most_rank;  // of all adapters: columns of u
  const bf16* x;      // rows, ldx elements apart
  int64_t ldx;
  float* u;  // [rows][most_rank], scratch
  float* y;  // rows, ldy floats apart
  int64_t ldy;
};

// All throw Error(kRange) naming the argument. The first two are the halves of lora_add: u alone, and B u added to y.
void lora_shrink(const Lora& args, cudaStream_t stream);
void lora_expand(const Lora& args, cudaStream_t stream);
void lora_add(const Lora& args, cudaStream_t stream);

// gradient[r][j] += sum over rows t of u[t][r] * x[t][j]: the gradient of a factor. The order of the sum follows from the number of rows.
struct LoraOuter {
  const float* u;  // rows, ldu floats apart
  int64_t ldu;
  const bf16* x;  // rows, ldx elements apart
  int64_t ldx;
  int64_t rows, ranks, columns;
  float* gradient;  // [ranks][columns]
};
void lora_outer(const LoraOuter& args, cudaStream_t stream);

}  // namespace tandem::cuda
