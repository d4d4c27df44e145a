#include "cuda/elementwise/row_backward.h"

#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadThreads = 128;

__global__ void __launch_bounds__(kThreads) narrow_kernel(Narrow a) {
  const float* x = a.x + int64_t(blockIdx.x) * a.ldx;
  bf16* y = a.y + int64_t(blockIdx.x) * a.ldy;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) y[i] = to_bf16(a.bias ? x[i] + a.bias[i] : x[i]);
}

// With r = 1 / sqrt(mean(x^2) + eps) and g = weight * d: dx = r * g - x * r^3 / n * sum(g * x).
__global__ void __launch_bounds__(kThreads) rms_norm_backward_kernel(RmsNormBackward a) {
  const int64_t index = blockIdx.x, row = a.at ? a.at[index] : index;
  if (row < 0) return;
  const float factor = a.factors ? a.factors[index] : 1.0f;
  const float* x = a.x + row * a.ldx;
  const float* d = a.d + index * a.ldd;
  float* dx = a.dx + row * a.lddx;
  float squares = 0, dot = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    squares = fmaf(x[i], x[i], squares);
    dot = fmaf(a.weight[i] * (factor * d[i]), x[i], dot);
  }
  const float r = rsqrtf(block_sum(squares) / float(a.width) + a.eps);
  const float along = block_sum(dot) * r * r * r / float(a.width);
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) dx[i] += a.weight[i] * (factor * d[i]) * r - x[i] * along;
}

__global__ void __launch_bounds__(kThreads) silu_backward_kernel(SiluBackward a) {
  const int64_t row = blockIdx.x;
  const bf16* x = a.x + row * 2 * a.width;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    const float gate = to_float(x[i]), up = to_float(x[a.width + i]), sigmoid = 1.0f / (1.0f + expf(-gate)), silu = gate * sigmoid;
    if (a.y != nullptr) a.y[row * a.width + i] = to_bf16(silu * up);
    if (a.d == nullptr) continue;
    const float d = a.d[row * a.ldd + i];
    bf16* dx = a.dx + row * 2 * a.width;
    // silu' = sigmoid + silu * (1 - sigmoid)
    dx[i] = to_bf16(d * up * fmaf(silu, 1.0f - sigmoid, sigmoid));
    dx[a.width + i] = to_bf16(d * silu);
  }
}

// Block (row, head): heads of q, then of k, then of v. Each thread holds the pair (i, i + dim / 2).
__global__ void __launch_bounds__(kHeadThreads) rope_backward_kernel(RopeBackward a) {
  const int64_t row = blockIdx.x, head = blockIdx.y, half = a.dim / 2, i = threadIdx.x;
  const bool is_query = head < a.heads, is_value = head >= a.heads + a.kv_heads, inside = i < half;
  const int64_t kv_head = head - a.heads - (is_value ? a.kv_heads : 0);
  const float* from = is_query ? a.dq + (row * a.heads + head) * a.dim : (is_value ? a.dv : a.dk) + (row * a.kv_heads + kv_head) * a.dim;
  float low = inside ? from[i] : 0.0f, high = inside ? from[i + half] : 0.0f;
  const int64_t position = a.positions[row];
  if (!is_value && inside && position >= 0 && position < a.table_positions) {
    const float c = a.cosines[position * half + i], s = a.sines[position * half + i], d = low;
    low = d * c + high * s;
    high = high * c - d * s;
  }
  const float* weight = is_value ? nullptr : is_query ? a.q_norm : a.k_norm;
  if (weight != nullptr) {
    const bf16* x = a.qk + (row * (a.heads + a.kv_heads) + head) * a.dim;
    const float x_low = inside ? to_float(x[i]) : 0.0f, x_high = inside ? to_float(x[i + half]) : 0.0f;
    const float g_low = inside ? weight[i] * low : 0.0f, g_high = inside ? weight[i + half] * high : 0.0f;
    const float r = rsqrtf(block_sum(x_low * x_low + x_high * x_high) / float(a.dim) + a.eps);
    const float along = block_sum(g_low * x_low + g_high * x_high) * r * r * r / float(a.dim);
    low = g_low * r - x_low * along;
    high = g_high * r - x_high * along;
  }
  if (!inside) return;
  bf16* d = a.d + (row * (a.heads + 2 * a.kv_heads) + head) * a.dim;
  d[i] = to_bf16(low);
  d[i + half] = to_bf16(high);
}

__device__ __forceinline__ bool is_slot(const KvLayer& kv, int64_t slot) { return slot >= 0 && slot < kv.pages * kPagePositions; }

// Block (pair, kv head).
__global__ void __launch_bounds__(kHeadThreads) copy_slots_kernel(KvLayer kv, const SlotCopy* copies) {
  const SlotCopy copy = copies[blockIdx.x];
  if (!is_slot(kv, copy.from) || !is_slot(kv, copy.to)) return;
  const int64_t from = kv.offset(copy.from / kPagePositions, blockIdx.y, copy.from % kPagePositions);
  const int64_t to = kv.offset(copy.to / kPagePositions, blockIdx.y, copy.to % kPagePositions);
  for (int64_t i = threadIdx.x; i < kv.dim; i += kHeadThreads) {
    kv.keys[to + i] = kv.keys[from + i];
    kv.values[to + i] = kv.values[from + i];
  }
}

// Block (row, kv head).
__global__ void __launch_bounds__(kHeadThreads) gather_slots_kernel(GatherSlots a) {
  const int64_t slot = a.slots[blockIdx.x], to = (int64_t(blockIdx.x) * a.kv.kv_heads + blockIdx.y) * a.kv.dim;
  const bool valid = is_slot(a.kv, slot);
  const int64_t from = valid ? a.kv.offset(slot / kPagePositions, blockIdx.y, slot % kPagePositions) : 0;
  for (int64_t i = threadIdx.x; i < a.kv.dim; i += kHeadThreads) {
    a.keys[to + i] = valid ? a.kv.keys[from + i] : bf16{0};
    a.values[to + i] = valid ? a.kv.values[from + i] : bf16{0};
  }
}

void check_rows(int64_t rows, const char* name) { check_argument(rows >= 0 && rows < 1 << 30, name, "rows"); }

void check_kv(const KvLayer& kv, const char* name) {
  check_argument(kv.kv_heads >= 1 && kv.kv_heads < 1 << 16 && kv.dim >= 1, name, "kv_heads");
}

}  // namespace

void narrow(const Narrow& a, cudaStream_t stream) {
  check_rows(a.rows, "narrow");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldy, "narrow", "width");
  if (a.rows == 0) return;
  GPU_LAUNCH(narrow_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("narrow");
}

void rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  check_rows(a.rows, "rms_norm_backward");
  check_argument(a.width >= 1 && a.width <= a.ldx && a.width <= a.ldd && a.width <= a.lddx, "rms_norm_backward", "width");
  check_argument(a.eps > 0, "rms_norm_backward", "eps");
  if (a.rows == 0) return;
  GPU_LAUNCH(rms_norm_backward_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("rms_norm_backward");
}

void silu_multiply_backward(const SiluBackward& a, cudaStream_t stream) {
  check_rows(a.rows, "silu_multiply_backward");
  check_argument(a.width >= 1 && (a.d == nullptr || a.width <= a.ldd), "silu_multiply_backward", "width");
  if (a.rows == 0) return;
  GPU_LAUNCH(silu_backward_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("silu_multiply_backward");
}

void rope_backward(const RopeBackward& a, cudaStream_t stream) {
  const char* name = "rope_backward";
  check_rows(a.rows, name);
  check_argument(a.dim >= 2 && a.dim % 2 == 0 && a.dim <= 2 * kHeadThreads, name, "dim");
  check_argument(a.heads >= 1 && a.kv_heads >= 1 && a.heads + 2 * a.kv_heads < 1 << 16, name, "heads");
  check_argument((a.q_norm == nullptr) == (a.k_norm == nullptr), name, "k_norm");
  check_argument(a.q_norm == nullptr || a.qk != nullptr, name, "qk");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(a.rows), unsigned(a.heads + 2 * a.kv_heads));
  GPU_LAUNCH(rope_backward_kernel, grid, dim3(kHeadThreads), 0, stream, a);
  check_launch(name);
}

void copy_slots(const KvLayer& kv, const SlotCopy* copies, int64_t count, cudaStream_t stream) {
  check_rows(count, "copy_slots");
  check_kv(kv, "copy_slots");
  if (count == 0) return;
  GPU_LAUNCH(copy_slots_kernel, dim3(unsigned(count), unsigned(kv.kv_heads)), dim3(kHeadThreads), 0, stream, kv, copies);
  check_launch("copy_slots");
}

void gather_slots(const GatherSlots& a, cudaStream_t stream) {
  check_rows(a.rows, "gather_slots");
  check_kv(a.kv, "gather_slots");
  if (a.rows == 0) return;
  GPU_LAUNCH(gather_slots_kernel, dim3(unsigned(a.rows), unsigned(a.kv.kv_heads)), dim3(kHeadThreads), 0, stream, a);
  check_launch("gather_slots");
}

}  // namespace tandem::cuda
