// step(plan) -> tokens. The engine owns sequence slots, the KV pages and the activations; which sequence runs, with which pages,
// is decided outside.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/backend.h"
#include "engine/constraint.h"
#include "engine/mask_worker.h"

namespace tandem::engine {

struct SequenceParams {
  ops::SamplingParams sampling;
  int64_t max_tokens = 1;
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_ids;
  // End nothing, but may not come before min_tokens either.
  std::vector<int32_t> barred_ids;
};

struct Open {
  int64_t slot;
  int64_t prompt_length;
  SequenceParams params;
  // Tokens whose keys and values already lie in the pages assigned with this plan (a prefix-cache hit); rows go on after them.
  std::vector<int32_t> cached;
  // -1: off; k >= 0: score every fed prompt token but the first, with its k best alternatives. Needs an empty `cached`.
  int64_t prompt_logprobs = -1;
  // Of the engine's model; null = the base model. The slot holds it until it is closed.
  std::shared_ptr<const model::Adapter> adapter;
  // What the outputs must be; null: anything. Its vocabulary must have at least samplable_vocab tokens. Outputs that are fed again it must
  // have taken before the row that samples.
  std::shared_ptr<Constraint> constraint;
};

// The last `samples` positions of a row are sampled, in order; from the first of them on the row's next tokens are proposals. Sampling
// goes on while the sampled token is the proposed one and the sequence has not finished: what it samples is then what it would have
// sampled one row at a time, whatever was proposed. The slot stands after the last position that was sampled; what lies behind it is
// written again. Proposals must give finite numbers, as tokens do that the sequence holds already: one that does not ends the sequence.
struct Row {
  int64_t slot, first_position, count, samples;
  // So many of the last tokens before the proposals are outputs that were forced, not sampled: their log-probabilities are wanted like those
  // of sampled ones.
  int64_t scored = 0;

  int64_t proposals() const { return samples > 1 ? samples - 1 : 0; }
};

struct PageAssignment {
  int64_t slot, index, page;
};

// Controls of a sampling row in this step alone.
struct StepControl {
  int64_t slot;
  ops::StepControls controls;
};

struct Plan {
  std::vector<Open> opens;
  std::vector<int32_t> closes;
  std::vector<PageAssignment> pages;
  std::vector<Row> rows;
  std::vector<int32_t> tokens;  // of all rows in order; -1, only as the first of a row: the slot's last sampled token
  std::vector<StepControl> controls;
  // Made before the results of the step before were known: rows of slots whose sequence it ended are left out, without a result.
  bool ahead = false;
};

enum class Finish : uint8_t {
  kNone = 0,
  kStopToken = 1,
  kLength = 2,
  kNotFinite = 3,  // no token: its logits held NaN or infinity
  kComplete = 4,   // the token is the last of a text that can only end
  kNoToken = 5,    // no token: controls and grammar together allow none
  kGrammar = 6,    // no token: the matcher could not go on
};

struct Sampled {
  int32_t slot;
  int32_t token;
  Finish finish;
  float logprob;  // NaN where not asked for
  int32_t rank;
  int32_t top_offset, top_count;
  bool forced = false;  // the grammar forces what comes next, and its constraint jumps
};

// The log-probability of one token that was fed, given those before it: raw for a prompt token, in the sequence's mode for a forced output.
struct Scored {
  int32_t slot;
  int32_t position;  // of the token
  float logprob;
  int32_t rank;
  int32_t top_offset, top_count;
};

struct StepResult {
  std::vector<Sampled> samples;  // in row order; those of one row lie together
  std::vector<Scored> fed;
  std::vector<ops::TopEntry> top;  // of samples, then of fed
};

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
  // finished. So it is where a result decides what is to be computed or allowed (grammars, proposals, forced text, penalties and bad words,
  // controls of a step, scores of a prompt), for a slot's closing while its token is still awaited, for a third step, and on the CPU.
  // A step fails by itself: an error of queue() leaves those before it to be finished, one of finish() takes those behind it along.
  bool queue(const Plan& plan);
  // Waits until the step that finish() is for has little left to do, and begins what is queued behind it by itself.
  void wait_nearly() { backend_->wait_for_layers(); }
  // Whether finish() returns without waiting.
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
  struct Slot {
    bool open = false;
    int64_t prompt_length = 0;
    int64_t position = 0;  // tokens whose keys are stored
    int32_t last_token = -1;
    bool ended = false;   // by what it sampled last
    int64_t awaited = 0;  // queued steps that sample it
    SequenceParams params;
    std::vector<int32_t> banned_early;  // before min_tokens: params.stop_ids and params.barred_ids
    std::vector<int32_t> pages;
    ops::TokenHistory history;  // filled only where a control needs it
    int64_t prompt_logprobs = -1;
    std::shared_ptr<const model::Adapter> adapter;
    std::shared_ptr<Constraint> constraint;
    std::vector<float> last_hidden;  // of the last position fed, where the next token comes with a later plan and may be scored
  };

  void check_plan(const Plan& plan) const;
  void check_rows(const Plan& plan, const std::vector<uint8_t>& opens, const std::vector<uint8_t>& closes) const;
  StepResult run_checked(const Plan& plan);
  bool has_ended_rows(const Plan& plan) const;
  // The rows and tokens of the slots whose sequences have not ended.
  Plan without_ended(const Plan& plan) const;
  bool may_queue(const Plan& plan) const;
  StepResult run_rows(const Plan& plan);
  void queue_rows(const Plan& plan);
  void check_controls(const Plan& plan) const;
  void check_written_pages(const Plan& plan, const std::vector<uint8_t>& opens) const;
  void apply_slots(const Plan& plan);
  model::ForwardBatch build_batch(const Plan& plan);
  std::vector<std::shared_ptr<const model::Adapter>> adapters_of(const Plan& plan) const;
  void remember(const Plan& plan, const model::ForwardBatch& batch);
  // Starts on the masks of the rows that sample; they are ready when masks_ has been waited for.
  void prepare_masks(const Plan& plan);
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
  void settle(Drawing& drawing, Answer&& answer);
  void note(Drawing& drawing, StepResult& result);
  // A queued step.
  struct Flight {
    std::vector<Drawing> drawings;
    std::vector<std::shared_ptr<const model::Adapter>> adapters;  // their weights are read until it has run
  };
  // What an earlier step has ended gives no result.
  void leave_out(int64_t slot, Flight& flight);
  // The token before the drawing was proposed and has been sampled: it counts as fed.
  void accept_proposal(const Drawing& drawing, int32_t token);
  Finish finish_of(const SequenceParams& params, const ops::Sample& sample, bool complete, int64_t outputs, int64_t length) const;

  std::shared_ptr<model::Model> model_;
  Options options_;
  std::vector<Slot> slots_;
  std::deque<Flight> flights_;
  std::vector<std::shared_ptr<const model::Adapter>> running_;  // of a step that drew nothing, for which nothing has been waited
  std::unique_ptr<Backend> backend_;                            // gone before what its last steps read
  bool broken_ = false;
  MaskWorker masks_;
};

}  // namespace tandem::engine
