#include "device/train_factors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/optimizer/adamw.h"

namespace tandem::device {
namespace {

using cuda::DeviceBuffer;

int64_t count_of(const train::State& state) {
  int64_t count = 0;
  for (const model::Factors& f : state.factors) count += int64_t(f.a.size() + f.b.size());
  return count;
}

void append(std::vector<float>& to, const std::vector<float>& values) { to.insert(to.end(), values.begin(), values.end()); }

}  // namespace

TrainFactors::TrainFactors(std::shared_ptr<model::Model> facts, const train::State& state, cuda::Stream& stream)
    : facts_(std::move(facts)), stream_(stream), scale_(state.scale), steps_(state.steps),
      index_(size_t(facts_->spec.layers * model::kModules), -1), parts_(size_t(cuda::kSumParts)), sums_(size_t(3)) {
  // Its constructor checks layers, modules, ranks and sizes, and that every number is finite.
  const model::Adapter checked(facts_, state.factors);
  train::check(state);
  place(state);
  current_ = std::make_shared<const Adapter>(empty_adapter(), weights_in(rounded_.data()));
}

void TrainFactors::place(const train::State& state) {
  std::vector<float> values, m, v;
  for (size_t i = 0; i < state.factors.size(); ++i) {
    const model::Factors& f = state.factors[i];
    ops::LoraShape shape = model::shape_of(facts_->spec, f.module);
    shape.rank = f.rank;
    const int64_t at = int64_t(values.size());
    index_[size_t(f.layer * model::kModules + int64_t(f.module))] = int32_t(i);
    pieces_.push_back({f.layer, f.module, shape, at, at + shape.rank * shape.in});
    append(values, f.a);
    append(values, train::turned(f.b, shape.out, shape.rank));
    if (state.moments.empty()) continue;
    const train::Moments& moments = state.moments[i];
    append(m, moments.a_m);
    append(m, train::turned(moments.b_m, shape.out, shape.rank));
    append(v, moments.a_v);
    append(v, train::turned(moments.b_v, shape.out, shape.rank));
  }
  std::vector<cuda::bf16> rounded;
  rounded.reserve(values.size());
  for (float value : values) rounded.push_back(cuda::to_bf16(value));
  values_ = DeviceBuffer<float>(values);
  rounded_ = DeviceBuffer<cuda::bf16>(rounded);
  gradients_ = DeviceBuffer<float>(values.size());
  m_ = m.empty() ? DeviceBuffer<float>(values.size()) : DeviceBuffer<float>(m);
  v_ = v.empty() ? DeviceBuffer<float>(values.size()) : DeviceBuffer<float>(v);
}

// Rounded factors that lie in memory as rounded_ does, [layer][module].
std::vector<cuda::LoraWeights> TrainFactors::weights_in(const cuda::bf16* memory) const {
  std::vector<cuda::LoraWeights> all(index_.size(), {nullptr, nullptr, 0, 0});
  for (const Piece& piece : pieces_) {
    const size_t at = size_t(piece.layer * model::kModules + int64_t(piece.module));
    all[at] = {memory + piece.a, memory + piece.b, int32_t(piece.shape.rank), scale_};
  }
  return all;
}

model::Adapter TrainFactors::empty_adapter() const {
  return {facts_, std::vector<std::array<ops::LoraFactors, model::kModules>>(size_t(facts_->spec.layers))};
}

int64_t TrainFactors::bytes(const train::State& state) { return count_of(state) * int64_t(4 * sizeof(float) + sizeof(cuda::bf16)); }

std::vector<float> TrainFactors::read(const DeviceBuffer<float>& from, int64_t at, int64_t count) const {
  std::vector<float> values(static_cast<size_t>(count));
  cuda::device_copy(values.data(), from.data() + at, values.size() * sizeof(float));
  return values;
}

train::State TrainFactors::state(int64_t first, int64_t count) const {
  const int64_t size = int64_t(pieces_.size());
  require(first >= 0 && first <= size && count >= 0, ErrorKind::kRange, "a part of the state begins in 0..factors");
  train::State state;
  state.scale = scale_;
  state.steps = steps_;
  for (int64_t i = first; i < first + std::min(count, size - first); ++i) {
    const Piece& p = pieces_[size_t(i)];
    const int64_t a = p.shape.rank * p.shape.in, b = p.shape.rank * p.shape.out;
    auto turned = [&](const DeviceBuffer<float>& from) { return train::turned(read(from, p.b, b), p.shape.rank, p.shape.out); };
    state.factors.push_back({p.layer, p.module, p.shape.rank, scale_, read(values_, p.a, a), turned(values_)});
    state.moments.push_back({read(m_, p.a, a), read(v_, p.a, a), turned(m_), turned(v_)});
  }
  return state;
}

std::shared_ptr<const model::Adapter> TrainFactors::adapter() const {
  DeviceBuffer<cuda::bf16> memory(rounded_.size());
  cuda::device_copy(memory.data(), rounded_.data(), rounded_.size() * sizeof(cuda::bf16));
  std::vector<cuda::LoraWeights> weights = weights_in(memory.data());
  return std::make_shared<const Adapter>(empty_adapter(), std::move(weights), std::move(memory));
}

const TrainFactors::Piece* TrainFactors::find(int64_t layer, model::Module module) const {
  const int32_t at = index_[size_t(layer * model::kModules + int64_t(module))];
  return at < 0 ? nullptr : &pieces_[size_t(at)];
}

int64_t TrainFactors::lowest_layer() const {
  auto lower = [](const Piece& x, const Piece& y) { return x.layer < y.layer; };
  return std::min_element(pieces_.begin(), pieces_.end(), lower)->layer;
}

train::StepOutcome TrainFactors::step(const train::OptimizerStep& options) {
  const ops::AdamW& o = options.adamw;
  float* sums = sums_.data();
  stream_.clear(sums, sizeof(float));
  cuda::add_sum_squares({gradients_.data(), size(), parts_.data(), sums}, stream_.get());
  cuda::clip_scale(sums, float(options.max_grad_norm), sums + 1, sums + 2, stream_.get());
  cuda::adamw({values_.data(), gradients_.data(), m_.data(), v_.data(), rounded_.data(), size(), float(o.learning_rate), float(o.beta1),
               float(o.beta2), float(o.eps), float(o.weight_decay), steps_ + 1, sums + 2},
              stream_.get());
  stream_.wait();
  const float norm = sums_.download()[1];
  if (!std::isfinite(norm)) return {std::numeric_limits<double>::quiet_NaN(), false};
  ++steps_;
  return {double(norm), true};
}

}  // namespace tandem::device
