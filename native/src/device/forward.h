// The forward pass on the device: embedding -> layers; then final norm and logits of the rows that are asked for.
// Everything runs in order on one stream; nothing waits here.
#pragma once
#include "device/layers.h"

namespace tandem::device {

class Forward {
 public:
  Forward(const model::Spec& spec, const Weights& weights, const Sizes& sizes, cuda::Stream& stream);

  void run(const Batch& batch);
  // The final residual stream of a wanted row of the last run.
  const float* hidden(int64_t row) const { return hidden_.data() + row * spec_.hidden_size; }
  // Rows of vocab floats, for at most sizes.logit_rows hidden rows: from[i] is a row of the last run, or -1 where the row lies in
  // picked(i) already.
  const float* logits(const int32_t* from, int64_t count);
  float* picked(int64_t i) { return picked_.data() + i * spec_.hidden_size; }

  // One page's keys, then its values, layer after layer.
  void read_page(int32_t page, uint8_t* out) const;
  void write_page(int32_t page, const uint8_t* bytes);

 private:
  // The last layer, of whose rows only the wanted ones go on when their keys and values are stored; and these rows' places in hidden_.
  void run_wanted(const Batch& batch, int64_t layer);
  cuda::KvLayer kv_layer(int64_t layer);

  const model::Spec& spec_;
  Sizes sizes_;
  cuda::Stream& stream_;
  Layers layers_;
  DeviceBuffer<bf16> kv_;       // [layers][keys, values][pages][kv_heads][16][head_dim]
  DeviceBuffer<float> hidden_;  // [rows][hidden]
  DeviceBuffer<float> picked_;  // [logit_rows][hidden]
  DeviceBuffer<float> logits_;  // [logit_rows][vocab]
};

}  // namespace tandem::device
