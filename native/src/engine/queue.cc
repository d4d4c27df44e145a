// Steps that are queued behind one another on a device.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/plan_check.h"

namespace tandem::engine {
namespace {

// One runs, and one is queued behind it.
constexpr size_t kMostQueued = 2;

// Ids whose logits a draw behind so many tokens may change; the history, where there is one, does not know the last of them yet.
int64_t most_edits(const SequenceParams& p, const ops::TokenHistory* history, int64_t tokens) {
  const auto own = int64_t(p.sampling.bias.size() + p.stop_ids.size() + p.barred_ids.size() + p.sampling.bad_words.size());
  if (!p.sampling.uses_history()) return own;
  const auto repeated = history ? int64_t(history->tokens().size() - history->counts().size()) : 0;
  return own + tokens - repeated;
}

}  // namespace

bool Engine::queue(const Plan& plan) {
  if (backend_->queue_limits().draws == 0) return false;
  require_whole();
  check_plan(plan, slots_, options_, model_);
  if (flights_.size() == kMostQueued || (!flights_.empty() && !plan.ahead) || !may_queue(plan)) return false;
  draw();
  broken_ = true;
  apply_slots(plan);
  queue_rows(plan.ahead && has_ended_rows(plan) ? without_ended(plan) : plan);
  broken_ = false;
  return true;
}

bool Engine::may_queue(const Plan& plan) const {
  if (!plan.controls.empty()) return false;
  if (std::any_of(plan.closes.begin(), plan.closes.end(), [&](int32_t slot) { return slots_[size_t(slot)].awaited > 0; })) return false;
  std::unordered_map<int64_t, const Open*> opens;
  for (const Open& open : plan.opens) opens[open.slot] = &open;
  QueueLimits needed;
  bool any = false;
  for (const Row& row : plan.rows) {
    const Slot& slot = slots_[size_t(row.slot)];
    const auto found = opens.find(row.slot);
    const Open* open = found == opens.end() ? nullptr : found->second;
    if (!open && slot.ended) continue;
    any = true;
    const SequenceParams& params = open ? open->params : slot.params;
    const Constraint* constraint = open ? open->constraint.get() : slot.constraint.get();
    const bool scores_prompt = (open ? open->prompt_logprobs : slot.prompt_logprobs) >= 0;
    if ((constraint && constraint->jumps()) || scores_prompt || row.samples > 1 || row.scored > 0) return false;
    if (row.samples == 0) continue;
    ++needed.draws;
    needed.edits += most_edits(params, open ? nullptr : &slot.history, row.first_position + row.count);
    needed.best += std::max<int64_t>(0, params.sampling.logprobs);
  }
  const QueueLimits limits = backend_->queue_limits();
  return any && needed.draws <= limits.draws && needed.edits <= limits.edits && needed.best <= limits.best;
}

bool Engine::draws_late(const Plan& plan) const {
  // What is drawn again goes through this step's layers again.
  if (!flights_.empty() && flights_.front().asks) return true;
  return std::any_of(plan.rows.begin(), plan.rows.end(), [&](const Row& row) {
    const Slot& slot = slots_[size_t(row.slot)];
    return row.samples > 0 && (slot.constraint || slot.params.sampling.uses_history());
  });
}

std::vector<std::shared_ptr<const model::Adapter>> Engine::adapters_of(const Plan& plan) const {
  std::vector<std::shared_ptr<const model::Adapter>> adapters;
  for (const Row& row : plan.rows) {
    const Slot& slot = slots_[size_t(row.slot)];
    if (slot.adapter) adapters.push_back(slot.adapter);
  }
  return adapters;
}

void Engine::queue_rows(const Plan& plan) {
  const model::ForwardBatch batch = build_batch(plan);
  Flight flight;
  for (const Row& row : plan.rows) slots_[size_t(row.slot)].position = row.first_position + row.count;
  flight.adapters = adapters_of(plan);
  flight.drawings = drawings(plan, batch);
  for (Drawing& drawing : flight.drawings) drawing.outcome = Drawing::kLast;
  flight.late = draws_late(plan);
  if (flight.late) {
    flight.rows = plan.rows;
    flight.tokens = batch.tokens;
    backend_->queue_layers(batch);
  } else {
    // Only pieces of prompts can be of a history here, and what is before them has been remembered: at most one step is ahead.
    remember(plan.rows, batch.tokens);
    begin_draws(flight);
    backend_->queue(batch, flight.draws);
  }
  running_.clear();  // behind queued steps there was nothing, before the first it was waited for
  for (const Drawing& drawing : flight.drawings) ++slots_[size_t(drawing.slot)].awaited;
  flights_.push_back(std::move(flight));
  if (flights_.size() == 1) prepare_draws(flights_.front());
}

void Engine::prepare_draws(Flight& flight) {
  if (!flight.late) return;
  remember(flight.rows, flight.tokens);
  prepare_masks(flight.rows);
}

void Engine::begin_draws(Flight& flight) {
  for (size_t i = 0; i < flight.drawings.size(); ++i) {
    Drawing& drawing = flight.drawings[i];
    Draw draw{drawing.hidden.row, drawing.slot, {}};
    if (drawing.outcome == Drawing::kSkipped || !begin(drawing, nullptr, draw.input)) continue;
    flight.asks = flight.asks || draw.input.takes;
    flight.draws.push_back(std::move(draw));
    flight.sampled.push_back(i);
  }
}

void Engine::draw() {
  if (flights_.empty()) return;
  Flight& flight = flights_.front();
  if (!flight.late || flight.drawn || flight.failure) return;
  const bool broken = std::exchange(broken_, true);
  try {
    masks_.wait();
    begin_draws(flight);
    backend_->queue_draws(flight.draws);
  } catch (...) {
    flight.failure = std::current_exception();
    throw;
  }
  flight.drawn = true;
  broken_ = broken;
}

StepResult Engine::finish() {
  require(!flights_.empty(), ErrorKind::kState, kBroken);
  draw();
  // Where this fails, nothing is left of those behind it.
  std::deque<Flight> flights = std::exchange(flights_, {});
  const bool broken = std::exchange(broken_, true);
  Flight flight = std::move(flights.front());
  flights.pop_front();
  if (flight.failure) std::rethrow_exception(flight.failure);
  std::vector<Answer> answers = backend_->fetch();
  for (size_t i = 0; i < answers.size(); ++i) {
    Drawing& drawing = flight.drawings[flight.sampled[i]];
    if (drawing.outcome != Drawing::kSkipped) take(drawing, std::move(answers[i]));
  }
  StepResult result;
  for (Drawing& drawing : flight.drawings) {
    if (drawing.outcome == Drawing::kSkipped) continue;
    Slot& slot = slots_[size_t(drawing.slot)];
    --slot.awaited;
    note(drawing, result);
    if (!slot.ended) continue;
    for (Flight& later : flights) leave_out(drawing.slot, later);
  }
  flights_ = std::move(flights);
  if (!flights_.empty()) prepare_draws(flights_.front());
  broken_ = broken;
  return result;
}

void Engine::leave_out(int64_t slot, Flight& flight) {
  for (Drawing& drawing : flight.drawings) {
    if (drawing.slot != slot || drawing.outcome == Drawing::kSkipped) continue;
    drawing.outcome = Drawing::kSkipped;
    --slots_[size_t(slot)].awaited;
  }
}

}  // namespace tandem::engine
