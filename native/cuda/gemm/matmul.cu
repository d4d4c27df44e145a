#include "cuda/gemm/matmul.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/gemm/matmul_few.h"
#include "cuda/gemm/matmul_mma_block.h"
#include "cuda/gemm/variants.h"
#include "cuda/lora/lora_within.h"

namespace tandem::cuda {
namespace {

// Few tokens and all that fits of the weights; 64 of them; many; and many or few where a block adds up several parts.
using Tokens16 = MmaShape<1, 16, 1, false, 4>;
using Tokens32 = MmaShape<1, 32, 1, false, 4>;
using Tokens64 = MmaShape<1, 64, 1, false, 3>;
using Tokens128 = MmaShape<2, 128, 1, false, 2>;
using Tokens128Sums = MmaShape<2, 64, 2, true, 1>;
using Tokens16Sums = MmaShape<2, 16, 1, true, 3>;

// Block (tile of tokens, tile of outputs, part).
template <class S, bool kQuantised, bool kTransposed>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) matmul_kernel(MatMul a, int tiles_per_part, bool parts_in_grid) {
  const OwnRows<S> rows(int(blockIdx.x) * S::kTokens);
  matmul_block<S, kQuantised, kTransposed>(a, rows, int(blockIdx.y) * S::kOutputs, tiles_per_part, parts_in_grid);
}

template <class S, bool kQuantised, bool kTransposed>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  using Tiles = TilesOf<S, kQuantised, kTransposed>;
  const size_t bytes = size_t(S::kStages) * size_t(stage_bytes<S, Tiles>(a));
  // Blocks of all tokens follow each other: while they run, their weights are read from memory once.
  const dim3 grid(unsigned(ceil_div(a.m, S::kTokens)), unsigned(ceil_div(sides_of<kTransposed>(a).outputs, S::kOutputs)),
                  split.in_grid ? unsigned(split.parts) : 1);
  const auto kernel = &matmul_kernel<S, kQuantised, kTransposed>;
  allow_shared_bytes(kernel, bytes, "matmul");
  GPU_LAUNCH_EARLY(kernel, grid, dim3(S::kThreads), bytes, stream, a, split.tiles, split.in_grid);
  check_launch("matmul");
  if (split.in_grid) add_parts(a, split, stream);
}

void check(const MatMul& a, const char* name, const Sides& sides) {
  check_argument(a.m >= 0 && a.m < 1 << 22, name, "m");
  check_argument(a.n >= 1 && a.n < 1 << 22, name, "n");
  check_argument(a.k >= 8 && a.k % 8 == 0 && a.k < 1 << 22, name, "k");
  check_argument(a.ldx >= sides.depth && a.ldx % 8 == 0, name, "ldx");
  check_argument(a.ldy >= sides.outputs, name, "ldy");
  check_argument(reinterpret_cast<uintptr_t>(a.x) % 16 == 0, name, "x");
  check_argument(reinterpret_cast<uintptr_t>(a.w) % 16 == 0, name, "w");
  check_argument(a.onto == nullptr || a.accumulate, name, "onto");
  const QuantWeights& q = a.quantised;
  const bool placed = reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && q.panels != nullptr && q.most_tile_bytes > 0;
  check_argument(q.data == nullptr || (placed && q.most_tile_bytes % 128 == 0), name, "quantised");
}

template <class S, bool kTransposed>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (a.quantised.data == nullptr) return launch<S, false, kTransposed>(a, split, stream);
  launch<S, true, kTransposed>(a, split, stream);
}

}  // namespace

void matmul_mma(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (split.parts > 1 && !split.in_grid) return launch<Tokens128Sums, false>(a, split, stream);
  if (a.quantised.data != nullptr)
    return a.m <= kFewTokens ? matmul_few(a, split, stream) : launch<Tokens128, true, false>(a, split, stream);
  if (a.m <= 16) return launch<Tokens16, false, false>(a, split, stream);
  if (a.m <= 32) return launch<Tokens32, false, false>(a, split, stream);
  if (a.m <= 64) return launch<Tokens64, false, false>(a, split, stream);
  launch<Tokens128, false, false>(a, split, stream);
}

Split split_transposed_mma(int64_t n, int64_t k) {
  Split split = split_of(1, k, n);
  split.in_grid = false;
  return split;
}

void matmul_transposed_mma(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (a.m <= 16) return launch<Tokens16Sums, true>(a, split, stream);
  launch<Tokens128Sums, true>(a, split, stream);
}

bool matmul_gates(const MatMul& a) {
  const bool whole_blocks = a.n % (2 * kSplitDepth) == 0 && matmul_splits(a.n, a.k) == 1;
  return whole_blocks && a.kernel == MatMulKernel::kWgmma && a.quantised.data == nullptr;
}

// Outputs of the adapters are the product's.
static bool within_product(const LoraPart& adapters, int64_t n) {
  for (int64_t i = 0; i < adapters.count; ++i) {
    if (adapters.projections[i].first + adapters.projections[i].out > n) return false;
  }
  return true;
}

// The activation adds what the adapters' part has of each output, so all are made.
static bool gates_with(const MatMul& a, const LoraPart& adapters) {
  int64_t made = 0;
  for (int64_t i = 0; i < adapters.count; ++i) made += adapters.projections[i].out;
  const bool whole_part = adapters.columns == a.n && made == a.n && reinterpret_cast<uintptr_t>(adapters.part) % 16 == 0;
  return matmul_gates(a) && whole_part && adapters.arrived != nullptr;
}

bool matmul_takes_adapters(const MatMul& a, const LoraPart& adapters) {
  const bool plain = !a.accumulate && a.onto == nullptr && a.quantised.data == nullptr;
  const bool same_rows = adapters.rows == a.m && adapters.in == a.k && adapters.x == a.x && adapters.ldx == a.ldx;
  const bool fits = lora_fits_within(adapters) && within_product(adapters, a.n);
  const bool gates = a.gated == nullptr || gates_with(a, adapters);
  return plain && gates && same_rows && a.kernel == MatMulKernel::kWgmma && a.k % kSplitDepth == 0 && fits;
}

void matmul(const MatMul& a, cudaStream_t stream) {
  check(a, "matmul", sides_of<false>(a));
  check_argument(a.gated == nullptr || (matmul_gates(a) && !a.accumulate && a.onto == nullptr), "matmul", "gated");
  check_argument(a.workspace_floats >= matmul_workspace_floats(a.m, a.n, a.k), "matmul", "workspace_floats");
  check_argument(a.adapters == nullptr || matmul_takes_adapters(a, *a.adapters), "matmul", "adapters");
  if (a.m == 0) return;
  const Split split = split_of(a.m, a.n, a.k);
  if (a.quantised.data != nullptr) return matmul_mma(a, split, stream);
  variant_of(a.kernel).launch(a, split, stream);
}

void matmul_transposed(const MatMul& a, cudaStream_t stream) {
  const char* name = "matmul_transposed";
  check(a, name, sides_of<true>(a));
  check_argument(a.ldy % 2 == 0, name, "ldy");
  check_argument(reinterpret_cast<uintptr_t>(a.y) % 8 == 0, name, "y");
  const MatMulVariant& variant = variant_of(a.quantised.data != nullptr ? MatMulKernel::kMma : a.kernel);
  check_argument(a.workspace_floats >= matmul_transposed_floats(variant.kernel, a.m, a.n, a.k), name, "workspace_floats");
  if (a.m > 0) variant.launch_transposed(a, variant.split_transposed(a.n, a.k), stream);
}

int64_t matmul_transposed_floats(MatMulKernel kernel, int64_t m, int64_t n, int64_t k) {
  const Split split = variant_of(kernel).split_transposed(n, k);
  return split.in_grid ? split.parts * m * k : 0;
}

}  // namespace tandem::cuda
