#include "device/forward.h"

#include "cuda/elementwise/elementwise.h"

namespace tandem::device {

Forward::Forward(const model::Spec& spec, const Weights& weights, const Sizes& sizes, cuda::Stream& stream)
    : spec_(spec), sizes_(sizes), stream_(stream), layers_(spec, weights, sizes, stream),
      kv_(size_t(2 * sizes.layers * sizes.kv_layer_elements)), hidden_(size_t(sizes.rows * sizes.hidden)),
      picked_(size_t(sizes.logit_rows * sizes.hidden)), logits_(size_t(sizes.logit_rows * sizes.vocab)) {}

void Forward::run(const Batch& batch) {
  layers_.embed(batch, hidden_.data());
  const bool narrows = batch.wanted_places != nullptr && batch.wanted_count <= sizes_.logit_rows;
  for (int64_t i = 0; i < spec_.layers; ++i) {
    if (narrows && i + 1 == spec_.layers) return run_wanted(batch, i);
    layers_.attend(batch, i, kv_layer(i), hidden_.data());
    layers_.feed_forward(batch, i, hidden_.data());
  }
  layers_.settle(hidden_.data());
}

void Forward::run_wanted(const Batch& batch, int64_t layer) {
  const int64_t h = spec_.hidden_size;
  const Batch rest = layers_.attend_wanted(batch, layer, kv_layer(layer), hidden_.data(), picked_.data());
  if (rest.rows == 0) return;
  layers_.feed_forward(rest, layer, picked_.data());
  layers_.settle(picked_.data());
  cuda::gather_rows({picked_.data(), h, rest.rows, batch.wanted_places, hidden_.data(), h, batch.rows, h}, stream_.get());
}

const float* Forward::logits(const int32_t* from, int64_t count) {
  const int64_t h = spec_.hidden_size;
  cuda::gather_rows({hidden_.data(), h, sizes_.rows, from, picked_.data(), h, count, h}, stream_.get());
  layers_.logits(picked_.data(), count, logits_.data());
  return logits_.data();
}

cuda::KvLayer Forward::kv_layer(int64_t layer) {
  bf16* keys = kv_.data() + 2 * layer * sizes_.kv_layer_elements;
  return {keys, keys + sizes_.kv_layer_elements, sizes_.pages, spec_.kv_heads, spec_.head_dim};
}

void Forward::read_page(int32_t page, uint8_t* out) const {
  const int64_t elements = cuda::kPagePositions * spec_.kv_size();
  const size_t bytes = size_t(elements) * sizeof(bf16);
  for (int64_t part = 0; part < 2 * spec_.layers; ++part) {
    cuda::device_copy(out + size_t(part) * bytes, kv_.data() + part * sizes_.kv_layer_elements + page * elements, bytes);
  }
}

void Forward::write_page(int32_t page, const uint8_t* from) {
  const int64_t elements = cuda::kPagePositions * spec_.kv_size();
  const size_t bytes = size_t(elements) * sizeof(bf16);
  for (int64_t part = 0; part < 2 * spec_.layers; ++part) {
    cuda::device_copy(kv_.data() + part * sizes_.kv_layer_elements + page * elements, from + size_t(part) * bytes, bytes);
  }
}

}  // namespace tandem::device
