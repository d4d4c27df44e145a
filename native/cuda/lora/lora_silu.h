// The activation between gate, up and down and its gradient, with what adapters add to their inputs: many rows, as in prefill and training.
#pragma once
#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/row_backward.h"
#include "cuda/lora/lora.h"

namespace tandem::cuda {

// silu_multiply of x + B u, the bits being those of lora_expand before it; without parts.
struct LoraSilu {
  SiluMultiply silu;
  const LoraWeights *gate, *up;  // of all adapters, as in Lora
  int64_t adapter_count;
  const int32_t* row_adapters;
  int64_t most_rank;
  const float *gate_u, *up_u;  // [rows][most_rank]
};
// Both throw Error(kRange) naming the argument.
void lora_silu_multiply(const LoraSilu& args, cudaStream_t stream);

// silu_multiply_backward of d + u A, all rows under the same factors: those of the projection that reads the activation.
struct LoraSiluBackward {
  SiluBackward silu;  // with d
  const bf16* a;      // [rank][width]
  int64_t rank;       // 0: nothing is added
  const float* u;     // [rows][rank]
};
void lora_silu_multiply_backward(const LoraSiluBackward& args, cudaStream_t stream);

}  // namespace tandem::cuda
