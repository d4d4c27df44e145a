// What computes for a trainer: the CPU (cpu_compute.h) or a device (device/train_compute.h). The trainer checks what it is asked for and
// drives the steps; a computer owns the factors, the activations and the arithmetic.
#pragma once
#include <memory>
#include <vector>

#include "model/forward.h"
#include "ops/adamw.h"
#include "train/row.h"
#include "train/state.h"
#include "train/steps.h"

namespace tandem::train {

struct Scores {
  std::vector<float> logprobs, entropies;  // one per token, 0 where there is no target; NaN where the logits were not finite
};

struct OptimizerStep {
  ops::AdamW adamw;
  double max_grad_norm;
};

struct StepOutcome {
  double grad_norm = 0;  // of all factors together, before clipping; NaN where not finite
  bool applied = false;
};

// Which factors a forward pass runs under.
enum class Under { kCurrent, kBase, kOther };

class Compute {
 public:
  virtual ~Compute() = default;

  // Memory that a row takes; `other`: the factors that it runs under where they are not the current ones or the base's.
  virtual int64_t row_bytes(const Row& row, Under under, const model::Adapter* other) const = 0;
  // Makes room for the row and gives the work that scores it; under the current factors the row is kept for backward.
  virtual Steps forward(Row row, Under under, std::shared_ptr<const model::Adapter> other, Scores& scores) = 0;
  // The row that backward would take; null: none.
  virtual const Row* kept() const = 0;
  // Gradients that are kept in there until the work is done: one per token, 0 where there is no target.
  virtual Steps backward(std::vector<float> gradients) = 0;
  virtual Steps optimize(OptimizerStep step, StepOutcome& outcome) = 0;

  virtual State state(int64_t first, int64_t count) const = 0;
  virtual std::shared_ptr<const model::Adapter> adapter() const = 0;
};

}  // namespace tandem::train
