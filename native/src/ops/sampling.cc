#include "ops/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace tandem::ops {
namespace {

constexpr int kBucketShift = 17;  // sign + exponent + 6 bits of mantissa: buckets of about 1.5 % width
constexpr size_t kBuckets = size_t(1) << (31 - kBucketShift);

uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

bool heavier(const TopEntry& a, const TopEntry& b) { return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id; }

// Weights are never negative, so their bits order like the values.
size_t bucket_of(float weight) { return std::bit_cast<uint32_t>(weight) >> kBucketShift; }

// What survives the filters: every weight above `limit`, and of those equal to it the ids up to `last_id`.
struct Cut {
  float limit = 0;
  int32_t last_id = -1;
  bool keeps(float weight, int32_t id) const { return weight > limit || (weight == limit && weight > 0 && id <= last_id); }
};

class Filter {
 public:
  Filter(const float* weights, int64_t n, SamplingScratch& scratch) : weights_(weights), n_(n), scratch_(scratch) {}

  Cut cut(const SamplingParams& params) {
    Cut cut{0, int32_t(n_)};
    // The largest weight is exp(0) = 1, so min_p is a bound on the weight itself.
    if (params.min_p > 0) cut.limit = float(params.min_p);
    bool use_k = params.top_k > 0 && params.top_k < n_;
    if (!use_k && params.top_p >= 1) return cut;
    histogram(cut);
    if (use_k) cut = top_k(cut, params.top_k);
    if (params.top_p < 1) cut = top_p(cut, params.top_p);
    return cut;
  }

 private:
  void histogram(const Cut& cut) {
    scratch_.histogram_count.assign(kBuckets, 0);
    scratch_.histogram_mass.assign(kBuckets, 0.0);
    for (int64_t i = 0; i < n_; ++i) {
      if (weights_[i] <= 0 || weights_[i] < cut.limit) continue;
      size_t b = bucket_of(weights_[i]);
      ++scratch_.histogram_count[b];
      scratch_.histogram_mass[b] += double(weights_[i]);
    }
  }

  // The bucket's members that the cut keeps, heaviest first.
  const std::vector<TopEntry>& members(size_t bucket, const Cut& cut) {
    scratch_.candidates.clear();
    for (int64_t i = 0; i < n_; ++i) {
      if (bucket_of(weights_[i]) == bucket && cut.keeps(weights_[i], int32_t(i))) scratch_.candidates.push_back({int32_t(i), weights_[i]});
    }
    std::sort(scratch_.candidates.begin(), scratch_.candidates.end(), heavier);
    return scratch_.candidates;
  }

  Cut top_k(const Cut& before, int64_t k) {
    int64_t above = 0;
    for (size_t b = kBuckets; b-- > 0;) {
      int64_t count = scratch_.histogram_count[b];
      if (above + count < k) {
        above += count;
        continue;
      }
      const auto& in_bucket = members(b, before);
      return {in_bucket[size_t(k - above - 1)].logprob, int32_t(n_)};  // ties of the k-th value stay
    }
    return before;  // fewer than k are left
  }

  // Keeps an entry while the mass of the heavier ones is below top_p of what is left: at least one.
  Cut top_p(const Cut& before, double p) {
    double total = 0;
    for (size_t b = kBuckets; b-- > bucket_of(before.limit);) total += mass(b, before);
    double heavier_mass = 0, target = p * total;
    for (size_t b = kBuckets; b-- > bucket_of(before.limit);) {
      double here = mass(b, before);
      if (here == 0 || heavier_mass + here < target) {
        heavier_mass += here;
        continue;
      }
      Cut cut = before;
      for (const TopEntry& entry : members(b, before)) {
        if (heavier_mass >= target && heavier_mass > 0) break;
        cut = {entry.logprob, entry.id};
        heavier_mass += double(entry.logprob);
      }
      return cut;
    }
    return before;
  }

  // Mass of a bucket after the cut; only the bucket that the limit lies in needs a count of its own.
  double mass(size_t bucket, const Cut& cut) {
    if (cut.limit <= 0 || bucket != bucket_of(cut.limit)) return scratch_.histogram_mass[bucket];
    double sum = 0;
    for (const TopEntry& entry : members(bucket, cut)) sum += double(entry.logprob);
    return sum;
  }

  const float* weights_;
  int64_t n_;
  SamplingScratch& scratch_;
};

// The token at which the running sum of kept weights passes u times their total. Sums run over ids ascending, in double.
int32_t draw(const float* weights, int64_t n, const Cut& cut, double u) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (cut.keeps(weights[i], int32_t(i))) total += double(weights[i]);
  }
  double target = u * total, running = 0;
  int32_t last = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!cut.keeps(weights[i], int32_t(i))) continue;
    last = int32_t(i);
    running += double(weights[i]);
    if (running > target) return last;
  }
  return last;  // rounding left the last step short
}

void append_top(const float* logits, int64_t vocab, int64_t k, float log_total, SamplingScratch& scratch, std::vector<TopEntry>& top) {
  k = std::min(k, vocab);
  if (k <= 0) return;
  auto& heap = scratch.candidates;
  heap.clear();
  // A heap whose front is the worst of the best k.
  for (int64_t i = 0; i < vocab; ++i) {
    TopEntry entry{int32_t(i), logits[i]};
    if (int64_t(heap.size()) < k) {
      heap.push_back(entry);
      std::push_heap(heap.begin(), heap.end(), heavier);
    } else if (logits[i] > heap.front().logprob) {
      std::pop_heap(heap.begin(), heap.end(), heavier);
      heap.back() = entry;
      std::push_heap(heap.begin(), heap.end(), heavier);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), heavier);
  for (const TopEntry& entry : heap) top.push_back({entry.id, entry.logprob - log_total});
}

int32_t argmax_allowed(const float* logits, int64_t samplable, const std::vector<int32_t>& banned) {
  int32_t best = -1;
  for (int64_t i = 0; i < samplable; ++i) {
    if (best >= 0 && logits[i] <= logits[best]) continue;
    if (logits[i] == -INFINITY || std::find(banned.begin(), banned.end(), int32_t(i)) != banned.end()) continue;
    best = int32_t(i);
  }
  return best;
}

int32_t choose(const simd::Kernels& kernels, const float* logits, const simd::RowStats& stats, int64_t samplable,
               const std::vector<int32_t>& banned, const SamplingParams& params, uint64_t index, SamplingScratch& scratch) {
  bool plain = banned.empty() && stats.arg < samplable;
  if (params.temperature <= 0) return plain ? stats.arg : argmax_allowed(logits, samplable, banned);
  float max = stats.max;
  if (!plain) {
    int32_t best = argmax_allowed(logits, samplable, banned);
    if (best < 0) return -1;
    max = logits[best];
  }
  scratch.weights.resize(size_t(samplable));
  kernels.sum_exp(logits, samplable, max, float(1.0 / params.temperature), scratch.weights.data());
  for (int32_t id : banned) {
    if (id < samplable) scratch.weights[size_t(id)] = 0;
  }
  Cut cut = Filter(scratch.weights.data(), samplable, scratch).cut(params);
  return draw(scratch.weights.data(), samplable, cut, uniform(params.seed, uint64_t(params.choice), index));
}

}  // namespace

double uniform(uint64_t seed, uint64_t choice, uint64_t index) {
  uint64_t h = mix(mix(mix(seed) ^ choice) ^ (index * 0xd1342543de82ef95ull));
  return double(h >> 11) * 0x1p-53;
}

Sample sample(const simd::Kernels& kernels, const float* logits, int64_t vocab, int64_t samplable, const std::vector<int32_t>& banned,
              const SamplingParams& params, uint64_t index, SamplingScratch& scratch, std::vector<TopEntry>& top) {
  Sample result;
  simd::RowStats stats = kernels.row_stats(logits, vocab);
  if (!std::isfinite(stats.max)) return result;
  result.token = choose(kernels, logits, stats, samplable, banned, params, index, scratch);
  if (params.logprobs < 0 || result.token < 0) return result;
  double total = kernels.sum_exp(logits, vocab, stats.max, 1.0f, nullptr);
  float log_total = stats.max + float(std::log(total));
  result.logprob = logits[result.token] - log_total;
  result.rank = 1 + int32_t(kernels.count_greater(logits, vocab, logits[result.token]));
  append_top(logits, vocab, params.logprobs, log_total, scratch, top);
  return result;
}

}  // namespace tandem::ops
