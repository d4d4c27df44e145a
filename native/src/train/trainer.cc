#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace tandem::train {
namespace {

// Multiply-adds of the widest product of a unit, and the rows that follow from it.
constexpr int64_t kUnit = int64_t(3) << 29, kMostRows = 256, kFewestRows = 64;
constexpr int64_t kMaxRowTokens = int64_t(1) << 20;

int64_t chunk_rows(const model::Spec& spec) {
  int64_t widest = spec.hidden_size * std::max(2 * spec.intermediate_size, spec.query_size() + 2 * spec.kv_size());
  return std::clamp(kUnit / widest / 16 * 16, kFewestRows, kMostRows);
}

const Options& checked(const Options& options) {
  bool ok = options.max_row_tokens >= 1 && options.max_row_tokens <= kMaxRowTokens;
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
      chunk_(std::min(chunk_rows(model_->spec), round_up(options_.max_row_tokens, 16))),
      forward_(*model_, chunk_, std::min(options_.max_row_tokens, model_->spec.max_position)), backward_(*model_, forward_, chunk_),
      head_(*model_), kept_(*model_, options_.recompute ? Keep::kInputs : Keep::kActivations), passing_(*model_, Keep::kNothing) {}

void Trainer::require_idle() const {
  require(!broken_, ErrorKind::kState, "an earlier piece of work failed half-way; the trainer must be closed");
  require(work_ == Work::kNone, ErrorKind::kState, "the trainer's last piece of work is not finished");
}

void Trainer::begin(Work work, Steps steps) {
  steps_ = std::move(steps);
  work_ = work;
}

void Trainer::forward(Row row, Under under, std::shared_ptr<const model::Adapter> other) {
  require_idle();
  check(row, model_->spec, options_.max_row_tokens);
  require(under != Under::kOther || (other && other->fits(model_)), ErrorKind::kRange, "the factors are of another model");
  bool current = under == Under::kCurrent;
  Tape& tape = current ? kept_ : passing_;
  scored_ = false;
  tape.begin(std::move(row), current ? factors_.adapter() : under == Under::kBase ? nullptr : std::move(other));
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

bool Trainer::slice(int64_t micros) {
  using Clock = std::chrono::steady_clock;
  require(!broken_, ErrorKind::kState, "an earlier piece of work failed half-way; the trainer must be closed");
  require(work_ != Work::kNone, ErrorKind::kState, "the trainer has nothing to do");
  // The model's pool has one caller at a time.
  std::lock_guard<std::mutex> turn(model_->turn);
  Clock::time_point end = Clock::now() + std::chrono::microseconds(micros);
  try {
    do {
      steps_.next();
    } while (!steps_.finished() && Clock::now() < end);
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
    forward_.attention_in(tape, layer, chunk);
    co_yield true;
    forward_.attention_out(tape, layer, chunk);
    co_yield true;
    forward_.mlp_in(tape, layer, chunk);
    co_yield true;
    forward_.mlp_out(tape, layer, chunk);
    co_yield true;
  }
}

Steps Trainer::run_forward(Tape& tape, bool directions) {
  for (Chunk chunk : chunks(tape)) {
    forward_.embed(tape, chunk);
    co_yield true;
  }
  for (int64_t layer = 0; layer < model_->spec.layers; ++layer) {
    Steps parts = run_layer(tape, layer);
    for (parts.next(); !parts.finished(); parts.next()) co_yield true;
  }
  Steps parts = head_.score(tape, directions, scores_);
  for (parts.next(); !parts.finished(); parts.next()) co_yield true;
  tape.ready = true;
  scored_ = true;
}

Steps Trainer::run_backward() {
  Tape& tape = kept_;
  tape.ready = false;
  backward_.begin(tape);
  Steps head = head_.backward(tape, gradients_, backward_.gradient(), tape.ld_residual());
  for (head.next(); !head.finished(); head.next()) co_yield true;
  std::vector<Chunk> all = chunks(tape);
  std::reverse(all.begin(), all.end());
  int64_t lowest = factors_.lowest_layer();
  for (int64_t layer = model_->spec.layers - 1; layer >= lowest; --layer) {
    if (tape.keep() == Keep::kInputs) {
      Steps again = run_layer(tape, layer);
      for (again.next(); !again.finished(); again.next()) co_yield true;
    }
    backward_.begin_layer(tape);
    for (Chunk chunk : all) {
      backward_.mlp_out(tape, factors_, layer, chunk);
      co_yield true;
      backward_.mlp_in(tape, factors_, layer, chunk);
      co_yield true;
      backward_.attention_out(tape, factors_, layer, chunk);
      co_yield true;
      backward_.attention_in(tape, factors_, layer, chunk, layer > lowest);
      co_yield true;
    }
  }
}

Steps Trainer::run_optimize(OptimizerStep step) {
  kept_.drop();
  double squares = 0;
  for (int64_t layer = 0; layer < factors_.layers(); ++layer) {
    squares += factors_.gradient_squares(layer);
    co_yield true;
  }
  double norm = std::sqrt(squares);
  bool finite = std::isfinite(norm);
  // As torch.nn.utils.clip_grad_norm_ does it.
  float scale = float(std::min(1.0, step.max_grad_norm / (norm + 1e-6)));
  for (int64_t layer = 0; layer < factors_.layers() && finite; ++layer) {
    factors_.step(layer, step.adamw, scale);
    co_yield true;
  }
  if (finite) factors_.finish();
  for (int64_t layer = 0; layer < factors_.layers(); ++layer) factors_.clear_gradients(layer);
  outcome_ = {finite ? norm : std::numeric_limits<double>::quiet_NaN(), finite};
  stepped_ = true;
}

}  // namespace tandem::train
