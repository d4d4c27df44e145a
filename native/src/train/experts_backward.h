// The gradient of a mixture of experts (model/experts.h), whose weights are all frozen: that of its inputs, through the experts and through
// the router.
#pragma once
#include "train/layer_forward.h"

namespace tandem::train {

class ExpertsBackward {
 public:
  // Shares the forward pass's rows of experts.
  ExpertsBackward(model::Model& model, LayerForward& forward);

  // A chunk's rows: what entered the mixture and the gradient of what it gave (elements), the gradient of its inputs (floats, written).
  struct Rows {
    const uint8_t* x;
    int64_t ldx;
    const uint8_t* d_out;
    int64_t ld_out;
    float* dx;
    int64_t ld_dx;
  };
  Steps run(Tape& tape, int64_t layer, Chunk chunk, Rows rows);

 private:
  // d_out of a batch's rows.
  void gather(const Rows& rows);
  // One product back for every expert of the batch, from elements_ to floats_.
  Steps back(const ops::PackedMatrix& w, int64_t outputs);
  // From d of a batch's activations, without the weights of the experts yet, to d of the outputs of gate and up; leaves d of the weights.
  void back_activation(Tape& tape, int64_t layer, Chunk chunk);
  void back_router(const model::Layer& layer, Chunk chunk, const Rows& rows);

  model::Model& model_;
  LayerForward& forward_;
  model::ExpertRows& experts_;
  int64_t ld_elements_ = 0, ld_floats_ = 0, ld_router_ = 0;
  Buffer<uint8_t> elements_;      // [pairs][ld_elements_]: d of outputs
  Buffer<uint8_t> active_;        // [pairs][experts' size] the activations again
  Buffer<float> floats_;          // [pairs][ld_floats_]: d of inputs
  Buffer<uint8_t> d_logits_;      // [rows][ld_router_] elements
  std::vector<float> d_weights_;  // per pair of the chunk
};

}  // namespace tandem::train
