// The final norm and the head on the device: log-probabilities of the targets, and in which direction of the residual stream each grows,
// made while the logits are there (as train/head.h does it).
#pragma once
#include "device/train_tape.h"

namespace tandem::device {

class TrainHead {
 public:
  TrainHead(const model::Spec& spec, const Weights& weights, Layers& layers, int64_t logit_rows, cuda::Stream& stream);

  static int64_t bytes(const model::Spec& spec, int64_t logit_rows, const Kernels& kernels);
  // Scores the targets of the tape's row, whose layers are done. Where the tape keeps anything also leaves what `backward` needs.
  train::Steps score(TrainTape& tape, train::Scores& scores);
  // out [tokens][hidden] = gradients[index] * d logprob / d (final residual stream), 0 for tokens without a target.
  void backward(TrainTape& tape, const std::vector<float>& gradients, float* out);

 private:
  void score_rows(TrainTape& tape, int64_t first, int64_t count);
  void read_scores(const TrainTape& tape, train::Scores& scores) const;

  const model::Spec& spec_;
  const Weights& weights_;
  Layers& layers_;
  int64_t logit_rows_;
  cuda::Stream& stream_;
  int64_t ld_terms_;
  DeviceBuffer<float> picked_, logits_;                 // [logit_rows][hidden], [logit_rows][vocab]
  DeviceBuffer<bf16> terms_;                            // [logit_rows][ld_terms]
  DeviceBuffer<float> workspace_;                       // of the product with terms
  DeviceBuffer<float> sums_;                            // of log-probabilities
  DeviceBuffer<float> logprobs_, entropies_, factors_;  // per target
};

}  // namespace tandem::device
