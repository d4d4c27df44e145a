#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::kRanks;
using lora::kThreads;

constexpr int kPairRows = 2;  // of one adapter, that a block takes
constexpr int64_t kTileOutputs = int64_t(kThreads) * kEach;
static_assert(LoraPart::kMostRows <= kThreads);
// Few rows make few blocks: then several share a row's outputs, each with an A x of its own.
constexpr int64_t kFewRows = 8, kMostSlices = 8;
static_assert(kFewRows * kMostSlices <= LoraPart::kLeastRows && kFewRows * kMostSlices <= LoraPart::kMostRows);

#ifdef TANDEM_GPU_EMULATION

inline int32_t arrive(int32_t* count) { return atomicAdd(count, 1); }
inline float fresh(const float* p) { return *p; }

#else

// How many came before. What the block wrote before its threads met is there for the one that comes last.
__device__ __forceinline__ int32_t arrive(int32_t* count) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}

__device__ __forceinline__ float fresh(const float* p) { return __ldcg(p); }

#endif

__device__ __forceinline__ LoraWeights weights_of(const LoraPart& a, int row, int which) {
  return lora::weights_of(a.projections[which].adapters, a.adapter_count, a.most_rank, a.row_adapters[row]);
}

// Rows of one adapter that a block takes together.
struct Pair {
  int first, second, count;  // 0: other blocks have the row
};

// A row goes with the next one of its adapter, if as many before it have that adapter as make pairs.
__device__ __forceinline__ Pair pair_of(const LoraPart& a, int row) {
  if (a.rows == 1) return {row, row, 1};
  __shared__ int before, next;
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
  __shared__ bool last;
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

// B u of the pair, kEach outputs of a thread at a time.
__device__ __forceinline__ void expand_vectors(const LoraPart& a, const Pair& pair, int which, const LoraWeights& w) {
  const LoraPart::Projection& p = a.projections[which];
  const float *u0 = u_of(a, pair.first, which), *u1 = u_of(a, pair.second, which);
  const int64_t begin = slice_of(a) * kTileOutputs + int64_t(threadIdx.x) * kEach;
  for (int64_t output = begin; output < p.out; output += slices(a) * kTileOutputs) {
    float first[kEach] = {}, second[kEach] = {};
    GPU_UNROLL_4
    for (int r = 0; r < w.rank; ++r) {
      float factors[kEach];
      lora::load(w.b + r * p.out, output, p.out, factors);
      const float of_first = fresh(u0 + r), of_second = fresh(u1 + r);
      GPU_UNROLL
      for (int i = 0; i < kEach; ++i) {
        first[i] = fmaf(factors[i], of_first, first[i]);
        second[i] = fmaf(factors[i], of_second, second[i]);
      }
    }
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
  for (int64_t output = slice_of(a) * kThreads + int64_t(threadIdx.x); output < p.out; output += slices(a) * kThreads) {
    float first = 0, second = 0;
    GPU_UNROLL_4
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
  for (int64_t output = slice_of(a) * kThreads + int64_t(threadIdx.x); output < p.out; output += slices(a) * kThreads) {
    a.part[pair.first * a.columns + p.first + output] = -0.0f;
    a.part[pair.second * a.columns + p.first + output] = -0.0f;
  }
}

// Block (row of a slice, group of ranks, projection). Few registers, so that a product's blocks fit beside.
__global__ void __launch_bounds__(kThreads, 3) lora_part_kernel(LoraPart a) {
  wait_for_inputs();
  const int row = int(blockIdx.x % unsigned(a.rows)), first_rank = int(blockIdx.y) * kRanks, which = int(blockIdx.z);
  const LoraWeights w = weights_of(a, row, which);
  if (first_rank > 0 && first_rank >= w.rank) return;
  const Pair pair = pair_of(a, row);
  if (pair.count == 0) return;
  if (w.rank == 0) return clear_pair(a, pair, which);
  shrink_pair(a, pair, which, w, first_rank);
  if (last_of_pair(a, pair, which, (w.rank + kRanks - 1) / kRanks)) expand_pair(a, pair, which);
}

}  // namespace

void lora_part(const LoraPart& a, cudaStream_t stream) {
  const char* name = "lora_part";
  check_argument(a.rows >= 0 && a.rows <= LoraPart::kMostRows, name, "rows");
  check_argument(a.count >= 1 && a.count <= LoraPart::kMost, name, "count");
  check_argument(a.in >= 1 && a.in <= a.ldx && a.in < 1 << 23, name, "in");
  check_argument(a.most_rank >= 1 && a.most_rank <= 1024, name, "most_rank");
  int64_t widest = 1;
  for (int64_t i = 0; i < a.count; ++i) {
    const LoraPart::Projection& p = a.projections[i];
    widest = std::max(widest, p.out);
    check_argument(p.first >= 0 && p.out >= 1 && p.out < 1 << 23 && p.first + p.out <= a.columns, name, "projections");
  }
  if (a.rows == 0) return;
  const int64_t slices = a.rows <= kFewRows ? std::min(kMostSlices, ceil_div(widest, kTileOutputs)) : 1;
  const dim3 grid(unsigned(a.rows * slices), unsigned(ceil_div(a.most_rank, kRanks)), unsigned(a.count));
  GPU_LAUNCH_EARLY(lora_part_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
