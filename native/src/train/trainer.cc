#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <mutex>
#include <string>

#include "base/error.h"
#include "train/cpu_compute.h"

namespace tandem::train {
namespace {

constexpr int64_t kMaxRowTokens = int64_t(1) << 20;

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

const Options& checked(const Options& options) {
  check(options);
  return options;
}

}  // namespace

void check(const Options& options) {
  bool ok = options.max_row_tokens >= 1 && options.max_row_tokens <= kMaxRowTokens;
  require(options.max_row_bytes >= 1, ErrorKind::kRange, "maxRowBytes must be positive");
  require(options.unit_work >= 1, ErrorKind::kRange, "unitWork must be positive");
  require(ok, ErrorKind::kRange, "maxRowTokens must be in 1..1048576");
}

Trainer::Trainer(std::shared_ptr<model::Model> model, const Options& options, const State& state)
    : Trainer(model, options, std::make_unique<CpuCompute>(model, checked(options), state)) {}

Trainer::Trainer(std::shared_ptr<model::Model> model, const Options& options, std::unique_ptr<Compute> compute)
    : model_(std::move(model)), options_(checked(options)), compute_(std::move(compute)) {}

void Trainer::require_idle() const {
  require(!broken_, ErrorKind::kState, "an earlier piece of work failed half-way; the trainer must be closed");
  require(work_ == Work::kNone, ErrorKind::kState, "the trainer's last piece of work is not finished");
}

void Trainer::begin(Work work, Steps steps) {
  steps_ = std::move(steps);
  work_ = work;
}

int64_t Trainer::row_bytes(int64_t tokens) const {
  return compute_->row_bytes({std::vector<int32_t>(size_t(tokens)), {{0, tokens, -1, 0}}, {}}, Under::kCurrent, nullptr);
}

void Trainer::require_room(const Row& row, Under under, const model::Adapter* other) const {
  constexpr int64_t kMiB = int64_t(1) << 20;
  int64_t needed = compute_->row_bytes(row, under, other);
  if (needed <= options_.max_row_bytes) return;
  throw Error(ErrorKind::kRange, "a packed row of " + std::to_string(row.size()) + " tokens needs " + std::to_string(needed / kMiB + 1) +
                                     " MiB, and training may take " + std::to_string(options_.max_row_bytes / kMiB) + " MiB");
}

void Trainer::forward(Row row, Under under, std::shared_ptr<const model::Adapter> other) {
  require_idle();
  check(row, model_->spec, options_.max_row_tokens);
  require(under != Under::kOther || (other && other->fits(model_)), ErrorKind::kRange, "the factors are of another model");
  require_room(row, under, other.get());
  scored_ = false;
  begin(Work::kForward, compute_->forward(std::move(row), under, std::move(other), scores_));
}

void Trainer::backward(std::vector<float> gradients) {
  require_idle();
  const Row* kept = compute_->kept();
  require(kept != nullptr, ErrorKind::kState, "backward needs a row forwarded under the current factors, and takes each row once");
  require(int64_t(gradients.size()) == kept->size(), ErrorKind::kRange, "gradients must have one entry per token");
  for (size_t i = 0; i < gradients.size(); ++i) {
    require(kept->targets[i] >= 0 || gradients[i] == 0, ErrorKind::kRange, "gradients must be 0 where there is no target");
  }
  begin(Work::kBackward, compute_->backward(std::move(gradients)));
}

void Trainer::optimize(const OptimizerStep& step) {
  require_idle();
  check(step);
  stepped_ = false;
  begin(Work::kOptimize, compute_->optimize(step, outcome_));
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
  scored_ = scored_ || work_ == Work::kForward;
  stepped_ = stepped_ || work_ == Work::kOptimize;
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
  return compute_->state(first, count);
}

}  // namespace tandem::train
