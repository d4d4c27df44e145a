// What an adapter adds to rows that a kernel of rows has in registers, in the order of lora_sums.h: a pass over floats less.
#pragma once
#include "cuda/common/fours.h"
#include "cuda/lora/lora_sums.h"

namespace tandem::cuda::lora {

constexpr int kTileRows = 4;    // of which a thread has four columns each
constexpr int kBlockRows = 16;  // of a block, one tile after the other: factors come from the first-level cache then

// Factors of one projection and u of a tile's rows.
struct TileFactors {
  const bf16* factors;  // [rank][width]
  int64_t rank;
  const float* u;  // rows, ldu floats apart
  int64_t ldu;
};

// rows[r] += the sum over the ranks, for `count` rows and the columns from `column` on, of which there are `left`. All threads of the block
// call, with the same factors; with rank 0 nothing is added.
template <bool kWhole>
__device__ __forceinline__ void add_ranks(const TileFactors& f, int64_t width, int count, int column, int left, Four (&rows)[kTileRows]) {
  GPU_SHARED(u, float4[kRanks]);
  Four sums[kTileRows] = {};
  for (int64_t first_rank = 0; first_rank < f.rank; first_rank += kRanks) {
    const int ranks = int(min(int64_t(kRanks), f.rank - first_rank));
    Four factors[kRanks];
    GPU_UNROLL
    for (int i = 0; i < kRanks; ++i) factors[i] = load_four<kWhole>(f.factors + (first_rank + min(i, ranks - 1)) * width + column, left);
    __syncthreads();  // all are done with what was there before
    if (threadIdx.x < kRanks * kTileRows) {
      const int i = int(threadIdx.x) % kRanks, row = int(threadIdx.x) / kRanks;
      reinterpret_cast<float*>(u + i)[row] = i < ranks && row < count ? f.u[row * f.ldu + first_rank + i] : 0.0f;
    }
    __syncthreads();  // u is there for all
    GPU_UNROLL
    for (int i = 0; i < kRanks; ++i) {
      if (i >= ranks) continue;
      const float4 four = u[i];
      const float each[kTileRows] = {four.x, four.y, four.z, four.w};
      GPU_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        GPU_UNROLL
        for (int c = 0; c < 4; ++c) sums[r].at[c] = fmaf(factors[i].at[c], each[r], sums[r].at[c]);
      }
    }
  }
  if (f.rank == 0) return;
  GPU_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) rows[r].at[c] += sums[r].at[c];
  }
}

}  // namespace tandem::cuda::lora
