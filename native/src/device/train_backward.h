// The gradient of one layer on the device, from what the forward pass left on the tape: chunks of rows through the MLP and the output
// projection, attention over the whole row, then chunks through the projections of queries, keys and values.
#pragma once
#include "cuda/lora/lora_back.h"
#include "device/train_factors.h"
#include "device/train_tape.h"

namespace tandem::device {

class TrainBackward {
 public:
  TrainBackward(const model::Spec& spec, const Weights& weights, Layers& layers, TrainFactors& factors, const Sizes& sizes,
                int64_t unit_work, cuda::Stream& stream);

  // Memory of its own, and of a row of so many tokens.
  static int64_t bytes(const model::Spec& spec, const Sizes& sizes, const Kernels& kernels, int64_t most_rank);
  static int64_t row_bytes(const model::Spec& spec, int64_t tokens);
  // What is held of that with such a row too.
  int64_t held_with(int64_t tokens) const { return row_bytes(spec_, std::max(tokens, tokens_)); }
  // Gives it back. Nothing that reads it may be under way.
  void release();

  // Makes room for a row, whose gradient at the end of the layers goes to gradient(), one row per token.
  void begin(const TrainTape& tape);
  float* gradient() { return residual_.data(); }
  // With `reach` false nothing lies below: the residual stream's gradient is not needed.
  train::Steps run(TrainTape& tape, int64_t layer, bool reach);

 private:
  using Chunk = TrainTape::Chunk;
  // What a product gets back: d of its outputs (in d_out_, ldd apart) and the rows x that entered it.
  struct Back {
    int64_t layer;
    model::Product product;
    const Matrix* weights;
    const Chunk* chunk;
    const bf16* x;
  };
  // The gradients of the adapter's factors; with `dx` also dx = d . W, to which add_adapters() adds what the adapter gives.
  cuda::LoraBack product(TrainTape& tape, const Back& back, float* dx);
  void add_adapters(const cuda::LoraBack& lora);
  void mlp(TrainTape& tape, int64_t index, const Chunk& chunk);
  // The same of a mixture of experts, whose weights are all frozen: through the experts and through the router.
  void mixture(TrainTape& tape, int64_t index, const Chunk& chunk);
  void attention_out(TrainTape& tape, int64_t index, const Chunk& chunk);
  void attention_in(TrainTape& tape, int64_t index, const Chunk& chunk, bool reach);
  cuda::AttentionBackward attention(TrainTape& tape, int64_t index);
  void normalise(const float* rows, int64_t count, const DeviceBuffer<float>& weight);
  void normalise_back(const float* rows, const Chunk& chunk, const DeviceBuffer<float>& weight);
  // The residual stream's gradient is that of a product's outputs.
  void round_residual(const Chunk& chunk);

  const model::Spec& spec_;
  const Weights& weights_;
  Layers& layers_;
  TrainFactors& factors_;
  Sizes sizes_;
  int64_t unit_work_;
  cuda::Stream& stream_;
  DeviceBuffer<bf16> d_out_, x_;   // [chunk][outputs of a product], [chunk][inputs of one]
  DeviceBuffer<float> wide_;       // [chunk][inputs of a product]: its gradient
  DeviceBuffer<float> u_;          // [projection of a product][chunk][most rank]: of the way back
  DeviceBuffer<float> workspace_;  // of a product
  DeviceBuffer<float> d_weights_;  // [chunk][experts of a row]
  DeviceBuffer<bf16> d_logits_;    // [chunk][experts, to a multiple of 8]
  // Of the whole row.
  DeviceBuffer<float> residual_;                   // [T][hidden]
  DeviceBuffer<bf16> d_attended_, keys_, values_;  // [T][query], [T][kv]
  DeviceBuffer<float> dq_, dk_, dv_, deltas_;      // [T][query], [T][kv], [T][heads]
  int64_t tokens_ = 0;                             // that there is room for
};

}  // namespace tandem::device
