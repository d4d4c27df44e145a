#include "cuda/gemm/matmul_normed.h"

#include <algorithm>

#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/gemm/matmul_wgmma_block.h"
#include "cuda/gemm/sum_parts.h"

namespace tandem::cuda {
namespace {

constexpr int kRowTokens = 8;  // of an instruction; the others' sums are nobody's
constexpr int64_t kMostInputs = 2048, kMostBlocks = 2 * 132;
constexpr int kTileBytes = kRowTokens * kDepth * int(sizeof(bf16));
constexpr int kMostTiles = int(kMostInputs) / kDepth;

// As of a product of few tokens, but the row has a place of its own in front of the stages, a tile per kDepth inputs.
template <Kind kKind, int kBlocks>
struct NormedShape : Shape<kRowTokens, 1, kKind, kBlocks, (kBlocks == 1 ? 4 : 2)> {
  using Base = Shape<kRowTokens, 1, kKind, kBlocks, (kBlocks == 1 ? 4 : 2)>;
  static constexpr int kStageBytes = Base::kStageTiles * Base::kWeightBytes;
  static constexpr int kFit = (kRoom / kBlocks - (2 << 10) - kMostTiles * kTileBytes) / kStageBytes;
  static constexpr int kStages = kFit < Base::kMostStages ? kFit : Base::kMostStages;
  static_assert(kStages >= 2 && Base::kSumBytes <= kStages * kStageBytes);

  static constexpr int shared_bytes(int tiles, int stages) {
    return kBarrierBytes + tiles * kTileBytes + std::max((stages < kStages ? stages : kStages) * kStageBytes, Base::kSumBytes);
  }
};

#if TANDEM_HOPPER_CODE

// Where the threads that multiply meet without the warp that brings weights, behind the barriers of the stages.
struct Meetings {
  Barrier sums, row;
  float squares[8];  // of the warps of rms_norm()
};
constexpr int kMeetingsAt = 512;
static_assert(kMeetingsAt + int(sizeof(Meetings)) <= kBarrierBytes);

__device__ __forceinline__ void meet(Barrier* barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) barrier_arrive(barrier);
  barrier_wait(barrier, 0);
}

// A thread's share of the row: that of two threads of rms_norm(), whose block has twice as many; kFours pieces of four columns of each.
template <int kFours>
struct RowShare {
  static constexpr int kThreads = 2 * kGroupThreads, kPieces = 2 * kFours;
  int column[kPieces], left[kPieces];
  Four weight[kPieces];

  __device__ __forceinline__ RowShare(const NormedRow& row, int width) {
    GPU_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      column[i] = 4 * (int(threadIdx.x) + i / kFours * kGroupThreads + i % kFours * kThreads);
      left[i] = width - column[i];
      weight[i] = load_four<true>(row.weight + column[i], left[i]);
    }
  }
};

// Of the last stage what lies behind the inputs, where weights are zero.
__device__ __forceinline__ void clear_tiles(unsigned char* tiles, int first, int end) {
  constexpr int kWords = kDepth * int(sizeof(bf16)) / 4;
  GPU_NO_UNROLL
  for (int i = first * kWords + int(threadIdx.x); i < end * kWords; i += kGroupThreads) {
    reinterpret_cast<uint32_t*>(tiles + i / kWords * kTileBytes)[i % kWords] = 0;
  }
}

// When the kernel's inputs are there: the row's inputs [begin, end) of the block's part to its tiles. `writes`: and what all of it is, to `sums`.
template <int kFours>
__device__ __forceinline__ void make_row(const NormedRow& row, int width, const RowShare<kFours>& own, int begin, int end, bool writes,
                                         Meetings& meetings, unsigned char* tiles) {
  constexpr int kPieces = RowShare<kFours>::kPieces;
  Four v[kPieces], product[kPieces] = {};
  GPU_UNROLL
  for (int i = 0; i < kPieces; ++i) v[i] = load_four<true>(row.x + own.column[i], own.left[i]);
  if (row.parts.count > 0) {
    sum_parts<true, 8 / kFours>(row.parts, 0, own.column, own.left, product);
    GPU_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      GPU_UNROLL
      for (int c = 0; c < 4; ++c) v[i].at[c] += product[i].at[c];
    }
  }
  const int warp = int(threadIdx.x) / kWarp;
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    float squares = 0;
    GPU_UNROLL
    for (int i = half * kFours; i < (half + 1) * kFours; ++i) {
      GPU_UNROLL
      for (int c = 0; c < 4; ++c) squares = fmaf(v[i].at[c], v[i].at[c], squares);
    }
    squares = group_sum<kWarp>(squares);
    if (threadIdx.x % kWarp == 0) meetings.squares[warp + half * (kGroupThreads / kWarp)] = squares;
  }
  meet(&meetings.sums);
  float squares = 0;
  GPU_UNROLL
  for (int i = 0; i < 8; ++i) squares += meetings.squares[i];
  const float scale = rsqrtf(squares / float(width) + row.eps);
  GPU_UNROLL
  for (int i = 0; i < kPieces; ++i) {
    if (writes) store_four<true>(row.sums + own.column[i], own.left[i], v[i]);
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) v[i].at[c] = v[i].at[c] * scale * own.weight[i].at[c];
    // The first row of a tile is where it would be without the swizzle.
    const int at = own.column[i] - begin;
    bf16* to = reinterpret_cast<bf16*>(tiles + at / kDepth * kTileBytes) + at % kDepth;
    store_four<true>(to, at >= 0 ? end - own.column[i] : 0, v[i]);
  }
  shared_writes_fence();
  meet(&meetings.row);
}

// The block's weights, as stages are given back.
template <class S>
__device__ __forceinline__ void bring_all_weights(const Stages& stages, const Ring& ring, const TensorMap* weights, const MatMul& a,
                                                  OutputPlace at, int most_under_way) {
  UnderWay<S> under_way(ring, most_under_way);
  bring_first_weights<S>(stages, ring, weights, a, at, 0, under_way);
  wait_for_inputs();
  bring_later_stages<S>(stages, ring, weights, a, at, under_way, [](int, int) {});
}

template <class S>
__device__ __forceinline__ void multiply_row(float (&part)[kRowTokens / 2], const unsigned char* memory, const unsigned char* row,
                                             const Ring& ring, int stages) {
  int done = 0;
  for (int i = 0; i < stages; ++i) {
    const unsigned char* stage = memory + i % S::kStages * S::kStageBytes;
    barrier_wait(&ring.full[i % S::kStages], i / S::kStages & 1);
    wgmma_fence();
    GPU_UNROLL
    for (int tile = 0; tile < S::kStageTiles; ++tile) {
      const unsigned char* tokens = row + (i * S::kStageTiles + tile) * kTileBytes;
      GPU_UNROLL
      for (int step = 0; step < kDepth / kStep; ++step) {
        wgmma<kRowTokens>(part, tile_descriptor(stage + tile * S::kWeightBytes, step), tile_descriptor(tokens, step));
      }
    }
    wgmma_commit();
    wgmma_wait<1>(part);
    give_back<S>(ring, done, i);
  }
  wgmma_wait<0>(part);
}

template <Kind kKind, class S, int kFours>
__device__ __forceinline__ void multiply_normed(const TensorMap* weights, const MatMul& a, const NormedRow& row, const Course& course,
                                                unsigned char* memory) {
  Meetings& meetings = *reinterpret_cast<Meetings*>(memory + kMeetingsAt);
  if (threadIdx.x == 0) barrier_init(&meetings.sums, kGroupThreads / kWarp), barrier_init(&meetings.row, kGroupThreads / kWarp);
  const Ring ring = open_ring(memory, S::kStages, 1);
  const BlockPlace block{int(blockIdx.x), int(blockIdx.y), 0};
  const int all_tiles = int(a.k) / kDepth, begin = course.parts_in_grid ? block.part * course.tiles_per_part : 0;
  const int end = course.parts_in_grid ? min(begin + course.tiles_per_part, all_tiles) : all_tiles;
  const int stages = (end - begin + S::kStageTiles - 1) / S::kStageTiles;
  const OutputPlace at = own_place<S, kRowTokens>(a, block);
  unsigned char *tiles = memory + kBarrierBytes, *shared = tiles + stages * S::kStageTiles * kTileBytes;
  if (own_warp() >= S::kMultiplying / kWarp) {
    if (threadIdx.x % kWarp == 0) bring_all_weights<S>({shared, begin, stages}, ring, weights, a, at, course.under_way);
    __syncwarp();  // it comes to the barriers as one
    GPU_NO_UNROLL
    for (int i = 0; i < kMeetings<kRowTokens, S>; ++i) __syncthreads();
    return;
  }
  const RowShare<kFours> own(row, int(a.k));
  wait_for_inputs();
  clear_tiles(tiles, end - begin, stages * S::kStageTiles);
  make_row<kFours>(row, int(a.k), own, begin * kDepth, end * kDepth, block.tile == 0 && block.part == 0, meetings, tiles);
  float part[kRowTokens / 2] = {};
  multiply_row<S>(part, shared, tiles, ring, stages);
  leave_sums<kRowTokens, kKind, S>(a, at, sums_to(a, block.part, course.parts_in_grid), part, shared, {});
}

#endif

// Block (tile of outputs, part).
template <Kind kKind, int kBlocks, int kFours>
__global__ void __launch_bounds__(NormedShape<kKind, kBlocks>::kThreads, kBlocks)
    matmul_normed_kernel(const __grid_constant__ TensorMap weights, MatMul a, const __grid_constant__ NormedRow row, Course course) {
#if TANDEM_HOPPER_CODE
  GPU_SHARED_BYTES(shared);
  multiply_normed<kKind, NormedShape<kKind, kBlocks>, kFours>(&weights, a, row, course, shared);
#endif
}

int64_t blocks_of(const MatMul& a) { return ceil_div(a.n, kGroupRows) * split_of(a.m, a.n, a.k).parts; }

template <Kind kKind, int kBlocks, int kFours>
void launch(const MatMul& a, const NormedRow& row, cudaStream_t stream) {
  using S = NormedShape<kKind, kBlocks>;
  const Split split = split_of(a.m, a.n, a.k);
  const auto kernel = &matmul_normed_kernel<kKind, kBlocks, kFours>;
  const TensorMap weights = panels_map(a.w, a.n, a.k, a.k, S::kBoxRows, kKind == kGated ? 2 : 1, S::kStageTiles);
  const dim3 grid(unsigned(ceil_div(a.n, S::kOutputs)), unsigned(split.parts));
  const int stages = int(ceil_div(split.parts > 1 ? split.tiles : a.k / kDepth, S::kStageTiles));
  allow_shared_bytes(kernel, S::shared_bytes(kMostTiles, S::kStages), "matmul_normed");
  GPU_LAUNCH_EARLY(kernel, grid, dim3(S::kThreads), S::shared_bytes(stages * S::kStageTiles, stages), stream, weights, a, row,
                   Course{split.tiles, split.in_grid, stages_under_way<S>(a)});
  check_launch("matmul_normed");
  if (split.in_grid) add_parts(a, split, stream);
}

template <Kind kKind, int kBlocks>
void launch_width(const MatMul& a, const NormedRow& row, cudaStream_t stream) {
  if (a.k <= 1024) launch<kKind, kBlocks, 1>(a, row, stream);
  else launch<kKind, kBlocks, 2>(a, row, stream);
}

template <Kind kKind>
void launch_kind(const MatMul& a, const NormedRow& row, cudaStream_t stream) {
  if (blocks_of(a) <= kMostBlocks / 2) launch_width<kKind, 1>(a, row, stream);
  else launch_width<kKind, 2>(a, row, stream);
}

bool row_in_fours(const NormedRow& r) { return in_fours(r.x) && in_fours(r.parts) && in_fours(r.weight) && in_fours(r.sums); }

}  // namespace

bool matmul_normalises(const MatMul& a, const NormedRow& row) {
  const bool plain = !a.accumulate && a.onto == nullptr && a.adapters == nullptr && a.quantised.data == nullptr && !a.beside;
  if (!plain || a.kernel != MatMulKernel::kWgmma || a.m != 1 || a.k % kDepth != 0 || a.k > kMostInputs) return false;
  const bool parts = row.parts.count == 0 || (row.parts.rows == 1 && row.parts.columns == a.k);
  return parts && row.sums != row.x && row_in_fours(row) && blocks_of(a) <= kMostBlocks && (a.gated == nullptr || matmul_gates(a));
}

void matmul_normed(const MatMul& a, const NormedRow& row, cudaStream_t stream) {
  check_argument(matmul_normalises(a, row), "matmul_normed", "row");
  check_argument(row.eps > 0, "matmul_normed", "eps");
  check_argument(a.n >= 1 && a.n < int64_t(1) << 31 && a.ldy >= a.n, "matmul_normed", "n");
  check_argument(a.workspace_floats >= matmul_workspace_floats(a.m, a.n, a.k), "matmul_normed", "workspace_floats");
  if (a.gated != nullptr) launch_kind<kGated>(a, row, stream);
  else launch_kind<kPlain>(a, row, stream);
}

}  // namespace tandem::cuda
