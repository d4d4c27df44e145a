// What a step is asked for and what it answers.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/constraint.h"
#include "model/adapter.h"
#include "ops/sampling.h"

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
// goes on while the sampled token is the proposed one, the sequence has not finished and nothing is forced behind it: what it samples is
// then what it would have sampled one row at a time, whatever was proposed. The slot stands after the last position that was sampled; what
// lies behind it is written again. Proposals must give finite numbers, as tokens do that the sequence holds already: one that does not ends
// the sequence.
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

}  // namespace tandem::engine
