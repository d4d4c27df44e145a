#include "device/train_backward.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cuda/gemm/matmul.h"
#include "cuda/lora/lora_silu.h"
#include "cuda/norm/rms_norm.h"
#include "device/train_units.h"

namespace tandem::device {
namespace {

int64_t widest_output(const model::Spec& s) { return std::max({s.query_size() + 2 * s.kv_size(), s.gate_up_size(), s.hidden_size}); }

int64_t ld_logits(const model::Spec& s) { return (s.experts.count + 7) / 8 * 8; }

int64_t backward_floats(const model::Spec& s, const Sizes& sizes, const Kernels& kernels) {
  int64_t most = 0;
  for (auto [n, k] : product_shapes(s)) {
    most = std::max(most, cuda::matmul_transposed_floats(kernels.matmul, sizes.rows, n, k));
  }
  return most;
}

}  // namespace

TrainBackward::TrainBackward(const model::Spec& spec, const Weights& weights, Layers& layers, TrainFactors& factors, const Sizes& sizes,
                             int64_t unit_work, cuda::Stream& stream)
    : spec_(spec), weights_(weights), layers_(layers), factors_(factors), sizes_(sizes), unit_work_(unit_work), stream_(stream),
      d_out_(size_t(sizes.rows * widest_output(spec))), x_(size_t(sizes.rows * sizes.activation)),
      wide_(size_t(sizes.rows * sizes.activation)), u_(size_t(cuda::LoraBack::kMost * sizes.rows * factors.most_rank())),
      workspace_(size_t(backward_floats(spec, sizes, weights.kernels))), d_weights_(size_t(sizes.rows * spec.experts.used)),
      d_logits_(size_t(sizes.rows * ld_logits(spec))) {}

int64_t TrainBackward::bytes(const model::Spec& spec, const Sizes& sizes, const Kernels& kernels, int64_t most_rank) {
  const int64_t f = sizeof(float), e = sizeof(bf16);
  const int64_t mixture = spec.experts.used * f + ld_logits(spec) * e;
  return sizes.rows * (widest_output(spec) * e + sizes.activation * (e + f) + cuda::LoraBack::kMost * most_rank * f + mixture) +
         backward_floats(spec, sizes, kernels) * f;
}

int64_t TrainBackward::row_bytes(const model::Spec& spec, int64_t tokens) {
  const int64_t f = sizeof(float), e = sizeof(bf16), q = spec.query_size(), kv = spec.kv_size();
  return tokens * ((spec.hidden_size + q + 2 * kv + spec.heads) * f + (q + 2 * kv) * e);
}

void TrainBackward::begin(const TrainTape& tape) {
  const int64_t rows = tape.size(), q = spec_.query_size(), kv = spec_.kv_size();
  at_least(residual_, rows * spec_.hidden_size);
  at_least(d_attended_, rows * q);
  at_least(keys_, rows * kv);
  at_least(values_, rows * kv);
  at_least(dq_, rows * q);
  at_least(dk_, rows * kv);
  at_least(dv_, rows * kv);
  at_least(deltas_, rows * spec_.heads);
  tokens_ = std::max(tokens_, rows);
}

void TrainBackward::release() {
  residual_ = {}, dq_ = {}, dk_ = {}, dv_ = {}, deltas_ = {};
  d_attended_ = {}, keys_ = {}, values_ = {};
  tokens_ = 0;
}

train::Steps TrainBackward::run(TrainTape& tape, int64_t index, bool reach) {
  const Layer& layer = weights_.layers[size_t(index)];
  const int64_t mlp_work = feed_forward_work(spec_, index) + layer.output.n * layer.output.k;
  for (const Chunk& chunk : tape.chunks()) {
    if (spec_.mixes(index)) mixture(tape, index, chunk);
    else mlp(tape, index, chunk);
    attention_out(tape, index, chunk);
    stream_.wait();
    co_yield chunk.count* mlp_work;
  }
  const cuda::AttentionBackward args = attention(tape, index);
  cuda::attention_deltas(args, stream_.get());
  for (bool of_keys : {false, true}) {
    for (const TileRange& unit : attention_units(unit_work_, args.rows, spec_.query_size(), of_keys)) {
      if (of_keys) cuda::attention_backward_keys(args, unit.first, unit.count, stream_.get());
      else cuda::attention_backward_queries(args, unit.first, unit.count, stream_.get());
      stream_.wait();
      co_yield unit.work;
    }
  }
  for (const Chunk& chunk : tape.chunks()) {
    attention_in(tape, index, chunk, reach);
    stream_.wait();
    co_yield chunk.count* layer.qkv.n* layer.qkv.k;
  }
}

cuda::LoraBack TrainBackward::product(TrainTape& tape, const Back& back, float* dx) {
  const Matrix& w = *back.weights;
  const Chunk& chunk = *back.chunk;
  const int64_t rows = chunk.count;
  if (dx)
    cuda::matmul_transposed({d_out_.data(), w.n, rows, w.data.data(), w.n, w.k, dx, w.k, false, workspace_.data(),
                             int64_t(workspace_.size()), w.quantised(), weights_.kernels.matmul},
                            stream_.get());
  cuda::LoraBack lora{{}, 0, rows, w.k, d_out_.data(), w.n, dx, w.k};
  std::array<cuda::LoraOuter, cuda::LoraOuter::kMost> outers;
  size_t count = 0;
  for (model::Module module : train::modules_of(back.product)) {
    const TrainFactors::Piece* piece = factors_.find(back.layer, module);
    if (!piece) continue;
    const ops::LoraShape& s = piece->shape;
    float* u = u_.data() + lora.count * sizes_.rows * factors_.most_rank();
    const float* shrunk = tape.shrunk(back.layer, module) + chunk.first * tape.most_rank();
    lora.projections[lora.count++] = {
        factors_.rounded(piece->a), factors_.rounded(piece->b), s.rank, factors_.scale(), s.first_out, s.out, u};
    outers[count++] = {shrunk, tape.most_rank(), d_out_.data() + s.first_out, w.n, rows, s.rank, s.out, factors_.gradient(piece->b)};
    outers[count++] = {u, s.rank, back.x, s.in, rows, s.rank, s.in, factors_.gradient(piece->a)};
  }
  cuda::lora_back_shrink(lora, stream_.get());
  cuda::lora_outer(outers.data(), int64_t(count), stream_.get());
  return lora;
}

void TrainBackward::add_adapters(const cuda::LoraBack& lora) { cuda::lora_back_expand(lora, stream_.get()); }

void TrainBackward::round_residual(const Chunk& chunk) {
  const int64_t h = spec_.hidden_size;
  cuda::narrow({residual_.data() + chunk.first * h, h, nullptr, d_out_.data(), h, chunk.count, h}, stream_.get());
}

void TrainBackward::normalise(const float* rows, int64_t count, const DeviceBuffer<float>& weight) {
  const int64_t h = spec_.hidden_size;
  cuda::rms_norm({rows, h, weight.data(), x_.data(), h, count, h, float(spec_.rms_norm_eps)}, stream_.get());
}

// residual_ += the norm's gradient, that of its output lying in wide_.
void TrainBackward::normalise_back(const float* rows, const Chunk& chunk, const DeviceBuffer<float>& weight) {
  const int64_t h = spec_.hidden_size;
  cuda::RmsNormBackward args{};
  args.x = rows + chunk.first * h;
  args.ldx = args.ldd = args.lddx = args.width = h;
  args.weight = weight.data();
  args.d = wide_.data();
  args.dx = residual_.data() + chunk.first * h;
  args.rows = chunk.count;
  args.eps = float(spec_.rms_norm_eps);
  cuda::rms_norm_backward(args, stream_.get());
}

void TrainBackward::mlp(TrainTape& tape, int64_t index, const Chunk& chunk) {
  using model::Product;
  const Layer& layer = weights_.layers[size_t(index)];
  const int64_t f = spec_.intermediate_size, h = spec_.hidden_size;
  KeptLayer& kept = tape.layer(index);
  const bf16* gate_up = kept.gate_up.data() + chunk.first * spec_.gate_up_size();
  round_residual(chunk);
  cuda::silu_multiply_backward({gate_up, nullptr, 0, nullptr, x_.data(), chunk.count, f}, stream_.get());
  const cuda::LoraBack down = product(tape, {index, Product::kDown, &layer.down, &chunk, x_.data()}, wide_.data());
  cuda::LoraSiluBackward silu{{gate_up, wide_.data(), f, d_out_.data(), nullptr, chunk.count, f}, nullptr, 0, nullptr};
  if (down.count > 0) {
    const cuda::LoraBack::Projection& adapter = down.projections[0];
    silu.a = adapter.a, silu.rank = adapter.rank, silu.u = adapter.u;
  }
  cuda::lora_silu_multiply_backward(silu, stream_.get());
  normalise(kept.middle.data() + chunk.first * h, chunk.count, layer.mlp_norm);
  add_adapters(product(tape, {index, Product::kGateUp, &layer.gate_up, &chunk, x_.data()}, wide_.data()));
  normalise_back(kept.middle.data(), chunk, layer.mlp_norm);
}

void TrainBackward::mixture(TrainTape& tape, int64_t index, const Chunk& chunk) {
  const Layer& layer = weights_.layers[size_t(index)];
  const int64_t h = spec_.hidden_size, experts = spec_.experts.count, ld = ld_logits(spec_);
  KeptLayer& kept = tape.layer(index);
  round_residual(chunk);
  normalise(kept.middle.data() + chunk.first * h, chunk.count, layer.mlp_norm);
  layers_.route(layer, nullptr, x_.data(), chunk.count, true);
  Mixture& mixture = layers_.mixture();
  mixture.back(layer, d_out_.data(), kept.gate_up.data() + chunk.first * spec_.gate_up_size(), d_out_.data(), d_weights_.data(),
               wide_.data());
  mixture.back_router(d_weights_.data(), d_logits_.data(), ld);
  cuda::MatMul router{
      d_logits_.data(),          ld, chunk.count, layer.router.data.data(), experts, h, wide_.data(), h, true, workspace_.data(),
      int64_t(workspace_.size())};
  router.kernel = weights_.kernels.matmul;
  cuda::matmul_transposed(router, stream_.get());
  normalise_back(kept.middle.data(), chunk, layer.mlp_norm);
}

void TrainBackward::attention_out(TrainTape& tape, int64_t index, const Chunk& chunk) {
  const int64_t q = spec_.query_size(), kv = spec_.kv_size();
  round_residual(chunk);
  const bf16* attended = tape.layer(index).attended.data() + chunk.first * q;
  cuda::LoraBack lora =
      product(tape, {index, model::Product::kOutput, &weights_.layers[size_t(index)].output, &chunk, attended}, wide_.data());
  lora.rounded = d_attended_.data() + chunk.first * q;
  add_adapters(lora);
  bf16 *keys = keys_.data() + chunk.first * kv, *values = values_.data() + chunk.first * kv;
  cuda::gather_slots({tape.kv(index), chunk.batch.slots, keys, values, chunk.count}, stream_.get());
}

cuda::AttentionBackward TrainBackward::attention(TrainTape& tape, int64_t index) {
  const KeptLayer& kept = tape.layer(index);
  cuda::AttentionBackward args{};
  args.queries = kept.queries.data();
  args.keys = keys_.data();
  args.values = values_.data();
  args.out = kept.attended.data();
  args.d_out = d_attended_.data();
  args.log_sums = kept.log_sums.data();
  args.deltas = deltas_.data();
  args.dq = dq_.data();
  args.dk = dk_.data();
  args.dv = dv_.data();
  args.tokens = tape.tokens();
  args.tiles = tape.tiles();
  args.rows = tape.size();
  args.heads = spec_.heads;
  args.kv_heads = spec_.kv_heads;
  args.dim = spec_.head_dim;
  args.scale = 1.0f / std::sqrt(float(spec_.head_dim));
  args.window = spec_.window_layers[size_t(index)] ? spec_.sliding_window : 0;
  args.kernel = weights_.kernels.attention;
  return args;
}

void TrainBackward::attention_in(TrainTape& tape, int64_t index, const Chunk& chunk, bool reach) {
  const Layer& layer = weights_.layers[size_t(index)];
  const int64_t q = spec_.query_size(), kv = spec_.kv_size();
  cuda::RopeBackward args{};
  if (spec_.qk_norm) args.qk = tape.layer(index).qk.data() + chunk.first * (q + kv);
  args.q_norm = layer.q_norm.data();
  args.k_norm = layer.k_norm.data();
  args.eps = float(spec_.rms_norm_eps);
  args.cosines = layers_.cosines();
  args.sines = layers_.sines();
  args.positions = chunk.batch.positions;
  args.dq = dq_.data() + chunk.first * q;
  args.dk = dk_.data() + chunk.first * kv;
  args.dv = dv_.data() + chunk.first * kv;
  args.d = d_out_.data();
  args.rows = chunk.count;
  args.heads = spec_.heads;
  args.kv_heads = spec_.kv_heads;
  args.dim = spec_.head_dim;
  args.table_positions = sizes_.positions;
  cuda::rope_backward(args, stream_.get());
  normalise(tape.input(index) + chunk.first * spec_.hidden_size, chunk.count, layer.attention_norm);
  const cuda::LoraBack lora = product(tape, {index, model::Product::kQkv, &layer.qkv, &chunk, x_.data()}, reach ? wide_.data() : nullptr);
  if (!reach) return;
  add_adapters(lora);
  normalise_back(tape.input(index), chunk, layer.attention_norm);
}

}  // namespace tandem::device
