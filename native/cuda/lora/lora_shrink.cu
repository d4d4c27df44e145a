#include <algorithm>

#include "cuda/common/device_info.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/tensor_core.h"
#include "cuda/lora/lora_launch.h"

namespace tandem::cuda {
namespace {

using namespace lora;

// Of a tile: factors are converted once for so many rows. Few rows make more tiles, so that all multiprocessors have one.
constexpr int kTileRows = 8, kSmallTileRows = 4, kStages = 3;
constexpr int kRowBytes = kStep * int(sizeof(bf16)), kStageBytes = kTileRows * kRowBytes;
constexpr int kRingBytes = kStages * kStageBytes, kSharedBytes = kSegments * kRingBytes;

// A value that stays in its register and is not computed again at every use.
#ifdef TANDEM_GPU_EMULATION
inline void keep(uint32_t) {}
#else
__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }
#endif

// Elements that lie so many bytes on.
__device__ __forceinline__ const bf16* behind(const bf16* from, uint32_t bytes) {
  return reinterpret_cast<const bf16*>(reinterpret_cast<const unsigned char*>(from) + bytes);
}

// u of a row, for at most kRanks ranks from `first_rank` on.
__device__ __forceinline__ void shrink_row(const Lora& a, int64_t row, int first_rank) {
  const LoraWeights w = weights_of(a, row);
  const int ranks = min(kRanks, w.rank - first_rank);
  if (ranks <= 0) return;
  const bool vectors = whole_vectors(a.x, a.in, a.ldx) && whole_vectors(w.a, a.in, a.in);
  const float sum = shrink<1>(a.x + row * a.ldx, a.ldx, 1, vectors, w.a + first_rank * a.in, int(a.in), ranks);
  const int rank = int(threadIdx.x);
  if (rank < ranks) a.u[row * a.most_rank + first_rank + rank] = w.scale * sum;
}

// Block (row, group of ranks).
__global__ void __launch_bounds__(kThreads, 2) shrink_kernel(Loras all) {
  wait_for_inputs();
  shrink_row(all.each[blockIdx.z], blockIdx.x, int(blockIdx.y) * kRanks);
}

// A lane's inputs of all tiles of rows that its block goes through, by steps of its warp's segment: it brings them itself, kStages - 1 steps
// ahead and beyond the end of a tile, so that what is done at that end does not keep the memory waiting.
template <int kRows>
class LaneInputs {
 public:
  __device__ __forceinline__ LaneInputs(const Lora& a, unsigned char* shared)
      : in_(int(a.in)), ldx_(int(a.ldx)), rows_(int(a.rows)), row_(int(blockIdx.x) * kRows) {
    const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
    const int segment = (in_ + kSegments * kStep - 1) / (kSegments * kStep) * kStep;
    begin_ = warp * segment;
    end_ = min(begin_ + segment, in_);
    if (begin_ >= end_) row_ = rows_;  // nothing is ever brought
    k_ = begin_;
    x_ = a.x + row_ * a.ldx + lane * kEach;
    in_row_ = in_ - lane * kEach;
    ring_ = shared + warp * kRingBytes + lane * 16;
    find_rows();
    GPU_UNROLL
    for (int i = 0; i < kStages - 1; ++i) bring();
  }

  // Calls use(k) for every step of the segment, from input k on.
  template <class Use>
  __device__ __forceinline__ void each_step(const Use& use) const {
    GPU_UNROLL_1
    for (int k = begin_; k < end_; k += kStep) use(k);
  }

  __device__ __forceinline__ StepInputs<kRows> next() {
    cp_async_wait<kStages - 2>();
    StepInputs<kRows> inputs;
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) inputs.rows[r] = *reinterpret_cast<const uint4*>(ring_ + used_ * kStageBytes + r * kRowBytes);
    used_ = used_ == kStages - 1 ? 0 : used_ + 1;
    bring();  // where the step before was
    return inputs;
  }

  // Of the warp: that of the step which next() gave last, until it is called again.
  __device__ __forceinline__ float4* free_stage() const {
    const int stage = used_ == 0 ? kStages - 1 : used_ - 1;
    return reinterpret_cast<float4*>(ring_ - int(threadIdx.x) % kWarp * 16 + stage * kStageBytes);
  }
  static_assert(kStageBytes == kWarp * kWarp * int(sizeof(float)));

 private:
  // Of rows that there are not the last again, and nothing from `in` on.
  __device__ __forceinline__ void bring() {
    if (row_ < rows_) {
      unsigned char* to = ring_ + brought_ * kStageBytes;
      const int valid = k_ < in_row_ ? 16 : 0;
      const bf16* from = x_ + k_;
      GPU_UNROLL
      for (int r = 0; r < kRows; ++r) cp_async_16(to + r * kRowBytes, behind(from, of_row_[r]), valid);
      brought_ = brought_ == kStages - 1 ? 0 : brought_ + 1;
      k_ += kStep;
      if (k_ >= end_) {
        k_ = begin_;
        row_ += int(gridDim.x) * kRows;
        x_ += int64_t(gridDim.x) * kRows * ldx_;
        find_rows();
      }
    }
    cp_async_commit();
  }

  __device__ __forceinline__ void find_rows() {
    GPU_UNROLL
    for (int r = 0; r < kRows; ++r) keep(of_row_[r] = uint32_t(max(0, min(r, rows_ - 1 - row_)) * ldx_) * sizeof(bf16));
  }

  const bf16* x_;
  uint32_t of_row_[kRows];  // bytes from the tile's first on
  unsigned char* ring_;
  int in_, ldx_, rows_, row_, k_, begin_, end_;
  int in_row_;  // how many inputs there are from the lane's first on
  int brought_ = 0, used_ = 0;
};

// The trees of kWarp sums, as warp_sum() has them: lane l is left with that of sums[l]. By way of memory of the warp's own, in half of the
// instructions of sum_of_lane(): pieces of 16 bytes are permuted so that neither writing nor reading meets a bank twice.
__device__ __forceinline__ float sum_by_lane(const float* sums, float4* memory) {
  constexpr int kPieces = kWarp / 4;
  const int lane = int(threadIdx.x) % kWarp;
  __syncwarp();  // all lanes are done with what was there
  GPU_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    memory[lane * kPieces + (i ^ lane % kPieces)] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  }
  __syncwarp();  // the sums of all lanes are there
  float of_lanes[kWarp];
  GPU_UNROLL
  for (int l = 0; l < kWarp; ++l) of_lanes[l] = reinterpret_cast<const float*>(memory + l * kPieces + (lane / 4 ^ l % kPieces))[lane % 4];
  GPU_UNROLL
  for (int half = kWarp / 2; half > 0; half /= 2) {
    GPU_UNROLL
    for (int l = 0; l < kWarp / 2; ++l) {
      if (l < half) of_lanes[l] += of_lanes[l + half];
    }
  }
  return of_lanes[0];
}

template <int kRows>
using Segments = float[kSegments][kRanks * kRows];

// u of a tile's rows, all of one adapter whose factors are read 16 bytes at a time. All threads of the block call.
template <int kRows>
__device__ __forceinline__ void shrink_tile(const Lora& a, const LoraWeights& w, int64_t first, int first_rank, LaneInputs<kRows>& inputs,
                                            Segments<kRows>& segments) {
  const int lane_input = int(threadIdx.x) % kWarp * kEach, in = int(a.in), ranks = min(kRanks, w.rank - first_rank);
  const bf16* factors = w.a + first_rank * a.in + lane_input;
  uint32_t of_rank[kRanks];  // bytes from the first on; of ranks that there are not the last again
  GPU_UNROLL
  for (int i = 0; i < kRanks; ++i) keep(of_rank[i] = uint32_t(min(i, ranks - 1) * in) * sizeof(bf16));
  float sums[kRanks * kRows] = {};
  inputs.each_step([&](int k) {
    const StepInputs<kRows> step = inputs.next();
    if (k + lane_input >= in) return;
    const bf16* at = factors + k;
    multiply_step<kRows>(step, sums, [&](int i, float(&out)[kEach]) { load(behind(at, of_rank[i]), 0, kEach, out); });
  });
  __syncthreads();  // the segments of the tile before have left shared memory
  GPU_UNROLL
  for (int i = 0; i < kRanks * kRows; i += kWarp) {
    segments[int(threadIdx.x) / kWarp][i + int(threadIdx.x) % kWarp] = sum_by_lane(sums + i, inputs.free_stage());
  }
  __syncthreads();  // all segments are there
  const int rank = int(threadIdx.x) / kRows, row = int(threadIdx.x) % kRows;
  if (rank >= ranks || first + row >= a.rows) return;
  a.u[(first + row) * a.most_rank + first_rank + rank] = w.scale * sum_of_segments(segments, int(threadIdx.x));
}

// The adapter of a lane's row of a tile; where there is no such row the last one's.
template <int kRows>
__device__ __forceinline__ int32_t lane_adapter(const Lora& a, int64_t first) {
  return a.row_adapters[min(first + int(threadIdx.x) % kRows, a.rows - 1)];
}

// Whether an adapter of a row of the block's tiles has more ranks.
template <int kRows>
__device__ __forceinline__ bool more_ranks(const Lora& a, int ranks) {
  bool more = false;
  for (int64_t tile = blockIdx.x + int64_t(threadIdx.x) / kRows * gridDim.x; tile * kRows < a.rows; tile += kThreads / kRows * gridDim.x) {
    const int64_t row = tile * kRows + int(threadIdx.x) % kRows;
    more = more || (row < a.rows && weights_of(a, row).rank > ranks);
  }
  return __syncthreads_or(more);
}

// Block (every gridDim.x-th tile of rows, group of ranks).
template <int kRows>
__global__ void __launch_bounds__(kThreads, 1) shrink_tiles_kernel(const __grid_constant__ Loras all) {
  GPU_SHARED_BYTES(shared);
  GPU_SHARED(segments, Segments<kRows>);
  wait_for_inputs();
  const Lora& a = all.each[blockIdx.z];
  const int first_rank = int(blockIdx.y) * kRanks;
  if (first_rank > 0 && !more_ranks<kRows>(a, first_rank)) return;
  const int64_t begin = int64_t(blockIdx.x) * kRows, apart = int64_t(gridDim.x) * kRows;
  LaneInputs<kRows> inputs(a, shared);
  LoraWeights w{nullptr, nullptr, 0, 0};
  int32_t of_weights = -1, ahead = lane_adapter<kRows>(a, begin);
  GPU_UNROLL_1
  for (int64_t first = begin; first < a.rows; first += apart) {
    const int32_t mine = ahead, adapter = __shfl_sync(kAllLanes, mine, 0);
    const bool one = __ballot_sync(kAllLanes, mine != adapter) == 0;
    ahead = lane_adapter<kRows>(a, first + apart);
    if (adapter != of_weights) w = weights_of(a.adapters, a.adapter_count, a.most_rank, adapter);
    of_weights = adapter;
    if (one && w.rank > first_rank && whole_vectors(w.a, a.in, a.in)) {
      shrink_tile(a, w, first, first_rank, inputs, segments);
      continue;
    }
    inputs.each_step([&](int) { inputs.next(); });
    if (one && w.rank <= first_rank) continue;
    GPU_UNROLL_1
    for (int64_t row = first; row < min(first + kRows, a.rows); ++row) {
      __syncthreads();  // the row before has left shared memory
      shrink_row(a, row, first_rank);
    }
  }
}

// Whether rows of x are read 16 bytes at a time.
bool whole_inputs(const Loras& loras, int64_t count) {
  bool whole = true;
  for (int64_t i = 0; i < count; ++i) {
    const Lora& a = loras.each[i];
    whole = whole && whole_vectors(a.x, a.in, a.ldx) && a.ldx < 1 << 28;
  }
  return whole;
}

// As many blocks as there is room for, each going through as many tiles as there are for it; more where there are more groups of ranks, of which
// rows may have none.
template <int kRows>
void shrink_tiles(const Loras& loras, int64_t count, int64_t groups, int64_t at_once, const char* name, cudaStream_t stream) {
  allow_shared_bytes(shrink_tiles_kernel<kRows>, kSharedBytes, name);
  const int64_t blocks = std::min(std::max<int64_t>(1, at_once / count), ceil_div(loras.each[0].rows, kRows));
  const dim3 grid(static_cast<unsigned>(blocks), unsigned(groups), unsigned(count));
  GPU_LAUNCH_EARLY(shrink_tiles_kernel<kRows>, grid, dim3(kThreads), kSharedBytes, stream, loras);
}

}  // namespace

void lora_shrink(const Lora* all, int64_t count, cudaStream_t stream) {
  const char* name = "lora_shrink";
  const Loras loras = checked(all, count, name);
  const Lora& a = loras.each[0];
  if (a.rows == 0 || no_rank(a)) return;
  const int64_t groups = ceil_div(a.most_rank, kRanks);
  if (a.rows >= kManyRows && whole_inputs(loras, count)) {
    const int64_t at_once = device_multiprocessors();
    if (ceil_div(a.rows, kTileRows) * count < at_once) shrink_tiles<kSmallTileRows>(loras, count, groups, at_once, name, stream);
    else shrink_tiles<kTileRows>(loras, count, groups, at_once, name, stream);
  } else {
    const dim3 grid(unsigned(a.rows), unsigned(groups), unsigned(count));
    GPU_LAUNCH_EARLY(shrink_kernel, grid, dim3(kThreads), 0, stream, loras);
  }
  check_launch(name);
}

}  // namespace tandem::cuda
