// What an engine asks of the machine that holds its weights: the CPU (cpu_backend.h) or a device (device/backend.h).
// The engine owns slots, plans, grammars' constraints and what a token means; the back-end owns KV memory, activations and the arithmetic.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "model/forward.h"
#include "ops/sampling.h"

namespace tandem::engine {

struct Options {
  int64_t max_sequences = 0;
  int64_t max_batch_tokens = 0;
  int64_t pages = 0;
  int64_t max_model_len = 0;
  int64_t samplable_vocab = 0;
  int64_t max_logprobs = 0;
};

// The hidden state that a row of logits is computed from: of a row of the last forward pass, or a copy of an earlier one.
struct HiddenRow {
  int64_t row;        // used where `copy` is null
  const float* copy;  // hidden_size floats
};

struct Answer {
  ops::Sample sample;
  std::vector<ops::TopEntry> top;
};

struct SampleQuery {
  HiddenRow hidden;
  bool follows;  // begins only when the query before it has been taken or left out
  // Gives the input, but for its logits; false: nothing is to be sampled, and nothing taken.
  std::function<bool(ops::SampleInput&)> begin;
  std::function<void(Answer&&)> take;
};

// In the tokens of a queued batch: the one that the slot sampled last, which the device knows and the host does not.
constexpr int32_t sampled_by(int64_t slot) { return int32_t(-2 - slot); }

// A token to be drawn in a queued step: the back-end takes any that comes out.
struct Draw {
  int64_t row;   // of the step's batch
  int64_t slot;  // whose token it is, for sampled_by(slot) in the batches after it
  ops::SampleInput input;
};

// What one queued step may draw.
struct QueueLimits {
  int64_t draws = 0;  // 0: steps are not queued
  int64_t edits = 0;  // ids that all draws together bias or forbid
  int64_t best = 0;   // alternatives that all draws together want
};

// A token that was not drawn but given.
struct ScoreQuery {
  HiddenRow hidden;
  int32_t token;
  int64_t best;  // alternatives wanted
  float scale;   // log-probabilities are of the logits times this
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual size_t page_bytes() const = 0;
  // The stored keys and values of one page, page_bytes() of them.
  virtual void read_page(int32_t page, uint8_t* out) = 0;
  virtual void write_page(int32_t page, const uint8_t* bytes) = 0;

  // Runs the layers over the batch and writes its keys and values. What an earlier owner left in a page is never seen.
  virtual void forward(const model::ForwardBatch& batch) = 0;
  // hidden_size floats of a row of the last forward pass.
  virtual void copy_hidden(int64_t row, float* out) = 0;
  // Begins and takes every query, those that follow one another in order and on one thread at a time, others perhaps side by side.
  virtual void sample(const std::vector<SampleQuery>& queries) = 0;
  // One answer per query, in order.
  virtual std::vector<Answer> score(const std::vector<ScoreQuery>& queries) = 0;

  // Has something short done soon that is nothing of a step's, by a thread that a step can spare; what was left before is done first.
  virtual void leave(ThreadPool::Aside call, void* context) { call(context); }
  // Returns when that is done.
  virtual void settle() {}

  // Steps that are handed over whole: while one runs, the next can be prepared and put behind it, and begins without the host. Two at most
  // are not fetched; what is above is called only when all are.
  virtual QueueLimits queue_limits() const { return {}; }
  // Does not wait for what was queued before. The inputs are read before it returns. No draw asks whether its token is taken.
  virtual void queue(const model::ForwardBatch&, const std::vector<Draw>&) {}
  // The same in two parts, where what may be drawn is known only from the results of the step before: the layers, which take that step's
  // tokens on the device; and, once those results have been fetched, the draws. These may ask whether a token is taken, when they are fetched,
  // and stay until then. Nothing but layers is queued behind such a step before it is fetched: they run again where a token was drawn again.
  virtual void queue_layers(const model::ForwardBatch&) {}
  virtual void queue_draws(const std::vector<Draw>&) {}
  // Until the layers of the oldest have run: what is left of it is short, and begins without the host.
  virtual void wait_for_layers() {}
  // Whether all of the oldest has run.
  virtual bool ran() { return true; }
  // Waits for the oldest; its answers, in the order of its draws.
  virtual std::vector<Answer> fetch() { return {}; }
};

}  // namespace tandem::engine
