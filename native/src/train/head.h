// The final norm and the head: log-probabilities of the targets, and in which direction of the residual stream each grows.
//
// d logprob(t) / d x = W[t] - sum over j of p_j W_j, whatever factor it is taken times later. So it is made while the logits are there, and
// backward needs them no more: no row of the vocabulary's size outlives its chunk, and none is computed twice.
#pragma once
#include <vector>

#include "model/forward.h"
#include "ops/log_softmax.h"
#include "train/compute.h"
#include "train/steps.h"
#include "train/tape.h"
#include "train/unit_size.h"

namespace tandem::train {

class Head {
 public:
  Head(model::Model& model, const UnitSize& unit);

  // Scores the targets of the tape's row, whose layers are done. With `directions` also leaves on the tape what `backward` needs.
  Steps score(Tape& tape, bool directions, Scores& scores);
  // out[index] = gradients[index] * d logprob / d (final residual stream), of tokens without a target 0. `out`: one row per token.
  Steps backward(Tape& tape, const std::vector<float>& gradients, float* out, int64_t ld);

 private:
  // Rows whose logits exist at a time: enough that turning the weights for them pays.
  static constexpr int64_t kRows = 128;
  // A logit's way to its term costs as much as so many multiply-adds of a large product.
  static constexpr int64_t kScoreCost = 64;
  // The same for an element of a norm's gradient.
  static constexpr int64_t kNormCost = 64;

  std::vector<ops::PanelRange> ranges(int64_t rows) const;
  Steps logits(int64_t rows);
  Steps score_chunk(Tape& tape, const int32_t* indices, int64_t count, Scores& scores);
  Steps mean(int64_t rows);
  void normalise(Tape& tape, const int32_t* indices, int64_t count);
  void score_rows(Tape& tape, const int32_t* indices, int64_t first, int64_t end, Scores& scores);
  void direct(Tape& tape, const int32_t* indices, int64_t first, int64_t count);

  model::Model& model_;
  UnitSize unit_;
  int64_t ld_input_, ld_logits_, ld_gradient_;
  Buffer<uint8_t> input_, terms_;
  Buffer<float> logits_, gradient_;
  std::vector<ops::TokenScore> found_;
};

}  // namespace tandem::train
