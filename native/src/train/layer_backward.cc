#include "train/layer_backward.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/matmul_backward.h"
#include "ops/row_backward.h"

namespace tandem::train {
namespace {

// What a product of low-rank factors may read past the end of a row of d_out_: zeros, as what an earlier row left there may not be finite.
constexpr int64_t kSlack = 32;

}  // namespace

LayerBackward::LayerBackward(model::Model& model, LayerForward& forward, int64_t rows)
    : model_(model), forward_(forward), unit_(forward.unit()), experts_(model, forward), all_rows_(size_t(rows)) {
  const model::Widths widths = model::widths_of(model.weights);
  int64_t size = int64_t(forward.element()), attended = model.spec.heads * model.kv_shape().dim();
  ld_out_ = std::max(widths.wide, widths.residual) + kSlack;
  ld_wide_ = round_up(widths.activation, model.kernels.panel);
  ld_residual_ = 0;
  d_out_ = Buffer<uint8_t>(size_t(rows * ld_out_ * size));
  x_ = Buffer<uint8_t>(size_t(rows * forward.ld_activation() * size));
  q_ = Buffer<uint8_t>(size_t(rows * attended * size));
  d_attended_ = Buffer<uint8_t>(size_t(rows * attended * size));
  wide_ = Buffer<float>(size_t(rows * ld_wide_));
  dq_ = Buffer<float>(size_t(rows * attended));
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
}

int64_t LayerBackward::bytes(const Tape& tape, int64_t tokens) const {
  int64_t keys = model_.spec.kv_heads * model_.kv_shape().dim();
  return tokens * (tape.ld_residual() + 2 * keys) * int64_t(sizeof(float));
}

void LayerBackward::release() {
  residual_ = {}, dk_ = {}, dv_ = {};
  tokens_ = 0;
}

void LayerBackward::begin(const Tape& tape) {
  int64_t keys = model_.spec.kv_heads * model_.kv_shape().dim();
  ld_residual_ = tape.ld_residual();
  at_least(residual_, tape.size() * ld_residual_);
  at_least(dk_, tape.size() * keys);
  at_least(dv_, tape.size() * keys);
  tokens_ = std::max(tokens_, tape.size());
  int64_t width = 0;
  for (model::Product which : kAllProducts) {
    for (int64_t layer = 0; layer < model_.spec.layers; ++layer) width = std::max(width, tape.width(layer, which));
  }
  at_least(du_, int64_t(all_rows_.size()) * width);
}

void LayerBackward::clear_keys(Chunk chunk) {
  int64_t keys = model_.spec.kv_heads * model_.kv_shape().dim();
  for (Buffer<float>* buffer : {&dk_, &dv_}) {
    std::memset(buffer->data() + chunk.first * keys, 0, size_t(chunk.count * keys) * sizeof(float));
  }
}

Steps LayerBackward::outer(const float* u, int64_t ldu, const void* x, int64_t ldx, int64_t count, Trained& factor) {
  int64_t panel = model_.kernels.panel, panel_work = count * factor.rows * panel;
  for (ops::PanelRange range : unit_.cut(factor.ld / panel, panel_work)) {
    ops::accumulate_outer(model_.kernels, model_.pool, u, ldu, factor.rows, x, ldx, model_.element, count, factor.columns, range,
                          factor.grad.data(), factor.ld);
    co_yield (range.end - range.first) * panel_work;
  }
}

Steps LayerBackward::product(Tape& tape, FactorSet& factors, Back back, float* dx) {
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
    Steps down = shrink(model_, unit_, {tasks.back()}, d, ld_out_);
    for (down.next(); !down.finished(); down.next()) co_yield down.work();
    Steps to_b = outer(u + at, width, d, ld_out_, count, t->b);
    for (to_b.next(); !to_b.finished(); to_b.next()) co_yield to_b.work();
    Steps to_a = outer(du_.data() + at, width, back.x, back.ldx, count, t->a);
    for (to_a.next(); !to_a.finished(); to_a.next()) co_yield to_a.work();
    at += turned.rank_padded();
  }
  if (!dx) co_return;
  ops::PanelRange all = ops::backward_panels(w);
  int64_t panel_work = UnitSize::counted(count) * (w.rows_padded() + at) * w.panel();
  for (ops::PanelRange columns : unit_.cut(all.end, panel_work)) {
    ops::matmul_backward(model_.kernels, model_.pool, d_out_.data(), ld_out_, count, w, ops::all_panels(w), columns, dx, ld_wide_, false);
    model_.pool.run(tasks.empty() ? 0 : columns.end - columns.first,
                    [&](int64_t panel) { ops::lora_expand_panel(model_.kernels, tasks, columns.first + panel, dx, ld_wide_); });
    co_yield (columns.end - columns.first) * panel_work;
  }
}

Steps LayerBackward::run(Tape& tape, FactorSet& factors, int64_t layer, Chunk chunk, bool reach) {
  using Part = Steps (LayerBackward::*)(Tape&, FactorSet&, int64_t, Chunk);
  std::vector<Part> parts = {&LayerBackward::mlp_out, &LayerBackward::mlp_in, &LayerBackward::attention_out};
  if (model_.spec.mixes(layer)) parts = {&LayerBackward::mixture, &LayerBackward::attention_out};
  for (Part part : parts) {
    Steps steps = (this->*part)(tape, factors, layer, chunk);
    for (steps.next(); !steps.finished(); steps.next()) co_yield steps.work();
  }
  Steps steps = attention_in(tape, factors, layer, chunk, reach);
  for (steps.next(); !steps.finished(); steps.next()) co_yield steps.work();
}

// The residual stream's gradient is that of a product's outputs.
void LayerBackward::round_residual(const Tape& tape, Chunk chunk, int64_t columns, int64_t padded) {
  size_t size = forward_.element();
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    uint8_t* out = d_out_.data() + size_t(r * ld_out_) * size;
    forward_.write_elements(residual_.data() + (chunk.first + r) * tape.ld_residual(), columns, out);
    std::memset(out + size_t(columns) * size, 0, size_t(padded + kSlack - columns) * size);
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

Steps LayerBackward::mlp_out(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t f = model_.spec.intermediate_size, padded = layer.gate_up.rows_padded();
  size_t size = forward_.element();
  const uint8_t* gate_up = tape.layer(index).gate_up.data() + size_t(chunk.first * 2 * f) * size;
  round_residual(tape, chunk, model_.spec.hidden_size, layer.down.rows_padded());
  if (factors.find(index, model::Module::kDown)) forward_.activate(gate_up, chunk.count, x_.data());
  Steps down = product(tape, factors, {index, model::Product::kDown, chunk, x_.data(), forward_.ld_activation()}, wide_.data());
  for (down.next(); !down.finished(); down.next()) co_yield down.work();
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    uint8_t* out = d_out_.data() + size_t(r * ld_out_) * size;
    ops::silu_mul_backward(model_.kernels, model_.element, gate_up + size_t(r * 2 * f) * size, wide_.data() + r * ld_wide_, f, out);
    std::memset(out + size_t(2 * f) * size, 0, size_t(padded + kSlack - 2 * f) * size);
  });
  co_yield chunk.count* padded;
}

Steps LayerBackward::mlp_in(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const float* middle = tape.layer(index).middle.data();
  forward_.normalise(middle + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.mlp_norm, x_.data());
  Steps gate_up = product(tape, factors, {index, model::Product::kGateUp, chunk, x_.data(), forward_.ld_activation()}, wide_.data());
  for (gate_up.next(); !gate_up.finished(); gate_up.next()) co_yield gate_up.work();
  norm(middle, tape.ld_residual(), chunk, layer.mlp_norm);
}

Steps LayerBackward::mixture(Tape& tape, FactorSet&, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const float* middle = tape.layer(index).middle.data();
  round_residual(tape, chunk, model_.spec.hidden_size, layer.output.rows_padded());
  forward_.normalise(middle + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.mlp_norm, x_.data());
  Steps mixture = experts_.run(tape, index, chunk, {x_.data(), forward_.ld_activation(), d_out_.data(), ld_out_, wide_.data(), ld_wide_});
  for (mixture.next(); !mixture.finished(); mixture.next()) co_yield mixture.work();
  norm(middle, tape.ld_residual(), chunk, layer.mlp_norm);
}

Steps LayerBackward::attention_out(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk) {
  const model::Spec& spec = model_.spec;
  int64_t d = spec.head_dim, dim = tape.kv().shape().dim();
  size_t size = forward_.element();
  round_residual(tape, chunk, spec.hidden_size, model_.weights.layers[size_t(index)].output.rows_padded());
  const uint8_t* attended = tape.layer(index).attended.data() + size_t(chunk.first * tape.ld_attended()) * size;
  Steps output = product(tape, factors, {index, model::Product::kOutput, chunk, attended, tape.ld_attended()}, wide_.data());
  for (output.next(); !output.finished(); output.next()) co_yield output.work();
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    for (int64_t head = 0; head < spec.heads; ++head) {
      forward_.write_elements(wide_.data() + r * ld_wide_ + head * d, d, d_attended_.data() + size_t((r * spec.heads + head) * dim) * size);
    }
  });
  forward_.queries(tape, index, chunk, q_.data());
  ops::AttentionShape shape = attention_shape(spec, index);
  for (const auto& part : unit_.cut(shape, tape.kv().shape(), tape.pages().backward_runs(chunk.first, chunk.count))) {
    ops::attention_backward(model_.kernels, model_.pool, shape, tape.kv(), tape.kv_layer(index), part.runs,
                            {q_.data(), d_attended_.data(), dq_.data(), dk_.data(), dv_.data()});
    co_yield part.work;
  }
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
    std::memset(out + size_t(outputs) * size, 0, size_t(layer.qkv.rows_padded() + kSlack - outputs) * size);
  });
}

Steps LayerBackward::attention_in(Tape& tape, FactorSet& factors, int64_t index, Chunk chunk, bool reach) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const float* input = tape.input(index);
  turn_back(tape, index, chunk);
  forward_.normalise(input + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.attention_norm, x_.data());
  Steps qkv =
      product(tape, factors, {index, model::Product::kQkv, chunk, x_.data(), forward_.ld_activation()}, reach ? wide_.data() : nullptr);
  for (qkv.next(); !qkv.finished(); qkv.next()) co_yield qkv.work();
  if (reach) norm(input, tape.ld_residual(), chunk, layer.attention_norm);
}

}  // namespace tandem::train
