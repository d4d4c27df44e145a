// What is trained: FP32 master factors with their gradients and moments, and the rounded adapter that serves.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "model/forward.h"
#include "ops/adamw.h"
#include "train/state.h"

namespace tandem::train {

constexpr std::array<model::Module, model::kModules> kAllModules = {model::Module::kQ,   model::Module::kK,    model::Module::kV,
                                                                    model::Module::kO,   model::Module::kGate, model::Module::kUp,
                                                                    model::Module::kDown};

// A matrix of FP32 numbers in the order of the gradient kernels, rows `ld` apart, what pads them zero.
struct Trained {
  int64_t rows = 0, columns = 0, ld = 0;
  Buffer<float> value, grad, m, v;

  Trained() = default;
  Trained(int64_t row_count, int64_t column_count, int64_t panel);
};

// One projection of one layer: y += scale * b (a x).
struct TrainedFactors {
  int64_t layer;
  model::Module module;
  ops::LoraShape shape;
  Trained a;  // [rank][in]
  Trained b;  // [rank][out], b turned
};

using Layers = std::vector<std::array<ops::LoraFactors, model::kModules>>;

class FactorSet {
 public:
  // Throws Error(kRange) naming the projection that does not fit.
  FactorSet(std::shared_ptr<model::Model> model, const State& state);

  // Of `count` factors from `first` on, or as many as there are.
  State state(int64_t first, int64_t count) const;
  float scale() const { return scale_; }
  int64_t steps() const { return steps_; }
  // The rounded factors, of the last finish().
  const std::shared_ptr<const model::Adapter>& adapter() const { return adapter_; }
  // The same turned for the backward pass: from outputs to inputs. Rank 0 where nothing is trained.
  const ops::LoraFactors& turned(int64_t layer, model::Module module) const { return turned_[size_t(layer)][size_t(module)]; }
  // Null where nothing is trained.
  TrainedFactors* find(int64_t layer, model::Module module);
  // The first layer with factors.
  int64_t lowest_layer() const;
  int64_t layers() const { return int64_t(index_.size()); }

  void clear_gradients(int64_t layer);
  double gradient_squares(int64_t layer) const;
  // Numbers in a layer's factors, or in those of one projection.
  int64_t size(int64_t layer) const;
  int64_t size(int64_t layer, model::Module module) const;
  // One AdamW step of a layer's factors; then, projection by projection, their rounding into what finish() publishes.
  void step(int64_t layer, const ops::AdamW& options, float grad_scale);
  void round(int64_t layer, model::Module module);
  void finish();

 private:
  void load(const State& state);
  void round(const TrainedFactors& factors, bool turn);
  const TrainedFactors* find(int64_t layer, model::Module module) const;

  std::shared_ptr<model::Model> model_;
  float scale_ = 1;
  int64_t steps_ = 0;
  std::vector<TrainedFactors> factors_;
  std::vector<std::array<int32_t, model::kModules>> index_;  // per layer; -1: nothing
  Layers turned_, rounded_;
  std::shared_ptr<const model::Adapter> adapter_;
};

}  // namespace tandem::train
