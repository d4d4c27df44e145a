// Log-probability of one target per row of logits, the entropy of the row, and the gradient back: for a chunk of rows, so that the
// logits of a whole training row never exist at once. The bits of a log-probability are those of the sampler's (loss/slices.h).
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

struct LogProb {
  const float* logits;  // rows, ld floats apart
  int64_t ld, rows, vocab;
  const int32_t* targets;  // rows; an id outside [0, vocab) scores nothing
  float* log_probs;        // rows: log softmax at the target (natural log); 0 without a target; NaN where the logits are not finite
  float* entropies;        // rows: -sum p log p in nats; likewise
  // d log_prob / d logits: one-hot of the target - softmax, rows of ld_gradients; 0 without a target, where logits are not finite and after
  // the vocabulary. May be null.
  bf16* gradients;
  int64_t ld_gradients;
  float* work;
  int64_t work_floats;
};

int64_t log_prob_workspace_floats(int64_t rows, int64_t vocab);

// Throws Error(kRange) naming the argument.
void log_prob(const LogProb& args, cudaStream_t stream);

}  // namespace tandem::cuda
