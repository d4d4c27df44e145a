#include <algorithm>

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/experts/experts_wgmma.h"
#include "cuda/experts/pair_rows.h"
#include "cuda/gemm/matmul_mma_block.h"

namespace tandem::cuda {
namespace {

// Tiles of few pairs, which wait for weights; of many, and on the way back, a warp has two fragments of outputs.
using Few16 = MmaShape<1, 16, 1, false, 4>;
using Few32 = MmaShape<1, 32, 1, false, 4>;
using Few64 = MmaShape<1, 64, 1, false, 3>;
using Wide16 = MmaShape<2, 16, 1, false, 3>;
using Wide64 = MmaShape<2, 64, 1, false, 2>;
using Wide128 = MmaShape<2, 128, 1, false, 2>;

template <class... S>
constexpr int fewest_blocks() {
  return std::min({S::kBlocks...});
}

// By the smallest of these shapes that holds the tile: most are not full, and what is not there would cost as much.
template <bool kQuantised, bool kTransposed, class S, class... Larger>
__device__ __forceinline__ void multiply_tile(const ExpertsMatMul& e, const MatMul& a, const ExpertTile& tile, int tiles) {
  if constexpr (sizeof...(Larger) > 0) {
    if (tile.count > S::kTokens) return multiply_tile<kQuantised, kTransposed, Larger...>(e, a, tile, tiles);
  }
  matmul_block<S, kQuantised, kTransposed>(a, PairRows<S>(places_of(e, tile)), int(blockIdx.y) * S::kOutputs, tiles, false);
}

// Block (tile of pairs, tile of outputs).
template <bool kQuantised, bool kTransposed, class S, class... Larger>
__global__ void __launch_bounds__(S::kThreads, fewest_blocks<S, Larger...>()) experts_matmul_kernel(ExpertsMatMul e, int tiles) {
  wait_for_inputs();
  const ExpertTile tile = e.tiles[blockIdx.x];
  if (tile.count == 0) return;
  multiply_tile<kQuantised, kTransposed, S, Larger...>(e, product_of(e, tile), tile, tiles);
}

template <bool kQuantised, bool kTransposed, class... S>
size_t shared_bytes(const MatMul& a) {
  return std::max({size_t(S::kStages) * size_t(stage_bytes<S, TilesOf<S, kQuantised, kTransposed>>(a))...});
}

// By the smallest of these shapes that holds a tile.
template <bool kQuantised, bool kTransposed, class S, class... Larger>
void launch(const ExpertsMatMul& e, cudaStream_t stream) {
  static_assert(((S::kOutputs == Larger::kOutputs && S::kThreads == Larger::kThreads) && ...));
  MatMul a{};
  a.n = e.n, a.k = e.k, a.quantised = e.quantised;
  const Sides sides = sides_of<kTransposed>(a);
  const size_t bytes = shared_bytes<kQuantised, kTransposed, S, Larger...>(a);
  const dim3 grid(unsigned(expert_tiles(e.pairs, e.experts)), unsigned(ceil_div(sides.outputs, S::kOutputs)));
  const auto kernel = &experts_matmul_kernel<kQuantised, kTransposed, S, Larger...>;
  allow_shared_bytes(kernel, bytes, "experts_matmul");
  GPU_LAUNCH_EARLY(kernel, grid, dim3(S::kThreads), bytes, stream, e, int(ceil_div(sides.depth, kTileDepth)));
  check_launch("experts_matmul");
}

template <bool kQuantised, bool kTransposed>
void launch_wide(const ExpertsMatMul& e, cudaStream_t stream) {
  launch<kQuantised, kTransposed, Wide16, Wide64, Wide128>(e, stream);
}

template <bool kQuantised>
void launch_back(const ExpertsMatMul& e, cudaStream_t stream) {
  if (expert_tile_pairs(e.pairs, e.experts) <= 16) return launch<kQuantised, true, Wide16>(e, stream);
  launch_wide<kQuantised, true>(e, stream);
}

void check(const ExpertsMatMul& e, bool transposed) {
  const char* name = transposed ? "experts_matmul_transposed" : "experts_matmul";
  const int64_t depth = transposed ? e.n : e.k, outputs = transposed ? e.k : e.n;
  check_argument(e.pairs >= 0 && e.pairs < 1 << 30, name, "pairs");
  check_argument(e.shared >= 1 && e.shared < 1 << 30, name, "shared");
  check_argument(e.experts >= 1 && e.experts <= kMostExperts, name, "experts");
  check_argument(e.n >= 1 && e.n < 1 << 22, name, "n");
  check_argument(e.k >= 8 && e.k % 8 == 0 && e.k < 1 << 22, name, "k");
  check_argument(e.ldx >= depth && e.ldx % 8 == 0, name, "ldx");
  check_argument(ceil_div(e.pairs, e.shared) * (e.ldx / kTileChunk) < int64_t(1) << 32, name, "ldx");
  check_argument(e.gated != nullptr || e.ldy >= outputs, name, "ldy");
  check_argument(reinterpret_cast<uintptr_t>(e.x) % 16 == 0, name, "x");
  check_argument(reinterpret_cast<uintptr_t>(e.w) % 16 == 0, name, "w");
  const QuantWeights& q = e.quantised;
  const bool placed = reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && q.panels != nullptr && q.most_tile_bytes > 0;
  check_argument(q.data == nullptr || (placed && q.most_tile_bytes % 128 == 0), name, "quantised");
  if (e.kernel == ExpertKernel::kMma) return;
  check_argument(q.data == nullptr && e.shared == 1, name, "kernel");
  check_argument(e.n % (e.gated != nullptr ? 16 : 8) == 0 && e.experts * e.n < int64_t(1) << 31, name, "n");
  const uintptr_t places = reinterpret_cast<uintptr_t>(e.y) | reinterpret_cast<uintptr_t>(e.gated) | reinterpret_cast<uintptr_t>(e.kept);
  check_argument(e.ldy % 4 == 0 && places % 16 == 0, name, "ldy");
}

}  // namespace

// Tiles that hold an expert's share of the pairs and some more: with fewer its weights would be read twice.
int64_t expert_tile_pairs(int64_t pairs, int64_t experts) {
  const int64_t share = ceil_div(pairs, experts);
  return share <= 4 ? 8 : share <= 10 ? 16 : share <= 24 ? 32 : share <= 48 ? 64 : 128;
}

// Each expert that has pairs may end in a tile that is not full.
int64_t expert_tiles(int64_t pairs, int64_t experts) {
  const int64_t tile_pairs = expert_tile_pairs(pairs, experts), used = std::min(pairs, experts);
  return used + (pairs - used) / tile_pairs;
}

int64_t most_expert_tiles(int64_t most_pairs, int64_t experts) {
  int64_t most = 0;
  // Tiles become more with pairs, but where these become larger.
  for (int64_t share : {4, 10, 24, 48}) most = std::max(most, expert_tiles(std::min(most_pairs, share * experts), experts));
  return std::max(most, expert_tiles(most_pairs, experts));
}

void experts_matmul(const ExpertsMatMul& e, cudaStream_t stream) {
  check(e, false);
  const bool whole = e.n % 4 == 0 && (reinterpret_cast<uintptr_t>(e.gated) | reinterpret_cast<uintptr_t>(e.kept)) % 8 == 0;
  check_argument(e.gated != nullptr ? whole : e.kept == nullptr, "experts_matmul", "gated");
  if (e.pairs == 0) return;
  if (e.kernel == ExpertKernel::kWgmma) return experts_wgmma(e, stream);
  const int64_t tile_pairs = expert_tile_pairs(e.pairs, e.experts);
  const bool few = tile_pairs <= kFewPairs;
  if (e.quantised.data != nullptr) return few ? experts_matmul_few(e, tile_pairs, stream) : launch_wide<true, false>(e, stream);
  if (!few) return launch_wide<false, false>(e, stream);
  if (tile_pairs <= 16) return launch<false, false, Few16>(e, stream);
  if (tile_pairs <= 32) return launch<false, false, Few16, Few32>(e, stream);
  launch<false, false, Few16, Few32, Few64>(e, stream);
}

void experts_matmul_transposed(const ExpertsMatMul& e, cudaStream_t stream) {
  check(e, true);
  check_argument(e.gated == nullptr && e.kept == nullptr, "experts_matmul_transposed", "gated");
  check_argument(e.ldy % 2 == 0, "experts_matmul_transposed", "ldy");
  check_argument(reinterpret_cast<uintptr_t>(e.y) % 8 == 0, "experts_matmul_transposed", "y");
  if (e.pairs == 0) return;
  if (e.kernel == ExpertKernel::kWgmma) return experts_transposed_wgmma(e, stream);
  if (e.quantised.data != nullptr) launch_back<true>(e, stream);
  else launch_back<false>(e, stream);
}

}  // namespace tandem::cuda
