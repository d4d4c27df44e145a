#include "device/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "cuda/elementwise/elementwise.h"
#include "cuda/norm/rms_norm.h"

namespace tandem::device {
namespace {

DeviceBuffer<float> upload(const float* values, int64_t count) { return DeviceBuffer<float>(std::vector<float>(values, values + count)); }

}  // namespace

Layers::Layers(const model::Spec& spec, const Weights& weights, const Sizes& sizes, cuda::Stream& stream)
    : spec_(spec), weights_(weights), sizes_(sizes), stream_(stream), wide_(size_t(sizes.rows * sizes.wide)),
      activation_(size_t(std::max(sizes.rows, sizes.logit_rows) * sizes.activation)), queries_(size_t(sizes.rows * sizes.queries)),
      workspace_(size_t(sizes.workspace_floats)), lora_(size_t(sizes.lora_floats)), arrived_(size_t(kLoraArrivals)),
      arrivals_(size_t(sizes.arrivals)), spare_(size_t(sizes.hidden)), mixture_(spec, weights.kernels.experts, sizes.mixed_rows, stream) {
  const ops::RopeTable table(spec.rope, sizes.positions, spec.head_dim);
  const int64_t count = sizes.positions * spec.head_dim / 2;
  cosines_ = upload(table.cosines(), count);
  sines_ = upload(table.sines(), count);
}

void Layers::embed(const Batch& batch, float* y) {
  residual_ = {};  // of a pass that failed half-way
  in_spare_ = false;
  const int64_t h = spec_.hidden_size;
  const Matrix& embedding = weights_.embedding;
  cuda::embed_tokens({batch.tokens, embedding.data.data(), spec_.vocab_size, h, batch.rows, y, h, embedding.quantised(), batch.last_tokens,
                      batch.last_count},
                     stream_.get());
}

void Layers::logits(float* rows, int64_t count, float* out) {
  normalise(rows, count, weights_.final_norm);
  product(head(), activation_.data(), count, out, nullptr);
}

void Layers::attend(const Batch& batch, int64_t index, const cuda::KvLayer& kv, float* hidden, const LayerTap* tap) {
  in_spare_ = tap == nullptr && norms_in_products(batch, index);
  const cuda::RopeStore rope = project_rows(batch, index, kv, hidden, tap);
  bf16* attended = tap && tap->attended ? tap->attended : activation_.data();
  if (tap != nullptr || !attend_rotating(batch, index, kv, rope, attended)) {
    store(rope, tap);
    run_attention(batch, index, kv, rope.queries, attended, tap);
  }
  add_attended(batch, index, attended, hidden, tap);
}

Batch Layers::attend_wanted(const Batch& batch, int64_t index, const cuda::KvLayer& kv, float* hidden, float* wanted) {
  const cuda::RopeStore rope = project_rows(batch, index, kv, hidden, nullptr);
  store(rope, nullptr);
  Batch rest = batch;
  rest.rows = batch.wanted_count;
  rest.row_adapters = batch.wanted_adapters;
  rest.adapter_tiles = batch.wanted_tiles;
  rest.slots = nullptr;  // which are the batch's rows'
  if (rest.rows == 0) return rest;
  run_attention(batch, index, kv, rope.queries, activation_.data(), nullptr);
  const auto gather = [&](const float* from, float* to, int64_t width) {
    cuda::gather_rows({from, width, batch.rows, batch.wanted, to, width, rest.rows, width}, stream_.get());
  };
  gather(hidden, wanted, spec_.hidden_size);
  // Two bf16 to a float; the queries have been used.
  gather(reinterpret_cast<const float*>(activation_.data()), reinterpret_cast<float*>(queries_.data()), spec_.query_size() / 2);
  add_attended(rest, index, queries_.data(), wanted, nullptr);
  return rest;
}

cuda::RopeStore Layers::project_rows(const Batch& batch, int64_t index, const cuda::KvLayer& kv, float* hidden, const LayerTap* tap) {
  const Layer& layer = weights_.layers[size_t(index)];
  cuda::RopeStore args{};
  if (in_spare_) {
    args.parts = normed_product(layer.qkv, {hidden, {}, layer.attention_norm.data(), 0, spare_.data()}, nullptr);
  } else {
    normalise(hidden, batch.rows, layer.attention_norm);
    // Nothing else reads or changes what the products give.
    const bool leave = tap == nullptr;
    args.parts = project(batch, index, model::Product::kQkv, layer.qkv, activation_.data(), wide_.data(), nullptr, leave, tap);
  }
  args.qkv = wide_.data();
  args.ld = layer.qkv.n;
  args.bias = layer.qkv_bias.data();
  args.q_norm = layer.q_norm.data();
  args.k_norm = layer.k_norm.data();
  args.eps = float(spec_.rms_norm_eps);
  args.cosines = cosines_.data();
  args.sines = sines_.data();
  args.positions = batch.positions;
  args.slots = batch.slots;
  args.queries = tap && tap->queries ? tap->queries : queries_.data();
  args.qk = tap ? tap->qk : nullptr;
  args.kv = kv;
  args.rows = batch.rows;
  args.heads = spec_.heads;
  args.dim = spec_.head_dim;
  args.table_positions = sizes_.positions;
  return args;
}

void Layers::store(const cuda::RopeStore& rope, const LayerTap* tap) {
  cuda::rope_store(rope, stream_.get());
  if (tap) cuda::copy_slots(rope.kv, tap->copies, tap->copy_count, stream_.get());
}

void Layers::add_attended(const Batch& batch, int64_t index, const bf16* attended, float* hidden, const LayerTap* tap) {
  const Layer& layer = weights_.layers[size_t(index)];
  const bool leave = tap == nullptr && layer.output_bias.size() == 0;
  float* out = tap ? tap->middle : hidden;
  residual_ = project(batch, index, model::Product::kOutput, layer.output, attended, out, hidden, leave, tap);
  add_bias(layer.output_bias, batch.rows, out);
}

cuda::PagedAttention Layers::attention_of(const Batch& batch, int64_t index, const cuda::KvLayer& kv, const bf16* queries, bf16* out) {
  cuda::PagedAttention args{};
  args.queries = queries;
  args.kv = kv;
  args.page_table = batch.page_table;
  args.sequences = batch.runs;
  args.max_pages = batch.max_pages;
  args.heads = spec_.heads;
  args.scale = 1.0f / std::sqrt(float(spec_.head_dim));
  args.window = spec_.window_layers[size_t(index)] ? spec_.sliding_window : 0;
  args.out = out;
  args.workspace = workspace_.data();
  args.workspace_floats = sizes_.workspace_floats;
  args.arrivals = arrivals_.data();
  args.kernel = weights_.kernels.attention;
  return args;
}

int64_t Layers::take_splits(const Batch& batch, cuda::PagedAttention& args) const {
  args.splits_in_grid = true;
  args.longest = batch.split_longest;
  args.prefixes = batch.prefixes;
  args.prefix_count = batch.prefix_count;
  args.members = batch.members;
  args.member_count = batch.member_count;
  args.tile_rows = batch.split_tokens * (spec_.heads / args.kv.kv_heads);
  return args.workspace_floats / cuda::attention_workspace_floats(1, args.kv.kv_heads, args.kv.dim, batch.split_longest, args.tile_rows);
}

bool Layers::attend_rotating(const Batch& batch, int64_t index, const cuda::KvLayer& kv, const cuda::RopeStore& rope, bf16* out) {
  // Of a sequence with several tokens, each would need the keys of those before it, which other blocks store.
  if (!weights_.kernels.fused || batch.wide_count > 0 || batch.rows != batch.runs) return false;
  cuda::PagedAttention args = attention_of(batch, index, kv, nullptr, out);
  args.stored_is_old = true;
  args.rope = &rope;
  args.tiles = batch.split_tiles;
  args.tile_count = batch.split_count;
  // The product's parts are read where splits' states go otherwise.
  const int64_t floats = rope.parts.count * rope.parts.rows * rope.parts.columns;
  const int64_t end = floats == 0 ? 0 : rope.parts.data - workspace_.data() + floats;
  const int64_t used = std::min(sizes_.workspace_floats, (end + 3) / 4 * 4);
  args.workspace += used;
  args.workspace_floats -= used;
  if (args.tile_count > take_splits(batch, args) || !cuda::attention_rotates(args)) return false;
  cuda::paged_attention(args, stream_.get());
  return true;
}

void Layers::run_attention(const Batch& batch, int64_t index, const cuda::KvLayer& kv, const bf16* queries, bf16* out,
                           const LayerTap* tap) {
  cuda::PagedAttention args = attention_of(batch, index, kv, queries, out);
  args.log_sums = tap ? tap->log_sums : nullptr;
  // A trainer's batches follow one another within a layer.
  args.stored_is_old = tap == nullptr;
  if (batch.wide_count > 0) {
    args.tiles = batch.wide_tiles;
    args.tile_count = batch.wide_count;
    args.longest = batch.wide_longest;
    cuda::paged_attention(args, stream_.get());
  }
  const int64_t at_once = take_splits(batch, args);
  for (int64_t first = 0; first < batch.split_count; first += at_once) {
    args.tiles = batch.split_tiles + first;
    args.first_tile = first;
    args.tile_count = std::min(at_once, batch.split_count - first);
    cuda::paged_attention(args, stream_.get());
  }
}

void Layers::feed_forward(const Batch& batch, int64_t index, float* hidden, const LayerTap* tap) {
  using model::Product;
  const Layer& layer = weights_.layers[size_t(index)];
  const int64_t f = spec_.intermediate_size;
  const bf16* x = activation_.data();
  const bool leave = tap == nullptr, bias = layer.gate_up_bias.size() > 0;
  const bool normed = std::exchange(in_spare_, false);
  if (!normed) normalise(hidden, batch.rows, layer.mlp_norm);
  if (spec_.mixes(index)) return mix(batch, layer, hidden, tap, tap ? tap->after : hidden);
  if (normed) {
    bf16* active = reinterpret_cast<bf16*>(wide_.data());
    normed_product(layer.gate_up, {spare_.data(), {}, layer.mlp_norm.data(), 0, hidden}, active);
    x = active;
  } else if (const bf16* activated = leave && !bias ? gated_product(batch, index, x) : nullptr) {
    x = activated;
  } else if (bias || !adapted_activation(batch, index, tap)) {
    const cuda::Parts parts = project(batch, index, Product::kGateUp, layer.gate_up, x, wide_.data(), nullptr, leave && !bias, tap);
    add_bias(layer.gate_up_bias, batch.rows, wide_.data());
    bf16* kept = tap ? tap->gate_up : nullptr;
    cuda::silu_multiply({wide_.data(), 2 * f, activation_.data(), f, batch.rows, f, parts, kept}, stream_.get());
  }
  float* out = tap ? tap->after : hidden;
  residual_ = project(batch, index, Product::kDown, layer.down, x, out, hidden, leave && layer.down_bias.size() == 0, tap);
  add_bias(layer.down_bias, batch.rows, out);
}

void Layers::mix(const Batch& batch, const Layer& layer, const float* hidden, const LayerTap* tap, float* out) {
  const int64_t h = spec_.hidden_size, kept = 2 * spec_.experts.used * spec_.experts.size;
  for (int64_t first = 0; first < batch.rows; first += mixture_.most_rows()) {
    const bf16* x = activation_.data() + first * h;
    const int32_t* slots = batch.slots ? batch.slots + first : nullptr;
    route(layer, slots, x, std::min(mixture_.most_rows(), batch.rows - first), false);
    mixture_.run(layer, x, hidden + first * h, out + first * h, tap && tap->gate_up ? tap->gate_up + first * kept : nullptr);
  }
}

void Layers::route(const Layer& layer, const int32_t* slots, const bf16* x, int64_t rows, bool whole) {
  const cuda::Parts parts = product(layer.router, x, rows, mixture_.logits(), nullptr, !whole);
  mixture_.route(slots, rows, parts);
}

void Layers::settle(float* hidden) {
  const int64_t h = spec_.hidden_size;
  cuda::add_parts(std::exchange(residual_, {}), hidden, h, true, stream_.get());
}

void Layers::normalise(float* hidden, int64_t rows, const DeviceBuffer<float>& weight) {
  const int64_t h = spec_.hidden_size;
  const cuda::Parts parts = std::exchange(residual_, {});
  cuda::rms_norm({hidden, h, weight.data(), activation_.data(), h, rows, h, float(spec_.rms_norm_eps), parts, hidden}, stream_.get());
}

cuda::MatMul Layers::normed_product_of(const Matrix& w, bf16* gated) {
  cuda::MatMul args = product_of(w, nullptr, 1, wide_.data());
  args.gated = gated;
  args.leave_parts = true;
  // Other blocks still read the parts of the product before.
  const int64_t h = spec_.hidden_size, read = cuda::matmul_splits(h, spec_.intermediate_size) * h;
  const int64_t taken = std::min(args.workspace_floats, (read + 3) / 4 * 4);
  args.workspace += taken;
  args.workspace_floats -= taken;
  return args;
}

bool Layers::norms_in_products(const Batch& batch, int64_t index) {
  const Layer& layer = weights_.layers[size_t(index)];
  if (!weights_.kernels.fused || batch.rows != 1 || adapted(batch) || spec_.mixes(index)) return false;
  if (layer.output_bias.size() > 0 || layer.gate_up_bias.size() > 0) return false;
  // What the output projection adds goes to the second norm, beside a row that is not where it was.
  cuda::MatMul output = product_of(layer.output, nullptr, 1, nullptr);
  output.leave_parts = true;
  if (cuda::matmul_parts(output).count == 0) return false;
  const cuda::NormedRow first{nullptr, {}, layer.attention_norm.data(), 0, spare_.data()};
  const cuda::NormedRow second{spare_.data(), {}, layer.mlp_norm.data(), 0, nullptr};
  const cuda::MatMul qkv = normed_product_of(layer.qkv, nullptr);
  const bool room = qkv.workspace_floats >= cuda::matmul_workspace_floats(1, qkv.n, qkv.k);
  const cuda::MatMul gate_up = normed_product_of(layer.gate_up, reinterpret_cast<bf16*>(wide_.data()));
  return room && cuda::matmul_normalises(qkv, first) && cuda::matmul_normalises(gate_up, second);
}

cuda::Parts Layers::normed_product(const Matrix& w, cuda::NormedRow row, bf16* gated) {
  const cuda::MatMul args = normed_product_of(w, gated);
  row.parts = std::exchange(residual_, {});
  row.eps = float(spec_.rms_norm_eps);
  cuda::matmul_normed(args, row, stream_.get());
  return cuda::matmul_parts(args);
}

cuda::MatMul Layers::product_of(const Matrix& w, const bf16* x, int64_t rows, float* y) {
  cuda::MatMul args{x, w.k, rows, w.data.data(), w.n, w.k, y, w.n, false, workspace_.data(), sizes_.workspace_floats};
  args.quantised = w.quantised();
  args.kernel = weights_.kernels.matmul;
  args.under_way = weights_.kernels.under_way;
  return args;
}

cuda::Parts Layers::product(const Matrix& w, const bf16* x, int64_t rows, float* y, const float* onto, bool leave) {
  cuda::MatMul args = product_of(w, x, rows, y);
  args.accumulate = onto != nullptr;
  args.onto = onto;
  args.leave_parts = leave;
  cuda::matmul(args, stream_.get());
  return cuda::matmul_parts(args);
}

void Layers::add_bias(const DeviceBuffer<float>& bias, int64_t rows, float* y) {
  if (bias.size() == 0) return;
  cuda::add_bias({y, int64_t(bias.size()), bias.data(), rows, int64_t(bias.size())}, stream_.get());
}

}  // namespace tandem::device
