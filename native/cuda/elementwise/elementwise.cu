#include "cuda/elementwise/elementwise.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/elementwise/swiglu.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
// Columns of a row that one thread takes where several blocks share the row.
constexpr int kRunColumns = 2;

__device__ int32_t token_of(const EmbedTokens& a, int64_t row) {
  const int32_t token = a.tokens[row];
  if (token >= -1) return token;
  const int64_t place = -2 - int64_t(token);
  return place < a.last_count ? a.last[place] : -1;
}

__global__ void embed_kernel(EmbedTokens a) {
  wait_for_inputs();
  const int32_t token = token_of(a, blockIdx.x);
  const bool valid = token >= 0 && token < a.vocab;
  const bf16* from = a.embedding + (valid ? int64_t(token) * a.width : 0);
  float* y = a.y + int64_t(blockIdx.x) * a.ldy;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) y[i] = valid ? to_float(from[i]) : NAN;
}

__global__ void embed_quantised_kernel(EmbedTokens a) {
  wait_for_inputs();
  const int32_t token = token_of(a, blockIdx.x);
  const bool valid = token >= 0 && token < a.vocab;
  const QuantPanel panel = a.quantised.panels[valid ? token / kQuantPanel : 0];
  const uint8_t* head = a.quantised.data + panel.first_byte;
  float* y = a.y + int64_t(blockIdx.x) * a.ldy;
  for (int64_t k = int64_t(threadIdx.x) * 8; k < a.width; k += kThreads * 8) {
    bf16 weights[8] = {};
    if (valid) dequantise_8(panel, head, head + panel.head_bytes(), token % kQuantPanel, int(k), weights);
    for (int i = 0; i < 8; ++i) y[k + i] = valid ? to_float(weights[i]) : NAN;
  }
}

// Block (row, run of columns).
__global__ void silu_multiply_kernel(SiluMultiply a) {
  wait_for_inputs();
  const int64_t row = blockIdx.x, first = int64_t(blockIdx.y) * kRunColumns * kThreads;
  const float* x = a.x + row * a.ldx;
  bf16* y = a.y + row * a.ldy;
  GPU_UNROLL
  for (int j = 0; j < kRunColumns; ++j) {
    const int64_t i = first + j * kThreads + threadIdx.x;
    if (i >= a.width) continue;
    const float gate = a.parts.count > 0 ? a.parts.sum(row, i) : x[i];
    const float up = a.parts.count > 0 ? a.parts.sum(row, a.width + i) : x[a.width + i];
    y[i] = to_bf16(swiglu(gate, up));
    if (a.kept == nullptr) continue;
    bf16* kept = a.kept + row * 2 * a.width;
    kept[i] = to_bf16(gate);
    kept[a.width + i] = to_bf16(up);
  }
}

__global__ void add_bias_kernel(AddBias a) {
  wait_for_inputs();
  float* y = a.y + int64_t(blockIdx.x) * a.ldy;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) y[i] += a.bias[i];
}

__global__ void gather_rows_kernel(GatherRows a) {
  wait_for_inputs();
  const int32_t from = a.from[blockIdx.x];
  if (from < 0 || from >= a.x_rows) return;
  const float* x = a.x + from * a.ldx;
  float* y = a.y + int64_t(blockIdx.x) * a.ldy;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) y[i] = x[i];
}

}  // namespace

void embed_tokens(const EmbedTokens& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "embed_tokens", "rows");
  check_argument(a.vocab >= 1 && a.width >= 1 && a.width <= a.ldy, "embed_tokens", "width");
  const bool quantised = a.quantised.data != nullptr;
  check_argument(!quantised || (a.quantised.panels != nullptr && a.width % 8 == 0), "embed_tokens", "quantised");
  check_argument(a.last_count >= 0 && (a.last_count == 0 || a.last != nullptr), "embed_tokens", "last");
  if (a.rows == 0) return;
  // First in a pass: it also waits for what came on another stream.
  if (quantised) GPU_LAUNCH(embed_quantised_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  else GPU_LAUNCH(embed_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("embed_tokens");
}

void silu_multiply(const SiluMultiply& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "silu_multiply", "rows");
  check_argument(a.width >= 1 && 2 * a.width <= a.ldx && a.width <= a.ldy && a.width < 1 << 24, "silu_multiply", "width");
  const bool fits = a.parts.count == 0 || (a.parts.rows == a.rows && a.parts.columns == 2 * a.width);
  check_argument(fits, "silu_multiply", "parts");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(a.rows), unsigned(ceil_div(a.width, kRunColumns * kThreads)));
  GPU_LAUNCH_EARLY(silu_multiply_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch("silu_multiply");
}

void add_bias(const AddBias& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "add_bias", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldy, "add_bias", "width");
  if (a.rows == 0) return;
  GPU_LAUNCH_EARLY(add_bias_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("add_bias");
}

void gather_rows(const GatherRows& a, cudaStream_t stream) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, "gather_rows", "rows");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy, "gather_rows", "width");
  if (a.rows == 0) return;
  GPU_LAUNCH(gather_rows_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("gather_rows");
}

}  // namespace tandem::cuda
