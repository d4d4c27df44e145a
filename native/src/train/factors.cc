#include "train/factors.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tandem::train {
namespace {

// Numbers that one claim of an AdamW step takes.
constexpr int64_t kStepBlock = 16384;

// [columns][rows] of the outside to [rows][columns] of ours, or straight where `turn` is false.
void copy_in(const std::vector<float>& from, bool turn, const Trained& shape, Buffer<float>& to) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < shape.columns; ++c) {
      to[size_t(r * shape.ld + c)] = from[size_t(turn ? c * shape.rows + r : r * shape.columns + c)];
    }
  }
}

std::vector<float> copy_out(const Buffer<float>& from, bool turn, const Trained& shape) {
  std::vector<float> to(size_t(shape.rows * shape.columns));
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < shape.columns; ++c) {
      to[size_t(turn ? c * shape.rows + r : r * shape.columns + c)] = from[size_t(r * shape.ld + c)];
    }
  }
  return to;
}

}  // namespace

Trained::Trained(int64_t row_count, int64_t column_count, int64_t panel)
    : rows(row_count), columns(column_count), ld(round_up(column_count, panel)) {
  for (Buffer<float>* buffer : {&value, &grad, &m, &v}) *buffer = Buffer<float>(size_t(rows * ld));
}

FactorSet::FactorSet(std::shared_ptr<model::Model> model, const State& state)
    : model_(std::move(model)), scale_(state.scale), index_(size_t(model_->spec.layers)), turned_(index_.size()), rounded_(index_.size()) {
  for (auto& layer : index_) layer.fill(-1);
  // The adapter's constructor checks layers, modules, ranks and sizes, and that every number is finite.
  adapter_ = std::make_shared<model::Adapter>(model_, state.factors);
  check(state);
  load(state);
}

void FactorSet::load(const State& state) {
  int64_t panel = model_->kernels.panel;
  steps_ = state.steps;
  for (size_t i = 0; i < state.factors.size(); ++i) {
    const model::Factors& f = state.factors[i];
    ops::LoraShape shape = model::shape_of(model_->spec, f.module);
    shape.rank = f.rank;
    index_[size_t(f.layer)][size_t(f.module)] = int32_t(i);
    factors_.push_back({f.layer, f.module, shape, Trained(f.rank, shape.in, panel), Trained(f.rank, shape.out, panel)});
    TrainedFactors& t = factors_.back();
    copy_in(f.a, false, t.a, t.a.value);
    copy_in(f.b, true, t.b, t.b.value);
    // The pool is not ours here: the engine may be using it.
    for (bool turn : {false, true}) round(t, turn);
    if (state.moments.empty()) continue;
    const Moments& m = state.moments[i];
    copy_in(m.a_m, false, t.a, t.a.m);
    copy_in(m.a_v, false, t.a, t.a.v);
    copy_in(m.b_m, true, t.b, t.b.m);
    copy_in(m.b_v, true, t.b, t.b.v);
  }
  // round() has filled rounded_ too; it belongs to the next step.
  rounded_ = Layers(index_.size());
}

State FactorSet::state(int64_t first, int64_t count) const {
  int64_t size = int64_t(factors_.size());
  require(first >= 0 && first <= size && count >= 0, ErrorKind::kRange, "a part of the state begins in 0..factors");
  State state;
  state.scale = scale_;
  state.steps = steps_;
  for (int64_t i = first; i < first + std::min(count, size - first); ++i) {
    const TrainedFactors& t = factors_[size_t(i)];
    state.factors.push_back({t.layer, t.module, t.shape.rank, scale_, copy_out(t.a.value, false, t.a), copy_out(t.b.value, true, t.b)});
    state.moments.push_back(
        {copy_out(t.a.m, false, t.a), copy_out(t.a.v, false, t.a), copy_out(t.b.m, true, t.b), copy_out(t.b.v, true, t.b)});
  }
  return state;
}

const TrainedFactors* FactorSet::find(int64_t layer, model::Module module) const {
  int32_t at = index_[size_t(layer)][size_t(module)];
  return at < 0 ? nullptr : &factors_[size_t(at)];
}

TrainedFactors* FactorSet::find(int64_t layer, model::Module module) {
  return const_cast<TrainedFactors*>(std::as_const(*this).find(layer, module));
}

int64_t FactorSet::size(int64_t layer, model::Module module) const {
  const TrainedFactors* t = find(layer, module);
  return t ? int64_t(t->a.value.size() + t->b.value.size()) : 0;
}

int64_t FactorSet::size(int64_t layer) const {
  int64_t sum = 0;
  for (model::Module module : kAllModules) sum += size(layer, module);
  return sum;
}

int64_t FactorSet::lowest_layer() const {
  auto lower = [](const TrainedFactors& x, const TrainedFactors& y) { return x.layer < y.layer; };
  return std::min_element(factors_.begin(), factors_.end(), lower)->layer;
}

void FactorSet::clear_gradients(int64_t layer) {
  for (TrainedFactors& t : factors_) {
    if (t.layer != layer) continue;
    for (Trained* half : {&t.a, &t.b}) std::fill_n(half->grad.data(), half->grad.size(), 0.0f);
  }
}

double FactorSet::gradient_squares(int64_t layer) const {
  double sum = 0;
  for (int32_t at : index_[size_t(layer)]) {
    if (at < 0) continue;
    const TrainedFactors& t = factors_[size_t(at)];
    for (const Trained* half : {&t.a, &t.b}) sum += ops::sum_of_squares(half->grad.data(), int64_t(half->grad.size()));
  }
  return sum;
}

void FactorSet::step(int64_t layer, const ops::AdamW& options, float grad_scale) {
  struct Block {
    Trained* half;
    int64_t first;
  };
  std::vector<Block> blocks;
  for (model::Module module : kAllModules) {
    TrainedFactors* t = find(layer, module);
    if (!t) continue;
    for (Trained* half : {&t->a, &t->b}) {
      for (int64_t first = 0; first < int64_t(half->value.size()); first += kStepBlock) blocks.push_back({half, first});
    }
  }
  model_->pool.run(int64_t(blocks.size()), [&](int64_t i) {
    auto [half, first] = blocks[size_t(i)];
    int64_t n = std::min(kStepBlock, int64_t(half->value.size()) - first);
    ops::adamw(options, steps_ + 1, grad_scale, n, half->grad.data() + first, half->value.data() + first, half->m.data() + first,
               half->v.data() + first);
  });
}

void FactorSet::round(int64_t layer, model::Module module) {
  const TrainedFactors* t = find(layer, module);
  if (t) model_->pool.run(2, [&](int64_t which) { round(*t, which == 1); });
}

// The published factors, or the turned ones from the same numbers.
void FactorSet::round(const TrainedFactors& t, bool turn) {
  std::vector<float> a = copy_out(turn ? t.b.value : t.a.value, false, turn ? t.b : t.a);
  std::vector<float> b = copy_out(turn ? t.a.value : t.b.value, true, turn ? t.a : t.b);
  ops::LoraShape shape = turn ? ops::LoraShape{t.shape.rank, t.shape.out, t.shape.in, 0} : t.shape;
  Layers& layers = turn ? turned_ : rounded_;
  layers[size_t(t.layer)][size_t(t.module)] = ops::LoraFactors(model_->kernels, model_->element, shape, scale_, a.data(), b.data());
}

void FactorSet::finish() {
  ++steps_;
  adapter_ = std::make_shared<model::Adapter>(model_, std::move(rounded_));
  rounded_ = Layers(index_.size());
}

}  // namespace tandem::train
