#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::kRanks;
using lora::kSegments;
using lora::kStep;
using lora::kThreads;

constexpr int kPairRows = 2;  // of one adapter, that a block takes
constexpr int64_t kTileOutputs = int64_t(kThreads) * kEach;
static_assert(LoraPart::kMostRows <= kThreads);
// Few rows make few blocks: then several share a row's outputs, each with an A x of its own, for which `u` and `arrived` have room.
constexpr int64_t kMostSlices = 8, kMostSlicedRows = LoraPart::kLeastRows;
static_assert(kMostSlicedRows <= LoraPart::kMostRows);
// Not all of them have work, and few have room beside a product at a time: where there would be more, a block takes several groups of ranks.
constexpr int64_t kEnoughBlocks = 512;

#ifdef TANDEM_GPU_EMULATION

inline int32_t arrive(int32_t* count) { return atomicAdd(count, 1); }
inline float fresh(const float* p) { return *p; }
template <class Kernel>
void keep_beside(Kernel*) {}

#else

// How many came before. What the block wrote before its threads met is there for the one that comes last.
__device__ __forceinline__ int32_t arrive(int32_t* count) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}

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

__device__ __forceinline__ LoraWeights weights_of(const LoraPart& a, int row, int which) {
  return lora::weights_of(a.projections[which].adapters, a.adapter_count, a.most_rank, a.row_adapters[row]);
}

// kEach numbers as they are in memory.
struct Eight {
  uint32_t words[kEach / 2];
  __device__ __forceinline__ float at(int i) const { return to_float(bf16{uint16_t(words[i / 2] >> (i % 2 * 16))}); }
};

__device__ __forceinline__ Eight load_eight(const bf16* from) {
  const uint4 all = *reinterpret_cast<const uint4*>(from);
  return {{all.x, all.y, all.z, all.w}};
}

// Rows of one adapter that a block takes together.
struct Pair {
  int first, second, count;  // 0: other blocks have the row
};

// A row goes with the next one of its adapter, if as many before it have that adapter as make pairs.
__device__ __forceinline__ Pair pair_of(const LoraPart& a, int row) {
  if (a.rows == 1) return {row, row, 1};
  GPU_SHARED(before, int);
  GPU_SHARED(next, int);
  constexpr int kNone = int(LoraPart::kMostRows);
  if (threadIdx.x == 0) before = 0, next = kNone;
  __syncthreads();  // both are set
  const int other = int(threadIdx.x);
  if (other < a.rows && a.row_adapters[other] == a.row_adapters[row]) {
    if (other < row) atomicAdd(&before, 1);
    if (other > row) atomicMin(&next, other);
  }
  __syncthreads();  // all rows have been looked at
  if (before % kPairRows != 0) return {row, row, 0};
  return next == kNone ? Pair{row, row, 1} : Pair{row, next, kPairRows};
}

// Blocks of a row, by gridDim.x, are its slices.
__device__ __forceinline__ int slices(const LoraPart& a) { return int(gridDim.x / unsigned(a.rows)); }
__device__ __forceinline__ int slice_of(const LoraPart& a) { return int(blockIdx.x / unsigned(a.rows)); }

// Where u of a row and projection lies.
__device__ __forceinline__ float* u_of(const LoraPart& a, int row, int which) {
  return a.u + ((row * a.count + which) * slices(a) + slice_of(a)) * a.most_rank;
}

// A tile of outputs of B, of ranks [first, first + count), one for each of the first threads at a time.
__device__ __forceinline__ void fetch_tile(const LoraPart::Projection& p, const LoraWeights& w, int64_t tile, int first, int count) {
  if (tile >= p.out || !lora::whole_vectors(w.b, p.out, p.out)) return;
  GPU_NO_UNROLL
  for (int i = int(threadIdx.x); i < count; i += kThreads) lora::fetch(w.b + (first + i) * p.out + tile, min(kTileOutputs, p.out - tile));
}

// What a group of ranks reads: of A what comes after the first step, and the first tile of B, which waits for u.
__device__ __forceinline__ void fetch_ranks(const LoraPart& a, int which, const LoraWeights& w, int first_rank) {
  const int ranks = min(kRanks, w.rank - first_rank), rank = int(threadIdx.x);
  const bool steps = a.in > kSegments * kStep && lora::whole_vectors(w.a, a.in, a.in);
  if (steps && rank < ranks) lora::fetch(w.a + (first_rank + rank) * a.in, a.in);
  fetch_tile(a.projections[which], w, slice_of(a) * kTileOutputs, first_rank, ranks);
}

// u of the pair for a group of ranks.
__device__ __forceinline__ void shrink_pair(const LoraPart& a, const Pair& pair, int which, const LoraWeights& w, int first_rank) {
  const int ranks = min(kRanks, w.rank - first_rank);
  const bool vectors = lora::whole_vectors(a.x, a.in, a.ldx) && lora::whole_vectors(w.a, a.in, a.in);
  const float sum = lora::shrink<kPairRows>(a.x + pair.first * a.ldx, int64_t(pair.second - pair.first) * a.ldx, pair.count, vectors,
                                            w.a + first_rank * a.in, int(a.in), ranks);
  const int rank = int(threadIdx.x) / kPairRows, r = int(threadIdx.x) % kPairRows;
  if (rank < ranks && r < pair.count) u_of(a, r == 0 ? pair.first : pair.second, which)[first_rank + rank] = w.scale * sum;
}

// Whether all of the pair's u is there: of the blocks that make it, the last to come goes on.
__device__ __forceinline__ bool last_of_pair(const LoraPart& a, const Pair& pair, int which, int blocks) {
  GPU_SHARED(last, bool);
  __syncthreads();  // u of the block is written
  if (blocks == 1) return true;
  if (threadIdx.x == 0) {
    int32_t* arrived = a.arrived + (pair.first * LoraPart::kMost + which) * slices(a) + slice_of(a);
    last = arrive(arrived) == blocks - 1;
    if (last) *arrived = 0;
  }
  __syncthreads();  // all know
  return last;
}

// The sums of kEach outputs, whose factors of rank `from` and the following are at `row`, go on by at most kRanks ranks. All of these are
// read at once, and lane 8 r + i of the warp reads u of rank i and row r; of ranks that there are not the last again.
__device__ __forceinline__ void add_ranks(const bf16* row, int64_t out, const float* u, int last, float (&first)[kEach],
                                          float (&second)[kEach]) {
  Eight factors[kRanks];
  GPU_UNROLL
  for (int i = 0; i < kRanks; ++i, row += i <= last ? out : 0) factors[i] = load_eight(row);
  const float own = fresh(u + min(int(threadIdx.x) % kRanks, last));
  GPU_UNROLL
  for (int i = 0; i < kRanks; ++i) {
    const float of_first = __shfl_sync(kAllLanes, own, i), of_second = __shfl_sync(kAllLanes, own, kRanks + i);
    if (i > last) break;
    GPU_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const float factor = factors[i].at(j);
      first[j] = fmaf(factor, of_first, first[j]);
      second[j] = fmaf(factor, of_second, second[j]);
    }
  }
}

// B u of the pair, kEach outputs of a thread at a time; those that have none go along, for their warp.
__device__ __forceinline__ void expand_vectors(const LoraPart& a, const Pair& pair, int which, const LoraWeights& w) {
  const LoraPart::Projection& p = a.projections[which];
  const float* u = u_of(a, int(threadIdx.x) / kRanks % kPairRows == 0 ? pair.first : pair.second, which);
  const int64_t apart = slices(a) * kTileOutputs;
  GPU_UNROLL_1
  for (int64_t tile = slice_of(a) * kTileOutputs; tile < p.out; tile += apart) {
    fetch_tile(p, w, tile + apart, 0, w.rank);
    const int64_t output = tile + int64_t(threadIdx.x) * kEach;
    const bf16* row = w.b + min(output, p.out - kEach);
    float first[kEach] = {}, second[kEach] = {};
    GPU_NO_UNROLL
    for (int from = 0; from < w.rank; from += kRanks) {
      add_ranks(row + from * p.out, p.out, u + from, min(kRanks, w.rank - from) - 1, first, second);
    }
    if (output >= p.out) continue;
    float* to = a.part + p.first + output;
    for (int i = 0; i < kEach; i += 4) lora::store_4(to + pair.first * a.columns + i, first + i);
    if (pair.count < kPairRows) continue;
    for (int i = 0; i < kEach; i += 4) lora::store_4(to + pair.second * a.columns + i, second + i);
  }
}

// The same, one output at a time.
__device__ __forceinline__ void expand_each(const LoraPart& a, const Pair& pair, int which, const LoraWeights& w) {
  const LoraPart::Projection& p = a.projections[which];
  const float *u0 = u_of(a, pair.first, which), *u1 = u_of(a, pair.second, which);
  GPU_NO_UNROLL
  for (int64_t output = slice_of(a) * kThreads + int64_t(threadIdx.x); output < p.out; output += slices(a) * kThreads) {
    float first = 0, second = 0;
    GPU_NO_UNROLL
    for (int r = 0; r < w.rank; ++r) {
      const float factor = to_float(w.b[r * p.out + output]);
      first = fmaf(factor, fresh(u0 + r), first);
      second = fmaf(factor, fresh(u1 + r), second);
    }
    float* to = a.part + p.first + output;
    to[pair.first * a.columns] = first;
    if (pair.count == kPairRows) to[pair.second * a.columns] = second;
  }
}

__device__ __forceinline__ void expand_pair(const LoraPart& a, const Pair& pair, int which) {
  const LoraWeights w = weights_of(a, pair.first, which);
  const LoraPart::Projection& p = a.projections[which];
  const bool rows = reinterpret_cast<uintptr_t>(a.part) % 16 == 0 && a.columns % 4 == 0 && p.first % 4 == 0;
  if (rows && lora::whole_vectors(w.b, p.out, p.out)) expand_vectors(a, pair, which, w);
  else expand_each(a, pair, which, w);
}

// Rows without an adapter: -0 is what leaves every number as it is, -0 too.
__device__ __forceinline__ void clear_pair(const LoraPart& a, const Pair& pair, int which) {
  const LoraPart::Projection& p = a.projections[which];
  GPU_NO_UNROLL
  for (int64_t output = slice_of(a) * kThreads + int64_t(threadIdx.x); output < p.out; output += slices(a) * kThreads) {
    a.part[pair.first * a.columns + p.first + output] = -0.0f;
    a.part[pair.second * a.columns + p.first + output] = -0.0f;
  }
}

// Between the groups of ranks of a block.
__device__ __forceinline__ int ranks_apart() { return int(gridDim.y) * kRanks; }

__device__ __forceinline__ void make_part(const LoraPart& a) {
  const int row = int(blockIdx.x % unsigned(a.rows)), first_rank = int(blockIdx.y) * kRanks, which = int(blockIdx.z);
  const LoraWeights w = weights_of(a, row, which);
  if (first_rank > 0 && first_rank >= w.rank) return;
  const Pair pair = pair_of(a, row);
  if (pair.count == 0) return;
  if (w.rank == 0) return clear_pair(a, pair, which);
  GPU_NO_UNROLL
  for (int rank = first_rank; rank < w.rank; rank += ranks_apart()) fetch_ranks(a, which, w, rank);
  GPU_NO_UNROLL
  for (int rank = first_rank; rank < w.rank; rank += ranks_apart()) {
    if (rank >= ranks_apart()) __syncthreads();  // the ranks before have left shared memory
    shrink_pair(a, pair, which, w, rank);
  }
  if (last_of_pair(a, pair, which, min(int(gridDim.y), (w.rank + kRanks - 1) / kRanks))) expand_pair(a, pair, which);
}

// Block (row of a slice, every so many-th group of ranks, projection). Few registers and little shared memory, so that its blocks fit beside a product's.
//
// Beside a product: what read the older `part` and u, and what made x, ended before the product had its inputs; the counters are this
// kernel's alone, and its launch before ended before the product between them. One block waits for the product, which is enough for the
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
