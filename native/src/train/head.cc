#include "train/head.h"

#include <algorithm>
#include <cstring>

#include "ops/matmul_backward.h"
#include "ops/row_backward.h"
#include "train/layer_forward.h"

namespace tandem::train {
Head::Head(model::Model& model, const UnitSize& unit) : model_(model), unit_(unit), found_(size_t(kRows)) {
  const ops::PackedMatrix& w = model.head();
  ld_input_ = w.columns_padded();
  ld_logits_ = w.rows_padded();
  ld_gradient_ = ops::ld_backward(w);
}

// Blocks of the vocabulary.
std::vector<ops::PanelRange> Head::ranges(int64_t rows) const {
  const ops::PackedMatrix& w = model_.head();
  return unit_.cut(ops::all_panels(w).end, UnitSize::counted(rows) * w.columns_padded() * w.panel());
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
  int64_t total = int64_t(tape.targets.size()), rows = std::min(kRows, total), size = int64_t(ops::element_size(model_.element));
  // Kept from pass to pass: the kernel takes long to give that much memory out.
  at_least(input_, rows * ld_input_ * size);
  at_least(logits_, rows * ld_logits_);
  if (model_.element == ops::Element::kBf16) at_least(terms_, rows * ld_logits_ * size);
  if (directions) at_least(gradient_, rows * ld_gradient_);
  if (directions) at_least(tape.directions, total * model_.spec.hidden_size);
  for (int64_t first = 0; first < total; first += kRows) {
    const int32_t* indices = tape.targets.data() + first;
    int64_t count = std::min(kRows, total - first);
    normalise(tape, indices, count);
    Steps forth = logits(count);
    for (forth.next(); !forth.finished(); forth.next()) co_yield forth.work();
    Steps scored = score_chunk(tape, indices, count, scores);
    for (scored.next(); !scored.finished(); scored.next()) co_yield scored.work();
    if (!directions) continue;
    Steps back = mean(count);
    for (back.next(); !back.finished(); back.next()) co_yield back.work();
    direct(tape, indices, first, count);
  }
}

Steps Head::logits(int64_t rows) {
  const ops::PackedMatrix& w = model_.head();
  for (ops::PanelRange range : ranges(rows)) {
    ops::matmul_panels(model_.kernels, model_.pool, input_.data(), ld_input_, rows, w, range, logits_.data(), ld_logits_, false);
    co_yield (range.end - range.first) * UnitSize::counted(rows) * w.columns_padded() * w.panel();
  }
}

Steps Head::score_chunk(Tape& tape, const int32_t* indices, int64_t count, Scores& scores) {
  int64_t step = unit_.rows(model_.spec.vocab_size, kScoreCost);
  for (int64_t r = 0; r < count; r += step) {
    int64_t end = std::min(count, r + step);
    score_rows(tape, indices, r, end, scores);
    co_yield (end - r) * model_.spec.vocab_size* kScoreCost;
  }
}

// gradient_ = terms . W
Steps Head::mean(int64_t rows) {
  const ops::PackedMatrix& w = model_.head();
  const void* terms = model_.element == ops::Element::kBf16 ? static_cast<const void*>(terms_.data()) : logits_.data();
  for (ops::PanelRange range : ranges(rows)) {
    ops::matmul_backward(model_.kernels, model_.pool, terms, ld_logits_, rows, w, range, ops::backward_panels(w), gradient_.data(),
                         ld_gradient_, range.first > 0);
    co_yield (range.end - range.first) * UnitSize::counted(rows) * w.columns_padded() * w.panel();
  }
}

Steps Head::backward(Tape& tape, const std::vector<float>& gradients, float* out, int64_t ld) {
  int64_t h = model_.spec.hidden_size, total = int64_t(tape.targets.size()), step = unit_.rows(h, kNormCost);
  float eps = float(model_.spec.rms_norm_eps);
  for (int64_t first = 0; first < tape.size(); first += step) {
    int64_t count = std::min(step, tape.size() - first);
    std::memset(out + first * ld, 0, size_t(count * ld) * sizeof(float));
    co_yield count* h;
  }
  for (int64_t first = 0; first < total; first += step) {
    int64_t count = std::min(step, total - first);
    for_rows(model_.pool, count, [&](int64_t r) {
      int64_t t = first + r, index = tape.targets[size_t(t)];
      thread_local std::vector<float> d;
      d.resize(size_t(h));
      for (int64_t i = 0; i < h; ++i) d[size_t(i)] = gradients[size_t(index)] * tape.directions[size_t(t * h + i)];
      const float* x = tape.input(model_.spec.layers) + index * tape.ld_residual();
      ops::rms_norm_backward(model_.kernels, x, model_.weights.final_norm.data(), d.data(), h, eps, out + index * ld);
    });
    co_yield count* h* kNormCost;
  }
}

}  // namespace tandem::train
