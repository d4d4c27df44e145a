#include "cuda/gemm/matmul_few.h"

#include "cuda/common/launch.h"
#include "cuda/gemm/matmul_few_block.h"

namespace tandem::cuda {
namespace {

// Block (0, panel, part).
template <class S>
__global__ void __launch_bounds__(kFewThreads, S::kBlocks) matmul_few_kernel(MatMul a, int tiles_per_part, bool parts_in_grid) {
  matmul_few_block<S>(a, OwnFewRows(), int64_t(blockIdx.y), tiles_per_part, parts_in_grid);
}

template <class S>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  const size_t bytes = size_t(S::kStages) * S::kStageBytes;
  const dim3 grid(1, unsigned(ceil_div(a.n, kQuantPanel)), split.in_grid ? unsigned(split.parts) : 1);
  const auto kernel = &matmul_few_kernel<S>;
  allow_shared_bytes(kernel, bytes, "matmul");
  GPU_LAUNCH_EARLY(kernel, grid, dim3(kFewThreads), bytes, stream, a, split.tiles, split.in_grid);
  check_launch("matmul");
  if (split.in_grid) add_parts(a, split, stream);
}

}  // namespace

void matmul_few(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (a.m <= 8) return launch<Few8>(a, split, stream);
  if (a.m <= 16) return launch<Few16>(a, split, stream);
  if (a.m <= 32) return launch<Few32>(a, split, stream);
  launch<Few64>(a, split, stream);
}

}  // namespace tandem::cuda
