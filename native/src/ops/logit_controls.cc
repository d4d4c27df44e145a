#include "ops/logit_controls.h"

#include <algorithm>
#include <cmath>

namespace tandem::ops {
namespace {

void keep_allowed(float* logits, int64_t n, const std::vector<int32_t>& allowed, std::vector<float>& saved) {
  saved.clear();
  for (int32_t id : allowed) saved.push_back(logits[id]);
  std::fill(logits, logits + n, -INFINITY);
  for (size_t i = 0; i < allowed.size(); ++i) {
    if (allowed[i] < n) logits[allowed[i]] = saved[i];
  }
}

void ban_bad_words(float* logits, const std::vector<std::vector<int32_t>>& words, const std::vector<int32_t>& tokens) {
  for (const auto& word : words) {
    size_t before = word.size() - 1;
    if (tokens.size() < before) continue;
    if (std::equal(word.begin(), word.end() - 1, tokens.end() - int64_t(before))) logits[word.back()] = -INFINITY;
  }
}

void penalise(float* logits, const SamplingParams& p, const TokenHistory& history) {
  for (const auto& [id, counts] : history.counts()) {
    float x = logits[id];
    if (p.repetition_penalty != 1) x = x > 0 ? x / float(p.repetition_penalty) : x * float(p.repetition_penalty);
    if (counts.output > 0) {
      x -= float(p.frequency_penalty) * float(counts.output);
      x -= float(p.presence_penalty);
    }
    logits[id] = x;
  }
}

}  // namespace

bool has_controls(const SampleInput& in) {
  if (in.step && !(in.step->bias.empty() && in.step->allowed.empty())) return true;
  return !in.banned->empty() || !in.params->allowed.empty() || !in.params->bias.empty() || in.params->uses_history();
}

void apply_controls(const SampleInput& in, std::vector<float>& saved) {
  const SamplingParams& p = *in.params;
  if (!p.allowed.empty()) keep_allowed(in.logits, in.samplable, p.allowed, saved);
  if (in.step && !in.step->allowed.empty()) keep_allowed(in.logits, in.samplable, in.step->allowed, saved);
  if (!p.bad_words.empty()) ban_bad_words(in.logits, p.bad_words, in.history->tokens());
  for (int32_t id : *in.banned) in.logits[id] = -INFINITY;
  for (const auto& [id, value] : p.bias) in.logits[id] += value;
  if (in.step) {
    for (const auto& [id, value] : in.step->bias) in.logits[id] += value;
  }
  if (p.uses_history()) penalise(in.logits, p, *in.history);
}

}  // namespace tandem::ops
