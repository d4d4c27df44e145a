#include "train/tape.h"

namespace tandem::train {
std::vector<model::Module> modules_of(model::Product product) {
  switch (product) {
    case model::Product::kQkv: return {model::Module::kQ, model::Module::kK, model::Module::kV};
    case model::Product::kOutput: return {model::Module::kO};
    case model::Product::kGateUp: return {model::Module::kGate, model::Module::kUp};
    case model::Product::kDown: break;
  }
  return {model::Module::kDown};
}

Tape::Tape(const model::Model& model, Keep keep) : model_(model), keep_(keep) {
  ld_residual_ = std::max(model::widths_of(model.weights).residual, model.spec.hidden_size);
  ld_attended_ = model.weights.layers.front().output.columns_padded();
  ld_qk_ = model.spec.query_size() + model.spec.kv_size();
  inputs_.resize(keep == Keep::kNothing ? 2 : size_t(model.spec.layers + 1));
  layers_.resize(keep == Keep::kActivations ? size_t(model.spec.layers) : 1);
}

int64_t Tape::width(int64_t layer, model::Product product) const {
  int64_t width = 0;
  for (model::Module module : modules_of(product)) width += adapter_ ? adapter_->factors(layer, module).rank_padded() : 0;
  return width;
}

void Tape::begin(Row row, std::shared_ptr<const model::Adapter> adapter) {
  ready = false;
  row_ = std::move(row);
  pages_ = RowPages(row_);
  adapter_ = std::move(adapter);
  grow(room_for(row_, adapter_.get()));
}

void Tape::release() {
  ready = false;
  room_ = {};
  for (Buffer<float>& input : inputs_) input = {};
  for (LayerTape& layer : layers_) layer = {};
  kv_.reset();
  directions = {};
}

ops::KvShape Tape::kv_shape() const {
  ops::KvShape shape = model_.kv_shape();
  shape.int8 = false;
  if (keep_ != Keep::kActivations) shape.layers = 1;
  return shape;
}

Room Tape::room_for(const Row& row, const model::Adapter* adapter) const {
  return {row.size(), RowPages(row).pages(), adapter ? row.size() * adapter->widest() : 0};
}

int64_t Tape::bytes(const Room& room) const {
  int64_t element = int64_t(ops::element_size(model_.element)), residual = ld_residual_ * int64_t(sizeof(float));
  int64_t elements = ld_qk_ + ld_attended_ + model_.spec.gate_up_size();
  int64_t token = int64_t(inputs_.size()) * residual + int64_t(layers_.size()) * (residual + elements * element);
  // d logprob / d x of each target.
  if (keep_ != Keep::kNothing) token += model_.spec.hidden_size * int64_t(sizeof(float));
  int64_t u = int64_t(layers_.size()) * kProducts * int64_t(sizeof(float));
  return room.tokens * token + room.u * u + room.pages * int64_t(kv_shape().page_bytes());
}

void Tape::grow(const Room& room) {
  int64_t rows = room.tokens, size_of = int64_t(ops::element_size(model_.element));
  for (Buffer<float>& input : inputs_) at_least(input, rows * ld_residual_);
  for (LayerTape& layer : layers_) {
    at_least(layer.middle, rows * ld_residual_);
    at_least(layer.qk, rows * ld_qk_ * size_of);
    at_least(layer.attended, rows * ld_attended_ * size_of);
    at_least(layer.gate_up, rows * model_.spec.gate_up_size() * size_of);
    for (Buffer<float>& u : layer.u) at_least(u, room.u);
  }
  if (!kv_ || kv_->pages() < room.pages) {
    kv_.reset();
    kv_ = std::make_unique<ops::KvPages>(kv_shape(), room.pages);
  }
  room_ = room_.with(room);
}

}  // namespace tandem::train
