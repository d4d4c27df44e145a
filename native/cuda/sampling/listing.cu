#include "cuda/sampling/listing.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/sampling/processed.h"

namespace tandem::cuda {
namespace {

constexpr int kMostTiles = kMostSlices * kSliceWarps;
// Rows that fill a device with fewer blocks than each has slices; and that would fill it more than once.
constexpr int64_t kManyRows = 8, kMoreRows = 64;

// A value below which there is none of the k largest of all; -infinity where there are fewer than k tiles. One warp.
__device__ GPU_CALLED float bound_of(const float* tiles, int count, int k) {
  if (k > count) return -INFINITY;
  constexpr int kEach = kMostTiles / kWarp;
  uint32_t keys[kEach];
  GPU_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int tile = i * kWarp + int(threadIdx.x) % kWarp;
    keys[i] = tile < count ? order_key(tiles[tile]) : 0;
  }
  // The k-th largest but for its last bits.
  uint32_t bound = 0;
  GPU_NO_UNROLL
  for (int bit = 31; bit >= 12; --bit) {
    const uint32_t trial = bound | 1u << bit;
    int there = 0;
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) there += __popc(__ballot_sync(kAllLanes, keys[i] >= trial));
    if (there >= k) bound = trial;
  }
  return bound <= order_key(-INFINITY) ? -INFINITY : value_of_key(bound);
}

// All ids that filters may leave, apart from top_p after top_k, are not below it. One warp.
__device__ float filter_cutoff(const SampleBatch& a, const SampleRow& p, const RowSpace& space, int slices, float largest) {
  const float cutoff = min_p_value(p, largest);
  if (limits_count(a, p)) return fmaxf(cutoff, bound_of(space.tiles, slices * kSliceWarps, p.top_k));
  if (p.top_p >= 1) return cutoff;
  Mass total = 0;
  for (int s = int(threadIdx.x) % kWarp; s < slices; s += kWarp) total += scaled_mass(space.draws[s], largest, p.scale);
  for (int mask = 16; mask > 0; mask >>= 1) total += __shfl_xor_sync(kAllLanes, total, mask);
  // Ids of less than that have, all together, less than what top_p leaves out. A hundredth is for rounding.
  const float least = 0.99f * float(1 - p.top_p) * float(total) / kMassUnit / float(a.samplable);
  return fmaxf(cutoff, largest + logf(least) / p.scale);
}

// What is listed of a row: candidates of its draw and of its alternatives from these values on. `adds`: the mass of all that min_p leaves,
// which is not below `least`, is added up too.
struct Listing {
  const float *tiles, *best_tiles;
  bool draws, adds, best;
  float cutoff, least, best_cutoff;

  __device__ __forceinline__ bool draws_of(int tile) const { return draws && tiles[tile] >= cutoff; }
  __device__ __forceinline__ bool adds_of(int tile) const { return adds && tiles[tile] >= least; }
  __device__ __forceinline__ bool best_of(int tile) const { return best && best_tiles[tile] >= best_cutoff; }
};

// By all warps of the row's blocks: body(tile) for each tile that has something, one warp each by turns.
template <class Has, class Body>
__device__ __forceinline__ void each_tile(int tiles, const Has& has, const Body& body) {
  const int lane = int(threadIdx.x) % kWarp, warps = int(gridDim.x) * kSliceWarps;
  int next = int(blockIdx.x) * kSliceWarps + int(threadIdx.x) / kWarp, number = 0;
  for (int first = 0; first < tiles; first += kWarp) {
    const bool here = first + lane < tiles && has(first + lane);
    for (unsigned there = __ballot_sync(kAllLanes, here); there != 0; there &= there - 1) {
      if (number++ != next) continue;
      next += warps;
      body(first + __ffs(int(there)) - 1);
    }
  }
}

// The tile's ids whose values are not below the cutoff; `count` goes on where there is no more room. By a warp.
__device__ void collect(const CandidateList& list, uint32_t* count, int tile, const float (&v)[kSliceValues], float cutoff) {
  const int lane = int(threadIdx.x) % kWarp, thread = tile_thread(tile);
  uint32_t mine = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) mine += v[i] >= cutoff && v[i] != -INFINITY;
  uint32_t end = mine;
  for (int delta = 1; delta < kWarp; delta <<= 1) {
    const uint32_t other = __shfl_up_sync(kAllLanes, end, delta);
    if (lane >= delta) end += other;
  }
  uint32_t base = 0;
  if (lane == kWarp - 1 && end > 0) base = atomicAdd(count, end);
  uint32_t at = __shfl_sync(kAllLanes, base, kWarp - 1) + end - mine;
  if (mine == 0) return;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) {
    if (!(v[i] >= cutoff && v[i] != -INFINITY)) continue;
    if (at < uint32_t(list.room)) list.at[at] = {slice_id(tile / kSliceWarps, thread, i), v[i]};
    ++at;
  }
}

// What a warp lists of a tile; the mass of what it adds of it.
__device__ Mass list_tile(const SampleBatch& a, const SampleRow& p, const RowSpace& space, const Row& row, int tile, TileValues& memory,
                          const Listing& wanted) {
  const bool draws = wanted.draws_of(tile), adds = wanted.adds_of(tile), best = wanted.best_of(tile), processed = describes_draw(p);
  const int slice = tile / kSliceWarps, thread = tile_thread(tile);
  const CandidateList best_list{space.best_list, kListedBest}, draw_list = list_of(a, p, space);
  float v[kSliceValues];
  load_slice(space.logits, int(a.vocab), slice, thread, v);
  // The alternatives before or behind what changes values, and the candidates of the draw behind it: one code for all of them.
  GPU_NO_UNROLL
  for (int turn = 0; turn < 3; ++turn) {
    if (turn == 1 && (draws || adds || processed) && (changed(p) || (slice + 1) * kSliceIds > a.samplable)) {
      mask_values(a, p, slice, thread, v);
      edit_tile(a, p, tile, memory, v);
    }
    const bool of_draw = turn == 2;
    if (!(of_draw ? draws : best && processed == (turn == 1))) continue;
    RowState& state = *space.state;
    collect(of_draw ? draw_list : best_list, of_draw ? &state.listed : &state.listed_best, tile, v,
            of_draw ? wanted.cutoff : wanted.best_cutoff);
  }
  if (!adds) return 0;
  Mass mass = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) mass += row.kept_mass({slice_id(slice, thread, i), v[i]});
  return mass;
}

// Blocks whose warps share a row's tiles; of the rows that need it.
__global__ void __launch_bounds__(kSliceThreads, 4) sample_list_kernel(SampleBatch a) {
  wait_for_inputs();
  GPU_SHARED(cutoffs, float[2]);
  GPU_SHARED(memory, TileValues[kSliceWarps]);
  const int slices = slices_of(a.vocab), tiles = slices * kSliceWarps, warp = int(threadIdx.x) / kWarp;
  const int64_t number = blockIdx.y;
  const SampleRow p = a.params[number];
  const bool best = wants_best(a, p);
  if (!best && !filters(a, p)) return;
  const RowSpace space(a, number);
  const float largest = draw_largest(space, slices);
  const bool draws = filters(a, p) && isfinite(largest), adds = draws && shares_what_min_p_leaves(a, p);
  float cutoff = 0;
  if (draws && warp == 0) cutoff = filter_cutoff(a, p, space, slices, largest);
  if (best && warp == 1) cutoff = bound_of(space.best_tiles, tiles, p.best);
  if (warp < 2 && threadIdx.x % kWarp == 0) cutoffs[warp] = cutoff;
  __syncthreads();
  const Listing wanted{space.tiles, space.best_tiles, draws, adds, best, cutoffs[0], min_p_value(p, largest), cutoffs[1]};
  Row row = row_of(a, p, draw_values(p, space), largest);
  row.filter_min_p(p);
  Mass mass = 0;
  auto has = [&](int tile) { return wanted.draws_of(tile) || wanted.adds_of(tile) || wanted.best_of(tile); };
  each_tile(tiles, has, [&](int tile) { mass += list_tile(a, p, space, row, tile, memory[warp], wanted); });
  for (int mask = 16; mask > 0; mask >>= 1) mass += __shfl_xor_sync(kAllLanes, mass, mask);
  if (threadIdx.x % kWarp == 0 && mass > 0) atomicAdd(&space.state->mass, mass);
  if (best && blockIdx.x == 0 && threadIdx.x == 0) space.state->best_cutoff = cutoffs[1];
}

// Blocks whose warps share a row's tiles; of the rows whose rank is not known.
__global__ void __launch_bounds__(kSliceThreads, 4) sample_rank_kernel(SampleBatch a) {
  wait_for_inputs();
  const int64_t row = blockIdx.y;
  const RowSpace space(a, row);
  if (space.state->ranks == 0) return;
  const float value = space.state->rank_value;
  const SampleRow p = a.params[row];
  const bool processed = describes_draw(p);
  const float* values = processed ? draw_values(p, space) : space.logits;
  const int count = int(processed ? a.samplable : a.vocab);
  int greater = 0;
  each_tile(
      slices_of(a.vocab) * kSliceWarps, [&](int tile) { return space.best_tiles[tile] > value; },
      [&](int tile) {
        float v[kSliceValues];
        load_slice(values, count, tile / kSliceWarps, tile_thread(tile), v);
        greater += count_above(v, value);
      });
  for (int mask = 16; mask > 0; mask >>= 1) greater += __shfl_xor_sync(kAllLanes, greater, mask);
  if (threadIdx.x % kWarp == 0 && greater > 0) atomicAdd(&a.out[row].rank, greater);
}

// Each block finds the cutoffs for itself, which takes as long as some tiles do.
dim3 blocks_of(const SampleBatch& a) {
  const unsigned slices = unsigned(slices_of(a.vocab));
  const unsigned each = a.rows < kManyRows ? 1 : a.rows <= kMoreRows ? 5 : 8;
  return dim3((slices + each - 1) / each, unsigned(a.rows));
}

}  // namespace

void list_candidates(const SampleBatch& a, cudaStream_t stream) {
  GPU_LAUNCH_EARLY(sample_list_kernel, blocks_of(a), dim3(kSliceThreads), 0, stream, a);
  check_launch("sample: candidates");
}

void count_ranks(const SampleBatch& a, cudaStream_t stream) {
  GPU_LAUNCH_EARLY(sample_rank_kernel, blocks_of(a), dim3(kSliceThreads), 0, stream, a);
  check_launch("sample: ranks");
}

}  // namespace tandem::cuda
