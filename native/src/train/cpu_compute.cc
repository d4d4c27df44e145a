#include "train/cpu_compute.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/trainer.h"

namespace tandem::train {
namespace {

// Rows that go through a product together: enough that turning the weights for the backward pass pays.
constexpr int64_t kChunkRows = 256;
// Rows of one expert for which the same pays.
constexpr int64_t kExpertRows = 64;
constexpr int64_t kMostChunkRows = 1024;

int64_t chunk_rows(const model::Experts& experts) {
  if (experts.count == 0) return kChunkRows;
  return std::clamp(kExpertRows * experts.count / experts.used / 16 * 16, kChunkRows, kMostChunkRows);
}

}  // namespace

CpuCompute::CpuCompute(std::shared_ptr<model::Model> model, const Options& options, const State& state)
    : model_(std::move(model)), factors_(model_, state), most_bytes_(options.max_row_bytes),
      chunk_(std::min(chunk_rows(model_->spec.experts), round_up(options.max_row_tokens, 16))),
      forward_(*model_, {model_->pool, options.unit_work}, chunk_, std::min(options.max_row_tokens, model_->spec.max_position)),
      backward_(*model_, forward_, chunk_), head_(*model_, {model_->pool, options.unit_work}),
      kept_(*model_, options.recompute ? Keep::kInputs : Keep::kActivations), passing_(*model_, Keep::kNothing) {}

int64_t CpuCompute::row_bytes(const Row& row, Under under, const model::Adapter* other) const {
  if (under == Under::kCurrent) return kept_.bytes(row, factors_.adapter().get()) + backward_.bytes(kept_, row.size());
  // Beside a row that waits for its backward pass.
  int64_t waiting = kept_.ready ? kept_.held() + backward_.held_with(kept_, kept_.size()) : 0;
  return passing_.bytes(row, other) + waiting;
}

// What earlier rows left is given back where this one would not fit beside it: to take it anew costs some percent of a row's time at most.
void CpuCompute::make_room(const Row& row, bool current, const model::Adapter* adapter) {
  int64_t kept = current ? kept_.held_with(row, adapter) : kept_.held();
  int64_t passing = current ? passing_.held() : passing_.held_with(row, adapter);
  if (kept + passing + backward_.held_with(kept_, current ? row.size() : 0) <= most_bytes_) return;
  passing_.release();
  if (kept_.ready && !current) return;
  kept_.release();
  backward_.release();
}

Steps CpuCompute::forward(Row row, Under under, std::shared_ptr<const model::Adapter> other, Scores& scores) {
  const bool current = under == Under::kCurrent;
  Tape& tape = current ? kept_ : passing_;
  std::shared_ptr<const model::Adapter> adapter = current ? factors_.adapter() : std::move(other);
  make_room(row, current, adapter.get());
  tape.begin(std::move(row), std::move(adapter));
  return run_forward(tape, current, scores);
}

std::vector<Chunk> CpuCompute::chunks(const Tape& tape) const {
  std::vector<Chunk> all;
  for (int64_t first = 0; first < tape.size(); first += chunk_) all.push_back({first, std::min(chunk_, tape.size() - first)});
  return all;
}

Steps CpuCompute::run_layer(Tape& tape, int64_t layer) {
  for (Chunk chunk : chunks(tape)) {
    Steps parts = forward_.run(tape, layer, chunk);
    for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  }
}

Steps CpuCompute::run_forward(Tape& tape, bool directions, Scores& scores) {
  for (Chunk chunk : chunks(tape)) {
    forward_.embed(tape, chunk);
    co_yield chunk.count * model_->spec.hidden_size;
  }
  for (int64_t layer = 0; layer < model_->spec.layers; ++layer) {
    Steps parts = run_layer(tape, layer);
    for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  }
  Steps parts = head_.score(tape, directions, scores);
  for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  tape.ready = true;
}

Steps CpuCompute::backward(std::vector<float> gradients) {
  Tape& tape = kept_;
  tape.ready = false;
  backward_.begin(tape);
  Steps head = head_.backward(tape, gradients, backward_.gradient(), tape.ld_residual());
  for (head.next(); !head.finished(); head.next()) co_yield head.work();
  std::vector<Chunk> all = chunks(tape);
  std::reverse(all.begin(), all.end());
  int64_t lowest = factors_.lowest_layer();
  for (int64_t layer = model_->spec.layers - 1; layer >= lowest; --layer) {
    if (tape.keep() == Keep::kInputs) {
      Steps again = run_layer(tape, layer);
      for (again.next(); !again.finished(); again.next()) co_yield again.work();
    }
    for (Chunk chunk : all) {
      backward_.clear_keys(chunk);
      co_yield chunk.count * model_->spec.kv_size();
    }
    for (Chunk chunk : all) {
      Steps parts = backward_.run(tape, factors_, layer, chunk, layer > lowest);
      for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
    }
  }
}

Steps CpuCompute::optimize(OptimizerStep step, StepOutcome& outcome) {
  kept_.drop();
  double squares = 0;
  for (int64_t layer = 0; layer < factors_.layers(); ++layer) {
    squares += factors_.gradient_squares(layer);
    co_yield factors_.size(layer);
  }
  double norm = std::sqrt(squares);
  bool finite = std::isfinite(norm);
  // As torch.nn.utils.clip_grad_norm_ does it.
  float scale = float(std::min(1.0, step.max_grad_norm / (norm + 1e-6)));
  for (int64_t layer = 0; layer < factors_.layers() && finite; ++layer) {
    factors_.step(layer, step.adamw, scale);
    co_yield factors_.size(layer);
    for (model::Module module : kAllModules) {
      factors_.round(layer, module);
      co_yield factors_.size(layer, module);
    }
  }
  if (finite) factors_.finish();
  for (int64_t layer = 0; layer < factors_.layers(); ++layer) {
    factors_.clear_gradients(layer);
    co_yield factors_.size(layer);
  }
  outcome = {finite ? norm : std::numeric_limits<double>::quiet_NaN(), finite};
}

}  // namespace tandem::train
