#include <algorithm>

#include "cuda/common/arrivals.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_outputs.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::kGroups;
using lora::kQuad;
using lora::kRanks;
using lora::kThreads;
using lora::kWarpOutputs;

// Of one adapter, that a block takes: an instruction has room for more, but then there would be fewer blocks.
constexpr int kPartRows = 4;
static_assert(kPartRows <= lora::kRows);
constexpr int64_t kTileOutputs = 4 * int64_t(kThreads / kWarp) * kWarpOutputs;
static_assert(LoraPart::kMostRows <= kThreads);
// Few rows make few blocks: then several share a row's outputs, each with an A x of its own, for which `u` and `arrived` have room.
constexpr int64_t kMostSlices = 8, kMostSlicedRows = LoraPart::kLeastRows;
static_assert(kMostSlicedRows <= LoraPart::kMostRows);
// Not all of them have work, and few have room beside a product at a time: where there would be more, a block takes several groups of ranks.
constexpr int64_t kEnoughBlocks = 512;

#ifdef TANDEM_GPU_EMULATION

inline float fresh(const float* p) { return *p; }
template <class Kernel>
void keep_beside(Kernel*) {}

#else

__device__ __forceinline__ float fresh(const float* p) { return __ldcg(p); }

// Blocks of a kernel with next to no shared memory are not put on a multiprocessor that is set to have much of it, as a product's is, unless
// that is what they prefer. A wish: no failure matters.
template <class Kernel>
void keep_beside(Kernel* kernel) {
  static const bool asked =
      worked(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, int(cudaSharedmemCarveoutMaxShared)));
  (void)asked;
}

#endif

__device__ __forceinline__ LoraWeights row_weights(const LoraPart& a, int row, int which) {
  return lora::weights_of(a.projections[which].adapters, a.adapter_count, a.most_rank, a.row_adapters[row]);
}

// Rows of one adapter that a block takes together, and its share of their outputs: blocks of a row, by gridDim.x, are its slices.
struct Tile {
  const int* rows;
  int count;  // 0: other blocks have the row
  int slice, slices;
};

// A row goes with the next ones of its adapter, if as many before it have that adapter as make whole tiles.
__device__ __forceinline__ Tile tile_of(const LoraPart& a) {
  GPU_SHARED(alike, uint32_t[kThreads / kWarp]);
  GPU_SHARED(rows, int[kPartRows]);
  const int count = int(a.rows), slices = int(gridDim.x) / count, slice = int(blockIdx.x) / count, row = int(blockIdx.x) - slice * count;
  const int own = int(threadIdx.x), warp = own / kWarp, lane = own % kWarp;
  const bool same = own < count && a.row_adapters[own] == a.row_adapters[row];
  const uint32_t mine = __ballot_sync(kAllLanes, same);
  if (lane == 0) alike[warp] = mine;
  __syncthreads();  // all rows have been looked at
  // Of the adapter's rows: those before the block's, before the thread's own, and all.
  int before = 0, until = 0, all = 0;
  GPU_NO_UNROLL
  for (int w = 0; w < kThreads / kWarp; ++w) {
    const uint32_t bits = alike[w];
    const auto below = [&](int end) { return __popc(end >= kWarp ? bits : end <= 0 ? 0 : bits & ((1u << end) - 1)); };
    before += below(row - w * kWarp), until += below(own - w * kWarp), all += __popc(bits);
  }
  const int place = until - before;
  if (same && place >= 0 && place < kPartRows) rows[place] = own;
  __syncthreads();  // the tile's rows are there
  return {rows, before % kPartRows == 0 ? min(kPartRows, all - before) : 0, slice, slices};
}

// Where u of a row and projection lies.
__device__ __forceinline__ float* u_of(const LoraPart& a, const Tile& tile, int i, int which) {
  return a.u + ((tile.rows[i] * a.count + which) * tile.slices + tile.slice) * a.most_rank;
}

// A tile of outputs of B, of ranks [first, first + count), one for each of the first threads at a time.
__device__ __forceinline__ void fetch_tile(const LoraPart::Projection& p, const LoraWeights& w, int64_t tile, int first, int count) {
  if (tile >= p.out || !lora::whole_vectors(w.b, p.out, p.out)) return;
  GPU_NO_UNROLL
  for (int i = int(threadIdx.x); i < count; i += kThreads) lora::fetch(w.b + (first + i) * p.out + tile, min(kTileOutputs, p.out - tile));
}

// What a group of ranks reads: of A what comes after the first step, and the first tile of B, which waits for u.
__device__ __forceinline__ void fetch_ranks(const LoraPart& a, const Tile& tile, int which, const LoraWeights& w, int first_rank) {
  const int ranks = min(kRanks, w.rank - first_rank), rank = int(threadIdx.x);
  const bool steps = a.in > lora::kSegments * lora::kStep && lora::whole_vectors(w.a, a.in, a.in);
  if (steps && rank < ranks) lora::fetch(w.a + (first_rank + rank) * a.in, a.in);
  fetch_tile(a.projections[which], w, tile.slice * kTileOutputs, first_rank, ranks);
}

// u of the tile for a group of ranks.
__device__ __forceinline__ void shrink_tile(const LoraPart& a, const Tile& tile, int which, const LoraWeights& w, int first_rank) {
  const bool vectors = lora::whole_vectors(a.x, a.in, a.ldx) && lora::whole_vectors(w.a, a.in, a.in);
  const auto x_of = [&](int i) { return a.x + tile.rows[i] * a.ldx; };
  lora::shrink<1>(x_of, tile.count, {w.a + first_rank * a.in, min(kRanks, w.rank - first_rank), int(a.in), vectors},
                  [&](int rank, int i, float sum) { u_of(a, tile, i, which)[first_rank + rank] = w.scale * sum; });
}

// Whether all of the tile's u is there: of the blocks that make it, the last to come goes on.
__device__ __forceinline__ bool last_of_tile(const LoraPart& a, const Tile& tile, int which, int blocks) {
  GPU_SHARED(last, bool);
  __syncthreads();  // u of the block is written
  if (blocks == 1) return true;
  if (threadIdx.x == 0) {
    int32_t* arrived = a.arrived + (tile.rows[0] * LoraPart::kMost + which) * tile.slices + tile.slice;
    last = count_arrival(arrived) == blocks - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();  // all know
  return last;
}

// B u of the tile, kWarpOutputs outputs of a warp at a time.
template <bool kVector>
__device__ __forceinline__ void expand_tile(const LoraPart& a, const Tile& tile, int which, const LoraWeights& w) {
  const LoraPart::Projection& p = a.projections[which];
  const int lane = int(threadIdx.x) % kWarp, group = lane / kQuad;
  const int out = int(p.out);
  const float* u = group < tile.count ? u_of(a, tile, group, which) : nullptr;
  const int64_t apart = tile.slices * kTileOutputs;
  GPU_UNROLL_1
  for (int64_t first = tile.slice * kTileOutputs; first < p.out; first += apart) {
    if (kVector) fetch_tile(p, w, first + apart, 0, w.rank);
    GPU_UNROLL_1
    for (int64_t tile_output = 0; tile_output < kTileOutputs; tile_output += kThreads / kWarp * kWarpOutputs) {
      const int64_t of_warp = first + tile_output + int(threadIdx.x) / kWarp * kWarpOutputs, output = of_warp + group * kEach;
      if (of_warp >= p.out) break;
      lora::OutputSums sums{};
      GPU_UNROLL_1
      for (int rank = 0; rank < w.rank; rank += kRanks) {
        lora::OutputFactors factors{};
        GPU_UNROLL
        for (int i = 0; i < kQuad; ++i) {
          const int own = rank + lora::lane_rank(i);
          if (own < w.rank) factors.of_rank[i] = lora::load_eight<kVector>(w.b + int64_t(own) * out, output, out);
        }
        lora::add_outputs(factors, lora::rank_pairs<&fresh>(u, rank, w.rank), sums);
      }
      GPU_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int i = lane % kQuad * 2 + r;
        if (i >= tile.count) continue;
        lora::store_outputs<kVector>(a.part + tile.rows[i] * a.columns + p.first + output, p.out - output, r, sums);
      }
    }
  }
}

__device__ __forceinline__ void expand_tile(const LoraPart& a, const Tile& tile, int which) {
  const LoraWeights w = row_weights(a, tile.rows[0], which);
  const LoraPart::Projection& p = a.projections[which];
  const bool rows = reinterpret_cast<uintptr_t>(a.part) % 16 == 0 && a.columns % 4 == 0 && p.first % 4 == 0;
  if (rows && lora::whole_vectors(w.b, p.out, p.out)) expand_tile<true>(a, tile, which, w);
  else expand_tile<false>(a, tile, which, w);
}

// Rows without an adapter: -0 is what leaves every number as it is, -0 too.
__device__ __forceinline__ void clear_tile(const LoraPart& a, const Tile& tile, int which) {
  const LoraPart::Projection& p = a.projections[which];
  GPU_NO_UNROLL
  for (int i = 0; i < tile.count; ++i) {
    float* to = a.part + tile.rows[i] * a.columns + p.first;
    GPU_NO_UNROLL
    for (int output = tile.slice * kThreads + int(threadIdx.x); output < p.out; output += tile.slices * kThreads) to[output] = -0.0f;
  }
}

// Between the groups of ranks of a block.
__device__ __forceinline__ int ranks_apart() { return int(gridDim.y) * kRanks; }

__device__ __forceinline__ void make_part(const LoraPart& a) {
  const int first_rank = int(blockIdx.y) * kRanks, which = int(blockIdx.z);
  const LoraWeights w = row_weights(a, int(blockIdx.x % unsigned(a.rows)), which);
  if (first_rank > 0 && first_rank >= w.rank) return;
  const Tile tile = tile_of(a);
  if (tile.count == 0) return;
  if (w.rank == 0) return clear_tile(a, tile, which);
  GPU_NO_UNROLL
  for (int rank = first_rank; rank < w.rank; rank += ranks_apart()) fetch_ranks(a, tile, which, w, rank);
  GPU_NO_UNROLL
  for (int rank = first_rank; rank < w.rank; rank += ranks_apart()) {
    if (rank >= ranks_apart()) __syncthreads();  // the ranks before have left shared memory
    shrink_tile(a, tile, which, w, rank);
  }
  if (last_of_tile(a, tile, which, min(int(gridDim.y), (w.rank + kRanks - 1) / kRanks))) expand_tile(a, tile, which);
}

// Block (row of a slice, every so many-th group of ranks, projection). Few registers and little shared memory, so that its blocks fit beside a product's.
//
// Beside a product: what read the older `part` and u, and what made x, ended before the product had its inputs; so did who
// used the counters before, another launch of this kernel or a gated product. One block waits for the product, which is enough for the
// launch to end behind it; the others make room for those that have not begun.
__global__ void __launch_bounds__(kThreads, 3) lora_part_kernel(LoraPart a) {
  a.beside ? begin_beside() : wait_for_inputs();
  make_part(a);
  const bool last = blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
  if (a.beside && last) end_beside();
}

}  // namespace

void check_lora_part(const LoraPart& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows <= LoraPart::kMostRows, name, "rows");
  check_argument(a.count >= 1 && a.count <= LoraPart::kMost, name, "count");
  check_argument(a.in >= 1 && a.in <= a.ldx && a.in < 1 << 23, name, "in");
  check_argument(a.most_rank >= 1 && a.most_rank <= 1024, name, "most_rank");
  for (int64_t i = 0; i < a.count; ++i) {
    const LoraPart::Projection& p = a.projections[i];
    check_argument(p.first >= 0 && p.out >= 1 && p.out < 1 << 23 && p.first + p.out <= a.columns, name, "projections");
  }
}

void lora_part(const LoraPart& a, cudaStream_t stream) {
  check_lora_part(a, "lora_part");
  if (a.rows == 0) return;
  int64_t widest = 1;
  for (int64_t i = 0; i < a.count; ++i) widest = std::max(widest, a.projections[i].out);
  const int64_t room = std::clamp<int64_t>(kMostSlicedRows / a.rows, 1, kMostSlices);
  const int64_t slices = std::min(room, ceil_div(widest, kTileOutputs));
  const int64_t groups = std::clamp<int64_t>(kEnoughBlocks / (a.rows * slices * a.count), 1, ceil_div(a.most_rank, kRanks));
  const dim3 grid(unsigned(a.rows * slices), unsigned(groups), unsigned(a.count));
  keep_beside(&lora_part_kernel);
  GPU_LAUNCH_EARLY(lora_part_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch("lora_part");
}

}  // namespace tandem::cuda
