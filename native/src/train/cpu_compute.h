// Training on the CPU.
#pragma once
#include "train/compute.h"
#include "train/factors.h"
#include "train/head.h"
#include "train/layer_backward.h"
#include "train/layer_forward.h"

namespace tandem::train {

struct Options;

class CpuCompute final : public Compute {
 public:
  CpuCompute(std::shared_ptr<model::Model> model, const Options& options, const State& state);

  int64_t row_bytes(const Row& row, Under under, const model::Adapter* other) const override;
  Steps forward(Row row, Under under, std::shared_ptr<const model::Adapter> other, Scores& scores) override;
  const Row* kept() const override { return kept_.ready ? &kept_.row() : nullptr; }
  Steps backward(std::vector<float> gradients) override;
  Steps optimize(OptimizerStep step, StepOutcome& outcome) override;
  State state(int64_t first, int64_t count) const override { return factors_.state(first, count); }
  std::shared_ptr<const model::Adapter> adapter() const override { return factors_.adapter(); }

 private:
  void make_room(const Row& row, bool current, const model::Adapter* adapter);
  std::vector<Chunk> chunks(const Tape& tape) const;
  Steps run_layer(Tape& tape, int64_t layer);
  Steps run_forward(Tape& tape, bool directions, Scores& scores);

  std::shared_ptr<model::Model> model_;
  FactorSet factors_;
  int64_t most_bytes_;  // of rows
  int64_t chunk_;
  LayerForward forward_;
  LayerBackward backward_;
  Head head_;
  Tape kept_, passing_;
};

}  // namespace tandem::train
