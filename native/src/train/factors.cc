#include "train/factors.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace tandem::train {
namespace {

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

std::string label(const model::Factors& f) { return "layers." + std::to_string(f.layer) + "." + model::name_of(f.module); }

void check_moments(const model::Factors& f, const Moments& m) {
  bool fits = m.a_m.size() == f.a.size() && m.a_v.size() == f.a.size() && m.b_m.size() == f.b.size() && m.b_v.size() == f.b.size();
  if (!fits) throw Error(ErrorKind::kRange, label(f) + ": the moments have the wrong size");
}

}  // namespace

Trained::Trained(int64_t row_count, int64_t column_count, int64_t panel)
    : rows(row_count), columns(column_count), ld(round_up(column_count, panel)) {
  for (Buffer<float>* buffer : {&value, &grad, &m, &v}) *buffer = Buffer<float>(size_t(rows * ld));
}

FactorSet::FactorSet(std::shared_ptr<model::Model> model, const State& state)
    : model_(std::move(model)), scale_(state.scale), index_(size_t(model_->spec.layers)), turned_(index_.size()), rounded_(index_.size()) {
  require(!state.factors.empty(), ErrorKind::kRange, "factors must not be empty");
  require(state.moments.empty() || state.moments.size() == state.factors.size(), ErrorKind::kRange, "moments must be one per factors");
  require(state.steps >= 0, ErrorKind::kRange, "steps must not be negative");
  for (auto& layer : index_) layer.fill(-1);
  // The adapter's constructor checks layers, modules, ranks and sizes, and that every number is finite.
  adapter_ = std::make_shared<model::Adapter>(model_, state.factors);
  for (const model::Factors& f : state.factors) {
    if (f.scale != scale_) throw Error(ErrorKind::kRange, label(f) + ": the scale must be that of all factors");
  }
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
    round(t);
    if (state.moments.empty()) continue;
    const Moments& m = state.moments[i];
    check_moments(f, m);
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

TrainedFactors* FactorSet::find(int64_t layer, model::Module module) {
  int32_t at = index_[size_t(layer)][size_t(module)];
  return at < 0 ? nullptr : &factors_[size_t(at)];
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
  const auto& places = index_[size_t(layer)];
  model_->pool.run(model::kModules, [&](int64_t module) {
    if (places[size_t(module)] < 0) return;
    TrainedFactors& t = factors_[size_t(places[size_t(module)])];
    for (Trained* half : {&t.a, &t.b}) {
      int64_t n = int64_t(half->value.size());
      ops::adamw(options, steps_ + 1, grad_scale, n, half->grad.data(), half->value.data(), half->m.data(), half->v.data());
    }
    round(t);
  });
}

// The published factors and, from their rounded values, the turned ones.
void FactorSet::round(TrainedFactors& t) {
  std::vector<float> a = copy_out(t.a.value, false, t.a), b = copy_out(t.b.value, true, t.b);
  ops::LoraFactors& rounded = rounded_[size_t(t.layer)][size_t(t.module)];
  rounded = ops::LoraFactors(model_->kernels, model_->element, t.shape, scale_, a.data(), b.data());
  std::vector<float> turned_a = copy_out(t.a.value, true, t.a), turned_b = copy_out(t.b.value, false, t.b);
  ops::LoraShape turned{t.shape.rank, t.shape.out, t.shape.in, 0};
  turned_[size_t(t.layer)][size_t(t.module)] =
      ops::LoraFactors(model_->kernels, model_->element, turned, scale_, turned_b.data(), turned_a.data());
}

void FactorSet::finish() {
  ++steps_;
  adapter_ = std::make_shared<model::Adapter>(model_, std::move(rounded_));
  rounded_ = Layers(index_.size());
}

}  // namespace tandem::train
