#include "device/train_tape.h"

#include <algorithm>

namespace tandem::device {
namespace {

using cuda::PackedToken;

int32_t slot_of(const std::vector<int32_t>& table, int64_t position) {
  return table[size_t(position / cuda::kPagePositions)] * cuda::kPagePositions + int32_t(position % cuda::kPagePositions);
}

std::vector<PackedToken> tokens_of(const train::Row& row) {
  std::vector<PackedToken> tokens;
  for (const train::Segment& s : row.segments) {
    PackedToken token{0, int32_t(s.first), 0, 0};
    if (s.parent >= 0) {
      const train::Segment& parent = row.segments[size_t(s.parent)];
      token.prefix_first = int32_t(parent.first);
      token.prefix_end = int32_t(parent.first + parent.count);
    }
    for (int64_t i = 0; i < s.count; ++i) {
      token.position = int32_t(s.position + i);
      tokens.push_back(token);
    }
  }
  return tokens;
}

// What the rows of each tile see together.
std::vector<PackedToken> tiles_of(const std::vector<PackedToken>& tokens) {
  std::vector<PackedToken> tiles;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const PackedToken& token = tokens[i];
    if (i % cuda::kBackwardTile == 0) tiles.push_back(token);
    PackedToken& tile = tiles.back();
    tile.own_first = std::min(tile.own_first, token.own_first);
    if (token.prefix_first == token.prefix_end) continue;
    const bool first = tile.prefix_first == tile.prefix_end;
    tile.prefix_first = first ? token.prefix_first : std::min(tile.prefix_first, token.prefix_first);
    tile.prefix_end = first ? token.prefix_end : std::max(tile.prefix_end, token.prefix_end);
  }
  return tiles;
}

}  // namespace

TrainTape::TrainTape(const model::Spec& spec, train::Keep keep, int64_t chunk_rows, int64_t most_rank)
    : spec_(spec), keep_(keep), chunk_rows_(chunk_rows), most_rank_(most_rank),
      inputs_(keep == train::Keep::kNothing ? 2 : size_t(spec.layers + 1)),
      layers_(keep == train::Keep::kActivations ? size_t(spec.layers) : 1), kv_(layers_.size()) {}

int64_t TrainTape::bytes(const train::Room& room) const {
  const int64_t f = sizeof(float), e = sizeof(bf16), h = spec_.hidden_size, q = spec_.query_size(), kv = spec_.kv_size();
  int64_t layer = h * f, token = int64_t(inputs_.size()) * h * f + 2 * int64_t(sizeof(PackedToken));
  if (keep_ != train::Keep::kNothing) {
    layer += (2 * q + spec_.gate_up_size()) * e + (spec_.heads + model::kModules * most_rank_) * f + (spec_.qk_norm ? (q + kv) * e : 0);
    token += h * f;  // d logprob / d x of each target
  }
  const int64_t pages = room.pages * cuda::kPagePositions * 2 * kv * e;
  return room.tokens * (token + int64_t(layers_.size()) * layer) + int64_t(kv_.size()) * pages;
}

void TrainTape::begin(train::Row row, std::shared_ptr<const model::Adapter> adapter, cuda::Stream& stream) {
  ready = false;
  row_ = std::move(row);
  pages_ = train::RowPages(row_);
  adapter_ = std::move(adapter);
  grow(room_for(row_));
  targets.clear();
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < size(); ++i) {
    if (row_.targets[size_t(i)] < 0) continue;
    targets.push_back(int32_t(i));
    ids.push_back(row_.targets[size_t(i)]);
  }
  put(target_rows, targets);
  put(target_ids, ids);
  if (keep_ != train::Keep::kNothing) at_least(directions, int64_t(targets.size()) * spec_.hidden_size);
  put_tokens();
  send_chunks(adapter_.get(), stream);
}

void TrainTape::put_tokens() {
  const std::vector<PackedToken> tokens = tokens_of(row_);
  put(tokens_, tokens);
  put(tiles_, tiles_of(tokens));
}

void TrainTape::release() {
  ready = false;
  room_ = {};
  for (auto& input : inputs_) input = {};
  for (auto& kv : kv_) kv = {};
  for (KeptLayer& layer : layers_) layer = {};
  directions = {};
  tokens_ = {}, tiles_ = {};
}

void TrainTape::grow(const train::Room& room) {
  const int64_t rows = room.tokens, q = spec_.query_size();
  for (auto& input : inputs_) at_least(input, rows * spec_.hidden_size);
  for (auto& kv : kv_) at_least(kv, 2 * kv_layer_elements());  // of the row's pages
  for (KeptLayer& layer : layers_) {
    at_least(layer.middle, rows * spec_.hidden_size);
    if (keep_ == train::Keep::kNothing) continue;
    if (spec_.qk_norm) at_least(layer.qk, rows * (q + spec_.kv_size()));
    at_least(layer.queries, rows * q);
    at_least(layer.attended, rows * q);
    at_least(layer.gate_up, rows * spec_.gate_up_size());
    at_least(layer.log_sums, rows * spec_.heads);
    at_least(layer.shrunk, model::kModules * rows * most_rank_);
  }
  room_ = room_.with(room);
}

void TrainTape::send_chunks(const model::Adapter* adapter, cuda::Stream& stream) {
  const int64_t count = (size() + chunk_rows_ - 1) / chunk_rows_;
  chunks_.resize(size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    Chunk& chunk = chunks_[size_t(i)];
    chunk.first = i * chunk_rows_;
    chunk.count = std::min(chunk_rows_, size() - chunk.first);
    model::ForwardBatch batch;
    batch.tokens.assign(row_.tokens.begin() + chunk.first, row_.tokens.begin() + chunk.first + chunk.count);
    batch.runs = pages_.runs(chunk.first, chunk.count);
    if (adapter) batch.adapters.assign(batch.runs.size(), adapter);
    const size_t bytes = batch_bytes(batch_sizes(batch, spec_), spec_.layers);
    if (chunk.input_bytes < bytes) chunk.inputs = cuda::Inputs(chunk.input_bytes = bytes);
    chunk.inputs.begin();
    chunk.batch = send_batch(batch, spec_, {}, chunk.inputs, stream);
    const std::vector<cuda::SlotCopy> copies = copies_of(chunk.first, chunk.count);
    chunk.copy_count = int64_t(copies.size());
    put(chunk.copies, copies);
  }
  stream.wait();
}

std::vector<cuda::SlotCopy> TrainTape::copies_of(int64_t first, int64_t count) const {
  std::vector<cuda::SlotCopy> copies;
  for (int64_t i = first; i < first + count; ++i) {
    const train::RowPages::Place place = pages_.place(i);
    for (const auto* table : place.copies) copies.push_back({slot_of(*place.table, place.position), slot_of(*table, place.position)});
  }
  return copies;
}

cuda::KvLayer TrainTape::kv(int64_t layer) {
  bf16* keys = kv_[size_t(layer) % kv_.size()].data();
  return {keys, keys + kv_layer_elements(), pages_.pages(), spec_.kv_heads, spec_.head_dim};
}

LayerTap TrainTape::tap(int64_t index, const Chunk& chunk) {
  LayerTap tap{};
  tap.copies = chunk.copies.data();
  tap.copy_count = chunk.copy_count;
  if (keep_ == train::Keep::kNothing) return tap;
  KeptLayer& kept = layer(index);
  const int64_t q = spec_.query_size();
  if (spec_.qk_norm) tap.qk = kept.qk.data() + chunk.first * (q + spec_.kv_size());
  tap.queries = kept.queries.data() + chunk.first * q;
  tap.log_sums = kept.log_sums.data() + chunk.first * spec_.heads;
  tap.attended = kept.attended.data() + chunk.first * q;
  tap.shrunk = kept.shrunk.data() + chunk.first * most_rank_;
  tap.shrunk_ld = size() * most_rank_;
  tap.gate_up = kept.gate_up.data() + chunk.first * spec_.gate_up_size();
  return tap;
}

}  // namespace tandem::device
