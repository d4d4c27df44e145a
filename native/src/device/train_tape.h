// What the forward pass of one packed row leaves on the device: everything that backward needs, layer inputs only, or nothing.
#pragma once
#include "cuda/attention/attention_backward.h"
#include "device/layers.h"
#include "train/compute.h"
#include "train/tape.h"

namespace tandem::device {

// Room for `count`; what a smaller buffer held is lost. Nothing that reads it may be under way.
template <typename T>
void at_least(DeviceBuffer<T>& buffer, int64_t count) {
  if (buffer.size() >= size_t(count)) return;
  buffer = {};
  buffer = DeviceBuffer<T>(size_t(count));
}
// The values at the buffer's begin.
template <typename T>
void put(DeviceBuffer<T>& buffer, const std::vector<T>& values) {
  at_least(buffer, int64_t(values.size()));
  if (!values.empty()) cuda::device_copy(buffer.data(), values.data(), values.size() * sizeof(T));
}

// One layer's activations of T tokens.
struct KeptLayer {
  DeviceBuffer<float> middle;                     // [T][hidden]: the residual stream between attention and MLP
  DeviceBuffer<bf16> qk;                          // [T][query + kv] before norm and rotation; only where there is a norm
  DeviceBuffer<bf16> queries, attended, gate_up;  // [T][query], [T][query], [T][the most that a layer has of gate and up]
  DeviceBuffer<float> log_sums;                   // [T][heads]
  DeviceBuffer<float> shrunk;                     // [module][T][most rank]: A x of every projection
};

class TrainTape {
 public:
  // Consecutive tokens that go through a layer together.
  struct Chunk {
    int64_t first = 0, count = 0;
    Batch batch;
    int64_t copy_count = 0;
    DeviceBuffer<cuda::SlotCopy> copies;
    size_t input_bytes = 0;
    cuda::Inputs inputs;
  };

  // Of rows under factors of at most so high a rank, where something is kept.
  TrainTape(const model::Spec& spec, train::Keep keep, int64_t chunk_rows, int64_t most_rank);

  train::Keep keep() const { return keep_; }
  // Memory that a row takes by itself.
  int64_t bytes(const train::Row& row) const { return bytes(room_for(row)); }
  // Memory that is held with a row too.
  int64_t held_with(const train::Row& row) const { return bytes(room_.with(room_for(row))); }
  // Gives all of it back. Nothing that reads it may be under way.
  void release();
  // Makes room for a row under an adapter (null: none) and sends what is known of it; what there is of room stays.
  void begin(train::Row row, std::shared_ptr<const model::Adapter> adapter, cuda::Stream& stream);

  const train::Row& row() const { return row_; }
  int64_t size() const { return row_.size(); }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  // The residual stream that enters a layer; of index `layers` the one that leaves the last.
  float* input(int64_t layer) { return inputs_[size_t(layer) % inputs_.size()].data(); }
  KeptLayer& layer(int64_t index) { return layers_[size_t(index) % layers_.size()]; }
  cuda::KvLayer kv(int64_t layer);
  // Of the row's tokens and one module of a layer, most_rank() floats apart.
  const float* shrunk(int64_t index, model::Module module) { return layer(index).shrunk.data() + int64_t(module) * size() * most_rank_; }
  int64_t most_rank() const { return most_rank_; }
  // Of the layer for a chunk's rows; null where nothing is kept.
  LayerTap tap(int64_t layer, const Chunk& chunk);
  const cuda::PackedToken* tokens() const { return tokens_.data(); }
  const cuda::PackedToken* tiles() const { return tiles_.data(); }

  bool ready = false;  // the forward pass went through
  // The indices of the tokens with a target, and what the head leaves: per such token d logprob / d (normed residual stream).
  std::vector<int32_t> targets;
  DeviceBuffer<int32_t> target_rows, target_ids;
  DeviceBuffer<float> directions;  // [targets][hidden]

 private:
  static train::Room room_for(const train::Row& row) { return {row.size(), train::RowPages(row).pages()}; }
  int64_t bytes(const train::Room& room) const;
  void grow(const train::Room& room);
  void send_chunks(const model::Adapter* adapter, cuda::Stream& stream);
  std::vector<cuda::SlotCopy> copies_of(int64_t first, int64_t count) const;
  void put_tokens();
  int64_t kv_layer_elements() const { return pages_.pages() * cuda::kPagePositions * spec_.kv_size(); }

  const model::Spec& spec_;
  train::Keep keep_;
  int64_t chunk_rows_, most_rank_;
  train::Room room_;
  train::Row row_;
  train::RowPages pages_;
  std::shared_ptr<const model::Adapter> adapter_;
  std::vector<Chunk> chunks_;
  std::vector<DeviceBuffer<float>> inputs_;
  std::vector<KeptLayer> layers_;
  std::vector<DeviceBuffer<bf16>> kv_;  // keys, then values
  DeviceBuffer<cuda::PackedToken> tokens_, tiles_;
};

}  // namespace tandem::device
