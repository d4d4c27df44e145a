// Training on the device: train/cpu_compute.h over the kernels of native/cuda. The forward pass is that of serving on the device, bit for
// bit (device/layers.h). Its kernels run on a stream of low priority; every unit of work is waited for.
#pragma once
#include "device/train_backward.h"
#include "device/train_factors.h"
#include "device/train_head.h"
#include "train/trainer.h"

namespace tandem::device {

class TrainCompute final : public train::Compute {
 public:
  // Throws Error(kRange) naming the factors that do not fit, or where its memory is larger than training may take.
  TrainCompute(std::shared_ptr<const Weights> weights, std::shared_ptr<model::Model> facts, const train::Options& options,
               const train::State& state);

  int64_t row_bytes(const train::Row& row, train::Under under, const model::Adapter* other) const override;
  train::Steps forward(train::Row row, train::Under under, std::shared_ptr<const model::Adapter> other, train::Scores& scores) override;
  const train::Row* kept() const override { return kept_.ready ? &kept_.row() : nullptr; }
  train::Steps backward(std::vector<float> gradients) override;
  train::Steps optimize(train::OptimizerStep step, train::StepOutcome& outcome) override;
  train::State state(int64_t first, int64_t count) const override { return factors_.state(first, count); }
  std::shared_ptr<const model::Adapter> adapter() const override { return factors_.adapter(); }

 private:
  void make_room(const train::Row& row, bool current);
  train::Steps run_forward(TrainTape& tape, train::Scores& scores);
  train::Steps run_layer(TrainTape& tape, int64_t layer);
  void pass(TrainTape& tape, int64_t layer, const TrainTape::Chunk& chunk);

  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<model::Model> facts_;
  // Multiply-adds of a unit of work, and of a row in one layer.
  int64_t unit_work_, layer_work_;
  Sizes sizes_;
  int64_t fixed_bytes_, most_bytes_;
  // Destroyed after what runs on it.
  cuda::Stream stream_;
  TrainFactors factors_;
  Layers layers_;
  TrainBackward backward_;
  TrainHead head_;
  TrainTape kept_, passing_;
};

}  // namespace tandem::device
