// One training state over the base weights that serve: forward, backward and optimizer steps of packed rows, cut into slices.
//
// Results depend on the rows, the factors and the model alone: not on how slices are cut, on threads, or on what is kept and what is
// computed again. The forward pass is that of serving, bit for bit, under the rounded factors that serve.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "train/compute.h"
#include "train/unit_size.h"

namespace tandem::train {

struct Options {
  int64_t max_row_tokens = 0;
  // Memory that the activations and gradients of a row may take.
  int64_t max_row_bytes = 0;
  // Keep only the layers' inputs and compute the rest again in the backward pass.
  bool recompute = false;
  // Multiply-adds of a unit of work, per thread.
  int64_t unit_work = UnitSize::kPerThread;
};

// Throws Error(kRange) naming the option.
void check(const Options& options);

class Trainer {
 public:
  // Throws Error(kRange) naming the option or the factors that do not fit.
  Trainer(std::shared_ptr<model::Model> model, const Options& options, const State& state);
  // Of a model whose weights are elsewhere: `model` is its facts.
  Trainer(std::shared_ptr<model::Model> model, const Options& options, std::unique_ptr<Compute> compute);

  // Each begins one piece of work, which slice() then runs; all throw Error(kState) while another is unfinished, and check everything
  // before anything is spent.
  void forward(Row row, Under under, std::shared_ptr<const model::Adapter> other = nullptr);
  // Adds the gradients of sum over t of gradients[t] * logprob[t] of the row last forwarded under the current factors, once per row.
  void backward(std::vector<float> gradients);
  void optimize(const OptimizerStep& step);

  // Works for about that long, at least one unit, or until `interrupt`, holding the model's turn; true when the work is done. An error ends
  // the work; one within backward or optimize leaves sums or factors half-way, and from then on everything throws.
  bool slice(int64_t micros, const std::atomic<bool>* interrupt = nullptr);

  // Memory that a row of one plain sequence takes under the current factors.
  int64_t row_bytes(int64_t tokens) const;
  // Multiply-adds of the unit that ran last.
  int64_t unit_work() const { return unit_work_; }

  // Of the last forward pass.
  const Scores& scores() const;
  const StepOutcome& outcome() const;
  // The FP32 masters and the optimizer's state, of all factors or of some. Not while a step is under way.
  State state(int64_t first = 0, int64_t count = INT64_MAX) const;
  // What serves: the rounded factors after the last step.
  std::shared_ptr<const model::Adapter> adapter() const { return compute_->adapter(); }

 private:
  enum class Work { kNone, kForward, kBackward, kOptimize };

  void begin(Work work, Steps steps);
  void require_idle() const;
  void require_room(const Row& row, Under under, const model::Adapter* other) const;

  std::shared_ptr<model::Model> model_;
  Options options_;
  std::unique_ptr<Compute> compute_;
  Scores scores_;
  StepOutcome outcome_;
  Work work_ = Work::kNone;
  Steps steps_;
  int64_t unit_work_ = 0;
  bool broken_ = false, scored_ = false, stepped_ = false;
};

}  // namespace tandem::train
