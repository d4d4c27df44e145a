#include "ops/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "ops/log_softmax.h"
#include "ops/logit_controls.h"

namespace tandem::ops {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
// The first guess of how far below the best logit the filters reach, in units of the temperature: weights down to 6e-6.
constexpr float kFirstReach = 12;

uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

bool heavier(const TopEntry& a, const TopEntry& b) { return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id; }

class Row {
 public:
  Row(const simd::Kernels& kernels, const SampleInput& in, SamplingScratch& scratch) : k_(kernels), in_(in), s_(scratch) {}

  void measure(int64_t n) {
    s_.tiles.resize(size_t(simd::row_tiles(n)));
    k_.tile_max(in_.logits, n, s_.tiles.data());
    max_ = largest_tile(s_.tiles);
  }
  // measure(samplable) of a row that keeps only the ids of `mask`. False: before that the row was not finite.
  bool keep(const uint32_t* mask) {
    s_.sums.resize(size_t(simd::row_tiles(in_.vocab - in_.samplable)));
    k_.tile_max(in_.logits + in_.samplable, in_.vocab - in_.samplable, s_.sums.data());
    s_.tiles.resize(size_t(simd::row_tiles(in_.samplable)));
    s_.sums.push_back(k_.keep_bits(in_.logits, in_.samplable, mask, s_.tiles.data()));
    max_ = largest_tile(s_.tiles);
    return std::isfinite(largest_tile(s_.sums));
  }
  float max() const { return max_; }

  // log of the sum of exp(logit * scale) over the vocabulary. Needs measure(vocab).
  float log_total(float scale) {
    s_.sums.resize(s_.tiles.size());
    k_.tile_exp(in_.logits, in_.vocab, max_, scale, nullptr, s_.sums.data());
    return ops::log_total(max_, scale, total());
  }

  // The k best logits of the vocabulary, descending; fewer when the others are -inf. Needs measure(vocab).
  void best(int64_t k, std::vector<TopEntry>& out) {
    k = std::min(k, in_.vocab);
    if (k <= 0) return;
    collect(in_.vocab, k <= int64_t(s_.tiles.size()) ? tile_bound(k) : -INFINITY);
    for (size_t i = 0; i < s_.ids.size(); ++i) out.push_back({s_.ids[i], s_.values[i]});
    k = std::min(k, int64_t(out.size()));
    std::partial_sort(out.begin(), out.begin() + k, out.end(), heavier);
    out.resize(size_t(k));
  }

  int32_t argmax() const {
    for (size_t tile = 0; tile < s_.tiles.size(); ++tile) {
      if (s_.tiles[tile] != max_) continue;
      const float* start = in_.logits + int64_t(tile) * simd::kRowTileSize;
      const float* end = in_.logits + in_.samplable;
      return int32_t(std::find(start, end, max_) - in_.logits);
    }
    return -1;
  }

  // Draws from all samplable ids: the tile by its sum, then the id within the tile. Needs measure(samplable).
  int32_t draw_unfiltered(float scale, double u) {
    weigh_tiles(scale);
    double target = u * total(), running = 0;
    size_t tile = 0;
    for (size_t i = 0; i < s_.sums.size(); ++i) {
      if (s_.sums[i] <= 0) continue;
      tile = i;
      if (running + double(s_.sums[i]) > target) break;
      running += double(s_.sums[i]);
    }
    int64_t start = int64_t(tile) * simd::kRowTileSize, count = std::min<int64_t>(simd::kRowTileSize, in_.samplable - start);
    s_.weights.resize(size_t(count));
    float sum = 0;
    k_.tile_exp(in_.logits + start, count, max_, scale, s_.weights.data(), &sum);
    return int32_t(start) + pick(target - running);
  }

  // Leaves in ids / values what min_p, top_k and top_p keep, ascending by id, and their weights. Needs measure(samplable).
  void filter(const SamplingParams& p, float scale) {
    int64_t k = p.top_k > 0 && p.top_k < in_.samplable ? p.top_k : 0;
    bool few = k > 0 && k <= int64_t(s_.tiles.size());
    float bound = p.min_p > 0 ? max_ + float(std::log(p.min_p)) / scale : -INFINITY;
    if (p.min_p > 0 || few) {
      collect(in_.samplable, few ? std::max(bound, tile_bound(k)) : bound);
    } else {
      collect_enough(k, k > 0 ? 0.0 : p.top_p, scale);
    }
    if (k > 0 && int64_t(s_.values.size()) > k) keep_top_k(k);
    weigh(scale);
    if (p.top_p < 1) keep_top_p(p.top_p, k > 0 || p.min_p > 0 ? weight_sum() : total());
  }

  int32_t draw_filtered(double u) {
    int32_t at = pick(u * weight_sum());
    return at < 0 ? -1 : s_.ids[size_t(at)];
  }

  double weight_sum() const {
    double sum = 0;
    for (float w : s_.weights) sum += double(w);
    return sum;
  }

 private:
  double total() const { return tile_total(s_.sums); }

  // The sums of the tiles' terms. A grammar leaves many tiles empty: they have none. Needs measure(samplable).
  void weigh_tiles(float scale) {
    s_.sums.assign(s_.tiles.size(), 0.0f);
    for (size_t tile = 0; tile < s_.tiles.size();) {
      size_t end = tile;
      while (end < s_.tiles.size() && s_.tiles[end] != -INFINITY) ++end;
      int64_t start = int64_t(tile) * simd::kRowTileSize, stop = std::min(in_.samplable, int64_t(end) * simd::kRowTileSize);
      if (end > tile) k_.tile_exp(in_.logits + start, stop - start, max_, scale, nullptr, s_.sums.data() + tile);
      tile = std::max(end, tile + 1);
    }
  }

  // The k-th largest tile maximum: at least k logits are at or above it.
  float tile_bound(int64_t k) {
    s_.sums = s_.tiles;
    std::nth_element(s_.sums.begin(), s_.sums.begin() + (k - 1), s_.sums.end(), std::greater<float>());
    return s_.sums[size_t(k - 1)];
  }

  // The elements >= bound of the first n, with their ids, ascending by id. Reads only tiles that hold one. Needs measure(n).
  void collect(int64_t n, float bound) {
    bound = std::max(bound, kLowest);  // -inf is never a candidate
    s_.ids.clear();
    s_.values.clear();
    for (size_t tile = 0; tile < s_.tiles.size(); ++tile) {
      if (s_.tiles[tile] < bound) continue;
      int64_t start = int64_t(tile) * simd::kRowTileSize, length = std::min<int64_t>(simd::kRowTileSize, n - start);
      size_t before = s_.ids.size();
      s_.ids.resize(before + size_t(length));
      s_.values.resize(before + size_t(length));
      int64_t count = k_.collect_at_least(in_.logits + start, length, bound, s_.ids.data() + before, s_.values.data() + before, length);
      s_.ids.resize(before + size_t(count));
      s_.values.resize(before + size_t(count));
      for (size_t i = before; i < s_.ids.size(); ++i) s_.ids[i] += int32_t(start);
    }
  }

  // Collects downwards until k candidates (k > 0) or a share p of the whole mass (k = 0) are there.
  void collect_enough(int64_t k, double p, float scale) {
    double needed = 0;
    if (k == 0) {
      weigh_tiles(scale);
      needed = p * total();
    }
    for (float reach = kFirstReach;; reach *= 2) {
      float bound = max_ - reach / scale;
      collect(in_.samplable, bound);
      if (bound < kLowest || reach > 1e4f) {
        if (reach > 1e4f) collect(in_.samplable, kLowest);
        return;
      }
      if (k > 0 && int64_t(s_.ids.size()) >= k) return;
      if (k == 0) {
        weigh(scale);
        if (weight_sum() >= needed) return;
      }
    }
  }

  void weigh(float scale) {
    s_.weights.resize(s_.values.size());
    s_.saved.resize(size_t(simd::row_tiles(int64_t(s_.values.size()))));
    k_.tile_exp(s_.values.data(), int64_t(s_.values.size()), max_, scale, s_.weights.data(), s_.saved.data());
  }

  void keep_top_k(int64_t k) {
    s_.weights = s_.values;
    std::nth_element(s_.weights.begin(), s_.weights.begin() + (k - 1), s_.weights.end(), std::greater<float>());
    float bound = s_.weights[size_t(k - 1)];
    keep([&](size_t i) { return s_.values[i] >= bound; });
  }

  // Keeps an entry while the mass of the heavier ones is below p of the total: at least one.
  void keep_top_p(double p, double total_mass) {
    double target = p * total_mass, mass = 0;
    auto& entries = s_.entries;
    gather_around(target, mass);
    // Narrows down to the piece that holds the last kept entry: halves by weight, the mass of the heavier half tells which side.
    auto low = entries.begin(), high = entries.end();
    while (high - low > 128) {
      auto middle = low + (high - low) / 2;
      std::nth_element(low, middle, high, heavier);
      double half = 0;
      for (auto e = low; e != middle; ++e) half += double(e->logprob);
      if (mass + half >= target) {
        high = middle;
      } else {
        mass += half;
        low = middle;
      }
    }
    std::sort(low, high, heavier);
    TopEntry limit = *low;
    for (auto e = low; e != high && mass < target; ++e) {
      limit = *e;
      mass += double(e->logprob);
    }
    keep([&](size_t i) { return !heavier(limit, {s_.ids[i], s_.weights[i]}); });
  }

  // Puts into entries the weights of the one bucket in which the mass of all heavier ones, added to `mass`, passes `target`. A flat row
  // has too many weights to be sorted; buckets are ranges of floats, an eighth of a power of two wide.
  void gather_around(double target, double& mass) {
    constexpr int kShift = 20;
    auto bucket_of = [](float weight) { return std::bit_cast<uint32_t>(weight) >> kShift; };
    std::array<double, (0x3f800000u >> kShift) + 1> masses{};  // weights are at most 1
    uint32_t least = uint32_t(masses.size()) - 1;
    for (float weight : s_.weights) {
      uint32_t bucket = bucket_of(weight);
      masses[bucket] += double(weight);
      least = std::min(least, bucket);
    }
    uint32_t at = uint32_t(masses.size()) - 1;
    while (at > least && mass + masses[at] < target) mass += masses[at--];
    s_.entries.clear();
    // As many as there may ever be: what is kept between rows must not grow row by row.
    s_.entries.reserve(s_.ids.capacity());
    for (size_t i = 0; i < s_.ids.size(); ++i) {
      if (bucket_of(s_.weights[i]) == at) s_.entries.push_back({s_.ids[i], s_.weights[i]});
    }
  }

  template <typename Test>
  void keep(const Test& test) {
    size_t out = 0;
    bool weighed = s_.weights.size() == s_.ids.size();
    for (size_t i = 0; i < s_.ids.size(); ++i) {
      // Without a branch, which would be guessed wrong as often as not.
      bool kept = test(i);
      s_.ids[out] = s_.ids[i];
      s_.values[out] = s_.values[i];
      if (weighed) s_.weights[out] = s_.weights[i];
      out += kept;
    }
    s_.ids.resize(out);
    s_.values.resize(out);
    s_.weights.resize(out);
  }

  // Index of the weight at which the running sum passes `target`; the last positive one when rounding leaves it short.
  int32_t pick(double target) const {
    double running = 0;
    int32_t last = -1;
    for (size_t i = 0; i < s_.weights.size(); ++i) {
      if (s_.weights[i] <= 0) continue;
      last = int32_t(i);
      running += double(s_.weights[i]);
      if (running > target) break;
    }
    return last;
  }

  const simd::Kernels& k_;
  const SampleInput& in_;
  SamplingScratch& s_;
  float max_ = -INFINITY;
};

// Kept away from 0 and infinity, which would make NaN of -inf or of the largest logit.
float scale_of(const SamplingParams& p) {
  if (p.temperature <= 0) return 1.0f;
  return float(std::clamp(1.0 / p.temperature, 1e-30, 1e30));
}

bool filters(const SamplingParams& p, int64_t samplable) { return p.top_p < 1 || p.min_p > 0 || (p.top_k > 0 && p.top_k < samplable); }

// Needs row.measure(samplable).
int32_t draw(const SampleInput& in, bool filtered, Row& row) {
  const SamplingParams& p = *in.params;
  if (p.temperature <= 0) return row.argmax();
  double u = uniform(p.seed, uint64_t(p.choice), in.index);
  if (!filtered) return row.draw_unfiltered(scale_of(p), u);
  row.filter(p, scale_of(p));
  return row.draw_filtered(u);
}

// Log-probabilities of what the draw was made from: the kept ids; for a greedy row all that may be sampled, at temperature 1.
void processed_logprobs(const SampleInput& in, SamplingScratch& s, bool filtered, Row& row, Sample& result, std::vector<TopEntry>& top) {
  const SamplingParams& p = *in.params;
  float scale = scale_of(p);
  if (!filtered) {
    s.ids.clear();
    s.weights.clear();
    for (int64_t i = 0; i < in.samplable; ++i) {
      if (in.logits[i] == -INFINITY) continue;
      s.ids.push_back(int32_t(i));
      s.weights.push_back(float(std::exp(double((in.logits[i] - row.max()) * scale))));
    }
  }
  double log_sum = std::log(row.weight_sum());
  auto& entries = s.entries;
  entries.clear();
  // Of the logits: a weight far below the largest is 0, or has lost digits.
  const double largest = double(row.max());
  for (int32_t id : s.ids) entries.push_back({id, float((double(in.logits[id]) - largest) * double(scale) - log_sum)});
  result.rank = 1;
  for (const TopEntry& e : entries) {
    if (e.id == result.token) result.logprob = e.logprob;
  }
  for (const TopEntry& e : entries) result.rank += e.logprob > result.logprob;
  size_t k = std::min(entries.size(), size_t(p.logprobs));
  std::partial_sort(entries.begin(), entries.begin() + int64_t(k), entries.end(), heavier);
  top.insert(top.end(), entries.begin(), entries.begin() + int64_t(k));
}

// 1 + how many of a row's `n` logits are above `value`; `tiles` are the maxima of its tiles.
int32_t rank_of(const simd::Kernels& kernels, const float* logits, int64_t n, const std::vector<float>& tiles, float value) {
  int64_t greater = 0;
  for (size_t tile = 0; tile < tiles.size(); ++tile) {
    if (tiles[tile] <= value) continue;
    int64_t start = int64_t(tile) * simd::kRowTileSize;
    greater += kernels.count_greater(logits + start, std::min<int64_t>(simd::kRowTileSize, n - start), value);
  }
  return 1 + int32_t(greater);
}

}  // namespace

double uniform(uint64_t seed, uint64_t choice, uint64_t index) {
  uint64_t h = mix(mix(mix(seed) ^ choice) ^ (index * 0xd1342543de82ef95ull));
  return double(h >> 11) * 0x1p-53;
}

Sample sample(const simd::Kernels& kernels, const SampleInput& in, SamplingScratch& scratch, std::vector<TopEntry>& top) {
  const SamplingParams& p = *in.params;
  Sample result;
  Row row(kernels, in, scratch);
  bool early = p.logprobs >= 0 && p.mode != LogprobMode::kProcessed;
  float early_scale = logprob_scale(p), log_total = 0;
  bool changes = in.mask || has_controls(in);
  // A mask is measured while it is laid on; a row that is not finite must be noticed whatever the mask says.
  bool measured = early || !in.mask;
  if (measured) {
    row.measure(in.vocab);
    if (!std::isfinite(row.max())) return result;
  }
  if (early) {
    log_total = row.log_total(early_scale);
    scratch.best.clear();
    row.best(p.logprobs, scratch.best);
    for (const TopEntry& entry : scratch.best) top.push_back({entry.id, entry.logprob * early_scale - log_total});
    // Still needed once the token is known, for its logit and rank.
    scratch.untouched_tiles = scratch.tiles;
    if (changes) scratch.untouched.assign(in.logits, in.logits + in.vocab);
  }
  if (in.mask && !row.keep(in.mask) && !measured) return result;
  bool controlled = has_controls(in);
  if (controlled) apply_controls(kernels, in, scratch);
  if (changes || in.samplable < in.vocab) {
    if (controlled || !in.mask) row.measure(in.samplable);
    // All may be forbidden, and a penalty may carry a logit past the largest float.
    result.forbidden = row.max() == -INFINITY;
    if (!std::isfinite(row.max())) return result;
  }
  bool filtered = p.temperature > 0 && filters(p, in.samplable);
  result.token = draw(in, filtered, row);
  while (result.token >= 0 && in.takes && !in.takes(result.token)) {
    row.keep(in.mask);
    result.forbidden = row.max() == -INFINITY;
    result.token = result.forbidden ? -1 : draw(in, filtered, row);
  }
  if (p.logprobs < 0 || result.token < 0) return result;
  if (!early) {
    processed_logprobs(in, scratch, filtered, row, result, top);
    return result;
  }
  const float* source = changes ? scratch.untouched.data() : in.logits;
  result.logprob = source[result.token] * early_scale - log_total;
  result.rank = rank_of(kernels, source, in.vocab, scratch.untouched_tiles, source[result.token]);
  return result;
}

float logprob_scale(const SamplingParams& p) { return p.mode == LogprobMode::kTemperature ? scale_of(p) : 1.0f; }

Sample score(const simd::Kernels& kernels, float* logits, int64_t vocab, int32_t token, int64_t k, float scale, SamplingScratch& scratch,
             std::vector<TopEntry>& top) {
  static const std::vector<int32_t> kNone;
  static const SamplingParams kNeutral;
  SampleInput input{logits, vocab, vocab, &kNone, &kNeutral, nullptr, 0};
  Row row(kernels, input, scratch);
  row.measure(vocab);
  if (!std::isfinite(row.max())) return {token, std::numeric_limits<float>::quiet_NaN(), 0};
  float log_total = row.log_total(scale);
  scratch.best.clear();
  row.best(k, scratch.best);
  for (const TopEntry& entry : scratch.best) top.push_back({entry.id, entry.logprob * scale - log_total});
  return {token, logits[token] * scale - log_total, rank_of(kernels, logits, vocab, scratch.tiles, logits[token])};
}

}  // namespace tandem::ops
