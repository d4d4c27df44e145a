// step(plan) -> tokens. The engine owns sequence slots and what their tokens mean, its back-end KV pages, activations and the arithmetic;
// which sequence runs, with which pages, is decided outside.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/mask_workers.h"
#include "engine/slot.h"

namespace tandem::engine {

// Called with options that have been checked.
using MakeBackend = std::function<std::unique_ptr<Backend>(const Options&)>;

class Engine {
 public:
  // Throws Error(kRange) naming the option.
  Engine(std::shared_ptr<model::Model> model, const Options& options);
  // On another back-end than the CPU; of the model only its facts are used.
  Engine(std::shared_ptr<model::Model> model, const Options& options, const MakeBackend& make);

  // Checks the whole plan first and throws Error(kRange) with the engine unchanged; then runs it. Not re-entrant.
  // An error after that (out of memory) leaves slots half-way: every later step throws Error(kState).
  StepResult step(const Plan& plan);

  // The same in two parts, on a device: queue() puts the step behind the one that runs and returns at once, finish() waits for the oldest
  // that was queued. The token that a slot samples goes from one step to the next on the device; what the first step ended, the second
  // computes in vain and gives no result for. False: nothing has happened, and the plan is to be run with step() when every queued one is
  // finished. So it is where a result decides what is to be computed (proposals, forced text, scores of a prompt) or comes from outside
  // (controls of a step), for a slot's closing while its token is still awaited, for a third step, and on the CPU.
  // Where a result decides only what may be drawn (grammars, penalties, bad words), the layers of the step behind it run meanwhile, and its
  // draws follow with draw().
  // A step fails by itself: an error of queue() leaves those before it to be finished, one of finish() takes those behind it along.
  bool queue(const Plan& plan);
  // Of the step that finish() is for: puts its draws behind its layers, where they had to wait for the results before.
  void draw();
  // Behind draw(): waits until that step has little left to do, and begins what is queued behind it by itself.
  void wait_nearly() { backend_->wait_for_layers(); }
  // Behind draw(): whether finish() returns without waiting.
  bool ran() { return backend_->ran(); }
  StepResult finish();

  // Between steps; see Backend.
  void leave(ThreadPool::Aside call, void* context) { backend_->leave(call, context); }
  void settle() { backend_->settle(); }

  size_t page_bytes() const { return backend_->page_bytes(); }
  // The stored keys and values of the pages, page after page, page_bytes() each: what another engine with the same weights and element
  // type takes with write_pages. Not while a step runs. Throws Error(kRange) for a page id or a length that does not fit, or values that
  // are not finite (a page from outside could otherwise spoil masked positions).
  std::vector<uint8_t> read_pages(const std::vector<int32_t>& pages) const;
  void write_pages(const std::vector<int32_t>& pages, const std::vector<uint8_t>& bytes);

 private:
  static constexpr char kBroken[] = "an earlier step failed half-way; the engine must be closed";
  void require_whole() const;
  StepResult run_checked(const Plan& plan);
  bool has_ended_rows(const Plan& plan) const;
  // The rows and tokens of the slots whose sequences have not ended.
  Plan without_ended(const Plan& plan) const;
  bool may_queue(const Plan& plan) const;
  StepResult run_rows(const Plan& plan);
  void queue_rows(const Plan& plan);
  void apply_slots(const Plan& plan);
  model::ForwardBatch build_batch(const Plan& plan);
  std::vector<std::shared_ptr<const model::Adapter>> adapters_of(const Plan& plan) const;
  // The tokens of the rows join the histories that need them.
  void remember(const std::vector<Row>& rows, const std::vector<int32_t>& tokens);
  // Starts on the masks of the rows that sample; they are ready when masks_ has been waited for.
  void prepare_masks(const std::vector<Row>& rows);
  // A position that samples, what its grammar said of the token, and what came out.
  struct Drawing {
    int64_t slot;
    int64_t position;  // of the token that is sampled
    HiddenRow hidden;
    int32_t proposed;  // -1 = none
    const ops::StepControls* controls;
    bool follows;  // sampled only when the drawing before it gave what was proposed
    Constraint::Verdict verdict = Constraint::Verdict::kGoesOn;
    enum : uint8_t { kSkipped, kLast, kAccepted } outcome = kSkipped;
    Sampled sampled{};
    std::vector<ops::TopEntry> top = {};
  };
  // A token that was fed and is to be scored.
  struct Scoring {
    int64_t slot, position;
    ScoreQuery query;
  };
  std::vector<Drawing> drawings(const Plan& plan, const model::ForwardBatch& batch) const;
  std::vector<Scoring> scorings(const Plan& plan, const model::ForwardBatch& batch) const;
  void keep_last_hidden(const Plan& plan);
  void sample_rows(const Plan& plan, const model::ForwardBatch& batch, StepResult& result);
  void score_fed(const Plan& plan, const model::ForwardBatch& batch, StepResult& result);
  // False: nothing is to be sampled. `before`: the drawing that this one follows.
  bool begin(Drawing& drawing, const Drawing* before, ops::SampleInput& input);
  void take(Drawing& drawing, Answer&& answer);
  void note(Drawing& drawing, StepResult& result);
  // A queued step.
  struct Flight {
    std::vector<Drawing> drawings;
    std::vector<std::shared_ptr<const model::Adapter>> adapters;  // their weights are read until it has run
    // Its draws wait for the results of the step before it; what they need of its plan.
    bool late = false;
    std::vector<Row> rows = {};
    std::vector<int32_t> tokens = {};
    // Once they are known: of those drawings that may be sampled.
    bool drawn = false, asks = false;  // asks: a token that is drawn may not be taken
    std::vector<Draw> draws = {};
    std::vector<size_t> sampled = {};      // the drawing of each
    std::exception_ptr failure = nullptr;  // of its draws; finish() tells it
  };
  bool draws_late(const Plan& plan) const;
  void begin_draws(Flight& flight);
  // Of a late flight whose turn it is: what its draws are to know of the tokens before them.
  void prepare_draws(Flight& flight);
  // What an earlier step has ended gives no result.
  void leave_out(int64_t slot, Flight& flight);
  // The token before the drawing was proposed and has been sampled: it counts as fed.
  void accept_proposal(const Drawing& drawing, int32_t token);
  Finish finish_of(const SequenceParams& params, const ops::Sample& sample, bool complete, int64_t outputs, int64_t length) const;

  std::shared_ptr<model::Model> model_;
  Options options_;
  std::vector<Slot> slots_;
  std::deque<Flight> flights_;
  std::vector<std::shared_ptr<const model::Adapter>> running_;  // of a step for which nothing has been waited
  std::unique_ptr<Backend> backend_;                            // gone before what its last steps read
  bool broken_ = false;
  MaskWorkers masks_;
};

}  // namespace tandem::engine
