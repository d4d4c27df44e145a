#include "cuda/sampling/sample.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/loss/normaliser.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kVocabThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigits = 256;
// One unit of a probability relative to the largest: sums of 2^18 of them stay below 2^63.
constexpr float kMassUnit = 17592186044416.0f;  // 2^44

using Mass = unsigned long long;

// Larger floats have larger keys; NaN does not come here.
__device__ __forceinline__ uint32_t order_key(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// A row's processed logits and which of them may still be drawn.
struct Row {
  const float* logits;  // processed
  int64_t samplable;
  float largest, scale;  // 1 / temperature
  uint32_t least_key;    // ids with smaller keys are out
  uint32_t tie_key;      // of the ids with exactly this key only those below tie_end are in
  int64_t tie_end;

  __device__ Mass mass(float logit) const { return Mass(expf((logit - largest) * scale) * kMassUnit); }
  __device__ bool kept(int64_t id) const {
    const uint32_t key = order_key(logits[id]);
    return key >= least_key && !(key == tie_key && id >= tie_end) && logits[id] != -INFINITY;
  }
};

// The whole block; the result for all.
template <class T>
__device__ T block_total(T v) {
  __shared__ T parts[kWarps];
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(kAllLanes, v, mask);
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  T sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += parts[i];
  __syncthreads();
  return sum;
}

// The smallest id for which `value` is the largest; -1 where all are -infinity.
__device__ int32_t block_argmax(const float* values, int64_t count, float largest) {
  __shared__ int best;
  if (threadIdx.x == 0) best = INT32_MAX;
  __syncthreads();
  int first = INT32_MAX;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    if (values[i] == largest) first = min(first, int(i));
  }
  if (first != INT32_MAX) atomicMin(&best, first);
  __syncthreads();
  const int found = best;
  __syncthreads();
  return largest == -INFINITY || found == INT32_MAX ? -1 : found;
}

// logits -> work: samplable ids, masked and edited.
__device__ void process(const SampleBatch& a, const SampleRow& p, const float* __restrict__ logits, float* __restrict__ work) {
  const bool masked = p.mask >= 0 && p.mask < a.mask_rows;
  const uint32_t* mask = masked ? a.masks + int64_t(p.mask) * a.mask_words : nullptr;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < a.samplable; i += kThreads) {
    const bool allowed = mask == nullptr || (i / 32 < a.mask_words && (mask[i / 32] >> (i % 32) & 1u) != 0);
    work[i] = allowed ? logits[i] : -INFINITY;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < p.edit_count; i += kThreads) {
    const int64_t at = int64_t(p.first_edit) + i;
    if (p.first_edit < 0 || at >= a.edit_total) break;
    const LogitEdit e = a.edits[at];
    if (e.id < 0 || e.id >= a.samplable) continue;
    float l = work[e.id] + e.bias;
    l = l > 0 ? l / e.repetition : l * e.repetition;
    work[e.id] = l - e.penalty;
  }
  __syncthreads();
}

// The digit at which the running amount, from the largest digit down, first reaches `wanted`; `above` gets what lies over it.
__device__ int find_digit(const Mass* histogram, Mass wanted, Mass& above) {
  Mass sum = 0;
  for (int digit = kDigits - 1; digit > 0; --digit) {
    if (sum + histogram[digit] >= wanted) {
      above = sum;
      return digit;
    }
    sum += histogram[digit];
  }
  above = sum;
  return 0;
}

struct Threshold {
  uint32_t key;
  Mass above;  // amount of the ids with larger keys
};

// The largest key such that the ids with that key or more amount to at least `wanted`; amount(id) is 0 for ids that are out.
template <class Amount>
__device__ Threshold find_threshold(const float* values, int64_t count, Mass wanted, const Amount& amount) {
  __shared__ Mass histogram[kDigits];
  __shared__ Mass shared_above;
  __shared__ int shared_digit;
  uint32_t prefix = 0;
  Mass above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) histogram[i] = 0;
    __syncthreads();
    GPU_UNROLL_8
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
      const uint32_t key = order_key(values[i]);
      const bool inside = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
      const Mass add = inside ? amount(i) : 0;
      if (add != 0) atomicAdd(&histogram[key >> shift & 255u], add);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_digit = find_digit(histogram, wanted - above, shared_above);
    __syncthreads();
    prefix |= uint32_t(shared_digit) << shift;
    above += shared_above;
    __syncthreads();
  }
  return {prefix, above};
}

// The first id, ascending, at which the running amount exceeds `target`; -1 where it never does. Each warp owns a run of ids.
template <class Amount>
__device__ int32_t find_running(int64_t count, Mass target, const Amount& amount) {
  __shared__ Mass totals[kWarps];
  __shared__ int found;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t run = (count + kWarps - 1) / kWarps, begin = warp * run, end = min(count, begin + run);
  Mass mine = 0;
  GPU_UNROLL_8
  for (int64_t i = begin + lane; i < end; i += kWarp) mine += amount(i);
  for (int mask = 16; mask > 0; mask >>= 1) mine += __shfl_xor_sync(kAllLanes, mine, mask);
  if (lane == 0) totals[warp] = mine;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  Mass before = 0;
  for (int w = 0; w < warp; ++w) before += totals[w];
  if (before <= target && before + totals[warp] > target) {
    for (int64_t first = begin; first < end; first += kWarp) {
      const int64_t id = first + lane;
      Mass sum = id < end ? amount(id) : 0;
      for (int delta = 1; delta < kWarp; delta <<= 1) {
        const Mass other = __shfl_up_sync(kAllLanes, sum, delta);
        if (lane >= delta) sum += other;
      }
      const Mass own = id < end ? amount(id) : 0;
      if (before + sum > target && before + sum - own <= target && own > 0) found = int(id);
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
      if (before > target) break;
    }
  }
  __syncthreads();
  const int result = found;
  __syncthreads();
  return result;
}

__device__ void filter_min_p(Row& row, float min_p) {
  if (min_p <= 0) return;
  // exp((l - largest) / T) >= min_p
  const float least = row.largest + logf(min_p) / row.scale;
  row.least_key = max(row.least_key, order_key(least));
}

__device__ void filter_top_k(Row& row, int32_t top_k) {
  if (top_k <= 0 || top_k >= row.samplable) return;
  const Threshold t = find_threshold(row.logits, row.samplable, Mass(top_k), [&](int64_t id) { return Mass(row.logits[id] != -INFINITY); });
  row.least_key = max(row.least_key, t.key);
}

// The smallest set of most probable ids that holds top_p of the mass; of equal ones the smaller ids.
__device__ void filter_top_p(Row& row, double top_p) {
  if (top_p >= 1) return;
  auto amount = [&](int64_t id) { return row.kept(id) ? row.mass(row.logits[id]) : Mass(0); };
  Mass mine = 0;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < row.samplable; i += kThreads) mine += amount(i);
  const Mass total = block_total(mine);
  const Mass wanted = max(Mass(1), min(total, Mass(ceil(top_p * double(total)))));
  const Threshold t = find_threshold(row.logits, row.samplable, wanted, amount);
  // Ids with the threshold's key, in ascending order, until the mass is reached: all but those after the last one needed go out.
  auto tied = [&](int64_t id) { return order_key(row.logits[id]) == t.key ? amount(id) : Mass(0); };
  const int32_t last = find_running(row.samplable, wanted - t.above - 1, tied);
  row.least_key = max(row.least_key, t.key);
  if (last < 0) return;
  row.tie_key = t.key;
  row.tie_end = int64_t(last) + 1;
}

__device__ Mass mass_of(const Row& row) {
  Mass mine = 0;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < row.samplable; i += kThreads) mine += row.kept(i) ? row.mass(row.logits[i]) : Mass(0);
  return block_total(mine);
}

__device__ int32_t draw(const Row& row, double uniform) {
  auto amount = [&](int64_t id) { return row.kept(id) ? row.mass(row.logits[id]) : Mass(0); };
  const Mass total = mass_of(row);
  const Mass target = min(Mass(uniform * double(total)), total - 1);
  return find_running(row.samplable, target, amount);
}

// From the processed logits, of which the largest is known. `row` gets what the draw was made from; a greedy row keeps all that may be
// sampled.
__device__ int32_t choose(const SampleBatch& a, const SampleRow& p, const float* work, float largest, Row& row) {
  if (largest == -INFINITY) return kForbidden;
  // A penalty may carry a logit past the largest float.
  if (!isfinite(largest)) return kNotFinite;
  row = Row{work, a.samplable, largest, p.scale > 0 ? p.scale : 1.0f, 0, 0, INT64_MAX};
  if (p.scale <= 0) return block_argmax(work, a.samplable, largest);
  filter_min_p(row, p.min_p);
  filter_top_k(row, p.top_k);
  filter_top_p(row, p.top_p);
  return draw(row, p.uniform);
}

// Ids [0, count) for which picks(id), by ascending id, to out[0...]. Each warp owns a run of ids.
template <class Picks, class Write>
__device__ void compact(int64_t count, const Picks& picks, const Write& write) {
  __shared__ int totals[kWarps];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t run = (count + kWarps - 1) / kWarps, begin = warp * run, end = min(count, begin + run);
  int mine = 0;
  GPU_UNROLL_8
  for (int64_t i = begin + lane; i < end; i += kWarp) mine += picks(i);
  for (int mask = 16; mask > 0; mask >>= 1) mine += __shfl_xor_sync(kAllLanes, mine, mask);
  if (lane == 0) totals[warp] = mine;
  __syncthreads();
  int at = 0;
  for (int w = 0; w < warp; ++w) at += totals[w];
  for (int64_t first = begin; first < end; first += kWarp) {
    const int64_t id = first + lane;
    const int own = id < end && picks(id);
    int sum = own;
    for (int delta = 1; delta < kWarp; delta <<= 1) {
      const int other = __shfl_up_sync(kAllLanes, sum, delta);
      if (lane >= delta) sum += other;
    }
    if (own) write(at + sum - 1, id);
    at += __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
  __syncthreads();  // totals may be written again
}

// The `wanted` largest of the ids that are in, of equal ones the smaller ids; how many there were.
template <class In>
__device__ int32_t write_best(const float* values, int64_t count, int32_t wanted, const In& in, const Normaliser& n, BestEntry* out) {
  int mine = 0;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < count; i += kThreads) mine += in(i);
  const int32_t taken = min(wanted, int32_t(block_total(mine)));
  if (taken <= 0) return 0;
  const Threshold t = find_threshold(values, count, Mass(taken), [&](int64_t id) { return Mass(in(id)); });
  auto tied = [&](int64_t id) { return Mass(in(id) && order_key(values[id]) == t.key); };
  const int32_t last = find_running(count, Mass(taken) - t.above - 1, tied);
  auto picks = [&](int64_t id) { return int(in(id) && (order_key(values[id]) > t.key || (order_key(values[id]) == t.key && id <= last))); };
  compact(count, picks, [&](int at, int64_t id) { out[at] = {int32_t(id), values[id], n(values[id])}; });
  return taken;
}

// Log-probability, rank and alternatives among the ids of `values` that are in.
template <class In>
__device__ Sampled describe(const SampleBatch& a, const SampleRow& p, int32_t token, const float* values, int64_t count, const In& in,
                            const Normaliser& n) {
  Sampled result{token, NAN, 0, 0};
  if (token >= 0) {
    int greater = 0;
    GPU_UNROLL_8
    for (int64_t i = threadIdx.x; i < count; i += kThreads) greater += in(i) && values[i] > values[token];
    result.rank = 1 + block_total(greater);
    result.logprob = n(values[token]);
  }
  const bool placed = p.best > 0 && p.first_best >= 0 && int64_t(p.first_best) + p.best <= a.best_total;
  if (placed) result.best_count = write_best(values, count, p.best, in, n, a.best + p.first_best);
  return result;
}

__device__ Sampled sample_row(const SampleBatch& a, const SampleRow& p, const float* logits, float* work) {
  Normaliser raw;
  const float scale = p.logprob_of == LogprobOf::kScaled && p.scale > 0 ? p.scale : 1.0f;
  if (!normalise(logits, a.vocab, scale, raw)) return {kNotFinite, NAN, 0, 0};
  auto all = [&](int64_t id) { return logits[id] != -INFINITY; };
  if (p.given >= 0) return describe(a, p, p.given < a.vocab ? p.given : kForbidden, logits, a.vocab, all, raw);
  // A pass through the vocabulary costs as much as many a kernel: what nothing changes is read where it is.
  const bool changed = p.mask >= 0 || p.edit_count > 0;
  if (changed) process(a, p, logits, work);
  const float* processed = changed ? work : logits;
  const float largest = changed || a.samplable < a.vocab ? block_largest(processed, a.samplable) : raw.largest;
  Row row{};
  const int32_t token = choose(a, p, processed, largest, row);
  if (p.logprob_of == LogprobOf::kNone) return {token, 0, 0, 0};
  if (p.logprob_of != LogprobOf::kProcessed) return describe(a, p, token, logits, a.vocab, all, raw);
  if (token < 0) return {token, NAN, 0, 0};
  const Normaliser kept{row.largest, row.scale, float(log(double(mass_of(row)) / double(kMassUnit)))};
  return describe(
      a, p, token, processed, a.samplable, [&](int64_t id) { return row.kept(id); }, kept);
}

// One block per row.
__global__ void __launch_bounds__(kThreads, 1) sample_kernel(SampleBatch a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const Sampled result = sample_row(a, a.params[row], a.logits + row * a.ld, a.work + row * a.vocab);
  if (threadIdx.x != 0) return;
  a.out[row] = result;
  const int32_t place = a.params[row].place;
  if (place >= 0 && place < a.last_count) a.last[place] = result.token;
}

}  // namespace

void sample(const SampleBatch& a, cudaStream_t stream) {
  const char* name = "sample";
  check_argument(a.rows >= 0 && a.rows < 1 << 20, name, "rows");
  check_argument(a.vocab >= 1 && a.vocab <= 1 << 18 && a.vocab <= a.ld, name, "vocab");
  check_argument(a.samplable >= 1 && a.samplable <= a.vocab, name, "samplable");
  check_argument(a.work_floats >= a.rows * a.vocab, name, "work_floats");
  check_argument(a.edit_total >= 0, name, "edit_total");
  check_argument(a.last_count >= 0, name, "last_count");
  check_argument(a.best_total >= 0 && a.best_total < int64_t(1) << 31, name, "best_total");
  check_argument(a.mask_rows >= 0 && (a.mask_rows == 0 || a.mask_words * 32 >= a.samplable), name, "mask_words");
  if (a.rows == 0) return;
  GPU_LAUNCH_EARLY(sample_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
