#include "device/controls.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace tandem::device {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

cuda::LogprobOf logprob_of(const ops::SamplingParams& p) {
  if (p.logprobs < 0) return cuda::LogprobOf::kNone;
  switch (p.mode) {
    case ops::LogprobMode::kRaw: return cuda::LogprobOf::kRaw;
    case ops::LogprobMode::kTemperature: return cuda::LogprobOf::kScaled;
    case ops::LogprobMode::kProcessed: break;
  }
  return cuda::LogprobOf::kProcessed;
}

// Edits that forbid or add, by id; history's penalties join them.
class Edits {
 public:
  cuda::LogitEdit& at(int32_t id) { return by_id_.try_emplace(id, cuda::LogitEdit{id, 0, 1, 0}).first->second; }
  void forbid(int32_t id) { at(id).bias = -kInfinity; }

  std::vector<cuda::LogitEdit> with_history(const ops::SampleInput& in) {
    const ops::SamplingParams& p = *in.params;
    std::vector<cuda::LogitEdit> out;
    if (p.uses_history()) {
      for (const auto& [id, counts] : in.history->counts()) {
        auto found = by_id_.find(id);
        cuda::LogitEdit edit = found == by_id_.end() ? cuda::LogitEdit{id, 0, 1, 0} : found->second;
        if (found != by_id_.end()) by_id_.erase(found);
        edit.repetition = float(p.repetition_penalty);
        if (counts.output > 0) edit.penalty = float(p.frequency_penalty) * float(counts.output) + float(p.presence_penalty);
        out.push_back(edit);
      }
    }
    for (const auto& [id, edit] : by_id_) out.push_back(edit);
    return out;
  }

 private:
  std::unordered_map<int32_t, cuda::LogitEdit> by_id_;
};

void keep_bits(const std::vector<uint32_t>& bits, uint32_t* mask, int64_t words) {
  const int64_t known = std::min(words, int64_t(bits.size()));
  for (int64_t w = 0; w < known; ++w) mask[w] &= bits[size_t(w)];
  std::fill(mask + known, mask + words, 0u);
}

}  // namespace

cuda::SampleRow row_of(const ops::SampleInput& in) {
  const ops::SamplingParams& p = *in.params;
  cuda::SampleRow row;
  row.top_p = p.top_p;
  // Kept away from 0 and infinity as on the CPU.
  row.scale = p.temperature > 0 ? float(std::clamp(1.0 / p.temperature, 1e-30, 1e30)) : 0.0f;
  if (p.temperature > 0) row.uniform = ops::uniform(p.seed, uint64_t(p.choice), in.index);
  row.min_p = float(p.min_p);
  row.top_k = int32_t(std::min<int64_t>(p.top_k, in.samplable));
  row.logprob_of = logprob_of(p);
  row.best = int32_t(std::clamp<int64_t>(p.logprobs, 0, in.vocab));
  return row;
}

std::vector<cuda::LogitEdit> edits_of(const ops::SampleInput& in) {
  Edits edits;
  for (const std::vector<int32_t>& word : in.params->bad_words) {
    const std::vector<int32_t>& tokens = in.history->tokens();
    const int64_t before = int64_t(word.size()) - 1;
    if (int64_t(tokens.size()) < before) continue;
    if (std::equal(word.begin(), word.end() - 1, tokens.end() - before)) edits.forbid(word.back());
  }
  for (int32_t id : *in.banned) edits.forbid(id);
  for (const auto& [id, value] : in.params->bias) edits.at(id).bias += value;
  if (in.step) {
    for (const auto& [id, value] : in.step->bias) edits.at(id).bias += value;
  }
  return edits.with_history(in);
}

bool has_mask(const ops::SampleInput& in) { return in.mask || !in.params->allowed.empty() || (in.step && !in.step->allowed.empty()); }

void write_mask(const ops::SampleInput& in, int64_t words, uint32_t* mask) {
  const int64_t known = in.mask ? std::min(words, (in.samplable + 31) / 32) : 0;
  std::copy(in.mask, in.mask + known, mask);
  std::fill(mask + known, mask + words, ~0u);
  const ops::SamplingParams& p = *in.params;
  if (!p.allowed_bits.empty()) keep_bits(p.allowed_bits, mask, words);
  else if (!p.allowed.empty()) keep_bits(ops::id_bits(p.allowed, in.vocab), mask, words);
  if (in.step && !in.step->allowed.empty()) keep_bits(ops::id_bits(in.step->allowed, in.vocab), mask, words);
}

}  // namespace tandem::device
