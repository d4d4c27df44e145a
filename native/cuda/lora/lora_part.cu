// What adapters add to few rows, by two kernels behind their product: A x of each tile of rows, which may run beside the product, and B u, whose
// blocks share the outputs of a tile, so that many adapters' factors come as fast as memory gives them.
#include <algorithm>
#include <unordered_map>

#include "cuda/common/early_launch.h"
#include "cuda/common/fours.h"
#include "cuda/common/launch.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/gemm/sum_parts.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_factors.h"
#include "cuda/lora/lora_outputs.h"

namespace tandem::cuda {
namespace {

using lora::kEach;
using lora::kQuad;
using lora::kRanks;
using lora::kThreads;
using lora::kWarpOutputs;

constexpr int kRowWarps = kThreads / kWarp, kBlockOutputs = kRowWarps * kWarpOutputs;
static_assert(LoraTile::kRows == lora::kRows);
// Of a large device: blocks that begin together, each of which has several outputs, wait less than more of them would.
constexpr int64_t kMultiprocessors = 132;

#ifdef TANDEM_GPU_EMULATION

template <class Kernel>
void keep_beside(Kernel*) {}

#else

// Blocks of a kernel with next to no shared memory are not put on a multiprocessor that is set to have much of it, as a product's is, unless
// that is what they prefer. A wish: no failure matters.
template <class Kernel>
void keep_beside(Kernel* kernel) {
  static const bool asked =
      worked(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, int(cudaSharedmemCarveoutMaxShared)));
  (void)asked;
}

#endif

__device__ __forceinline__ LoraWeights tile_weights(const LoraPart& a, const LoraTile& tile, int which) {
  const int32_t adapter = __ldcg(&tile.adapter);
  if (adapter < 0) return {nullptr, nullptr, 0, 0};
  LoraWeights w = lora::load_fresh(a.projections[which].adapters + adapter);
  w.rank = min(w.rank, int32_t(a.most_rank));
  return w;
}

// A row's sums of a segment of the inputs, of all ranks.
__device__ __forceinline__ float* sums_of(const LoraPart& a, int row, int which, int segment) {
  return a.u + ((row * a.count + which) * lora::kSegments + segment) * a.most_rank;
}

// The sums of a segment for the tile's rows and a group of ranks, by a warp.
__device__ __forceinline__ void shrink_tile(const LoraPart& a, const LoraTile& tile, int first_rank, int which, int segment) {
  const int lane = int(threadIdx.x), row = __ldcg(tile.rows + lane / kQuad);
  int rows[2];  // whose sums the lane gets
  GPU_UNROLL
  for (int r = 0; r < 2; ++r) rows[r] = __ldcg(tile.rows + lane % kQuad * 2 + r);
  const LoraWeights w = tile_weights(a, tile, which);
  if (first_rank >= w.rank) return;
  const lora::ShrinkFactors factors{w.a + first_rank * a.in, min(kRanks, w.rank - first_rank), int(a.in),
                                    lora::whole_vectors(a.x, a.in, a.ldx) && lora::whole_vectors(w.a, a.in, a.in)};
  const bf16* x = a.x + max(row, 0) * a.ldx;
  lora::RankSums sums[1] = {};
  const auto x_of = [&](int) { return x; };
  if (factors.vectors) lora::sum_segment<true>(x_of, lora::kRows, segment, factors, sums);
  else lora::sum_segment<false>(x_of, lora::kRows, segment, factors, sums);
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int rank = first_rank + lora::rank_of_sum(i), own = rows[i % 2];
    if (own >= 0 && rank < w.rank) sums_of(a, own, which, segment)[rank] = lora::sum_of(sums[0], i);
  }
}

// Block (segment of a tile of rows, group of ranks, projection), of one warp and next to no shared memory, so that blocks fit beside a product's
// and what there is to read is shared by as many multiprocessors as there can be.
//
// Beside a product: what read the older sums, and what made x, ended before the product had its inputs. One block waits for the product, which
// is enough for the launch to end behind it; the others make room for those that have not begun.
__global__ void __launch_bounds__(kWarp, 16) shrink_part_kernel(LoraPart a) {
  a.beside ? begin_beside() : wait_for_inputs();
  const int tile = int(blockIdx.x) / lora::kSegments;
  shrink_tile(a, a.tiles[tile], int(blockIdx.y) * kRanks, int(blockIdx.z), int(blockIdx.x) % lora::kSegments);
  const bool last = blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
  if (a.beside && last) end_beside();
}

// A warp's outputs of a tile, kBlockOutputs and what other blocks have from one to the next, of kProjections that have as many outputs.
template <bool kVector, int kProjections>
class TileOutputs {
 public:
  // Of ranks beyond what is there; rows lie so that a warp's meet no bank twice.
  static constexpr int kPadding = 8;
  // Factors of the next ranks or outputs are on their way while these are multiplied, where there are registers for both.
  static constexpr bool kAhead = kProjections == 1;
  using Factors = lora::OutputFactors[kProjections];
  using Sums = lora::OutputSums[kProjections];

  __device__ __forceinline__ TileOutputs(const LoraPart& a, const LoraTile& tile, int which, float* u)
      : a_(a), which_(which), u_(u), first_(int(blockIdx.y) * kBlockOutputs + int(threadIdx.x) / kWarp * kWarpOutputs) {
    GPU_UNROLL
    for (int p = 0; p < kProjections; ++p) {
      w_[p] = tile_weights(a, tile, which + p);
      rank_end_ = max(rank_end_, w_[p].rank);
    }
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) rows_[r] = __ldcg(tile.rows + int(threadIdx.x) % kQuad * 2 + r);
    row_ = __ldcg(tile.rows + int(threadIdx.x) / kWarp);
  }

  // Of no rank nothing is added: -0 is what leaves every number as it is, -0 too.
  __device__ __forceinline__ float added(const Sums& sums, int p, int r, int i) const { return w_[p].rank > 0 ? sums[p].of(r, i) : -0.0f; }
  // Of the block's shared memory, from its beginning on.
  __device__ __forceinline__ int floats_of_u() const { return kProjections * LoraTile::kRows * (int(a_.most_rank) + kPadding); }
  // The lane's r-th row, -1 = none.
  __device__ __forceinline__ int row(int r) const { return rows_[r]; }

  // Calls store(the lane's first output, sums of its rows), all lanes of a warp together, when the kernel's inputs are there. The first factors are
  // on their way before.
  template <class Store>
  __device__ __forceinline__ void run(const Store& store) {
    Factors next;
    load(next);
    wait_for_inputs();
    bring_u();
    const float* u = u_ + int(threadIdx.x) % kWarp / kQuad * stride();
    Sums sums{};
    bool loaded = true;
    GPU_UNROLL_1
    while (first_ < out()) {
      Factors factors;
      if (!kAhead && !loaded) load(next);
      loaded = false;
      GPU_UNROLL
      for (int p = 0; p < kProjections; ++p) factors[p] = next[p];
      const int output = own_output(), rank = rank_;
      advance();
      if constexpr (kAhead) load(next);
      GPU_UNROLL
      for (int p = 0; p < kProjections; ++p) {
        lora::add_outputs(factors[p], lora::rank_pairs(u + p * LoraTile::kRows * stride(), rank, w_[p].rank), sums[p]);
      }
      if (rank_ > 0) continue;
      store(output, sums);
      GPU_UNROLL
      for (int p = 0; p < kProjections; ++p) sums[p] = {};
    }
  }

 private:
  __device__ __forceinline__ int out() const { return int(a_.projections[which_].out); }
  __device__ __forceinline__ int stride() const { return rank_end_ + kPadding; }
  __device__ __forceinline__ int own_output() const { return first_ + int(threadIdx.x) % kWarp / kQuad * kEach; }

  __device__ __forceinline__ void advance() {
    rank_ += kRanks;
    if (rank_ < rank_end_) return;
    rank_ = 0;
    first_ += int(gridDim.y) * kBlockOutputs;
  }

  // Zeros where there are no such outputs or ranks.
  __device__ __forceinline__ void load(Factors& factors) const {
    GPU_UNROLL
    for (int p = 0; p < kProjections; ++p) {
      factors[p] = {};
      GPU_UNROLL
      for (int i = 0; i < kQuad; ++i) {
        const int own = rank_ + lora::lane_rank(i);
        if (own < w_[p].rank) factors[p].of_rank[i] = lora::load_eight<kVector>(w_[p].b + int64_t(own) * out(), own_output(), out());
      }
    }
  }

  // Each warp that of one row.
  __device__ __forceinline__ void bring_u() const {
    static_assert(kRowWarps == LoraTile::kRows);
    GPU_UNROLL
    for (int p = 0; p < kProjections; ++p) {
      float* to = u_ + (p * LoraTile::kRows + int(threadIdx.x) / kWarp) * stride();
      const float* from = sums_of(a_, max(row_, 0), which_ + p, 0);
      GPU_NO_UNROLL
      for (int rank = int(threadIdx.x) % kWarp; rank < w_[p].rank; rank += kWarp) {
        float segments[lora::kSegments] = {};
        GPU_UNROLL
        for (int i = 0; i < lora::kSegments; ++i) {
          if (row_ >= 0) segments[i] = __ldcg(from + i * a_.most_rank + rank);
        }
        to[rank] = w_[p].scale * lora::sum_in_order(segments);
      }
    }
    __syncthreads();  // u of the tile is there
  }

  const LoraPart& a_;
  const int which_;
  LoraWeights w_[kProjections];
  float* u_;
  int rank_end_ = 0;
  int rows_[2], row_;     // whose sums the lane gets, and whose u the warp brings; -1 = none
  int first_, rank_ = 0;  // of the warp's outputs and the ranks that come next
};

// Rows without an adapter: -0 is what leaves every number as it is, -0 too.
__device__ __forceinline__ void clear_outputs(const LoraPart& a, const LoraTile& tile, const LoraPart::Projection& p) {
  wait_for_inputs();
  GPU_NO_UNROLL
  for (int i = 0; i < LoraTile::kRows; ++i) {
    const int row = __ldcg(tile.rows + i);
    if (row < 0) return;
    float* to = a.part + row * a.columns + p.first;
    GPU_NO_UNROLL
    for (int output = int(blockIdx.y) * kThreads + int(threadIdx.x); output < p.out; output += int(gridDim.y) * kThreads)
      to[output] = -0.0f;
  }
}

template <bool kVector>
__device__ __forceinline__ void add_tile(const LoraPart& a, const LoraTile& tile, int which, float* u) {
  const LoraPart::Projection& p = a.projections[which];
  TileOutputs<kVector, 1> outputs(a, tile, which, u);
  outputs.run([&](int output, const lora::OutputSums(&sums)[1]) {
    GPU_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (outputs.row(r) < 0) continue;
      lora::store_outputs<kVector>(a.part + outputs.row(r) * a.columns + p.first + output, p.out - output, r, sums[0]);
    }
  });
}

// Block (tile of rows, share of the outputs, projection).
__global__ void __launch_bounds__(kThreads, 3) expand_part_kernel(LoraPart a) {
  let_next_begin();
  GPU_SHARED_BYTES(shared);
  const int which = int(blockIdx.z);
  const LoraPart::Projection& p = a.projections[which];
  const LoraTile& tile = a.tiles[blockIdx.x];
  const LoraWeights w = tile_weights(a, tile, which);
  if (w.rank == 0) return clear_outputs(a, tile, p);
  float* u = reinterpret_cast<float*>(shared);
  const bool rows = reinterpret_cast<uintptr_t>(a.part) % 16 == 0 && a.columns % 4 == 0 && p.first % 4 == 0;
  if (rows && lora::whole_vectors(w.b, p.out, p.out)) add_tile<true>(a, tile, which, u);
  else add_tile<false>(a, tile, which, u);
}

// What a warp's lanes hand to each other: of both projections kRows rows of its outputs, which lie so that a row's follow each other and rows meet
// few banks twice.
struct Handed {
  static constexpr int kStride = kWarpOutputs + 4, kOf = lora::kRows * kStride;
  float of[2 * kOf];
};

// Four outputs of a row.
__device__ __forceinline__ void activate(const LoraGated& g, int row, int output, const Four (&added)[2]) {
  const int width = int(g.product.columns) / 2, column[2] = {output, width + output}, left[2] = {width - output, width - output};
  if (left[0] <= 0) return;
  Four sums[2], active;
  sum_parts<true, 2>(g.product, row, column, left, sums);
  GPU_UNROLL
  for (int c = 0; c < 4; ++c) active.at[c] = swiglu(sums[0].at[c] + added[0].at[c], sums[1].at[c] + added[1].at[c]);
  store_four<true>(g.active + int64_t(row) * width + output, left[0], active);
}

// Block (tile of rows, share of the outputs). A lane's outputs are of two rows and eight columns, few rows leave most lanes without any: so what is
// added is handed over, and each lane activates four columns at a time, by one short loop.
__global__ void __launch_bounds__(kThreads, 2) activate_part_kernel(const __grid_constant__ LoraGated g) {
  let_next_begin();
  GPU_SHARED_BYTES(shared);
  const LoraTile& tile = g.adapters.tiles[blockIdx.x];
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  float* u = reinterpret_cast<float*>(shared);
  TileOutputs<true, 2> outputs(g.adapters, tile, 0, u);
  float* handed = reinterpret_cast<Handed*>(u + outputs.floats_of_u())[warp].of;
  outputs.run([&](int output, const lora::OutputSums(&sums)[2]) {
    GPU_UNROLL
    for (int p = 0; p < 2; ++p) {
      GPU_UNROLL
      for (int r = 0; r < 2; ++r) {
        float* to = handed + p * Handed::kOf + (lane % kQuad * 2 + r) * Handed::kStride + lane / kQuad * kEach;
        GPU_UNROLL
        for (int half = 0; half < kEach; half += 4) {
          store_four<true>(to + half, 4,
                           Four{{outputs.added(sums, p, r, half), outputs.added(sums, p, r, half + 1), outputs.added(sums, p, r, half + 2),
                                 outputs.added(sums, p, r, half + 3)}});
        }
      }
    }
    __syncwarp();  // all lanes' are there
    constexpr int kFours = kWarpOutputs / 4;
    const int first = output - lane / kQuad * kEach;
    GPU_NO_UNROLL
    for (int i = lane; i < lora::kRows * kFours; i += kWarp) {
      const int row = __ldcg(tile.rows + i / kFours), at = i % kFours * 4;
      if (row < 0) break;
      const float* from = handed + i / kFours * Handed::kStride + at;
      activate(g, row, first + at, {load_four<true>(from, 4), load_four<true>(from + Handed::kOf, 4)});
    }
    __syncwarp();  // before others come there
  });
}

}  // namespace

int64_t lora_most_tiles(int64_t rows, int64_t adapter_count) {
  const int64_t groups = std::min(rows, adapter_count + 1);
  return std::min(rows, (rows + (LoraTile::kRows - 1) * groups) / LoraTile::kRows);
}

std::vector<LoraTile> lora_tiles(const std::vector<int32_t>& row_adapters, int64_t adapter_count) {
  std::vector<LoraTile> tiles;
  std::unordered_map<int32_t, size_t> open;
  for (size_t row = 0; row < row_adapters.size(); ++row) {
    const int32_t adapter = row_adapters[row] >= 0 && row_adapters[row] < adapter_count ? row_adapters[row] : -1;
    auto [found, fresh] = open.try_emplace(adapter, tiles.size());
    if (!fresh && tiles[found->second].count == LoraTile::kRows) found->second = tiles.size(), fresh = true;
    if (fresh) tiles.push_back({.adapter = adapter});
    LoraTile& tile = tiles[found->second];
    tile.rows[tile.count++] = int32_t(row);
  }
  tiles.resize(size_t(lora_most_tiles(int64_t(row_adapters.size()), adapter_count)));
  return tiles;
}

int64_t lora_part_floats(int64_t rows, int64_t count, int64_t most_rank) { return rows * count * lora::kSegments * most_rank; }

void check_lora_part(const LoraPart& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows <= LoraPart::kMostRows, name, "rows");
  check_argument(a.count >= 1 && a.count <= LoraPart::kMost, name, "count");
  check_argument(a.tile_count >= 0 && a.tile_count <= a.rows, name, "tile_count");
  check_argument(a.in >= 1 && a.in <= a.ldx && a.in < 1 << 23, name, "in");
  check_argument(a.most_rank >= 1 && a.most_rank <= LoraPart::kMostRank, name, "most_rank");
  for (int64_t i = 0; i < a.count; ++i) {
    const LoraPart::Projection& p = a.projections[i];
    check_argument(p.first >= 0 && p.out >= 1 && p.out < 1 << 23 && p.first + p.out <= a.columns, name, "projections");
  }
}

namespace {

void launch_shrink(const LoraPart& a, cudaStream_t stream) {
  const unsigned tiles = unsigned(a.tile_count), count = unsigned(a.count);
  const dim3 ranks(tiles * lora::kSegments, unsigned(ceil_div(a.most_rank, kRanks)), count);
  keep_beside(&shrink_part_kernel);
  GPU_LAUNCH_EARLY(shrink_part_kernel, ranks, dim3(kWarp), 0, stream, a);
  check_launch("lora_part");
}

// Blocks that share the outputs of a tile and projection.
unsigned shares_of(const LoraPart& a, int64_t projections, int64_t blocks) {
  int64_t widest = 1;
  for (int64_t i = 0; i < a.count; ++i) widest = std::max(widest, a.projections[i].out);
  return unsigned(std::clamp<int64_t>(blocks / (a.tile_count * projections), 1, ceil_div(widest, kBlockOutputs)));
}

constexpr int bytes_of_u(int64_t most_rank, int64_t projections) {
  return int(projections * LoraTile::kRows * (most_rank + TileOutputs<true, 1>::kPadding) * int64_t(sizeof(float)));
}

constexpr int gated_bytes(int64_t most_rank) { return bytes_of_u(most_rank, 2) + kRowWarps * int(sizeof(Handed)); }
static_assert(gated_bytes(LoraPart::kMostRank) <= 99 << 10, "of a device of compute capability 8.6 a block has no more");

void launch_expand(const LoraPart& a, cudaStream_t stream) {
  const dim3 grid(unsigned(a.tile_count), shares_of(a, a.count, 3 * kMultiprocessors), unsigned(a.count));
  GPU_LAUNCH_EARLY(expand_part_kernel, grid, dim3(kThreads), bytes_of_u(a.most_rank, 1), stream, a);
  check_launch("lora_part");
}

}  // namespace

void lora_part(const LoraPart& a, cudaStream_t stream) {
  check_lora_part(a, "lora_part");
  if (a.tile_count == 0) return;
  launch_shrink(a, stream);
  launch_expand(a, stream);
}

void lora_gated(const LoraGated& g, cudaStream_t stream) {
  const LoraPart& a = g.adapters;
  const char* name = "lora_gated";
  check_lora_part(a, name);
  const int64_t width = g.product.columns / 2;
  check_argument(a.count == 2 && a.projections[0].out == width && a.projections[1].out == width, name, "projections");
  const bool whole = width % kEach == 0 && in_fours(g.product) && in_fours(g.active, width);
  check_argument(whole && g.product.count >= 1 && g.product.rows == a.rows && g.product.columns == 2 * width, name, "product");
  if (a.tile_count == 0) return;
  launch_shrink(a, stream);
  const dim3 grid(unsigned(a.tile_count), shares_of(a, 1, 2 * kMultiprocessors));
  // What any rank takes: an engine beside this one may launch it for a smaller rank meanwhile, and what is allowed is the kernel's.
  allow_shared_bytes(&activate_part_kernel, size_t(gated_bytes(LoraPart::kMostRank)), name);
  GPU_LAUNCH_EARLY(activate_part_kernel, grid, dim3(kThreads), gated_bytes(a.most_rank), stream, g);
  check_launch(name);
}

}  // namespace tandem::cuda
