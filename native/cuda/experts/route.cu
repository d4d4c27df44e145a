#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/experts/experts.h"

namespace tandem::cuda {
namespace {

constexpr int kRouteWarps = 4;
constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / kWarp;
// So few rows are routed and sorted by one block: a launch less. On an H200 that takes 7 us with 8 rows and 20 with 64, which take 10 by two launches.
constexpr int64_t kMostTogether = 16, kMostExpertsTogether = 256;
constexpr int kPartsAtOnce = 8;  // of a logit, whose loads are under way at a time

// A warp's row: its logits, and a bit for each expert that is chosen.
struct RowSpace {
  float* logits;
  uint32_t* taken;
};

__host__ __device__ int words_of(int64_t experts) { return int((experts + kWarp - 1) / kWarp); }
__host__ __device__ int row_bytes(int64_t experts) { return (int(experts) + words_of(experts)) * 4; }

__device__ RowSpace space_of(unsigned char* shared, int warp, int64_t experts) {
  float* logits = reinterpret_cast<float*>(shared + warp * row_bytes(experts));
  return {logits, reinterpret_cast<uint32_t*>(logits + experts)};
}

__device__ float logit_of(const RouteExperts& a, int64_t row, int expert) {
  if (a.parts.count == 0) return a.logits[row * a.ld + expert];
  const int64_t apart = a.parts.rows * a.parts.columns;
  const float* from = a.parts.data + row * a.parts.columns + expert;
  const int count = int(a.parts.count);
  float sum = 0;
  for (int first = 0; first < count; first += kPartsAtOnce, from += kPartsAtOnce * apart) {
    float some[kPartsAtOnce];
    GPU_UNROLL
    for (int i = 0; i < kPartsAtOnce; ++i) some[i] = first + i < count ? from[i * apart] : 0.0f;
    GPU_UNROLL
    for (int i = 0; i < kPartsAtOnce; ++i) {
      if (first + i < count) sum = first + i == 0 ? some[i] : sum + some[i];
    }
  }
  return sum;
}

// Larger for the one that goes first: of two that are alike the lower index. What is no number, or less than all numbers, comes last.
__device__ uint64_t rank_of(float logit, int expert) {
  uint32_t bits = 0;
  if (logit > -INFINITY) {
    logit += 0.0f;  // one zero
    memcpy(&bits, &logit, 4);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  }
  return uint64_t(bits) << 32 | (0xffffffffu - uint32_t(expert));
}

__device__ bool taken(const RowSpace& s, int expert) { return s.taken[expert / kWarp] >> expert % kWarp & 1; }

// The first rank of this lane's experts that comes after `last`; 0: there is none.
__device__ uint64_t next_of_lane(const RouteExperts& a, const RowSpace& s, int lane, uint64_t last) {
  uint64_t best = 0;
  for (int e = lane; e < int(a.experts); e += kWarp) {
    const uint64_t rank = rank_of(s.logits[e], e);
    best = rank < last && rank > best ? rank : best;
  }
  return best;
}

// Marks those that are chosen, one after the other: only the lane whose expert that is looks for its next one. All lanes call.
__device__ void take_largest(const RouteExperts& a, const RowSpace& s, int lane) {
  uint64_t own = next_of_lane(a, s, lane, ~uint64_t(0));
  for (int64_t i = 0; i < a.used; ++i) {
    uint64_t best = own;
    for (int mask = kWarp / 2; mask > 0; mask >>= 1) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, best, mask);
      best = other > best ? other : best;
    }
    if (own == best) {
      const uint32_t expert = 0xffffffffu - uint32_t(best);
      s.taken[expert / kWarp] |= 1u << expert % kWarp;
      own = next_of_lane(a, s, lane, best);
    }
    __syncwarp();  // the word may be another lane's next
  }
}

// The largest logit, or not a number where one is none.
__device__ float largest(const float* logits, int experts, int lane) {
  float max = -INFINITY;
  bool odd = false;
  for (int e = lane; e < experts; e += kWarp) {
    max = fmaxf(max, logits[e]);
    odd = odd || isnan(logits[e]);
  }
  max = warp_max(max);
  return __ballot_sync(kAllLanes, odd) != 0 ? NAN : max;
}

// Experts and weights of a row. All lanes of the warp call.
__device__ void route_row(const RouteExperts& a, int64_t row, const RowSpace& s) {
  const int lane = threadIdx.x % kWarp, experts = int(a.experts);
  int32_t* chosen = a.chosen + row * a.used;
  float* weights = a.weights + row * a.used;
  if (a.slots != nullptr && a.slots[row] < 0) {
    for (int i = lane; i < int(a.used); i += kWarp) chosen[i] = -1, weights[i] = 0;
    return;
  }
  for (int e = lane; e < experts; e += kWarp) s.logits[e] = logit_of(a, row, e);
  for (int i = lane; i < words_of(a.experts); i += kWarp) s.taken[i] = 0;
  __syncwarp();
  take_largest(a, s, lane);
  const float max = largest(s.logits, experts, lane);
  float sum = 0;
  for (int e = lane; e < experts; e += kWarp) {
    if (!a.normalise || taken(s, e)) sum += expf(s.logits[e] - max);
  }
  sum = warp_sum(sum);
  int before = 0;
  for (int e = lane; e - lane < experts; e += kWarp) {
    const uint32_t word = s.taken[e / kWarp];
    if (word >> lane & 1) {
      const int place = before + __popc(word & ((1u << lane) - 1));
      chosen[place] = e;
      weights[place] = expf(s.logits[e] - max) / sum;
    }
    before += __popc(word);
  }
  __syncwarp();  // the space is the next row's
}

__global__ void __launch_bounds__(kRouteWarps* kWarp) route_kernel(RouteExperts a) {
  GPU_SHARED_BYTES(shared);
  wait_for_inputs();
  const int warp = int(threadIdx.x) / kWarp;
  const int64_t row = int64_t(blockIdx.x) * kRouteWarps + warp;
  if (row < a.rows) route_row(a, row, space_of(shared, warp, a.experts));
}

// The sum of the lanes' numbers up to this one's.
__device__ int sum_to_lane(int v) {
  const int lane = threadIdx.x % kWarp;
  for (int delta = 1; delta < kWarp; delta *= 2) {
    const int other = __shfl_up_sync(kAllLanes, v, delta);
    if (lane >= delta) v += other;
  }
  return v;
}

struct Totals {
  int pairs, tiles;
};

// Of each expert its number of pairs, and where its pairs and its tiles begin.
struct SortSpace {
  int32_t *counts, *pairs, *tiles;
  Totals* all;  // of all experts
};

constexpr size_t sort_bytes(int64_t experts) { return size_t(3 * experts) * sizeof(int32_t) + sizeof(Totals); }

// By the first warp: counts to begins.
__device__ Totals sum_counts(const SortSpace& s, int experts, int tile_pairs) {
  const int lane = threadIdx.x % kWarp;
  int pairs = 0, tiles = 0;
  for (int e = lane; e - lane < experts; e += kWarp) {
    const int count = e < experts ? s.counts[e] : 0, own = (count + tile_pairs - 1) / tile_pairs;
    const int to_pairs = sum_to_lane(count), to_tiles = sum_to_lane(own);
    if (e < experts) s.pairs[e] = pairs + to_pairs - count, s.tiles[e] = tiles + to_tiles - own;
    pairs += __shfl_sync(kAllLanes, to_pairs, kWarp - 1);
    tiles += __shfl_sync(kAllLanes, to_tiles, kWarp - 1);
  }
  return {pairs, tiles};
}

// The pairs by expert, and their tiles; by one block. Those of an expert come in any order.
__device__ void sort_pairs(const RouteExperts& a, unsigned char* shared, int tile_pairs, int most_tiles) {
  const int thread = int(threadIdx.x), experts = int(a.experts), pairs = int(a.rows * a.used);
  int32_t* words = reinterpret_cast<int32_t*>(shared);
  const SortSpace s{words, words + experts, words + 2 * experts, reinterpret_cast<Totals*>(words + 3 * experts)};
  for (int e = thread; e < experts; e += kSortThreads) s.counts[e] = 0;
  __syncthreads();
  for (int p = thread; p < pairs; p += kSortThreads) {
    if (a.chosen[p] >= 0) atomicAdd(&s.counts[a.chosen[p]], 1);
  }
  __syncthreads();
  if (thread < kWarp) {
    const Totals totals = sum_counts(s, experts, tile_pairs);
    if (thread == 0) *s.all = totals;
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kSortThreads) {
    ExpertTile* tiles = a.tiles + s.tiles[e];
    for (int done = 0; done < s.counts[e]; done += tile_pairs) {
      *tiles++ = {e, s.pairs[e] + done, min(tile_pairs, s.counts[e] - done)};
    }
  }
  for (int i = s.all->tiles + thread; i < most_tiles; i += kSortThreads) a.tiles[i] = {0, 0, 0};
  for (int i = s.all->pairs + thread; i < pairs; i += kSortThreads) a.order[i] = -1;
  __syncthreads();  // begins of pairs are counted on from here
  for (int p = thread; p < pairs; p += kSortThreads) {
    if (a.chosen[p] >= 0) a.order[atomicAdd(&s.pairs[a.chosen[p]], 1)] = p;
  }
}

__global__ void __launch_bounds__(kSortThreads, 1) sort_kernel(RouteExperts a, int tile_pairs, int most_tiles) {
  GPU_SHARED_BYTES(shared);
  wait_for_inputs();
  sort_pairs(a, shared, tile_pairs, most_tiles);
}

__global__ void __launch_bounds__(kSortThreads, 1) route_and_sort_kernel(RouteExperts a, int tile_pairs, int most_tiles) {
  GPU_SHARED_BYTES(shared);
  wait_for_inputs();
  const int warp = int(threadIdx.x) / kWarp;
  for (int64_t row = warp; row < a.rows; row += kSortWarps) route_row(a, row, space_of(shared, warp, a.experts));
  __syncthreads();
  sort_pairs(a, shared, tile_pairs, most_tiles);
}

__global__ void __launch_bounds__(kRouteWarps* kWarp) route_backward_kernel(RouteExpertsBackward a) {
  const int lane = threadIdx.x % kWarp;
  const int64_t row = int64_t(blockIdx.x) * kRouteWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const float* logits = a.logits + row * a.ld;
  const int64_t pair = row * a.used;
  float mean = 0;
  for (int64_t i = lane; i < a.used; i += kWarp) mean += a.weights[pair + i] * a.d_weights[pair + i];
  mean = warp_sum(mean);
  float max = 0, sum = 1;
  if (!a.normalise) {
    max = largest(logits, int(a.experts), lane);
    sum = 0;
    for (int64_t e = lane; e < a.experts; e += kWarp) sum += expf(logits[e] - max);
    sum = warp_sum(sum);
  }
  // Of a softmax: d logit = p (d p - sum of p d p). Normalised, the chosen ones are all there is; else the others have a weight too, which nothing
  // asks for.
  bf16* d = a.d_logits + row * a.ld_d;
  for (int64_t e = lane; e < a.ld_d; e += kWarp) {
    d[e] = to_bf16(a.normalise || e >= a.experts ? 0.0f : -(expf(logits[e] - max) / sum) * mean);
  }
  __syncwarp();  // those of the chosen ones come after
  for (int64_t i = lane; i < a.used; i += kWarp) d[a.chosen[pair + i]] = to_bf16(a.weights[pair + i] * (a.d_weights[pair + i] - mean));
}

void check_counts(int64_t rows, int64_t experts, int64_t used, const char* name) {
  check_argument(experts >= 1 && experts <= kMostExperts, name, "experts");
  check_argument(used >= 1 && used <= experts, name, "used");
  check_argument(rows >= 0 && rows * used < 1 << 30, name, "rows");
}

}  // namespace

void route_experts(const RouteExperts& a, cudaStream_t stream) {
  const char* name = "route_experts";
  check_counts(a.rows, a.experts, a.used, name);
  check_argument(a.ld >= a.experts, name, "ld");
  check_argument(a.parts.count == 0 || (a.parts.rows == a.rows && a.parts.columns == a.experts), name, "parts");
  if (a.rows == 0) return;
  const int64_t pairs = a.rows * a.used, tile_pairs = expert_tile_pairs(pairs, a.experts), tiles = expert_tiles(pairs, a.experts);
  const size_t row = size_t(row_bytes(a.experts)), sorting = sort_bytes(a.experts);
  const dim3 one(1), block(kSortThreads);
  if (a.rows <= kMostTogether && a.experts <= kMostExpertsTogether) {
    const size_t bytes = kSortWarps * row > sorting ? kSortWarps * row : sorting;
    GPU_LAUNCH_EARLY(route_and_sort_kernel, one, block, bytes, stream, a, int(tile_pairs), int(tiles));
  } else {
    allow_shared_bytes(&route_kernel, kRouteWarps * row, name);
    allow_shared_bytes(&sort_kernel, sorting, name);
    GPU_LAUNCH_EARLY(route_kernel, dim3(unsigned(ceil_div(a.rows, kRouteWarps))), dim3(kRouteWarps * kWarp), kRouteWarps * row, stream, a);
    GPU_LAUNCH_EARLY(sort_kernel, one, block, sorting, stream, a, int(tile_pairs), int(tiles));
  }
  check_launch(name);
}

void route_experts_backward(const RouteExpertsBackward& a, cudaStream_t stream) {
  const char* name = "route_experts_backward";
  check_counts(a.rows, a.experts, a.used, name);
  check_argument(a.ld >= a.experts, name, "ld");
  check_argument(a.ld_d >= a.experts, name, "ld_d");
  if (a.rows == 0) return;
  GPU_LAUNCH(route_backward_kernel, dim3(unsigned(ceil_div(a.rows, kRouteWarps))), dim3(kRouteWarps * kWarp), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
