#include "train/head.h"

#include <algorithm>
#include <cstring>

#include "ops/matmul_backward.h"
#include "ops/row_backward.h"
#include "train/layer_forward.h"

namespace tandem::train {

Head::Head(model::Model& model) : model_(model), found_(size_t(kRows)) {
  const ops::PackedMatrix& w = model.head();
  ld_input_ = w.columns_padded();
  ld_logits_ = w.rows_padded();
  ld_gradient_ = ops::ld_backward(w);
}

// Vocabulary blocks such that the product of a unit is bounded. A function of the sizes alone.
std::vector<ops::PanelRange> Head::ranges(int64_t rows) const {
  const ops::PackedMatrix& w = model_.head();
  int64_t panels = ops::all_panels(w).end, step = std::max<int64_t>(1, kUnit / (rows * w.columns_padded() * w.panel()));
  std::vector<ops::PanelRange> all;
  for (int64_t p = 0; p < panels; p += step) all.push_back({p, std::min(panels, p + step)});
  return all;
}

void Head::normalise(Tape& tape, const int32_t* indices, int64_t count) {
  int64_t h = model_.spec.hidden_size;
  size_t size = ops::element_size(model_.element);
  float eps = float(model_.spec.rms_norm_eps);
  const std::vector<float>& weight = model_.weights.final_norm;
  for_rows(model_.pool, count, [&](int64_t r) {
    const float* x = tape.input(model_.spec.layers) + indices[r] * tape.ld_residual();
    uint8_t* out = input_.data() + size_t(r * ld_input_) * size;
    if (model_.element == ops::Element::kBf16) {
      model_.kernels.rms_norm_bf16(x, weight.data(), h, eps, reinterpret_cast<uint16_t*>(out));
    } else {
      model_.kernels.rms_norm_f32(x, weight.data(), h, eps, reinterpret_cast<float*>(out));
    }
  });
}

// Logits to terms: of the element type, in place for floats.
void Head::score_rows(Tape& tape, const int32_t* indices, int64_t first, int64_t end, Scores& scores) {
  bool bf16 = model_.element == ops::Element::kBf16;
  model_.pool.run(end - first, [&](int64_t i) {
    int64_t r = first + i;
    thread_local ops::SoftmaxScratch scratch;
    float* logits = logits_.data() + r * ld_logits_;
    void* terms = bf16 ? static_cast<void*>(terms_.data() + size_t(r * ld_logits_) * 2) : static_cast<void*>(logits);
    int32_t target = tape.row().targets[size_t(indices[r])];
    ops::TokenScore s = ops::score_target(model_.kernels, model_.element, logits, model_.spec.vocab_size, target, terms, scratch);
    found_[size_t(r)] = s;
    scores.logprobs[size_t(indices[r])] = s.logprob;
    scores.entropies[size_t(indices[r])] = s.entropy;
  });
}

// others * W[target] - scale * (terms . W)
void Head::direct(Tape& tape, const int32_t* indices, int64_t first, int64_t count) {
  int64_t h = model_.spec.hidden_size;
  for_rows(model_.pool, count, [&](int64_t r) {
    float* out = tape.directions.data() + (first + r) * h;
    const float* mean = gradient_.data() + r * ld_gradient_;
    const ops::TokenScore& s = found_[size_t(r)];
    model_.head().copy_row(tape.row().targets[size_t(indices[r])], out);
    for (int64_t i = 0; i < h; ++i) out[i] = s.others * out[i] - s.scale * mean[i];
  });
}

Steps Head::score(Tape& tape, bool directions, Scores& scores) {
  scores.logprobs.assign(size_t(tape.size()), 0.0f);
  scores.entropies.assign(size_t(tape.size()), 0.0f);
  tape.targets.clear();
  for (int64_t i = 0; i < tape.size(); ++i) {
    if (tape.row().targets[size_t(i)] >= 0) tape.targets.push_back(int32_t(i));
  }
  int64_t total = int64_t(tape.targets.size()), rows = std::min(kRows, total);
  size_t size = ops::element_size(model_.element);
  size_t floats = size_t(total * model_.spec.hidden_size);
  if (directions && tape.directions.size() < floats) tape.directions = Buffer<float>(floats);
  // Held for the length of the pass only.
  input_ = Buffer<uint8_t>(size_t(rows * ld_input_) * size);
  logits_ = Buffer<float>(size_t(rows * ld_logits_));
  if (model_.element == ops::Element::kBf16) terms_ = Buffer<uint8_t>(size_t(rows * ld_logits_) * size);
  if (directions) gradient_ = Buffer<float>(size_t(rows * ld_gradient_));
  for (int64_t first = 0; first < total; first += kRows) {
    const int32_t* indices = tape.targets.data() + first;
    int64_t count = std::min(kRows, total - first);
    normalise(tape, indices, count);
    for (ops::PanelRange range : ranges(count)) {
      ops::matmul_panels(model_.kernels, model_.pool, input_.data(), ld_input_, count, model_.head(), range, logits_.data(), ld_logits_,
                         false);
      co_yield true;
    }
    for (int64_t r = 0; r < count; r += kScoredRows) {
      score_rows(tape, indices, r, std::min(count, r + kScoredRows), scores);
      co_yield true;
    }
    if (!directions) continue;
    const void* terms =
        model_.element == ops::Element::kBf16 ? static_cast<const void*>(terms_.data()) : static_cast<const void*>(logits_.data());
    for (ops::PanelRange range : ranges(count)) {
      ops::matmul_backward(model_.kernels, model_.pool, terms, ld_logits_, count, model_.head(), range, gradient_.data(), ld_gradient_,
                           range.first > 0);
      co_yield true;
    }
    direct(tape, indices, first, count);
  }
  for (Buffer<uint8_t>* buffer : {&input_, &terms_}) *buffer = {};
  for (Buffer<float>* buffer : {&logits_, &gradient_}) *buffer = {};
}

Steps Head::backward(Tape& tape, const std::vector<float>& gradients, float* out, int64_t ld) {
  int64_t h = model_.spec.hidden_size;
  float eps = float(model_.spec.rms_norm_eps);
  std::memset(out, 0, size_t(tape.size() * ld) * sizeof(float));
  for_rows(model_.pool, int64_t(tape.targets.size()), [&](int64_t t) {
    int64_t index = tape.targets[size_t(t)];
    thread_local std::vector<float> d;
    d.resize(size_t(h));
    for (int64_t i = 0; i < h; ++i) d[size_t(i)] = gradients[size_t(index)] * tape.directions[size_t(t * h + i)];
    const float* x = tape.input(model_.spec.layers) + index * tape.ld_residual();
    ops::rms_norm_backward(model_.kernels, x, model_.weights.final_norm.data(), d.data(), h, eps, out + index * ld);
  });
  co_yield true;
}

}  // namespace tandem::train
