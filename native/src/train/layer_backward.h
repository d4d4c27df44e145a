// The gradient of one layer over some rows, in four parts, from what the forward pass left on the tape.
//
// Chunks descend within a layer: only later rows see a key, so when a chunk's turn comes the gradients of its keys and values are complete.
// The gradients of factors gather chunk by chunk, in that order.
#pragma once
#include "ops/attention_backward.h"
#include "train/experts_backward.h"
#include "train/factors.h"
#include "train/layer_forward.h"

namespace tandem::train {

class LayerBackward {
 public:
  LayerBackward(model::Model& model, LayerForward& forward, int64_t rows);

  // Memory of a row of so many tokens; what is held, and what would be with such a row too.
  int64_t bytes(const Tape& tape, int64_t tokens) const;
  int64_t held_with(const Tape& tape, int64_t tokens) const { return bytes(tape, std::max(tokens, tokens_)); }
  // Gives it back.
  void release();
  // Takes the gradient of the residual stream after the last layer from gradient(), one row per token.
  void begin(const Tape& tape);
  float* gradient() { return residual_.data(); }
  // Before a layer begins: the gradients of all its keys and values are zero.
  void clear_keys(Chunk chunk);

  // A layer over a chunk. With `reach` false nothing lies below: the residual stream's gradient is not needed.
  Steps run(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk, bool reach);

 private:
  // What a product gets back: d of its outputs (elements, ld_out_ apart), the rows x that entered it.
  struct Back {
    int64_t layer;
    model::Product product;
    Chunk chunk;
    const uint8_t* x;
    int64_t ldx;
  };
  // The gradients of the adapter's factors; with `dx` also dx = d . (W + adapter), ld_wide_ apart.
  Steps product(Tape& tape, FactorSet& factors, Back back, float* dx);
  // The gradient of one factor.
  Steps outer(const float* u, int64_t ldu, const void* x, int64_t ldx, int64_t count, Trained& factor);
  Steps mlp_out(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk);
  Steps mlp_in(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk);
  // Both where the feed-forward is a mixture.
  Steps mixture(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk);
  Steps attention_out(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk);
  Steps attention_in(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk, bool reach);
  void round_residual(const Tape& tape, Chunk chunk, int64_t columns, int64_t padded);
  void norm(const float* x, int64_t ld, Chunk chunk, const std::vector<float>& weight);
  void turn_back(Tape& tape, int64_t layer, Chunk chunk);
  void turn_head_back(const model::Layer& layer, const float* raw, bool key, int64_t position, float* d) const;

  model::Model& model_;
  LayerForward& forward_;
  UnitSize unit_;
  ExpertsBackward experts_;
  int64_t ld_out_, ld_wide_, ld_residual_;
  int64_t tokens_ = 0;                // that there is room for
  Buffer<float> residual_, dk_, dv_;  // per token of the row
  Buffer<uint8_t> d_out_;             // [rows][ld_out_]: the gradient of a product's outputs
  Buffer<uint8_t> x_;                 // [rows][ld_activation]
  Buffer<uint8_t> q_, d_attended_;    // [rows][heads][dim]
  Buffer<float> wide_;                // [rows][ld_wide_]: the gradient of a product's inputs
  Buffer<float> dq_;                  // [rows][heads][dim]
  Buffer<float> du_;
  std::vector<int32_t> all_rows_;
};

}  // namespace tandem::train
