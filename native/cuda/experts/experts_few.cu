#include "cuda/common/launch.h"
#include "cuda/experts/pair_rows.h"
#include "cuda/gemm/matmul_few_block.h"

namespace tandem::cuda {
namespace {

// Block (tile of pairs, panel of an expert).
template <class S>
__global__ void __launch_bounds__(kFewThreads, S::kBlocks) experts_few_kernel(ExpertsMatMul e, int tiles) {
  wait_for_inputs();
  const ExpertTile tile = e.tiles[blockIdx.x];
  if (tile.count == 0) return;
  MatMul a = product_of(e, tile);
  a.quantised.panels = e.quantised.panels;
  matmul_few_block<S>(a, PairFewRows(places_of(e, tile)), first_panel(e, tile) + int64_t(blockIdx.y), tiles, false);
}

template <class S>
void launch(const ExpertsMatMul& e, cudaStream_t stream) {
  const size_t bytes = size_t(S::kStages) * S::kStageBytes;
  const dim3 grid(unsigned(expert_tiles(e.pairs, e.experts)), unsigned(ceil_div(e.n, kQuantPanel)));
  const auto kernel = &experts_few_kernel<S>;
  allow_shared_bytes(kernel, bytes, "experts_matmul");
  GPU_LAUNCH_EARLY(kernel, grid, dim3(kFewThreads), bytes, stream, e, int(ceil_div(e.k, kQuantTile)));
  check_launch("experts_matmul");
}

}  // namespace

void experts_matmul_few(const ExpertsMatMul& e, int64_t tile_pairs, cudaStream_t stream) {
  if (tile_pairs <= 8) return launch<Few8>(e, stream);
  if (tile_pairs <= 16) return launch<Few16>(e, stream);
  if (tile_pairs <= 32) return launch<Few32>(e, stream);
  launch<Few64>(e, stream);
}

}  // namespace tandem::cuda
