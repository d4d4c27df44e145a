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

int64_t ranks_of(const std::vector<ops::LoraTask>& tasks) {
  int64_t ranks = 0;
  for (const ops::LoraTask& task : tasks) ranks += task.factors->rank_padded();
  return ranks;
}

// The same tasks over `count` of their rows from `first` on.
std::vector<ops::LoraTask> rows_of(const std::vector<ops::LoraTask>& tasks, int64_t first, int64_t count) {
  std::vector<ops::LoraTask> part = tasks;
  for (ops::LoraTask& task : part) {
    task.rows += first;
    task.u += first * task.ldu;
    task.count = std::min(count, task.count - first);
  }
  return part;
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

Steps shrink(model::Model& model, const UnitSize& unit, std::vector<ops::LoraTask> tasks, const void* x, int64_t ldx) {
  if (tasks.empty()) co_return;
  int64_t ranks = ranks_of(tasks), inner = tasks.front().factors->in_padded(), count = tasks.front().count;
  int64_t step = unit.rows(inner, ranks);
  for (int64_t first = 0; first < count; first += step) {
    ops::lora_shrink(model.kernels, model.pool, rows_of(tasks, first, step), x, ldx);
    co_yield std::min(step, count - first) * inner* ranks;
  }
}

ops::AttentionShape attention_shape(const model::Spec& spec, int64_t layer) {
  return {spec.heads, spec.window_layers[size_t(layer)] ? spec.sliding_window : 0};
}

LayerForward::LayerForward(model::Model& model, const UnitSize& unit, int64_t rows, int64_t positions)
    : model_(model), unit_(unit), rope_(model.spec.rope, positions, model.spec.head_dim), experts_(model, rows, rows),
      all_rows_(size_t(rows)) {
  const model::Widths widths = model::widths_of(model.weights);
  ld_activation_ = widths.activation;
  wide_ = Buffer<float>(size_t(rows * widths.wide));
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

Steps LayerForward::product(Tape& tape, int64_t layer, Chunk chunk, Operands o) {
  std::vector<ops::LoraTask> tasks;
  int64_t width = tape.width(layer, o.product), at = 0;
  float* u = tape.layer(layer).u[size_t(o.product)].data() + chunk.first * width;
  for (model::Module module : modules_of(o.product)) {
    if (!tape.adapter()) break;
    const ops::LoraFactors& factors = tape.adapter()->factors(layer, module);
    if (factors.rank() > 0) tasks.push_back({&factors, all_rows_.data(), chunk.count, u + at, width});
    at += factors.rank_padded();
  }
  Steps down = shrink(model_, unit_, tasks, o.x, o.ldx);
  for (down.next(); !down.finished(); down.next()) co_yield down.work();
  const ops::PackedMatrix& w = weights_of(model_.weights.layers[size_t(layer)], o.product);
  int64_t panel_work = UnitSize::counted(chunk.count) * (w.columns_padded() + width) * w.panel();
  for (ops::PanelRange range : unit_.cut(ops::all_panels(w).end, panel_work)) {
    ops::lora_matmul_panels(model_.kernels, model_.pool, tasks, o.x, o.ldx, chunk.count, w, range, o.y, o.ldy, o.accumulate);
    co_yield (range.end - range.first) * panel_work;
  }
}

Steps LayerForward::run(Tape& tape, int64_t layer, Chunk chunk) {
  using Part = Steps (LayerForward::*)(Tape&, int64_t, Chunk);
  std::vector<Part> parts = {&LayerForward::attention_in, &LayerForward::attention_out};
  if (model_.spec.mixes(layer)) parts.push_back(&LayerForward::mixture);
  else parts.insert(parts.end(), {&LayerForward::mlp_in, &LayerForward::mlp_out});
  for (Part part : parts) {
    Steps steps = (this->*part)(tape, layer, chunk);
    for (steps.next(); !steps.finished(); steps.next()) co_yield steps.work();
  }
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

Steps LayerForward::attention_in(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  normalise(tape.input(index) + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.attention_norm,
            activation_.data());
  int64_t ld = layer.qkv.rows_padded();
  Steps qkv = product(tape, index, chunk, {model::Product::kQkv, activation_.data(), ld_activation_, wide_.data(), ld, false});
  for (qkv.next(); !qkv.finished(); qkv.next()) co_yield qkv.work();
  add_bias(model_.pool, wide_.data(), ld, chunk.count, layer.qkv_bias);
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    uint8_t* qk = tape.layer(index).qk.data() + size_t((chunk.first + r) * tape.ld_qk()) * element();
    write_elements(wide_.data() + r * ld, tape.ld_qk(), qk);
  });
  clear_pages(tape, index, chunk);
  store_keys(tape, index, chunk);
  co_yield chunk.count* ld;
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

Steps LayerForward::attention_out(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t ld = tape.ld_attended();
  uint8_t* attended = tape.layer(index).attended.data() + size_t(chunk.first * ld) * element();
  // What pads a row is zero from the start and never written.
  ops::AttentionShape shape = attention_shape(model_.spec, index);
  for (const auto& part : unit_.cut(shape, tape.kv().shape(), tape.pages().runs(chunk.first, chunk.count))) {
    ops::attention(model_.kernels, model_.pool, shape, tape.kv(), tape.kv_layer(index), queries_.data(), part.runs, attended, ld);
    co_yield part.work;
  }
  float* middle = tape.layer(index).middle.data() + chunk.first * tape.ld_residual();
  std::memcpy(middle, tape.input(index) + chunk.first * tape.ld_residual(), size_t(chunk.count * tape.ld_residual()) * sizeof(float));
  Steps output = product(tape, index, chunk, {model::Product::kOutput, attended, ld, middle, tape.ld_residual(), true});
  for (output.next(); !output.finished(); output.next()) co_yield output.work();
  add_bias(model_.pool, middle, tape.ld_residual(), chunk.count, layer.output_bias);
}

Steps LayerForward::mlp_in(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t f = model_.spec.intermediate_size, ld = layer.gate_up.rows_padded();
  normalise(tape.layer(index).middle.data() + chunk.first * tape.ld_residual(), tape.ld_residual(), chunk.count, layer.mlp_norm,
            activation_.data());
  Steps gate_up = product(tape, index, chunk, {model::Product::kGateUp, activation_.data(), ld_activation_, wide_.data(), ld, false});
  for (gate_up.next(); !gate_up.finished(); gate_up.next()) co_yield gate_up.work();
  add_bias(model_.pool, wide_.data(), ld, chunk.count, layer.gate_up_bias);
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    const float* gate = wide_.data() + r * ld;
    write_elements(gate, 2 * f, tape.layer(index).gate_up.data() + size_t((chunk.first + r) * 2 * f) * element());
    model::activate(model_.kernels, model_.element, gate, f, activation_.data() + size_t(r * ld_activation_) * element());
  });
  co_yield chunk.count* ld;
}

void LayerForward::activate_row(const uint8_t* gate_up, int64_t f, uint8_t* out) const {
  if (model_.element == ops::Element::kF32) {
    auto* gate = reinterpret_cast<const float*>(gate_up);
    model_.kernels.silu_mul_f32(gate, gate + f, f, reinterpret_cast<float*>(out));
    return;
  }
  thread_local std::vector<float> wide;
  wide.resize(size_t(2 * f));
  read_elements(gate_up, 0, 2 * f, wide.data());
  model_.kernels.silu_mul_bf16(wide.data(), wide.data() + f, f, reinterpret_cast<uint16_t*>(out));
}

void LayerForward::activate(const uint8_t* gate_up, int64_t count, uint8_t* to) const {
  const int64_t f = model_.spec.intermediate_size;
  for_rows(model_.pool, count,
           [&](int64_t r) { activate_row(gate_up + size_t(r * 2 * f) * element(), f, to + size_t(r * ld_activation_) * element()); });
}

Steps LayerForward::mlp_out(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  int64_t offset = chunk.first * tape.ld_residual();
  float* out = tape.input(index + 1) + offset;
  std::memcpy(out, tape.layer(index).middle.data() + offset, size_t(chunk.count * tape.ld_residual()) * sizeof(float));
  Steps down = product(tape, index, chunk, {model::Product::kDown, activation_.data(), ld_activation_, out, tape.ld_residual(), true});
  for (down.next(); !down.finished(); down.next()) co_yield down.work();
  add_bias(model_.pool, out, tape.ld_residual(), chunk.count, layer.down_bias);
}

Steps LayerForward::multiply(const ops::PackedMatrix& w, int64_t outputs) {
  const int64_t panels = model::expert_panels(w, 0, outputs).end;
  for (const auto& part : unit_.cut(experts_.pieces(), panels, w.columns_padded() * w.panel())) {
    experts_.multiply(w, outputs, part.runs);
    co_yield part.work;
  }
}

Steps LayerForward::mixture(Tape& tape, int64_t index, Chunk chunk) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const int64_t h = model_.spec.hidden_size, f = model_.spec.experts.size, offset = chunk.first * tape.ld_residual();
  const float* middle = tape.layer(index).middle.data() + offset;
  normalise(middle, tape.ld_residual(), chunk.count, layer.mlp_norm, activation_.data());
  experts_.route(layer, activation_.data(), ld_activation_, chunk.count);
  float* out = tape.input(index + 1) + offset;
  std::memcpy(out, middle, size_t(chunk.count * tape.ld_residual()) * sizeof(float));
  co_yield chunk.count* h* model_.spec.experts.count;
  while (experts_.take()) {
    experts_.gather(activation_.data(), ld_activation_);
    Steps gate_up = multiply(layer.gate_up, 2 * f);
    for (gate_up.next(); !gate_up.finished(); gate_up.next()) co_yield gate_up.work();
    keep_gate_up(tape, index, chunk);
    experts_.activate();
    co_yield experts_.batch_rows() * 2 * f;
    Steps down = multiply(layer.down, h);
    for (down.next(); !down.finished(); down.next()) co_yield down.work();
    experts_.combine(out, tape.ld_residual());
    co_yield experts_.batch_rows() * h;
  }
}

void LayerForward::keep_gate_up(Tape& tape, int64_t index, Chunk chunk) {
  const int64_t width = 2 * model_.spec.experts.size, first = chunk.first * experts_.used();
  for_rows(model_.pool, experts_.batch_rows(), [&](int64_t i) {
    uint8_t* kept = tape.layer(index).gate_up.data() + size_t((first + experts_.pair(i)) * width) * element();
    write_elements(experts_.wide() + i * experts_.ld_wide(), width, kept);
  });
}

}  // namespace tandem::train
