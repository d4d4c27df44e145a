#include "train/layer_backward.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/matmul_backward.h"
#include "ops/row_backward.h"

namespace tandem::train {
namespace {

// What a product of low-rank factors may read past the end of a row.
constexpr int64_t kSlack = 32;

template <typename T>
void at_least(Buffer<T>& buffer, int64_t count) {
  if (buffer.size() < size_t(count)) buffer = Buffer<T>(size_t(count));
}

}  // namespace

LayerBackward::LayerBackward(model::Model& model, LayerForward& forward, int64_t rows)
    : model_(model), forward_(forward), all_rows_(size_t(rows)) {
  const model::Layer& layer = model.weights.layers.front();
  int64_t size = int64_t(forward.element()), attended = model.spec.heads * model.kv_shape().dim();
  ld_out_ = std::max({layer.qkv.rows_padded(), layer.output.rows_padded(), layer.gate_up.rows_padded(), layer.down.rows_padded()}) + kSlack;
  ld_wide_ = std::max({ops::ld_backward(layer.qkv), ops::ld_backward(layer.output), ops::ld_backward(layer.down)});
  ld_residual_ = 0;
  d_out_ = Buffer<uint8_t>(size_t(rows * ld_out_ * size));
  x_ = Buffer<uint8_t>(size_t(rows * forward.ld_activation() * size));
  q_ = Buffer<uint8_t>(size_t(rows * attended * size));
  d_attended_ = Buffer<uint8_t>(size_t(rows * attended * size));
  wide_ = Buffer<float>(size_t(rows * ld_wide_));
  dq_ = Buffer<float>(size_t(rows * attended));
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
}

void LayerBackward::begin(const Tape& tape) {
  int64_t keys = model_.spec.kv_heads * model_.kv_shape().dim();
  ld_residual_ = tape.ld_residual();
  at_least(residual_, tape.size() * ld_residual_);
  at_least(dk_, tape.size() * keys);
  at_least(dv_, tape.size() * keys);
  int64_t width = 0;
  for (model::Product which : kAllProducts) {
    for (int64_t layer = 0; layer < model_.spec.layers; ++layer) width = std::max(width, tape.width(layer, which));
  }
  at_least(du_, int64_t(all_rows_.size()) * width);
}

void LayerBackward::begin_layer(const Tape& tape) {
  int64_t keys = model_.spec.kv_heads * model_.kv_shape().dim();
  std::memset(dk_.data(), 0, size_t(tape.size() * keys) * sizeof(float));
  std::memset(dv_.data(), 0, size_t(tape.size() * keys) * sizeof(float));
}

void LayerBackward::product(Tape& tape, FactorSet& factors, const Back& back, float* dx) {
  const ops::PackedMatrix& w = weights_of(model_.weights.layers[size_t(back.layer)], back.product);
  int64_t width = tape.width(back.layer, back.product), at = 0, count = back.chunk.count;
  const float* u = tape.layer(back.layer).u[size_t(back.product)].data() + back.chunk.first * width;
  std::vector<ops::LoraTask> tasks;
  for (model::Module module : modules_of(back.product)) {
    TrainedFactors* t = factors.find(back.layer, module);
    if (!t) continue;
    const ops::LoraFactors& turned = factors.turned(back.layer, module);
    const uint8_t* d = d_out_.data() + size_t(t->shape.first_out) * forward_.element();
    tasks.push_back({&turned, all_rows_.data(), count, du_.data() + at, width});
    ops::lora_shrink(model_.kernels, model_.pool, {tasks.back()}, d, ld_out_);
    ops::accumulate_outer(model_.kernels, model_.pool, u + at, width, t->shape.rank, d, ld_out_, model_.element, count, t->shape.out,
                          t->b.grad.data(), t->b.ld);
    ops::accumulate_outer(model_.kernels, model_.pool, du_.data() + at, width, t->shape.rank, back.x, back.ldx, model_.element, count,
                          t->shape.in, t->a.grad.data(), t->a.ld);
    at += turned.rank_padded();
  }
  if (!dx) return;
  ops::matmul_backward(model_.kernels, model_.pool, d_out_.data(), ld_out_, count, w, ops::all_panels(w), dx, ld_wide_, false);
  if (tasks.empty()) return;
  model_.pool.run(ops::ld_backward(w) / w.panel(),
                  [&](int64_t panel) { ops::lora_expand_panel(model_.kernels, tasks, panel, dx, ld_wide_); });
}

// The residual stream's gradient is that of a product's outputs.
void LayerBackward::round_residual(const Tape& tape, Chunk chunk, int64_t columns, int64_t padded) {
  size_t size = forward_.element();
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    uint8_t* out = d_out_.data() + size_t(r * ld_out_) * size;
    forward_.write_elements(residual_.data() + (chunk.first + r) * tape.ld_residual(), columns, out);
    std::memset(out + size_t(columns) * size, 0, size_t(padded - columns) * size);
  });
}

// residual += the norm's gradient, that of its output lying in wide_.
void LayerBackward::norm(const float* x, int64_t ld, Chunk chunk, const std::vector<float>& weight) {
  float eps = float(model_.spec.rms_norm_eps);
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    int64_t row = chunk.first + r;
    ops::rms_norm_backward(model_.kernels, x + row * ld, weight.data(), wide_.data() + r * ld_wide_, model_.spec.hidden_size, eps,
                           residual_.data() + row * ld_residual_);
  });
}

void LayerBackward::mlp_out(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t f = model_.spec.intermediate_size, padded = layer.gate_up.rows_padded();
  size_t size = forward_.element();
  const uint8_t* gate_up = tape.layer(index).gate_up.data() + size_t(chunk.first * 2 * f) * size;
  round_residual(tape, chunk, model_.spec.hidden_size, layer.down.rows_padded());
  if (factors.find(index, model::Module::kDown)) forward_.activate(gate_up, chunk.count, x_.data());
  product(tape, factors, {index, model::Product::kDown, chunk, x_.data(), forward_.ld_activation()}, wide_.data());
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    uint8_t* out = d_out_.data() + size_t(r * ld_out_) * size;
    ops::silu_mul_backward(model_.kernels, model_.element, gate_up + size_t(r * 2 * f) * size, wide_.data() + r * ld_wide_, f, out);
    std::memset(out + size_t(2 * f) * size, 0, size_t(padded - 2 * f) * size);
  });
}

void LayerBackward::mlp_in(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const float* middle = tape.layer(index).middle.data();
  forward_.normalise(middle + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.mlp_norm, x_.data());
  product(tape, factors, {index, model::Product::kGateUp, chunk, x_.data(), forward_.ld_activation()}, wide_.data());
  norm(middle, tape.ld_residual(), chunk, layer.mlp_norm);
}

void LayerBackward::attention_out(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk) {
  const model::Spec& spec = model_.spec;
  int64_t d = spec.head_dim, dim = tape.kv().shape().dim();
  size_t size = forward_.element();
  round_residual(tape, chunk, spec.hidden_size, model_.weights.layers[size_t(index)].output.rows_padded());
  const uint8_t* attended = tape.layer(index).attended.data() + size_t(chunk.first * tape.ld_attended()) * size;
  product(tape, factors, {index, model::Product::kOutput, chunk, attended, tape.ld_attended()}, wide_.data());
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    for (int64_t head = 0; head < spec.heads; ++head) {
      forward_.write_elements(wide_.data() + r * ld_wide_ + head * d, d, d_attended_.data() + size_t((r * spec.heads + head) * dim) * size);
    }
  });
  forward_.queries(tape, index, chunk, q_.data());
  ops::attention_backward(model_.kernels, model_.pool, attention_shape(spec, index), tape.kv(), tape.kv_layer(index),
                          tape.pages().backward_runs(chunk.first, chunk.count),
                          {q_.data(), d_attended_.data(), dq_.data(), dk_.data(), dv_.data()});
}

// d: the gradient of a normed and rotated head; raw: the head before both.
void LayerBackward::turn_head_back(const model::Layer& layer, const float* raw, bool key, int64_t position, float* d) const {
  int64_t n = model_.spec.head_dim;
  forward_.rope().rotate_back(d, position);
  if (!model_.spec.qk_norm) return;
  thread_local std::vector<float> dx;
  dx.assign(size_t(n), 0.0f);
  const std::vector<float>& weight = key ? layer.k_norm : layer.q_norm;
  ops::rms_norm_backward(model_.kernels, raw, weight.data(), d, n, float(model_.spec.rms_norm_eps), dx.data());
  std::memcpy(d, dx.data(), size_t(n) * sizeof(float));
}

// The gradient of the joint product of q, k and v from those of queries, keys and values.
void LayerBackward::turn_back(Tape& tape, int64_t index, Chunk chunk) {
  const model::Spec& spec = model_.spec;
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t d = spec.head_dim, dim = tape.kv().shape().dim(), outputs = spec.query_size() + 2 * spec.kv_size();
  size_t size = forward_.element();
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    thread_local std::vector<float> raw, gradient;
    raw.resize(size_t(tape.ld_qk()));
    gradient.resize(size_t(d));
    int64_t row = chunk.first + r, position = tape.pages().place(row).position;
    forward_.read_elements(tape.layer(index).qk.data(), row * tape.ld_qk(), tape.ld_qk(), raw.data());
    uint8_t* out = d_out_.data() + size_t(r * ld_out_) * size;
    for (int64_t head = 0; head < spec.heads + 2 * spec.kv_heads; ++head) {
      int64_t kv_head = (head - spec.heads) % spec.kv_heads;
      bool key = head >= spec.heads, value = head >= spec.heads + spec.kv_heads;
      const float* from =
          key ? (value ? dv_ : dk_).data() + (row * spec.kv_heads + kv_head) * dim : dq_.data() + (r * spec.heads + head) * dim;
      std::memcpy(gradient.data(), from, size_t(d) * sizeof(float));
      if (!value) turn_head_back(layer, raw.data() + head * d, key, position, gradient.data());
      forward_.write_elements(gradient.data(), d, out + size_t(head * d) * size);
    }
    std::memset(out + size_t(outputs) * size, 0, size_t(layer.qkv.rows_padded() - outputs) * size);
  });
}

void LayerBackward::attention_in(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk, bool reach) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const float* input = tape.input(index);
  turn_back(tape, index, chunk);
  forward_.normalise(input + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.attention_norm, x_.data());
  product(tape, factors, {index, model::Product::kQkv, chunk, x_.data(), forward_.ld_activation()}, reach ? wide_.data() : nullptr);
  if (reach) norm(input, tape.ld_residual(), chunk, layer.attention_norm);
}

}  // namespace tandem::train
