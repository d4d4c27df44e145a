#include "model/experts.h"

#include <algorithm>
#include <cstring>

#include "model/forward.h"
#include "model/rows.h"

namespace tandem::model {
namespace {

// Rows that one claim of the pool moves. The few of a decode step are moved by the calling thread: waking another takes as long.
constexpr int64_t kMovedRows = 8;
// Bytes by which rows are further apart than they are long (forward.cc: lines of rows share sets of L1 otherwise).
constexpr int64_t kGapBytes = 64;

}  // namespace

ExpertRows::ExpertRows(Model& model, int64_t max_rows, int64_t max_pairs) : model_(model), max_pairs_(max_pairs) {
  const Experts& experts = model.spec.experts;
  if (experts.count == 0) return;
  const int64_t panel = model.kernels.panel, size = int64_t(ops::element_size(model.element));
  max_pairs_ = std::min(max_pairs, max_rows * experts.used);
  ld_elements_ = round_up(std::max(model.spec.hidden_size, experts.size), 32) + kGapBytes / size;
  ld_wide_ = round_up(std::max(model.spec.hidden_size, 2 * experts.size), panel);
  ld_logits_ = round_up(experts.count, panel);
  logits_ = Buffer<float>(size_t(max_rows * ld_logits_));
  elements_ = Buffer<uint8_t>(size_t(max_pairs_ * ld_elements_ * size));
  wide_ = Buffer<float>(size_t(max_pairs_ * ld_wide_));
  starts_.resize(size_t(experts.count + 1));
  // So that no step asks for memory.
  next_.reserve(starts_.size());
  pieces_.reserve(starts_.size());
  jobs_.reserve(starts_.size());
  for (auto* pairs : {&chosen_, &order_, &places_}) pairs->reserve(size_t(max_rows * experts.used));
  weights_.reserve(size_t(max_rows * experts.used));
}

int64_t ExpertRows::used() const { return model_.spec.experts.used; }

ops::Routing ExpertRows::routing() const {
  const Experts& experts = model_.spec.experts;
  return {experts.count, experts.used, experts.normalise};
}

void ExpertRows::run(const Layer& layer, const void* x, int64_t ldx, int64_t rows, float* y, int64_t ldy) {
  route(layer, x, ldx, rows);
  while (take()) {
    gather(x, ldx);
    multiply(layer.gate_up, 2 * model_.spec.experts.size);
    activate();
    multiply(layer.down, model_.spec.hidden_size);
    combine(y, ldy);
  }
}

void ExpertRows::route(const Layer& layer, const void* x, int64_t ldx, int64_t rows) {
  ops::matmul(model_.kernels, model_.pool, x, ldx, rows, layer.router, logits_.data(), ld_logits_, false);
  rows_ = rows;
  begin_ = end_ = 0;
  chosen_.resize(size_t(rows * used()));
  weights_.resize(chosen_.size());
  for_rows(
      model_.pool, rows,
      [&](int64_t r) { ops::route(routing(), logits_.data() + r * ld_logits_, chosen_.data() + r * used(), weights_.data() + r * used()); },
      kMovedRows);
  sort();
}

// By counting: of one expert, pairs stay in their order.
void ExpertRows::sort() {
  std::fill(starts_.begin(), starts_.end(), 0);
  for (int32_t expert : chosen_) ++starts_[size_t(expert) + 1];
  for (size_t e = 1; e < starts_.size(); ++e) starts_[e] += starts_[e - 1];
  next_.assign(starts_.begin(), starts_.end() - 1);
  order_.resize(chosen_.size());
  places_.resize(chosen_.size());
  for (size_t pair = 0; pair < chosen_.size(); ++pair) {
    const int64_t place = next_[size_t(chosen_[pair])]++;
    order_[size_t(place)] = int32_t(pair);
    places_[pair] = int32_t(place);
  }
}

bool ExpertRows::take() {
  begin_ = end_;
  pieces_.clear();
  const int64_t pairs = int64_t(order_.size());
  for (int64_t room = max_pairs_; end_ < pairs && room > 0;) {
    const int32_t expert = chosen_[size_t(order_[size_t(end_)])];
    const int64_t left = starts_[size_t(expert) + 1] - end_;
    if (left > room && end_ > begin_) break;
    const int64_t count = std::min(left, room);
    pieces_.push_back({expert, end_ - begin_, count});
    end_ += count;
    room -= count;
  }
  return end_ > begin_;
}

void ExpertRows::gather(const void* x, int64_t ldx) {
  const int64_t size = int64_t(ops::element_size(model_.element)), bytes = round_up(model_.spec.hidden_size, 32) * size;
  for_rows(
      model_.pool, batch_rows(),
      [&](int64_t i) {
        std::memcpy(elements_.data() + i * ld_elements_ * size, static_cast<const uint8_t*>(x) + row(i) * ldx * size, size_t(bytes));
      },
      kMovedRows);
}

// From elements_ to wide_.
ops::MatmulJob ExpertRows::job(const ops::PackedMatrix& w, int64_t outputs, const Piece& piece) {
  const int64_t size = int64_t(ops::element_size(model_.element));
  return {elements_.data() + piece.first * ld_elements_ * size, piece.count, expert_panels(w, piece.expert, outputs),
          wide_.data() + piece.first * ld_wide_};
}

void ExpertRows::multiply(const ops::PackedMatrix& w, int64_t outputs) {
  jobs_.clear();
  for (const Piece& piece : pieces_) jobs_.push_back(job(w, outputs, piece));
  ops::matmul_all(model_.kernels, model_.pool, jobs_, w, ld_elements_, ld_wide_);
}

void ExpertRows::multiply(const ops::PackedMatrix& w, int64_t outputs, const std::vector<Part>& parts) {
  jobs_.clear();
  for (const Part& part : parts) {
    ops::MatmulJob some = job(w, outputs, part.piece);
    some.panels = {some.panels.first + part.panels.first, some.panels.first + part.panels.end};
    some.y += part.panels.first * w.panel();
    jobs_.push_back(some);
  }
  ops::matmul_all(model_.kernels, model_.pool, jobs_, w, ld_elements_, ld_wide_);
}

void ExpertRows::activate() {
  const int64_t size = int64_t(ops::element_size(model_.element));
  for_rows(
      model_.pool, batch_rows(),
      [&](int64_t i) {
        model::activate(model_.kernels, model_.element, wide_.data() + i * ld_wide_, model_.spec.experts.size,
                        elements_.data() + i * ld_elements_ * size);
      },
      kMovedRows);
}

void ExpertRows::combine(float* y, int64_t ldy, const float* z, int64_t ldz, const float* weights) {
  const int64_t h = model_.spec.hidden_size;
  for_rows(
      model_.pool, rows_,
      [&](int64_t r) {
        float* out = y + r * ldy;
        for (int64_t pair = r * used(); pair < (r + 1) * used(); ++pair) {
          const int64_t place = places_[size_t(pair)];
          if (place < begin_ || place >= end_) continue;
          const float* from = z + (place - begin_) * ldz;
          const float weight = weights ? weights[pair] : 1.0f;
          for (int64_t i = 0; i < h; ++i) out[i] += weight * from[i];
        }
      },
      kMovedRows);
}

}  // namespace tandem::model
