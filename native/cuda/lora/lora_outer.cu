// Gradients of factors. What bounds them is how many bytes of x are under way: each warp has a ring of rows of its own, which nobody else waits
// for, and a block's rows go to several groups of ranks.
#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_core.h"
#include "cuda/lora/lora_back.h"
#include "cuda/lora/lora_outputs.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::split;

constexpr int kWarps = 8, kOuterThreads = kWarps * kWarp;
constexpr int kOuterRanks = 8, kMostGroups = 2;  // of a group, and groups that a block takes
constexpr int kOuterRows = 16, kTileColumns = 64, kChunks = kTileColumns / kEach;
constexpr int kRowBytes = kTileColumns * int(sizeof(bf16));
// A stage of a warp's ring: rows of x, whose chunks of 16 bytes are permuted so that ldmatrix meets no bank twice, and of u for each group.
constexpr int kStages = 4, kTileBytes = kOuterRows * kRowBytes, kGroupBytes = kOuterRows * kOuterRanks * int(sizeof(float));
constexpr int kStageBytes = kTileBytes + kMostGroups * kGroupBytes, kRingBytes = kStages * kStageBytes, kSharedBytes = kWarps * kRingBytes;
// Afterwards a warp's sums lie in its ring, each rank's apart from the others' banks.
constexpr int kSumStride = kTileColumns + 8;
constexpr int kThreadOutputs = kOuterRanks * kTileColumns / kOuterThreads;
static_assert(kMostGroups * kOuterRanks * kSumStride * int(sizeof(float)) <= kRingBytes);

// Outer products of the same rows x: `count` of them from each[first] on.
struct SameRows {
  int first, count, groups;
  int first_block;
};

struct Outers {
  LoraOuter each[LoraOuter::kMost];
  SameRows sets[LoraOuter::kMost];
  int count;
};

// A group of kOuterRanks ranks of one outer product, of which `ranks` are there.
struct Group {
  const float* u;
  int64_t ldu;
  int ranks;
  bool whole;  // u is read 16 bytes at a time
  float* gradient;
};

__device__ __forceinline__ Group group_of(const Outers& all, const SameRows& set, int index, int64_t column) {
  int i = set.first;
  for (; index >= int(all.each[i].ranks + kOuterRanks - 1) / kOuterRanks; ++i)
    index -= int(all.each[i].ranks + kOuterRanks - 1) / kOuterRanks;
  const LoraOuter& a = all.each[i];
  const int64_t rank = int64_t(index) * kOuterRanks;
  const bool whole = reinterpret_cast<uintptr_t>(a.u) % 16 == 0 && a.ldu % 4 == 0;
  return {a.u + rank, a.ldu, int(min(a.ranks - rank, int64_t(kOuterRanks))), whole, a.gradient + rank * a.columns + column};
}

// 16 bytes to shared memory, zeros from `count` elements on. Where whole, they are there or not.
template <bool kWhole, class T>
__device__ __forceinline__ void bring(void* to, const T* from, int count) {
  if constexpr (kWhole) {
    cp_async_16(to, from, count > 0 ? 16 : 0);
  } else {
    GPU_NO_UNROLL
    for (int i = 0; i < int(16 / sizeof(T)); ++i) static_cast<T*>(to)[i] = i < count ? from[i] : T{};
  }
}

// A warp's share of the rows, every kWarps-th tile of them, for kTileColumns columns and kGroups groups.
template <int kGroups, bool kWhole>
class WarpRows {
 public:
  using Sums = float[kGroups][kChunks][4];

  __device__ __forceinline__ WarpRows(const LoraOuter& a, int64_t column, const Group (&groups)[kGroups], unsigned char* ring)
      : groups_(groups), ring_(ring), row_(int(threadIdx.x) / kWarp * kOuterRows), rows_(int(a.rows)), ldx_(a.ldx) {
    const int lane = int(threadIdx.x) % kWarp, chunk = lane % kChunks, row = lane / kChunks;
    x_ = a.x + (row_ + row) * ldx_ + column + chunk * kEach;
    left_ = int(a.columns - column) - chunk * kEach;
    own_ = row * kRowBytes + (chunk ^ row) * 16;
    const int matrix_row = lane / 8 % 2 * 8 + row_of(lane % 8);
    matrices_ = matrix_row * kRowBytes;
    first_chunk_ = lane / 16 ^ matrix_row % 8;
  }

  __device__ __forceinline__ void run(Sums& sums) {
    GPU_UNROLL
    for (int i = 0; i < kStages - 1; ++i) load(i);
    int stage = 0;
    GPU_UNROLL_1
    for (int row = int(threadIdx.x) / kWarp * kOuterRows; row < rows_; row += kWarps * kOuterRows) {
      cp_async_wait<kStages - 2>();
      __syncwarp();  // the tile is there for all lanes, and all are done with the one before, whose stage is loaded next
      load(stage == 0 ? kStages - 1 : stage - 1);
      add(ring_ + stage * kStageBytes, sums);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    __syncwarp();  // all lanes are done with the ring
  }

 private:
  static constexpr int kLaneRows = kWarp / kChunks;  // that the lanes bring at a time
  static_assert(kLaneRows == 4 && kOuterRows * kOuterRanks * sizeof(float) == kWarp * 16);

  // Which of eight rows an instruction multiplies as its i-th: a lane's rows of u are i and i + 4 then, so that it meets no bank twice.
  static __device__ __forceinline__ int row_of(int i) { return i / 2 + i % 2 * 4; }

  // The next tile. What is not there is zero.
  __device__ __forceinline__ void load(int stage) {
    if (row_ < rows_) {
      unsigned char* to = ring_ + stage * kStageBytes;
      const int lane = int(threadIdx.x) % kWarp;
      GPU_UNROLL
      for (int i = 0; i < kOuterRows / kLaneRows; ++i) {
        const bool there = row_ + i * kLaneRows + lane / kChunks < rows_;
        bring<kWhole>(to + i * kLaneRows * kRowBytes + (own_ ^ i % 2 * 64), x_ + i * kLaneRows * ldx_, there ? left_ : 0);
      }
      const int row = lane / 2, rank = lane % 2 * 4;
      GPU_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const Group& group = groups_[g];
        const float* u = group.u + (row_ + row) * group.ldu + rank;
        unsigned char* place = to + kTileBytes + g * kGroupBytes + lane * 16;
        const int ranks = row_ + row < rows_ ? group.ranks - rank : 0;
        if (group.whole) bring<true>(place, u, ranks);
        else bring<false>(place, u, ranks);
      }
      row_ += kWarps * kOuterRows;
      x_ += kWarps * kOuterRows * ldx_;
    }
    cp_async_commit();
  }

  // Of an instruction's 16 outputs 8 are ranks and 8 the rest of the same ranks.
  __device__ __forceinline__ void add(const unsigned char* stage, Sums& sums) const {
    const int lane = int(threadIdx.x) % kWarp;
    uint32_t u[kGroups][4];
    GPU_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const float* from = reinterpret_cast<const float*>(stage + kTileBytes + g * kGroupBytes) + lane % 4 * kOuterRanks + lane / 4;
      split(from[0], from[4 * kOuterRanks], u[g][0], u[g][1]);
      split(from[8 * kOuterRanks], from[12 * kOuterRanks], u[g][2], u[g][3]);
    }
    GPU_UNROLL
    for (int c = 0; c < kChunks; c += 2) {
      uint32_t x[4];
      ldmatrix_x4_trans(x, stage + matrices_ + (c ^ first_chunk_) * 16);
      const uint32_t first[2] = {x[0], x[1]}, second[2] = {x[2], x[3]};
      GPU_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        mma_m16n8k16(sums[g][c], u[g], first);
        mma_m16n8k16(sums[g][c + 1], u[g], second);
      }
    }
  }

  const Group (&groups_)[kGroups];
  unsigned char* ring_;
  int row_, rows_;  // the next tile's first, and all
  int64_t ldx_;
  const bf16* x_;
  int left_;  // columns from the lane's first on
  int own_, matrices_, first_chunk_;
};

// An output of each group and kThreadOutputs: which rank of the group the thread has.
__device__ __forceinline__ int output_rank(int i) { return int(threadIdx.x) / kTileColumns + i * (kOuterThreads / kTileColumns); }

// The gradients of a block's columns and groups: each warp sums its share of the rows, then come the warps' sums in order.
template <int kGroups, bool kWhole>
__device__ __forceinline__ void add_columns(const LoraOuter& a, int64_t column, const Group (&groups)[kGroups], unsigned char* shared) {
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp, own = int(threadIdx.x) % kTileColumns;
  float sums[kGroups][kChunks][4] = {}, old[kGroups][kThreadOutputs] = {};
  const auto each = [&](const auto& body) {
    GPU_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      GPU_UNROLL
      for (int i = 0; i < kThreadOutputs; ++i) {
        const int rank = output_rank(i);
        if (rank < groups[g].ranks && column + own < a.columns) body(g, i, rank, groups[g].gradient + rank * a.columns + own);
      }
    }
  };
  WarpRows<kGroups, kWhole>(a, column, groups, shared + warp * kRingBytes).run(sums);
  each([&](int g, int i, int, const float* gradient) { old[g][i] = *gradient; });
  float* parts = reinterpret_cast<float*>(shared + warp * kRingBytes) + lane / 4 * kSumStride + lane % 4 * 2;
  GPU_UNROLL
  for (int g = 0; g < kGroups; ++g) {
    GPU_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      const float2 both = {sums[g][c][0] + sums[g][c][2], sums[g][c][1] + sums[g][c][3]};
      *reinterpret_cast<float2*>(parts + g * kOuterRanks * kSumStride + c * 8) = both;
    }
  }
  __syncthreads();  // all warps' sums are there
  each([&](int g, int i, int rank, float* gradient) {
    float sum = 0;
    GPU_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      sum += reinterpret_cast<const float*>(shared + w * kRingBytes)[(g * kOuterRanks + rank) * kSumStride + own];
    }
    *gradient = old[g][i] + sum;
  });
}

// A block per tile of columns and kMostGroups groups of each set; those of the same columns follow each other.
template <bool kWhole>
__global__ void __launch_bounds__(kOuterThreads, 2) outer_kernel(const __grid_constant__ Outers all) {
  GPU_SHARED_BYTES(shared);
  wait_for_inputs();
  int at = 0;
  while (at + 1 < all.count && all.sets[at + 1].first_block <= int(blockIdx.x)) ++at;
  const SameRows& set = all.sets[at];
  const LoraOuter& a = all.each[set.first];
  const int block = int(blockIdx.x) - set.first_block, shares = (set.groups + kMostGroups - 1) / kMostGroups;
  const int64_t column = int64_t(block / shares) * kTileColumns;
  const int first = block % shares * kMostGroups;
  if (first + 1 < set.groups) {
    const Group groups[] = {group_of(all, set, first, column), group_of(all, set, first + 1, column)};
    add_columns<2, kWhole>(a, column, groups, shared);
  } else {
    const Group groups[] = {group_of(all, set, first, column)};
    add_columns<1, kWhole>(a, column, groups, shared);
  }
}
static_assert(kMostGroups == 2);

void check(const LoraOuter& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.ranks >= 1 && a.ranks <= a.ldu && a.ranks <= 1024, name, "ranks");
  check_argument(a.columns >= 1 && a.columns <= a.ldx && a.columns < 1 << 26, name, "columns");
}

bool same_rows(const LoraOuter& a, const LoraOuter& b) {
  return a.x == b.x && a.ldx == b.ldx && a.rows == b.rows && a.columns == b.columns;
}

// Those of the same rows beside each other, and how many blocks all of them take.
int64_t arrange(const LoraOuter* all, int64_t count, Outers& outers) {
  int64_t blocks = 0;
  bool placed[LoraOuter::kMost] = {};
  int next = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (placed[i]) continue;
    SameRows& set = outers.sets[outers.count++] = {next, 0, 0, int(blocks)};
    for (int64_t j = i; j < count; ++j) {
      if (placed[j] || !same_rows(all[i], all[j])) continue;
      placed[j] = true;
      outers.each[next++] = all[j];
      ++set.count;
      set.groups += int(ceil_div(all[j].ranks, kOuterRanks));
    }
    blocks += ceil_div(all[i].columns, kTileColumns) * ceil_div(set.groups, kMostGroups);
  }
  return blocks;
}

}  // namespace

void lora_outer(const LoraOuter* all, int64_t count, cudaStream_t stream) {
  const char* name = "lora_outer";
  check_argument(count >= 0 && count <= LoraOuter::kMost, name, "count");
  bool whole = true;
  for (int64_t i = 0; i < count; ++i) {
    check(all[i], name);
    whole = whole && lora::whole_vectors(all[i].x, all[i].columns, all[i].ldx);
  }
  if (count == 0) return;
  Outers outers{};
  const int64_t blocks = arrange(all, count, outers);
  check_argument(blocks < int64_t(1) << 31, name, "columns");
  const auto kernel = whole ? outer_kernel<true> : outer_kernel<false>;
  allow_shared_bytes(kernel, kSharedBytes, name);
  GPU_LAUNCH_EARLY(kernel, dim3(unsigned(blocks)), dim3(kOuterThreads), kSharedBytes, stream, outers);
  check_launch(name);
}

}  // namespace tandem::cuda
