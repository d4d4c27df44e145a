#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace tandem::train {
namespace {

// Rows that go through a product together: enough that turning the weights for the backward pass pays.
constexpr int64_t kChunkRows = 256;
constexpr int64_t kMaxRowTokens = int64_t(1) << 20;

const Options& checked(const Options& options) {
  bool ok = options.max_row_tokens >= 1 && options.max_row_tokens <= kMaxRowTokens;
  require(options.max_row_bytes >= 1, ErrorKind::kRange, "maxRowBytes must be positive");
  require(options.unit_work >= 1, ErrorKind::kRange, "unitWork must be positive");
  require(ok, ErrorKind::kRange, "maxRowTokens must be in 1..1048576");
  return options;
}

void number(const char* name, double value, bool ok) {
  if (!std::isfinite(value) || !ok) throw Error(ErrorKind::kRange, std::string(name) + " is out of range");
}

void check(const OptimizerStep& step) {
  const ops::AdamW& o = step.adamw;
  number("learningRate", o.learning_rate, o.learning_rate >= 0 && o.learning_rate <= 1e3);
  number("beta1", o.beta1, o.beta1 >= 0 && o.beta1 < 1);
  number("beta2", o.beta2, o.beta2 >= 0 && o.beta2 < 1);
  number("eps", o.eps, o.eps > 0 && o.eps <= 1);
  number("weightDecay", o.weight_decay, o.weight_decay >= 0 && o.weight_decay <= 1e3);
  number("maxGradNorm", step.max_grad_norm, step.max_grad_norm > 0);
}

}  // namespace

Trainer::Trainer(std::shared_ptr<model::Model> model, const Options& options, const State& state)
    : model_(std::move(model)), options_(checked(options)), factors_(model_, state),
      chunk_(std::min(kChunkRows, round_up(options_.max_row_tokens, 16))),
      forward_(*model_, {model_->pool, options_.unit_work}, chunk_, std::min(options_.max_row_tokens, model_->spec.max_position)),
      backward_(*model_, forward_, chunk_), head_(*model_, {model_->pool, options_.unit_work}),
      kept_(*model_, options_.recompute ? Keep::kInputs : Keep::kActivations), passing_(*model_, Keep::kNothing) {}

void Trainer::require_idle() const {
  require(!broken_, ErrorKind::kState, "an earlier piece of work failed half-way; the trainer must be closed");
  require(work_ == Work::kNone, ErrorKind::kState, "the trainer's last piece of work is not finished");
}

void Trainer::begin(Work work, Steps steps) {
  steps_ = std::move(steps);
  work_ = work;
}

int64_t Trainer::row_bytes(const Tape& tape, const Row& row, const model::Adapter* adapter) const {
  return tape.bytes(row, adapter) + (tape.keep() == Keep::kNothing ? 0 : backward_.bytes(tape, row.size()));
}

int64_t Trainer::row_bytes(int64_t tokens) const {
  return row_bytes(kept_, {std::vector<int32_t>(size_t(tokens)), {{0, tokens, -1, 0}}, {}}, factors_.adapter().get());
}

void Trainer::require_room(const Tape& tape, const Row& row, const model::Adapter* adapter) const {
  constexpr int64_t kMiB = int64_t(1) << 20;
  int64_t needed = row_bytes(tape, row, adapter);
  if (needed <= options_.max_row_bytes) return;
  throw Error(ErrorKind::kRange, "a packed row of " + std::to_string(row.size()) + " tokens needs " + std::to_string(needed / kMiB + 1) +
                                     " MiB, and training may take " + std::to_string(options_.max_row_bytes / kMiB) + " MiB");
}

void Trainer::forward(Row row, Under under, std::shared_ptr<const model::Adapter> other) {
  require_idle();
  check(row, model_->spec, options_.max_row_tokens);
  require(under != Under::kOther || (other && other->fits(model_)), ErrorKind::kRange, "the factors are of another model");
  bool current = under == Under::kCurrent;
  Tape& tape = current ? kept_ : passing_;
  std::shared_ptr<const model::Adapter> adapter = current ? factors_.adapter() : under == Under::kBase ? nullptr : std::move(other);
  require_room(tape, row, adapter.get());
  scored_ = false;
  tape.begin(std::move(row), std::move(adapter));
  begin(Work::kForward, run_forward(tape, current));
}

void Trainer::backward(std::vector<float> gradients) {
  require_idle();
  require(kept_.ready, ErrorKind::kState, "backward needs a row forwarded under the current factors, and takes each row once");
  require(int64_t(gradients.size()) == kept_.size(), ErrorKind::kRange, "gradients must have one entry per token");
  for (int64_t i = 0; i < kept_.size(); ++i) {
    bool counted = kept_.row().targets[size_t(i)] >= 0 || gradients[size_t(i)] == 0;
    require(counted, ErrorKind::kRange, "gradients must be 0 where there is no target");
  }
  gradients_ = std::move(gradients);
  begin(Work::kBackward, run_backward());
}

void Trainer::optimize(const OptimizerStep& step) {
  require_idle();
  check(step);
  stepped_ = false;
  begin(Work::kOptimize, run_optimize(step));
}

bool Trainer::slice(int64_t micros, const std::atomic<bool>* interrupt) {
  using Clock = std::chrono::steady_clock;
  require(!broken_, ErrorKind::kState, "an earlier piece of work failed half-way; the trainer must be closed");
  require(work_ != Work::kNone, ErrorKind::kState, "the trainer has nothing to do");
  // The model's pool has one caller at a time.
  std::lock_guard<std::mutex> turn(model_->turn);
  Clock::time_point end = Clock::now() + std::chrono::microseconds(micros);
  try {
    do {
      steps_.next();
      unit_work_ = steps_.work();
    } while (!steps_.finished() && Clock::now() < end && !(interrupt && interrupt->load(std::memory_order_relaxed)));
  } catch (...) {
    broken_ = work_ != Work::kForward;
    work_ = Work::kNone;
    steps_ = {};
    throw;
  }
  if (!steps_.finished()) return false;
  work_ = Work::kNone;
  steps_ = {};
  return true;
}

const Scores& Trainer::scores() const {
  require(scored_, ErrorKind::kState, "no forward pass is finished");
  return scores_;
}

const StepOutcome& Trainer::outcome() const {
  require(stepped_, ErrorKind::kState, "no optimizer step is finished");
  return outcome_;
}

State Trainer::state(int64_t first, int64_t count) const {
  require(!broken_ && work_ != Work::kOptimize, ErrorKind::kState, "the factors are in the middle of a step");
  return factors_.state(first, count);
}

std::vector<Chunk> Trainer::chunks(const Tape& tape) const {
  std::vector<Chunk> all;
  for (int64_t first = 0; first < tape.size(); first += chunk_) all.push_back({first, std::min(chunk_, tape.size() - first)});
  return all;
}

Steps Trainer::run_layer(Tape& tape, int64_t layer) {
  for (Chunk chunk : chunks(tape)) {
    Steps parts = forward_.run(tape, layer, chunk);
    for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  }
}

Steps Trainer::run_forward(Tape& tape, bool directions) {
  for (Chunk chunk : chunks(tape)) {
    forward_.embed(tape, chunk);
    co_yield chunk.count * model_->spec.hidden_size;
  }
  for (int64_t layer = 0; layer < model_->spec.layers; ++layer) {
    Steps parts = run_layer(tape, layer);
    for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  }
  Steps parts = head_.score(tape, directions, scores_);
  for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  tape.ready = true;
  scored_ = true;
}

Steps Trainer::run_backward() {
  Tape& tape = kept_;
  tape.ready = false;
  backward_.begin(tape);
  Steps head = head_.backward(tape, gradients_, backward_.gradient(), tape.ld_residual());
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

Steps Trainer::run_optimize(OptimizerStep step) {
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
  outcome_ = {finite ? norm : std::numeric_limits<double>::quiet_NaN(), finite};
  stepped_ = true;
}

}  // namespace tandem::train
