// The forward pass on the device: embedding -> layers; then final norm and logits of the rows that are asked for.
// Everything runs in order on one stream; nothing waits here.
#pragma once
#include "cuda/common/stream.h"
#include "device/batch.h"
#include "device/sizes.h"
#include "device/weights.h"
#include "engine/backend.h"

namespace tandem::device {

class Forward {
 public:
  Forward(const model::Spec& spec, const Weights& weights, const Sizes& sizes, cuda::Stream& stream);

  void run(const Batch& batch);
  // The final residual stream of a row of the last run.
  const float* hidden(int64_t row) const { return hidden_.data() + row * spec_.hidden_size; }
  // Rows of vocab floats, for at most sizes.logit_rows hidden rows: from[i] is a row of the last run, or -1 where the row lies in
  // picked(i) already.
  const float* logits(const int32_t* from, int64_t count);
  float* picked(int64_t i) { return picked_.data() + i * spec_.hidden_size; }

  // One page's keys, then its values, layer after layer.
  void read_page(int32_t page, uint8_t* out) const;
  void write_page(int32_t page, const uint8_t* bytes);

 private:
  cuda::KvLayer kv_layer(int64_t layer);
  void attend(const Batch& batch, int64_t index);
  void rotate_and_store(const Batch& batch, int64_t index, const cuda::KvLayer& kv);
  void run_attention(const Batch& batch, int64_t index, const cuda::KvLayer& kv);
  void feed_forward(const Batch& batch, int64_t index);
  void normalise(const float* x, int64_t rows, const DeviceBuffer<float>& weight);
  // y (+)= W x of the rows in activation_, of which each is w.k wide.
  void product(const Matrix& w, int64_t rows, float* y, bool accumulate);
  // The row's adapters beside the product of one projection; y and its rows as in product().
  void adapt(const Batch& batch, int64_t layer, model::Module module, float* y, int64_t ldy);
  void add_bias(const DeviceBuffer<float>& bias, int64_t rows, float* y);

  const model::Spec& spec_;
  const Weights& weights_;
  Sizes sizes_;
  cuda::Stream& stream_;
  DeviceBuffer<float> cosines_, sines_;  // [positions][head_dim / 2]
  DeviceBuffer<bf16> kv_;                // [layers][keys, values][pages][kv_heads][16][head_dim]
  DeviceBuffer<float> hidden_;           // [rows][hidden]
  DeviceBuffer<float> wide_;             // [rows][qkv or gate and up]
  DeviceBuffer<bf16> activation_;        // [rows][inputs of the next product]
  DeviceBuffer<bf16> queries_;           // [rows][heads][dim]
  DeviceBuffer<float> workspace_, lora_;
  DeviceBuffer<float> picked_;  // [logit_rows][hidden]
  DeviceBuffer<float> logits_;  // [logit_rows][vocab]
};

}  // namespace tandem::device
