#include "model/forward.h"

#include <algorithm>
#include <cstring>

#include "model/rows.h"

namespace tandem::model {
namespace {

// Rows that one claim of the pool handles (for_rows).
constexpr int64_t kRowBlock = 4;
// The same where rows are written to KV pages: positions of a page lie in the same cache lines, so threads that shared one would take its
// lines from each other. Measured: a prompt of 512 is 7 % faster. Few rows are rather spread over all threads.
constexpr int64_t kPageBlock = simd::kPage;
constexpr int64_t kPageBlocks = 4;  // per thread, at least

void add_bias(ThreadPool& pool, float* rows, int64_t ld, int64_t count, const std::vector<float>& bias) {
  if (bias.empty()) return;
  for_rows(pool, count, [&](int64_t r) {
    float* row = rows + r * ld;
    for (size_t i = 0; i < bias.size(); ++i) row[i] += bias[i];
  });
}

const ops::PackedMatrix& weights_of(const Layer& layer, Product which) {
  switch (which) {
    case Product::kQkv: return layer.qkv;
    case Product::kOutput: return layer.output;
    case Product::kGateUp: return layer.gate_up;
    case Product::kDown: break;
  }
  return layer.down;
}

// Pairs of rows and experts that go through a mixture together where rows are few: all that 64 rows have, mostly.
constexpr int64_t kExpertPairs = 512;

// Rows are so many bytes more apart than they are long: lengths are mostly multiples of 2 KiB, and the lines of 16 such rows, one tile, would
// share two sets of L1. Measured: prompts are 2 to 3 % faster with such activations; products of 512 rows whose sums lie so are 1.1 times as fast
// by tiles.
constexpr int64_t kRowGapBytes = 64, kRowGapFloats = kRowGapBytes / int64_t(sizeof(float));

// From so many rows on gate and up are not stored. Measured: with 32 rows a layer's three products take as long or 4 % less, with 512 rows 3 to 14 %
// less, with 2,048 rows 2 to 24 %, most where products are fastest.
constexpr int64_t kGatedRows = 32;

// Of a matrix, fetched by each thread while it waits before its product: half of a core's L2.
constexpr size_t kFetchBytes = size_t(512) << 10;

// Threads mostly claim panels in their order, the caller first, so each fetches what it will read itself.
void fetch_while_waiting(ThreadPool& pool, const ops::PackedMatrix& next) {
  const ops::PanelRange all = ops::all_panels(next), first = ops::PanelClaims(all, pool.threads())[0];
  const size_t share = next.bytes() / size_t(all.end) * size_t(first.end);
  pool.fetch_while_waiting({next.data(), next.bytes(), share, kFetchBytes});
}

// Floats between rows of what q, k and v are.
int64_t ld_qkv(const Layer& layer) { return layer.qkv.rows_padded() + kRowGapFloats; }

}  // namespace

Model::Model(const Spec& model_spec, ops::Element compute, int threads)
    : spec(model_spec), element(compute), int8_kv(false), kernels(simd::kernels_for(simd::selected_isa())), pool(threads) {}

Model::Model(const Spec& model_spec, const std::vector<std::string>& files, const std::vector<Tensor>& tensors, ops::Element compute,
             int threads, const Progress& progress, const std::optional<Quantise>& quantise, bool int8_keys_and_values)
    : spec(model_spec), element(compute), int8_kv(int8_keys_and_values), kernels(simd::kernels_for(simd::selected_isa())), pool(threads),
      weights(load(spec, files, tensors, element, quantise, kernels, pool, progress)) {}

Forward::Forward(Model& model, int64_t max_positions, int64_t max_rows, int64_t max_logit_rows)
    : model_(model), rope_(model.spec.rope, max_positions, model.spec.head_dim),
      experts_(model, max_rows, std::max(max_rows, kExpertPairs)) {
  const Spec& spec = model.spec;
  const Widths widths = widths_of(model.weights);
  size_t size = ops::element_size(model.element);
  hidden_ld_ = widths.residual + kRowGapFloats;
  activation_ld_ = widths.activation + kRowGapBytes / int64_t(size);
  hidden_ = Buffer<float>(size_t(max_rows * hidden_ld_));
  int64_t wide_rows = std::max(max_rows, max_logit_rows);
  wide_ = Buffer<float>(size_t(wide_rows * std::max(widths.wide + kRowGapFloats, spec.hidden_size)));
  activation_ = Buffer<uint8_t>(size_t(wide_rows * activation_ld_) * size);
  queries_ = Buffer<uint8_t>(size_t(max_rows * spec.heads * model.kv_shape().dim()) * size);
  logits_ = Buffer<float>(size_t(max_logit_rows * model.head().rows_padded()));
}

void Forward::run(const ForwardBatch& batch, ops::KvPages& kv) {
  group_adapters(batch);
  ops::group_runs(batch.runs, model_.spec.heads / model_.spec.kv_heads, groups_);
  decodes_ = ops::single_queries(batch.runs);
  owners_.resize(batch.tokens.size());
  for (const ops::AttentionRun& run : batch.runs) {
    for (int64_t i = 0; i < run.count; ++i) owners_[size_t(run.first_row + i)] = &run;
  }
  fetch_while_waiting(model_.pool, model_.weights.layers.front().qkv);
  embed(batch.tokens);
  int64_t rows = int64_t(batch.tokens.size());
  const int64_t layers = int64_t(model_.weights.layers.size()), wanted = int64_t(batch.wanted.size());
  for (int64_t i = 0; i < layers; ++i) {
    const Layer& layer = model_.weights.layers[size_t(i)];
    const bool narrows = i + 1 == layers && wanted < rows;
    project(layer, i, rows);
    if (narrows) {
      rotate_and_store_all(layer, i, kv, rows);
      if (wanted == 0) return;
      narrow(batch);
      rows = wanted;
    }
    attend(narrows ? wanted_runs_ : batch.runs, layer, i, kv, rows, narrows);
    if (layer.mixes()) mix(layer, i, rows);
    else feed_forward(layer, i, rows);
    if (narrows) widen(batch.wanted);
  }
}

void Forward::narrow(const ForwardBatch& batch) {
  const Spec& spec = model_.spec;
  const size_t query_bytes = size_t(spec.heads * model_.kv_shape().dim()) * ops::element_size(model_.element);
  wanted_runs_.clear();
  const ops::AttentionRun* before = nullptr;  // the run of the last wanted row
  for (size_t i = 0; i < batch.wanted.size(); ++i) {
    // No wanted row lies before its new place.
    const int64_t to = int64_t(i), row = batch.wanted[i];
    if (row != to) {
      std::memcpy(hidden_.data() + to * hidden_ld_, hidden_.data() + row * hidden_ld_, size_t(spec.hidden_size) * sizeof(float));
      std::memcpy(queries_.data() + i * query_bytes, queries_.data() + size_t(row) * query_bytes, query_bytes);
    }
    if (!row_adapters_.empty()) row_adapters_[i] = row_adapters_[size_t(row)];
    const ops::AttentionRun* run = owners_[size_t(row)];
    if (run == before && batch.wanted[i - 1] + 1 == row) {
      ++wanted_runs_.back().count;
    } else {
      wanted_runs_.push_back({to, run->first_position + row - run->first_row, 1, run->pages});
    }
    before = run;
  }
  if (!row_adapters_.empty()) row_adapters_.resize(batch.wanted.size());
  adapters_.assign(row_adapters_);
  ops::group_runs(wanted_runs_, spec.heads / spec.kv_heads, groups_);
}

void Forward::widen(const std::vector<int32_t>& wanted) {
  for (size_t i = wanted.size(); i-- > 0;) {
    if (size_t(wanted[i]) == i) continue;
    std::memcpy(hidden_.data() + wanted[i] * hidden_ld_, hidden_.data() + int64_t(i) * hidden_ld_,
                size_t(model_.spec.hidden_size) * sizeof(float));
  }
}

void Forward::group_adapters(const ForwardBatch& batch) {
  row_adapters_.clear();
  for (size_t i = 0; i < batch.adapters.size(); ++i)
    row_adapters_.insert(row_adapters_.end(), size_t(batch.runs[i].count), batch.adapters[i]);
  adapters_.assign(row_adapters_);
}

void Forward::product(int64_t index, Product which, Inputs x, int64_t rows, float* y, int64_t ldy, bool accumulate) {
  const std::vector<ops::LoraTask>& tasks = adapters_.tasks(index, which);
  const ops::PackedMatrix& weights = weights_of(model_.weights.layers[size_t(index)], which);
  fetch_while_waiting(model_.pool, after(index, which));
  ops::lora_matmul(model_.kernels, model_.pool, tasks, x.data, x.ld, rows, weights, y, ldy, accumulate);
}

const ops::PackedMatrix& Forward::after(int64_t index, Product which) const {
  const std::vector<Layer>& layers = model_.weights.layers;
  const Layer& layer = layers[size_t(index)];
  if (which == Product::kOutput && layer.mixes()) return layer.router;
  if (which != Product::kDown) return weights_of(layer, Product(int(which) + 1));
  return size_t(index) + 1 < layers.size() ? layers[size_t(index) + 1].qkv : model_.head();
}

void Forward::embed(const std::vector<int32_t>& tokens) {
  for_rows(model_.pool, int64_t(tokens.size()),
           [&](int64_t r) { model_.weights.embedding.copy_row(tokens[size_t(r)], hidden_.data() + r * hidden_ld_); });
}

void Forward::normalise(const float* rows, int64_t ld, int64_t count, const std::vector<float>& weight) {
  const simd::Kernels& k = model_.kernels;
  int64_t n = model_.spec.hidden_size, padded = round_up(n, 32);
  float eps = float(model_.spec.rms_norm_eps);
  size_t size = ops::element_size(model_.element);
  for_rows(model_.pool, count, [&](int64_t r) {
    uint8_t* out = activation_.data() + size_t(r * activation_ld_) * size;
    if (model_.element == ops::Element::kBf16) {
      k.rms_norm_bf16(rows + r * ld, weight.data(), n, eps, reinterpret_cast<uint16_t*>(out));
    } else {
      k.rms_norm_f32(rows + r * ld, weight.data(), n, eps, reinterpret_cast<float*>(out));
    }
    std::memset(out + size_t(n) * size, 0, size_t(padded - n) * size);
  });
}

void Forward::rotate_and_store(const Layer& layer, int64_t index, ops::KvPages& kv, int64_t row, int64_t kv_head) {
  const Spec& spec = model_.spec;
  const simd::Kernels& k = model_.kernels;
  const int64_t d = spec.head_dim, dim = kv.shape().dim(), group = spec.heads / spec.kv_heads;
  const size_t size = ops::element_size(model_.element);
  const ops::AttentionRun& run = *owners_[size_t(row)];
  const int64_t position = run.first_position + (row - run.first_row), page = run.pages[position / simd::kPage];
  const int slot = int(position % simd::kPage);
  if (decodes_) kv.fetch_to_write(index, page, kv_head, slot);
  float* wide = wide_.data() + row * ld_qkv(layer);
  float *queries = wide + kv_head * group * d, *key = wide + spec.query_size() + kv_head * d;
  auto rotate = [&](float* x, const std::vector<float>& norm) {
    if (spec.qk_norm) k.rms_norm_f32(x, norm.data(), d, float(spec.rms_norm_eps), x);
    rope_.rotate(x, position);
  };
  uint8_t* out = queries_.data() + size_t((row * spec.heads + kv_head * group) * dim) * size;
  for (int64_t head = 0; head < group; ++head, queries += d, out += size_t(dim) * size) {
    rotate(queries, layer.q_norm);
    if (model_.element == ops::Element::kBf16) {
      k.to_bf16(queries, d, reinterpret_cast<uint16_t*>(out));
    } else {
      std::memcpy(out, queries, size_t(d) * sizeof(float));
    }
  }
  rotate(key, layer.k_norm);
  kv.write(index, page, kv_head, slot, key, key + spec.kv_size());
}

void Forward::rotate_and_store_all(const Layer& layer, int64_t index, ops::KvPages& kv, int64_t rows) {
  auto one = [&](int64_t row) {
    for (int64_t head = 0; head < model_.spec.kv_heads; ++head) rotate_and_store(layer, index, kv, row, head);
  };
  for_rows(model_.pool, rows, one, rows >= kPageBlocks * kPageBlock * model_.pool.threads() ? kPageBlock : kRowBlock);
}

void Forward::project(const Layer& layer, int64_t index, int64_t rows) {
  normalise(hidden_.data(), hidden_ld_, rows, layer.attention_norm);
  product(index, Product::kQkv, activated(), rows, wide_.data(), ld_qkv(layer), false);
  add_bias(model_.pool, wide_.data(), ld_qkv(layer), rows, layer.qkv_bias);
}

void Forward::attend(const std::vector<ops::AttentionRun>& runs, const Layer& layer, int64_t index, ops::KvPages& kv, int64_t rows,
                     bool stored) {
  const Spec& spec = model_.spec;
  // Columns beyond the heads feed padded weights, which are zero; the memory itself must be finite.
  int64_t padded = layer.output.columns_padded();
  size_t size = ops::element_size(model_.element);
  if (padded > spec.query_size()) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memset(activation_.data() + size_t(r * activation_ld_ + spec.query_size()) * size, 0, size_t(padded - spec.query_size()) * size);
    }
  }
  ops::AttentionShape shape{spec.heads, spec.window_layers[size_t(index)] ? spec.sliding_window : 0};
  // Where sequences decode, a head's queries, key and value are made by the thread that attends with them. Measured on a Zen 5: one stream of
  // 4-bit weights is 1.04x, eight are 1.02x.
  auto make = [&](int64_t row, int64_t kv_head) { rotate_and_store(layer, index, kv, row, kv_head); };
  ops::BeforeHead before;
  if (!stored && decodes_) before = std::ref(make);
  else if (!stored) rotate_and_store_all(layer, index, kv, rows);
  ops::attention(model_.kernels, model_.pool, shape, kv, index, queries_.data(), runs, activation_.data(), activation_ld_,
                 shape.window > 0 ? nullptr : &groups_, before);
  product(index, Product::kOutput, activated(), rows, hidden_.data(), hidden_ld_, true);
  add_bias(model_.pool, hidden_.data(), hidden_ld_, rows, layer.output_bias);
}

void Forward::feed_forward(const Layer& layer, int64_t index, int64_t rows) {
  normalise(hidden_.data(), hidden_ld_, rows, layer.mlp_norm);
  const bool by_panels = rows >= kGatedRows && layer.gate_up_bias.empty() && ops::has_whole_halves(layer.gate_up) &&
                         layer.down.columns_padded() == model_.spec.intermediate_size;
  const Inputs x = by_panels ? activate_panels(layer, index, rows) : activate_stored(layer, index, rows);
  product(index, Product::kDown, x, rows, hidden_.data(), hidden_ld_, true);
  add_bias(model_.pool, hidden_.data(), hidden_ld_, rows, layer.down_bias);
}

Forward::Inputs Forward::activate_stored(const Layer& layer, int64_t index, int64_t rows) {
  int64_t f = model_.spec.intermediate_size, ld = layer.gate_up.rows_padded();
  size_t size = ops::element_size(model_.element);
  product(index, Product::kGateUp, activated(), rows, wide_.data(), ld, false);
  add_bias(model_.pool, wide_.data(), ld, rows, layer.gate_up_bias);
  for_rows(model_.pool, rows, [&](int64_t r) {
    activate(model_.kernels, model_.element, wide_.data() + r * ld, f, activation_.data() + size_t(r * activation_ld_) * size);
  });
  return activated();
}

Forward::Inputs Forward::activate_panels(const Layer& layer, int64_t index, int64_t rows) {
  const size_t size = ops::element_size(model_.element);
  // In the place of gate and up, which are twice as many and wider: the rows that they are made of are read to the end.
  uint8_t* out = reinterpret_cast<uint8_t*>(wide_.data());
  const int64_t f = model_.spec.intermediate_size, ld = f + kRowGapBytes / int64_t(size);
  const std::vector<ops::LoraTask>& tasks = adapters_.tasks(index, Product::kGateUp);
  auto keep = [&](int64_t row, int64_t count, float* gate_up, int64_t ld_gate_up, int64_t first, int64_t outputs) {
    const int64_t panel = first / outputs, half = f / outputs;
    ops::lora_expand_rows(model_.kernels, tasks, panel, row, count, gate_up, ld_gate_up);
    ops::lora_expand_rows(model_.kernels, tasks, half + panel, row, count, gate_up + outputs, ld_gate_up);
    for (int64_t r = 0; r < count; ++r)
      gate(model_.kernels, model_.element, gate_up + r * ld_gate_up, outputs, out + size_t((row + r) * ld + first) * size);
  };
  fetch_while_waiting(model_.pool, after(index, Product::kGateUp));
  ops::lora_shrink(model_.kernels, model_.pool, tasks, activation_.data(), activation_ld_);
  ops::matmul_gated(model_.kernels, model_.pool, activation_.data(), activation_ld_, rows, layer.gate_up, std::ref(keep));
  return {out, ld};
}

void Forward::mix(const Layer& layer, int64_t index, int64_t rows) {
  normalise(hidden_.data(), hidden_ld_, rows, layer.mlp_norm);
  experts_.run(layer, activation_.data(), activation_ld_, rows, hidden_.data(), hidden_ld_);
  fetch_while_waiting(model_.pool, after(index, Product::kDown));
}

float* Forward::logits(const float* const* hidden_rows, int64_t count) {
  // Rows are gathered to the front of wide_; the residual stream stays for later calls.
  int64_t h = model_.spec.hidden_size;
  for (int64_t i = 0; i < count; ++i) std::memcpy(wide_.data() + i * h, hidden_rows[i], size_t(h) * sizeof(float));
  normalise(wide_.data(), h, count, model_.weights.final_norm);
  // The next step begins with them.
  fetch_while_waiting(model_.pool, model_.weights.layers.front().qkv);
  ops::matmul(model_.kernels, model_.pool, activation_.data(), activation_ld_, count, model_.head(), logits_.data(), ld_logits(), false);
  return logits_.data();
}

}  // namespace tandem::model
