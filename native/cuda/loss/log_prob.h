// Log-probability of one target per row of logits, the entropy of the row, and the gradient back: for a chunk of rows, so that the
// logits of a whole training row never exist at once.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

struct LogProb {
  float* logits;  // rows, ld floats apart
  int64_t ld, rows, vocab;
  const int32_t* targets;  // rows; an id outside [0, vocab) scores nothing
  float* log_probs;        // rows: log softmax at the target (natural log); 0 without a target
  float* entropies;        // rows: -sum p log p in nats; 0 without a target
};
void log_prob(const LogProb& args, cudaStream_t stream);

// logits -> gradients[t] * (one-hot of the target - softmax), in place: d(gradients[t] * log_prob[t]) / d(logits[t]).
// Rows without a target become 0.
struct LogProbBackward {
  float* logits;
  int64_t ld, rows, vocab;
  const int32_t* targets;
  const float* gradients;  // rows
};
void log_prob_backward(const LogProbBackward& args, cudaStream_t stream);

}  // namespace tandem::cuda
