#include "train/layer_forward.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bf16.h"

namespace tandem::train {
namespace {

void add_bias(ThreadPool& pool, float* rows, int64_t ld, int64_t count, const std::vector<float>& bias) {
  if (bias.empty()) return;
  for_rows(pool, count, [&](int64_t r) {
    for (size_t i = 0; i < bias.size(); ++i) rows[r * ld + int64_t(i)] += bias[i];
  });
}

}  // namespace

const ops::PackedMatrix& weights_of(const model::Layer& layer, model::Product which) {
  switch (which) {
    case model::Product::kQkv: return layer.qkv;
    case model::Product::kOutput: return layer.output;
    case model::Product::kGateUp: return layer.gate_up;
    case model::Product::kDown: break;
  }
  return layer.down;
}

ops::AttentionShape attention_shape(const model::Spec& spec, int64_t layer) {
  return {spec.heads, spec.window_layers[size_t(layer)] ? spec.sliding_window : 0};
}

LayerForward::LayerForward(model::Model& model, int64_t rows, int64_t positions)
    : model_(model), rope_(model.spec.rope, positions, model.spec.head_dim), all_rows_(size_t(rows)) {
  const model::Layer& layer = model.weights.layers.front();
  ld_activation_ = std::max({layer.qkv.columns_padded(), layer.output.columns_padded(), layer.down.columns_padded()});
  wide_ = Buffer<float>(size_t(rows * std::max(layer.qkv.rows_padded(), layer.gate_up.rows_padded())));
  activation_ = Buffer<uint8_t>(size_t(rows * ld_activation_) * element());
  queries_ = Buffer<uint8_t>(size_t(rows * model.spec.heads * model.kv_shape().dim()) * element());
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
}

void LayerForward::write_elements(const float* x, int64_t n, uint8_t* out) const {
  if (model_.element == ops::Element::kBf16) {
    model_.kernels.to_bf16(x, n, reinterpret_cast<uint16_t*>(out));
  } else {
    std::memcpy(out, x, size_t(n) * sizeof(float));
  }
}

void LayerForward::read_elements(const uint8_t* from, int64_t at, int64_t n, float* out) const {
  if (model_.element == ops::Element::kF32) {
    std::memcpy(out, reinterpret_cast<const float*>(from) + at, size_t(n) * sizeof(float));
    return;
  }
  auto* x = reinterpret_cast<const uint16_t*>(from) + at;
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(x[i]);
}

void LayerForward::normalise(const float* rows, int64_t ld, int64_t count, const std::vector<float>& weight, uint8_t* to) const {
  int64_t n = model_.spec.hidden_size, padded = round_up(n, 32);
  float eps = float(model_.spec.rms_norm_eps);
  for_rows(model_.pool, count, [&](int64_t r) {
    uint8_t* out = to + size_t(r * ld_activation_) * element();
    if (model_.element == ops::Element::kBf16) {
      model_.kernels.rms_norm_bf16(rows + r * ld, weight.data(), n, eps, reinterpret_cast<uint16_t*>(out));
    } else {
      model_.kernels.rms_norm_f32(rows + r * ld, weight.data(), n, eps, reinterpret_cast<float*>(out));
    }
    std::memset(out + size_t(n) * element(), 0, size_t(padded - n) * element());
  });
}

void LayerForward::product(Tape& tape, int64_t layer, model::Product which, Chunk chunk, const void* x, int64_t ldx, float* y, int64_t ldy,
                           bool accumulate) {
  std::vector<ops::LoraTask> tasks;
  int64_t width = tape.width(layer, which), at = 0;
  float* u = tape.layer(layer).u[size_t(which)].data() + chunk.first * width;
  for (model::Module module : modules_of(which)) {
    if (!tape.adapter()) break;
    const ops::LoraFactors& factors = tape.adapter()->factors(layer, module);
    if (factors.rank() > 0) tasks.push_back({&factors, all_rows_.data(), chunk.count, u + at, width});
    at += factors.rank_padded();
  }
  const ops::PackedMatrix& weights = weights_of(model_.weights.layers[size_t(layer)], which);
  ops::lora_matmul(model_.kernels, model_.pool, tasks, x, ldx, chunk.count, weights, y, ldy, accumulate);
}

void LayerForward::embed(Tape& tape, Chunk chunk) {
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    int64_t index = chunk.first + r;
    model_.weights.embedding.copy_row(tape.row().tokens[size_t(index)], tape.input(0) + index * tape.ld_residual());
  });
}

void LayerForward::turn_head(const model::Layer& layer, bool key, int64_t position, float* x) const {
  const std::vector<float>& norm = key ? layer.k_norm : layer.q_norm;
  float eps = float(model_.spec.rms_norm_eps);
  if (model_.spec.qk_norm) model_.kernels.rms_norm_f32(x, norm.data(), model_.spec.head_dim, eps, x);
  rope_.rotate(x, position);
}

void LayerForward::attention_in(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  normalise(tape.input(index) + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.attention_norm,
            activation_.data());
  int64_t ld = layer.qkv.rows_padded();
  product(tape, index, model::Product::kQkv, chunk, activation_.data(), ld_activation_, wide_.data(), ld, false);
  add_bias(model_.pool, wide_.data(), ld, chunk.count, layer.qkv_bias);
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    uint8_t* qk = tape.layer(index).qk.data() + size_t((chunk.first + r) * tape.ld_qk()) * element();
    write_elements(wide_.data() + r * ld, tape.ld_qk(), qk);
  });
  clear_pages(tape, index, chunk);
  store_keys(tape, index, chunk);
}

// A page is emptied before its first position is written: masked keys are finite, whatever an earlier row left.
void LayerForward::clear_pages(Tape& tape, int64_t index, Chunk chunk) {
  ops::KvPages& kv = tape.kv();
  auto clear = [&](int32_t page) { std::memset(kv.keys(tape.kv_layer(index), page, 0), 0, kv.shape().layer_page_bytes()); };
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    RowPages::Place place = tape.pages().place(chunk.first + r);
    if (place.position % simd::kPage != 0) return;
    size_t at = size_t(place.position / simd::kPage);
    clear((*place.table)[at]);
    for (const std::vector<int32_t>* table : place.copies) clear((*table)[at]);
  });
}

void LayerForward::store_keys(Tape& tape, int64_t index, Chunk chunk) {
  const model::Spec& spec = model_.spec;
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t d = spec.head_dim, dim = tape.kv().shape().dim(), ld = layer.qkv.rows_padded(), kv_layer = tape.kv_layer(index);
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    RowPages::Place place = tape.pages().place(chunk.first + r);
    float* row = wide_.data() + r * ld;
    for (int64_t head = 0; head < spec.heads + spec.kv_heads; ++head) turn_head(layer, head >= spec.heads, place.position, row + head * d);
    uint8_t* q = queries_.data() + size_t(r * spec.heads * dim) * element();
    for (int64_t head = 0; head < spec.heads; ++head) write_elements(row + head * d, d, q + size_t(head * dim) * element());
    const float* keys = row + spec.query_size();
    const float* values = keys + spec.kv_size();
    int slot = int(place.position % simd::kPage);
    for (int64_t head = 0; head < spec.kv_heads; ++head) {
      int32_t page = (*place.table)[size_t(place.position / simd::kPage)];
      tape.kv().write(kv_layer, page, head, slot, keys + head * d, values + head * d);
      for (const std::vector<int32_t>* table : place.copies) {
        tape.kv().write(kv_layer, (*table)[size_t(place.position / simd::kPage)], head, slot, keys + head * d, values + head * d);
      }
    }
  });
}

void LayerForward::queries(Tape& tape, int64_t index, Chunk chunk, uint8_t* out) const {
  const model::Spec& spec = model_.spec;
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t d = spec.head_dim, dim = tape.kv().shape().dim();
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    std::vector<float> x(static_cast<size_t>(d));
    int64_t position = tape.pages().place(chunk.first + r).position;
    for (int64_t head = 0; head < spec.heads; ++head) {
      read_elements(tape.layer(index).qk.data(), (chunk.first + r) * tape.ld_qk() + head * d, d, x.data());
      turn_head(layer, false, position, x.data());
      write_elements(x.data(), d, out + size_t((r * spec.heads + head) * dim) * element());
    }
  });
}

void LayerForward::attention_out(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t ld = tape.ld_attended();
  uint8_t* attended = tape.layer(index).attended.data() + size_t(chunk.first * ld) * element();
  // What pads a row is zero from the start and never written.
  ops::attention(model_.kernels, model_.pool, attention_shape(model_.spec, index), tape.kv(), tape.kv_layer(index), queries_.data(),
                 tape.pages().runs(chunk.first, chunk.count), attended, ld);
  float* middle = tape.layer(index).middle.data() + chunk.first * tape.ld_residual();
  std::memcpy(middle, tape.input(index) + chunk.first * tape.ld_residual(), size_t(chunk.count * tape.ld_residual()) * sizeof(float));
  product(tape, index, model::Product::kOutput, chunk, attended, ld, middle, tape.ld_residual(), true);
  add_bias(model_.pool, middle, tape.ld_residual(), chunk.count, layer.output_bias);
}

void LayerForward::mlp_in(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t f = model_.spec.intermediate_size, ld = layer.gate_up.rows_padded(), padded = layer.down.columns_padded();
  normalise(tape.layer(index).middle.data() + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.mlp_norm,
            activation_.data());
  product(tape, index, model::Product::kGateUp, chunk, activation_.data(), ld_activation_, wide_.data(), ld, false);
  add_bias(model_.pool, wide_.data(), ld, chunk.count, layer.gate_up_bias);
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    const float* gate = wide_.data() + r * ld;
    write_elements(gate, 2 * f, tape.layer(index).gate_up.data() + size_t((chunk.first + r) * 2 * f) * element());
    uint8_t* out = activation_.data() + size_t(r * ld_activation_) * element();
    if (model_.element == ops::Element::kBf16) {
      model_.kernels.silu_mul_bf16(gate, gate + f, f, reinterpret_cast<uint16_t*>(out));
    } else {
      model_.kernels.silu_mul_f32(gate, gate + f, f, reinterpret_cast<float*>(out));
    }
    std::memset(out + size_t(f) * element(), 0, size_t(padded - f) * element());
  });
}

void LayerForward::activate(const uint8_t* gate_up, int64_t count, uint8_t* to) const {
  int64_t f = model_.spec.intermediate_size;
  for_rows(model_.pool, count, [&](int64_t r) {
    uint8_t* out = to + size_t(r * ld_activation_) * element();
    if (model_.element == ops::Element::kF32) {
      auto* gate = reinterpret_cast<const float*>(gate_up) + r * 2 * f;
      model_.kernels.silu_mul_f32(gate, gate + f, f, reinterpret_cast<float*>(out));
      return;
    }
    thread_local std::vector<float> wide;
    wide.resize(size_t(2 * f));
    read_elements(gate_up, r * 2 * f, 2 * f, wide.data());
    model_.kernels.silu_mul_bf16(wide.data(), wide.data() + f, f, reinterpret_cast<uint16_t*>(out));
  });
}

void LayerForward::mlp_out(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t offset = chunk.first * tape.ld_residual();
  float* out = tape.input(index + 1) + offset;
  std::memcpy(out, tape.layer(index).middle.data() + offset, size_t(chunk.count * tape.ld_residual()) * sizeof(float));
  product(tape, index, model::Product::kDown, chunk, activation_.data(), ld_activation_, out, tape.ld_residual(), true);
  add_bias(model_.pool, out, tape.ld_residual(), chunk.count, layer.down_bias);
}

}  // namespace tandem::train
