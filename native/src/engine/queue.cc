// Steps that are queued behind one another on a device.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/plan_check.h"

namespace tandem::engine {
namespace {

constexpr char kHalfWay[] = "an earlier step failed half-way; the engine must be closed";
// One runs, and one is queued behind it.
constexpr size_t kMostQueued = 2;

}  // namespace

bool Engine::queue(const Plan& plan) {
  if (backend_->queue_limits().draws == 0) return false;
  require(!broken_, ErrorKind::kState, kHalfWay);
  check_plan(plan, slots_, options_, model_);
  if (flights_.size() == kMostQueued || (!flights_.empty() && !plan.ahead) || !may_queue(plan)) return false;
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
    const bool constrained = open ? open->constraint != nullptr : slot.constraint != nullptr;
    const bool scores_prompt = (open ? open->prompt_logprobs : slot.prompt_logprobs) >= 0;
    if (constrained || scores_prompt || row.samples > 1 || row.scored > 0 || params.sampling.uses_history()) return false;
    if (row.samples == 0) continue;
    ++needed.draws;
    needed.edits += int64_t(params.sampling.bias.size() + params.stop_ids.size() + params.barred_ids.size());
    needed.best += std::max<int64_t>(0, params.sampling.logprobs);
  }
  const QueueLimits limits = backend_->queue_limits();
  return any && needed.draws <= limits.draws && needed.edits <= limits.edits && needed.best <= limits.best;
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
  std::vector<Draw> draws;
  for (Drawing& drawing : flight.drawings) {
    draws.push_back({drawing.hidden.row, drawing.slot, {}});
    begin(drawing, nullptr, draws.back().input);
  }
  backend_->queue(batch, draws);
  running_.clear();  // behind queued steps there was nothing, before the first it was waited for
  for (const Drawing& drawing : flight.drawings) ++slots_[size_t(drawing.slot)].awaited;
  flights_.push_back(std::move(flight));
}

StepResult Engine::finish() {
  require(!flights_.empty(), ErrorKind::kState, kHalfWay);
  // Where this fails, nothing is left of those behind it.
  std::deque<Flight> flights = std::exchange(flights_, {});
  const bool broken = std::exchange(broken_, true);
  Flight flight = std::move(flights.front());
  flights.pop_front();
  std::vector<Answer> answers = backend_->fetch();
  StepResult result;
  for (size_t i = 0; i < flight.drawings.size(); ++i) {
    Drawing& drawing = flight.drawings[i];
    if (drawing.outcome == Drawing::kSkipped) continue;
    Slot& slot = slots_[size_t(drawing.slot)];
    --slot.awaited;
    take(drawing, std::move(answers[i]));
    note(drawing, result);
    if (!slot.ended) continue;
    for (Flight& later : flights) leave_out(drawing.slot, later);
  }
  flights_ = std::move(flights);
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
