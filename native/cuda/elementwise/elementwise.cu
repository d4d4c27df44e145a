#include "cuda/elementwise/elementwise.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/elementwise/swiglu.h"
#include "cuda/gemm/sum_parts.h"

namespace tandem::cuda {
namespace {

constexpr int kElementThreads = 256;
// A block's columns where its threads take one piece of four each.
constexpr int kElementRun = 4 * kElementThreads;
// Of the activation so many rows' blocks fill a large device several times over: then a thread takes two pieces.
constexpr int64_t kManyBlocks = 2048;

__device__ int32_t token_of(const EmbedTokens& a, int64_t row) {
  const int32_t token = a.tokens[row];
  if (token >= -1) return token;
  const int64_t place = -2 - int64_t(token);
  return place < a.last_count ? a.last[place] : -1;
}

// Blocks of a row beside each other, here and below.
template <bool kWhole>
__global__ void __launch_bounds__(kElementThreads) embed_kernel(EmbedTokens a, unsigned runs) {
  wait_for_inputs();
  const ColumnPlace place = place_of(runs, 2 * kElementRun);
  const int32_t token = token_of(a, place.row);
  const bool valid = token >= 0 && token < a.vocab;
  const bf16* from = a.embedding + (valid ? int64_t(token) * a.width : 0);
  float* y = a.y + place.row * a.ldy;
  Four v[2];
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int i = place.column + j * kElementRun;
    v[j] = load_four<kWhole>(from + i, int(a.width) - i);
  }
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int i = place.column + j * kElementRun;
    store_four<kWhole>(y + i, int(a.width) - i, valid ? v[j] : Four{NAN, NAN, NAN, NAN});
  }
}

template <bool kWhole>
__global__ void __launch_bounds__(kElementThreads) embed_quantised_kernel(EmbedTokens a) {
  wait_for_inputs();
  const int32_t token = token_of(a, blockIdx.x);
  const bool valid = token >= 0 && token < a.vocab;
  const QuantPanel panel = a.quantised.panels[valid ? token / kQuantPanel : 0];
  const uint8_t* head = a.quantised.data + panel.first_byte;
  float* y = a.y + int64_t(blockIdx.x) * a.ldy;
  for (int64_t k = int64_t(threadIdx.x) * 8; k < a.width; k += kElementThreads * 8) {
    bf16 weights[8] = {};
    if (valid) dequantise_8(panel, head, token % kQuantPanel, int(k), weights);
    GPU_UNROLL
    for (int j = 0; j < 8; j += 4) {
      Four v;
      GPU_UNROLL
      for (int c = 0; c < 4; ++c) v.at[c] = valid ? to_float(weights[j + c]) : NAN;
      store_four<kWhole>(y + k + j, 4, v);
    }
  }
}

// Of a row pieces of gate and of up: columns `column`, of which there are `left`.
template <int kFours, bool kWhole, bool kParts>
__device__ __forceinline__ void load_gate_up(const SiluMultiply& a, const ColumnPlace& place, Four (&gate)[kFours], Four (&up)[kFours]) {
  const int width = int(a.width);
  if (kParts && a.parts.count > 0) {
    GPU_UNROLL
    for (int j = 0; j < kFours; ++j) {
      const int i = place.column + j * kElementRun, column[2] = {i, width + i}, left[2] = {width - i, width - i};
      Four both[2] = {};
      sum_parts<kWhole, 8>(a.parts, place.row, column, left, both);
      gate[j] = both[0];
      up[j] = both[1];
    }
    return;
  }
  const float* x = a.x + place.row * a.ldx;
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    const int i = place.column + j * kElementRun;
    gate[j] = load_four<kWhole>(x + i, width - i);
    up[j] = load_four<kWhole>(x + width + i, width - i);
  }
}

template <int kFours, bool kWhole, bool kParts>
__global__ void __launch_bounds__(kElementThreads) silu_multiply_kernel(SiluMultiply a, unsigned runs) {
  wait_for_inputs();
  const ColumnPlace place = place_of(runs, kFours * kElementRun);
  const int width = int(a.width);
  Four gate[kFours], up[kFours];
  load_gate_up<kFours, kWhole, kParts>(a, place, gate, up);
  bf16* y = a.y + place.row * a.ldy;
  bf16* kept = a.kept != nullptr ? a.kept + place.row * 2 * width : nullptr;
  GPU_UNROLL
  for (int j = 0; j < kFours; ++j) {
    const int i = place.column + j * kElementRun, left = width - i;
    if (left <= 0) break;
    Four out;
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) out.at[c] = swiglu(gate[j].at[c], up[j].at[c]);
    store_four<kWhole>(y + i, left, out);
    if (kept == nullptr) continue;
    store_four<kWhole>(kept + i, left, gate[j]);
    store_four<kWhole>(kept + width + i, left, up[j]);
  }
}

template <bool kWhole>
__global__ void __launch_bounds__(kElementThreads) add_bias_kernel(AddBias a, unsigned runs) {
  const ColumnPlace place = place_of(runs, kElementRun);
  const int left = int(a.width) - place.column;
  const Four bias = load_four<kWhole>(a.bias + place.column, left);
  wait_for_inputs();
  float* y = a.y + place.row * a.ldy + place.column;
  Four v = load_four<kWhole>(y, left);
  GPU_UNROLL
  for (int c = 0; c < 4; ++c) v.at[c] += bias.at[c];
  store_four<kWhole>(y, left, v);
}

template <bool kWhole>
__global__ void __launch_bounds__(kElementThreads) gather_rows_kernel(GatherRows a, unsigned runs) {
  wait_for_inputs();
  const ColumnPlace place = place_of(runs, kElementRun);
  const int32_t from = a.from[place.row];
  if (from < 0 || from >= a.x_rows) return;
  const int left = int(a.width) - place.column;
  const Four v = load_four<kWhole>(a.x + from * a.ldx + place.column, left);
  store_four<kWhole>(a.y + place.row * a.ldy + place.column, left, v);
}

unsigned element_runs(int64_t width, int64_t run) { return unsigned(ceil_div(width, run)); }

// One block per row and run.
dim3 blocks_of(int64_t rows, unsigned runs, const char* name) {
  check_argument(rows * runs < int64_t(1) << 31, name, "rows");
  return dim3(unsigned(rows * runs));
}

void launch_silu(const SiluMultiply& a, bool whole, cudaStream_t stream) {
  const bool many = whole && a.parts.count == 0 && a.rows * element_runs(a.width, kElementRun) > kManyBlocks;
  const unsigned runs = element_runs(a.width, many ? 2 * kElementRun : kElementRun);
  const dim3 grid = blocks_of(a.rows, runs, "silu_multiply"), block(kElementThreads);
  if (!whole) GPU_LAUNCH_EARLY((silu_multiply_kernel<1, false, true>), grid, block, 0, stream, a, runs);
  else if (a.parts.count > 0) GPU_LAUNCH_EARLY((silu_multiply_kernel<1, true, true>), grid, block, 0, stream, a, runs);
  else if (many) GPU_LAUNCH_EARLY((silu_multiply_kernel<2, true, false>), grid, block, 0, stream, a, runs);
  else GPU_LAUNCH_EARLY((silu_multiply_kernel<1, true, false>), grid, block, 0, stream, a, runs);
}

}  // namespace

void embed_tokens(const EmbedTokens& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "embed_tokens", "rows");
  check_argument(a.vocab >= 1 && a.width >= 1 && a.width <= a.ldy && a.width < 1 << 24, "embed_tokens", "width");
  const bool quantised = a.quantised.data != nullptr;
  check_argument(!quantised || (a.quantised.panels != nullptr && a.width % 8 == 0), "embed_tokens", "quantised");
  check_argument(a.last_count >= 0 && (a.last_count == 0 || a.last != nullptr), "embed_tokens", "last");
  if (a.rows == 0) return;
  const unsigned runs = element_runs(a.width, 2 * kElementRun);
  const bool whole = a.width % 4 == 0 && in_fours(a.embedding) && in_fours(a.y, a.ldy);
  const dim3 grid = blocks_of(a.rows, runs, "embed_tokens"), block(kElementThreads);
  // First in a pass: it also waits for what came on another stream, and attention counts on it that earlier passes have ended (stored_is_old).
  if (quantised && in_fours(a.y, a.ldy)) GPU_LAUNCH(embed_quantised_kernel<true>, dim3(unsigned(a.rows)), block, 0, stream, a);
  else if (quantised) GPU_LAUNCH(embed_quantised_kernel<false>, dim3(unsigned(a.rows)), block, 0, stream, a);
  else if (whole) GPU_LAUNCH(embed_kernel<true>, grid, block, 0, stream, a, runs);
  else GPU_LAUNCH(embed_kernel<false>, grid, block, 0, stream, a, runs);
  check_launch("embed_tokens");
}

void silu_multiply(const SiluMultiply& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "silu_multiply", "rows");
  check_argument(a.width >= 1 && 2 * a.width <= a.ldx && a.width <= a.ldy && a.width < 1 << 24, "silu_multiply", "width");
  const bool fits = a.parts.count == 0 || (a.parts.rows == a.rows && a.parts.columns == 2 * a.width);
  check_argument(fits, "silu_multiply", "parts");
  if (a.rows == 0) return;
  const bool rows_whole = in_fours(a.x, a.ldx) && in_fours(a.y, a.ldy) && in_fours(a.kept) && in_fours(a.parts);
  launch_silu(a, a.width % 4 == 0 && rows_whole, stream);
  check_launch("silu_multiply");
}

void add_bias(const AddBias& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "add_bias", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldy && a.width < 1 << 30, "add_bias", "width");
  if (a.rows == 0) return;
  const unsigned runs = element_runs(a.width, kElementRun);
  const dim3 grid = blocks_of(a.rows, runs, "add_bias"), block(kElementThreads);
  const bool whole = a.width % 4 == 0 && in_fours(a.y, a.ldy) && in_fours(a.bias);
  if (whole) GPU_LAUNCH_EARLY(add_bias_kernel<true>, grid, block, 0, stream, a, runs);
  else GPU_LAUNCH_EARLY(add_bias_kernel<false>, grid, block, 0, stream, a, runs);
  check_launch("add_bias");
}

void gather_rows(const GatherRows& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "gather_rows", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy && a.width < 1 << 30, "gather_rows", "width");
  if (a.rows == 0) return;
  const unsigned runs = element_runs(a.width, kElementRun);
  const dim3 grid = blocks_of(a.rows, runs, "gather_rows"), block(kElementThreads);
  const bool whole = a.width % 4 == 0 && in_fours(a.x, a.ldx) && in_fours(a.y, a.ldy);
  if (whole) GPU_LAUNCH(gather_rows_kernel<true>, grid, block, 0, stream, a, runs);
  else GPU_LAUNCH(gather_rows_kernel<false>, grid, block, 0, stream, a, runs);
  check_launch("gather_rows");
}

}  // namespace tandem::cuda
