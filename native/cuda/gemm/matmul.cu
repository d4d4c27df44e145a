#include "cuda/gemm/matmul.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_core.h"
#include "cuda/gemm/variants.h"

namespace tandem::cuda {
namespace {

constexpr int kOutputs = 64;  // weights' rows of a tile: 16 per warp
constexpr int kOutputWarps = kOutputs / 16;
constexpr int kMostWarpTokens = 64;
constexpr int kDepth = kSplitDepth;  // k of a tile
constexpr int kChunk = 8;            // elements of a 16-byte copy
constexpr int kRowChunks = kDepth / kChunk;
static_assert(kOutputs == kQuantPanel && kDepth == kQuantTile);
// Warps of a block: four along the outputs, and two along the tokens where there are many.
template <int kTokens>
__host__ __device__ constexpr int token_warps() {
  return kTokens > kMostWarpTokens ? kTokens / kMostWarpTokens : 1;
}
template <int kTokens>
__host__ __device__ constexpr int threads() {
  return kOutputWarps * token_warps<kTokens>() * kWarp;
}
template <int kTokens>
__host__ __device__ constexpr int warp_tokens() {
  return kTokens / token_warps<kTokens>();
}
// Few tokens wait for weights: what two or three blocks of a multiprocessor have under way covers the memory's latency.
template <int kTokens>
__host__ __device__ constexpr int stages() {
  return kTokens <= 16 ? 6 : kTokens <= kMostWarpTokens ? 4 : 3;
}

// Where the 16-byte chunk of a tile's row lies: rows of 128 bytes, chunks permuted so that ldmatrix meets no bank twice.
__device__ __forceinline__ bf16* tile_chunk(bf16* tile, int row, int chunk) { return tile + row * kDepth + (chunk ^ (row & 7)) * kChunk; }

// Rows [first, first + kRows) of a matrix with `rows` rows, columns [column, column + 64) of `columns`; zero outside.
template <int kRows, int kThreads>
__device__ void load_tile(bf16* tile, const bf16* matrix, int64_t ld, int64_t first, int64_t rows, int64_t column, int64_t columns) {
  for (int i = threadIdx.x; i < kRows * kRowChunks; i += kThreads) {
    const int row = i / kRowChunks, chunk = i % kRowChunks;
    const int64_t from = column + chunk * kChunk;
    const bool inside = first + row < rows && from < columns;
    cp_async_16(tile_chunk(tile, row, chunk), inside ? matrix + (first + row) * ld + from : matrix, inside ? 16 : 0);
  }
}

// The groups of a panel for inputs [column, column + 64) of `columns`, as they are.
template <int kThreads>
__device__ void load_groups(unsigned char* to, const QuantWeights& w, const QuantPanel& panel, int64_t column, int64_t columns) {
  const int64_t left = (columns - column + kQuantStep - 1) / kQuantStep * kQuantStep;
  const int bytes = int(left < kDepth ? left : kDepth) / panel.group * panel.group_bytes();
  const uint8_t* from = w.data + panel.first_byte + panel.head_bytes() + column / panel.group * panel.group_bytes();
  for (int i = threadIdx.x; i < bytes / 16; i += kThreads) cp_async_16(to + i * 16, from + i * 16, 16);
}

// What load_groups brought of a panel, as a tile of bf16 weights; zero from `columns` - column on.
template <int kThreads>
__device__ void widen_tile(bf16* tile, const unsigned char* groups, const QuantWeights& w, const QuantPanel& panel, int64_t column,
                           int64_t columns) {
  const uint8_t* head = w.data + panel.first_byte;
  for (int i = threadIdx.x; i < kOutputs * kRowChunks; i += kThreads) {
    const int output = i % kOutputs, chunk = i / kOutputs;
    bf16 weights[kChunk] = {};
    if (column + chunk * kChunk < columns) dequantise_8(panel, head, groups, output, chunk * kChunk, weights);
    void* to = tile_chunk(tile, output, chunk);
    memcpy(__builtin_assume_aligned(to, 16), weights, sizeof weights);
  }
}

// part += the tile's products: this warp's 16 outputs, its kCount tokens from `first_token` on. A transposed tile has a row per input.
template <int kCount, bool kTransposed>
__device__ void multiply_tile(float (&part)[kCount / 8][4], bf16* weights, bf16* tokens, int first_token) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kOutputWarps, matrix = lane / 8, in_matrix = lane % 8;
  GPU_UNROLL
  for (int k = 0; k < kDepth / 16; ++k) {
    uint32_t a[4];
    if constexpr (kTransposed) ldmatrix_x4_trans(a, tile_chunk(weights, k * 16 + matrix / 2 * 8 + in_matrix, warp * 2 + matrix % 2));
    else ldmatrix_x4(a, tile_chunk(weights, warp * 16 + matrix % 2 * 8 + in_matrix, k * 2 + matrix / 2));
    GPU_UNROLL
    for (int t = 0; t < kCount / 16; ++t) {
      uint32_t b[4];
      ldmatrix_x4(b, tile_chunk(tokens, first_token + t * 16 + matrix / 2 * 8 + in_matrix, k * 2 + matrix % 2));
      const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
      mma_m16n8k16(part[2 * t], a, low);
      mma_m16n8k16(part[2 * t + 1], a, high);
    }
  }
}

// Calls visit(token, output, i, j) for every element that this thread holds.
template <int kCount, class Visit>
__device__ void for_each_element(int first_token, const Visit& visit) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % kOutputWarps;
  GPU_UNROLL
  for (int i = 0; i < kCount / 8; ++i) {
    GPU_UNROLL
    for (int j = 0; j < 4; ++j) visit(first_token + i * 8 + lane % 4 * 2 + (j & 1), warp * 16 + lane / 4 + 8 * (j / 2), i, j);
  }
}

constexpr int64_t kTileBytes = int64_t(kOutputs) * kDepth * int64_t(sizeof(bf16));

// A stage is the weights of a tile, as they come, and its tokens.
template <bool kQuantised>
__host__ __device__ int64_t weight_bytes(const MatMul& a) {
  return kQuantised ? a.quantised.most_tile_bytes : kTileBytes;
}
template <int kTokens, bool kQuantised>
__host__ __device__ int64_t stage_bytes(const MatMul& a) {
  return weight_bytes<kQuantised>(a) + int64_t(kTokens) * kDepth * int64_t(sizeof(bf16));
}

// The product as the kernel sees it: the weights have `outputs` rows of `depth` inputs, or where they are transposed the reverse.
struct Sides {
  int64_t outputs, depth;
};
template <bool kTransposed>
__host__ __device__ Sides sides_of(const MatMul& a) {
  return kTransposed ? Sides{a.k, a.n} : Sides{a.n, a.k};
}

// The panel that a tile of inputs comes from; where the weights are not transposed it is the block's throughout.
template <bool kTransposed>
__device__ __forceinline__ QuantPanel panel_of(const MatMul& a, const QuantPanel& own, int tile) {
  return kTransposed ? a.quantised.panels[tile] : own;
}

// Block (tile of outputs, tile of tokens, part). With `parts_in_grid` each block computes one part into the workspace [part][m][n]; otherwise
// it computes all parts, and where there are several (kSums) adds them in order. 512 threads share a multiprocessor: with kSums the sums of
// the parts before may then lie in local memory, from where they are read once per part.
template <int kTokens, bool kQuantised, bool kTransposed, bool kSums>
__global__ void __launch_bounds__(threads<kTokens>(), 512 / threads<kTokens>())
    matmul_kernel(MatMul a, int tiles_per_part, bool parts_in_grid) {
  constexpr int kThreads = threads<kTokens>(), kCount = warp_tokens<kTokens>(), kStages = stages<kTokens>();
  GPU_SHARED_BYTES(shared);
  // Quantised weights: behind the stages, the tile in use.
  bf16* widened = reinterpret_cast<bf16*>(shared + kStages * stage_bytes<kTokens, kQuantised>(a));
  [[maybe_unused]] QuantPanel own{};
  if constexpr (kQuantised && !kTransposed) own = a.quantised.panels[blockIdx.x];
  const int64_t outputs = sides_of<kTransposed>(a).outputs, depth = sides_of<kTransposed>(a).depth;
  const int64_t first_output = int64_t(blockIdx.x) * kOutputs, first_token = int64_t(blockIdx.y) * kTokens;
  const int all_tiles = int((depth + kDepth - 1) / kDepth);
  const int64_t x_columns = (depth + kChunk - 1) / kChunk * kChunk;
  const int begin = parts_in_grid ? int(blockIdx.z) * tiles_per_part : 0;
  const int end = parts_in_grid ? min(begin + tiles_per_part, all_tiles) : all_tiles;
  auto stage_of = [&](int tile) { return shared + tile % kStages * stage_bytes<kTokens, kQuantised>(a); };
  auto tokens_of = [&](unsigned char* stage) { return reinterpret_cast<bf16*>(stage + weight_bytes<kQuantised>(a)); };
  auto load_weights = [&](int tile) {
    if (tile >= end) return;
    const int64_t column = int64_t(tile) * kDepth, row = kTransposed ? column : first_output, k = kTransposed ? first_output : column;
    if constexpr (kQuantised) load_groups<kThreads>(stage_of(tile), a.quantised, panel_of<kTransposed>(a, own, tile), k, a.k);
    else load_tile<kOutputs, kThreads>(reinterpret_cast<bf16*>(stage_of(tile)), a.w, a.k, row, a.n, k, a.k);
  };
  auto load_tokens = [&](int tile) {
    if (tile < end) {
      load_tile<kTokens, kThreads>(tokens_of(stage_of(tile)), a.x, a.ldx, first_token, a.m, int64_t(tile) * kDepth, x_columns);
    }
    cp_async_commit();  // also when empty: the count of groups stays in step
  };
  const int warp_token = int(threadIdx.x) / (kOutputWarps * kWarp) * kCount;
  float part[kCount / 8][4] = {};
  [[maybe_unused]] float total[kCount / 8][4] = {};
  // Weights are there before the tokens; the first group of copies has all of these.
  for (int i = 0; i < kStages - 1; ++i) load_weights(begin + i);
  wait_for_inputs();
  for (int i = 0; i < kStages - 1; ++i) load_tokens(begin + i);
  for (int tile = begin; tile < end; ++tile) {
    cp_async_wait<kStages - 2>();
    __syncthreads();  // the tile is there for all, and all are done with the stage that is loaded next
    load_weights(tile + kStages - 1);
    load_tokens(tile + kStages - 1);
    unsigned char* stage = stage_of(tile);
    if constexpr (kQuantised) {
      const int64_t k = kTransposed ? first_output : int64_t(tile) * kDepth;
      widen_tile<kThreads>(widened, stage, a.quantised, panel_of<kTransposed>(a, own, tile), k, a.k);
      __syncthreads();  // the widened tile is there for all
    }
    multiply_tile<kCount, kTransposed>(part, kQuantised ? widened : reinterpret_cast<bf16*>(stage), tokens_of(stage), warp_token);
    if constexpr (kSums) {
      if ((tile + 1) % tiles_per_part != 0 && tile + 1 != end) continue;
      const bool first = tile / tiles_per_part == 0;
      for_each_element<kCount>(warp_token, [&](int, int, int i, int j) {
        total[i][j] = first ? part[i][j] : total[i][j] + part[i][j];
        part[i][j] = 0;
      });
    }
  }
  const float* onto = a.onto != nullptr ? a.onto : a.y;
  for_each_element<kCount>(warp_token, [&](int token, int output, int i, int j) {
    const int64_t t = first_token + token, o = first_output + output;
    if (t >= a.m || o >= outputs) return;
    const float sum = kSums ? total[i][j] : part[i][j];
    if (parts_in_grid) {
      a.workspace[(int64_t(blockIdx.z) * a.m + t) * outputs + o] = sum;
    } else {
      a.y[t * a.ldy + o] = a.accumulate ? onto[t * a.ldy + o] + sum : sum;
    }
  });
}

template <int kTokens, bool kQuantised, bool kTransposed, bool kSums>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  const size_t bytes = size_t(stages<kTokens>() * stage_bytes<kTokens, kQuantised>(a) + (kQuantised ? kTileBytes : 0));
  const int64_t outputs = sides_of<kTransposed>(a).outputs;
  const dim3 grid(unsigned(ceil_div(outputs, kOutputs)), unsigned(ceil_div(a.m, kTokens)), split.in_grid ? unsigned(split.parts) : 1);
  const auto kernel = &matmul_kernel<kTokens, kQuantised, kTransposed, kSums>;
  allow_shared_bytes(kernel, bytes, "matmul");
  GPU_LAUNCH_EARLY(kernel, grid, dim3(threads<kTokens>()), bytes, stream, a, split.tiles, split.in_grid);
  check_launch("matmul");
  if (split.in_grid) add_parts(a, split, stream);
}

void check(const MatMul& a, const char* name, const Sides& sides) {
  check_argument(a.m >= 0 && a.m < 1 << 22, name, "m");
  check_argument(a.n >= 1 && a.n < 1 << 26, name, "n");
  check_argument(a.k >= 8 && a.k % 8 == 0 && a.k < 1 << 24, name, "k");
  check_argument(a.ldx >= sides.depth && a.ldx % 8 == 0, name, "ldx");
  check_argument(a.ldy >= sides.outputs, name, "ldy");
  check_argument(reinterpret_cast<uintptr_t>(a.x) % 16 == 0, name, "x");
  check_argument(reinterpret_cast<uintptr_t>(a.w) % 16 == 0, name, "w");
  check_argument(a.onto == nullptr || a.accumulate, name, "onto");
  const QuantWeights& q = a.quantised;
  const bool placed = reinterpret_cast<uintptr_t>(q.data) % 16 == 0 && q.panels != nullptr && q.most_tile_bytes > 0;
  check_argument(q.data == nullptr || (placed && q.most_tile_bytes % 128 == 0), name, "quantised");
}

template <int kTokens, bool kTransposed, bool kSums>
void launch(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (a.quantised.data == nullptr) return launch<kTokens, false, kTransposed, kSums>(a, split, stream);
  launch<kTokens, true, kTransposed, kSums>(a, split, stream);
}

}  // namespace

void matmul_mma(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (split.parts > 1 && !split.in_grid) return launch<128, false, true>(a, split, stream);
  if (a.m <= 16) return launch<16, false, false>(a, split, stream);
  if (a.m <= 64) return launch<64, false, false>(a, split, stream);
  launch<128, false, false>(a, split, stream);
}

Split split_transposed_mma(int64_t n, int64_t k) {
  Split split = split_of(1, k, n);
  split.in_grid = false;
  return split;
}

void matmul_transposed_mma(const MatMul& a, const Split& split, cudaStream_t stream) {
  if (a.m <= 16) return launch<16, true, true>(a, split, stream);
  launch<128, true, true>(a, split, stream);
}

bool matmul_gates(const MatMul& a) {
  const bool whole_blocks = a.n % (2 * kSplitDepth) == 0 && matmul_splits(a.n, a.k) == 1;
  return whole_blocks && a.kernel == MatMulKernel::kWgmma && a.quantised.data == nullptr;
}

void matmul(const MatMul& a, cudaStream_t stream) {
  check(a, "matmul", sides_of<false>(a));
  check_argument(a.gated == nullptr || (matmul_gates(a) && !a.accumulate && a.onto == nullptr), "matmul", "gated");
  check_argument(a.workspace_floats >= matmul_workspace_floats(a.m, a.n, a.k), "matmul", "workspace_floats");
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
