#include "ops/logit_controls.h"

#include <algorithm>
#include <cmath>

namespace tandem::ops {
namespace {

void keep_allowed(const simd::Kernels& kernels, const SampleInput& in, const std::vector<uint32_t>& bits, SamplingScratch& scratch) {
  scratch.saved.resize(size_t(simd::row_tiles(in.samplable)));
  kernels.keep_bits(in.logits, in.samplable, bits.data(), scratch.saved.data());
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

std::vector<uint32_t> id_bits(const std::vector<int32_t>& ids, int64_t n) {
  std::vector<uint32_t> bits(size_t((n + 31) / 32), 0);
  for (int32_t id : ids) {
    if (id < n) bits[size_t(id) / 32] |= 1u << (id % 32);
  }
  return bits;
}

void apply_controls(const simd::Kernels& kernels, const SampleInput& in, SamplingScratch& scratch) {
  const SamplingParams& p = *in.params;
  if (!p.allowed_bits.empty()) {
    keep_allowed(kernels, in, p.allowed_bits, scratch);
  } else if (!p.allowed.empty()) {
    keep_allowed(kernels, in, id_bits(p.allowed, in.samplable), scratch);
  }
  if (in.step && !in.step->allowed.empty()) keep_allowed(kernels, in, id_bits(in.step->allowed, in.samplable), scratch);
  if (!p.bad_words.empty()) ban_bad_words(in.logits, p.bad_words, in.history->tokens());
  for (int32_t id : *in.banned) in.logits[id] = -INFINITY;
  for (const auto& [id, value] : p.bias) in.logits[id] += value;
  if (in.step) {
    for (const auto& [id, value] : in.step->bias) in.logits[id] += value;
  }
  if (p.uses_history()) penalise(in.logits, p, *in.history);
}

}  // namespace tandem::ops
