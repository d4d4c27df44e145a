// What the forward pass of one row leaves behind: everything that backward needs, layer inputs only, or nothing.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "model/forward.h"
#include "train/row.h"

namespace tandem::train {

// Room for `count`; what a smaller buffer held is lost.
template <typename T>
void at_least(Buffer<T>& buffer, int64_t count) {
  if (buffer.size() >= size_t(count)) return;
  buffer = {};
  buffer = Buffer<T>(size_t(count));
}

// What buffers have room for. Rows that follow one another may need most of different ones: many tokens, or pages for many short sequences.
struct Room {
  int64_t tokens = 0, pages = 0;
  int64_t u = 0;  // floats of u of a product

  Room with(const Room& other) const { return {std::max(tokens, other.tokens), std::max(pages, other.pages), std::max(u, other.u)}; }
};

enum class Keep {
  kActivations,  // all of every layer
  kInputs,       // the residual stream before each layer; the rest is computed again
  kNothing,      // scores only
};

constexpr int kProducts = 4;
constexpr std::array<model::Product, kProducts> kAllProducts = {model::Product::kQkv, model::Product::kOutput, model::Product::kGateUp,
                                                                model::Product::kDown};

// The projections of a product.
std::vector<model::Module> modules_of(model::Product product);

// One layer's activations of T tokens. E = element of the model.
struct LayerTape {
  Buffer<float> middle;      // [T][ld_residual]: the residual stream between attention and MLP
  Buffer<uint8_t> qk;        // [T][query + kv] E: before norm and rotation
  Buffer<uint8_t> attended;  // [T][ld_attended] E: the input of the output projection
  // [T][2 intermediate] E; of a mixture [T][used][2 size] E, a token's experts ascending.
  Buffer<uint8_t> gate_up;
  // The adapter's u of each product, the projections' padded ranks beside each other.
  std::array<Buffer<float>, kProducts> u;
};

class Tape {
 public:
  Tape(const model::Model& model, Keep keep);

  Keep keep() const { return keep_; }
  // Memory that a row takes by itself.
  int64_t bytes(const Row& row, const model::Adapter* adapter) const { return bytes(room_for(row, adapter)); }
  // Memory that is held, and that would be with a row too.
  int64_t held() const { return bytes(room_); }
  int64_t held_with(const Row& row, const model::Adapter* adapter) const { return bytes(room_.with(room_for(row, adapter))); }
  // Gives all of it back.
  void release();
  // Makes room for a row under an adapter (null: none); what there is of it stays.
  void begin(Row row, std::shared_ptr<const model::Adapter> adapter);
  // Nothing of the row may be used any more.
  void drop() { ready = false; }

  const Row& row() const { return row_; }
  const RowPages& pages() const { return pages_; }
  const model::Adapter* adapter() const { return adapter_.get(); }
  int64_t size() const { return row_.size(); }
  int64_t ld_residual() const { return ld_residual_; }
  int64_t ld_attended() const { return ld_attended_; }
  int64_t ld_qk() const { return ld_qk_; }
  // Floats of u per token of a product of a layer.
  int64_t width(int64_t layer, model::Product product) const;
  // The residual stream that enters a layer; of index `layers` the one that leaves the last.
  float* input(int64_t layer) { return inputs_[size_t(layer) % inputs_.size()].data(); }
  LayerTape& layer(int64_t index) { return layers_[size_t(index) % layers_.size()]; }
  ops::KvPages& kv() { return *kv_; }
  int64_t kv_layer(int64_t index) const { return index % kv_->shape().layers; }

  bool ready = false;  // the forward pass went through
  // Left by the head: the indices of the tokens with a target, and per such token d logprob / d (normed residual stream).
  std::vector<int32_t> targets;
  Buffer<float> directions;  // [targets][hidden]

 private:
  Room room_for(const Row& row, const model::Adapter* adapter) const;
  int64_t bytes(const Room& room) const;
  void grow(const Room& room);
  ops::KvShape kv_shape() const;

  const model::Model& model_;
  Keep keep_;
  int64_t ld_residual_, ld_attended_, ld_qk_;
  Room room_;
  Row row_;
  RowPages pages_;
  std::shared_ptr<const model::Adapter> adapter_;
  std::vector<Buffer<float>> inputs_;
  std::vector<LayerTape> layers_;
  std::unique_ptr<ops::KvPages> kv_;
};

}  // namespace tandem::train
