// What is trained, on the device: FP32 masters with their gradients and moments, and the rounded factors that the trainer's own forward
// passes run under. All factors lie one after the other in five arrays: a [rank][in], then b [rank][out].
#pragma once
#include "cuda/common/stream.h"
#include "device/adapter.h"
#include "train/compute.h"

namespace tandem::device {

class TrainFactors {
 public:
  // One projection of one layer.
  struct Piece {
    int64_t layer;
    model::Module module;
    ops::LoraShape shape;
    int64_t a, b;  // where they begin
  };

  // Throws Error(kRange) naming the projection that does not fit.
  TrainFactors(std::shared_ptr<model::Model> facts, const train::State& state, cuda::Stream& stream);

  // Memory of the factors of such a state.
  static int64_t bytes(const train::State& state);
  train::State state(int64_t first, int64_t count) const;
  // The rounded factors, for forward passes on the trainer's stream: they change with every step.
  const std::shared_ptr<const Adapter>& current() const { return current_; }
  // A copy of them, for engines.
  std::shared_ptr<const model::Adapter> adapter() const;
  // Null where nothing is trained.
  const Piece* find(int64_t layer, model::Module module) const;
  const cuda::bf16* rounded(int64_t at) const { return rounded_.data() + at; }
  float scale() const { return scale_; }
  float* gradient(int64_t at) { return gradients_.data() + at; }
  int64_t lowest_layer() const;
  int64_t most_rank() const { return current_->most_rank(); }
  int64_t size() const { return int64_t(values_.size()); }
  // One AdamW step with the gradients clipped, which are zero afterwards; it has been waited for.
  train::StepOutcome step(const train::OptimizerStep& options);

 private:
  void place(const train::State& state);
  std::vector<cuda::LoraWeights> weights_in(const cuda::bf16* memory) const;
  model::Adapter empty_adapter() const;
  std::vector<float> read(const cuda::DeviceBuffer<float>& from, int64_t at, int64_t count) const;

  std::shared_ptr<model::Model> facts_;
  cuda::Stream& stream_;
  float scale_;
  int64_t steps_;
  std::vector<Piece> pieces_;
  std::vector<int32_t> index_;  // [layer][module]; -1: nothing
  cuda::DeviceBuffer<float> values_, gradients_, m_, v_;
  cuda::DeviceBuffer<cuda::bf16> rounded_;
  cuda::DeviceBuffer<float> parts_, sums_;  // sums_: of squares, norm, scale
  std::shared_ptr<const Adapter> current_;
};

}  // namespace tandem::device
