// From one row of logits to one token, its log-probability and the best alternatives.
//
// Order of operations as vLLM's sampler (vllm/v1/sample/sampler.py describes it): raw log-probabilities first, from the untouched logits
// over the whole vocabulary; then the grammar's mask, allowed ids, bad words, minimum tokens, logit bias, penalties (repetition,
// frequency, presence); then argmax for greedy rows, or division by the temperature, min_p, top_k, top_p and the draw.
//
// Controls are sparse: what a request does not use costs nothing, what it uses costs by its own size, not by the vocabulary's
// (allowed ids excepted, which clear the row once).
#pragma once
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simd/kernels.h"

namespace tandem::ops {

enum class LogprobMode {
  kRaw,          // log-softmax of the untouched logits
  kTemperature,  // log-softmax of the untouched logits / temperature
  kProcessed,    // of what the draw was made from: filtered ids have -inf
};

struct SamplingParams {
  double temperature = 1;  // 0 = greedy
  double top_p = 1;        // (0, 1]
  int64_t top_k = 0;       // 0 = off
  double min_p = 0;        // [0, 1]
  uint64_t seed = 0;
  int64_t choice = 0;
  int64_t logprobs = -1;  // -1 none, k >= 0: of the sampled token and the k best
  LogprobMode mode = LogprobMode::kRaw;
  double frequency_penalty = 0;                 // logit -= f * count in the output
  double presence_penalty = 0;                  // logit -= p if in the output
  double repetition_penalty = 1;                // logit > 0 ? / r : * r, for ids in prompt or output
  std::vector<std::pair<int32_t, float>> bias;  // added to the logit; ids distinct
  std::vector<int32_t> allowed;                 // ascending; empty = all
  std::vector<uint32_t> allowed_bits;           // id_bits(allowed), where they were made once for all steps; empty = each step makes them
  std::vector<std::vector<int32_t>> bad_words;  // the last id of each is banned where the others precede it

  bool uses_history() const { return frequency_penalty != 0 || presence_penalty != 0 || repetition_penalty != 1 || !bad_words.empty(); }
};

// The tokens of a sequence as the controls see them.
class TokenHistory {
 public:
  void add(int32_t token, bool output) {
    Counts& counts = counts_[token];
    counts.output += output ? 1 : 0;
    tokens_.push_back(token);
  }
  struct Counts {
    int32_t output = 0;
  };
  const std::unordered_map<int32_t, Counts>& counts() const { return counts_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::unordered_map<int32_t, Counts> counts_;
  std::vector<int32_t> tokens_;
};

struct TopEntry {
  int32_t id;
  float logprob;
};

struct Sample {
  int32_t token = -1;  // -1: the row held NaN or +inf, or nothing may be sampled
  float logprob = 0;
  int32_t rank = 0;        // 1 + number of ids with a larger log-probability
  bool forbidden = false;  // with token -1: the row was sound, but no id may be sampled
};

// The one uniform in [0, 1) of (seed, choice, index): a counter-based hash, no state. SplitMix64's finaliser (Steele et al. 2014)
// applied three times.
double uniform(uint64_t seed, uint64_t choice, uint64_t index);

// A bit per id of `ids` (ascending, not negative): bit i % 32 of word i / 32, for ids below n.
std::vector<uint32_t> id_bits(const std::vector<int32_t>& ids, int64_t n);

// Working memory of one thread.
struct SamplingScratch {
  std::vector<float> tiles, sums, values, weights, saved;
  std::vector<float> untouched, untouched_tiles;  // a row before its controls, and the maxima of its tiles
  std::vector<int32_t> ids;
  std::vector<TopEntry> best, entries;
};

// What one step adds to the controls of a sequence; both kinds of allowed ids hold together.
struct StepControls {
  std::vector<std::pair<int32_t, float>> bias;  // added to the logit; ids distinct
  std::vector<int32_t> allowed;                 // ascending; empty = all
};

struct SampleInput {
  float* logits;  // `vocab` floats; changed by the call
  int64_t vocab;
  int64_t samplable;                   // ids >= this are never sampled
  const std::vector<int32_t>* banned;  // ids that may not come now (minimum tokens)
  const SamplingParams* params;
  const TokenHistory* history;  // needed when params.uses_history()
  uint64_t index;               // output index of the token
  const StepControls* step = nullptr;
  const uint32_t* mask = nullptr;  // a bit per id below `samplable`: what a grammar allows; null = all
  // Asked about each drawn id, where set. On false the id is gone from `mask`, perhaps with others, and the draw is made again.
  std::function<bool(int32_t)> takes = nullptr;
};

// Appends min(params.logprobs, vocab) entries to `top` in descending order, ties by smaller id; fewer where only fewer
// have a log-probability above -inf.
// Ties at the k-th value of top_k are kept. Of equal probabilities top_p keeps the smaller ids first.
Sample sample(const simd::Kernels& kernels, const SampleInput& input, SamplingScratch& scratch, std::vector<TopEntry>& top);

// What the logits are multiplied by for the log-probabilities of that mode, which must not be kProcessed.
float logprob_scale(const SamplingParams& params);

// The log-probability (of the logits times `scale`) and rank of a given token, and the k best appended to `top`: the bits that sample()
// gives for it. A row with NaN or +inf gives NaN and rank 0.
Sample score(const simd::Kernels& kernels, float* logits, int64_t vocab, int32_t token, int64_t k, float scale, SamplingScratch& scratch,
             std::vector<TopEntry>& top);

// The naive truth of the distribution that sample() draws from: `vocab` probabilities in double, by full sorts. Logits are not changed.
std::vector<double> distribution_reference(const SampleInput& input);

}  // namespace tandem::ops
