#include "cuda/rope/rope_store.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;

__device__ void write_pair(bf16* to, int64_t half, float low, float high) {
  if (threadIdx.x >= half) return;
  to[threadIdx.x] = to_bf16(low);
  to[threadIdx.x + half] = to_bf16(high);
}

// One head of one row: read with its bias, kept where asked, normalised where asked. Each thread holds the pair (i, i + dim / 2).
__device__ void load_pair(const RopeStore& a, int64_t column, const float* norm, float& low, float& high) {
  const int64_t half = a.dim / 2, i = threadIdx.x;
  const int64_t row = blockIdx.x;
  auto read = [&](int64_t at) {
    const float x = a.parts.count > 0 ? a.parts.sum(row, at) : a.qkv[row * a.ld + at];
    return x + (a.bias ? a.bias[at] : 0.0f);
  };
  low = i < half ? read(column + i) : 0.0f;
  high = i < half ? read(column + i + half) : 0.0f;
  const int64_t columns = (a.heads + a.kv.kv_heads) * a.dim;
  if (a.qk != nullptr && column < columns) write_pair(a.qk + row * columns + column, half, low, high);
  if (norm == nullptr) return;
  const float scale = rsqrtf(block_sum(low * low + high * high) / float(a.dim) + a.eps);
  if (i >= half) return;
  low *= scale * norm[i];
  high *= scale * norm[i + half];
}

// Block (row, head): heads of q, then of k, then of v.
__global__ void rope_store_kernel(RopeStore a) {
  wait_for_inputs();
  const int64_t head = blockIdx.y, half = a.dim / 2, row = blockIdx.x, position = a.positions[row], slot = a.slots[row];
  const bool is_query = head < a.heads, is_key = !is_query && head < a.heads + a.kv.kv_heads;
  const bool valid = position >= 0 && position < a.table_positions && slot >= 0 && slot < a.kv.pages * kPagePositions;
  float low, high;
  load_pair(a, head * a.dim, is_query ? a.q_norm : is_key ? a.k_norm : nullptr, low, high);
  if ((is_query || is_key) && valid && threadIdx.x < half) {
    const float c = a.cosines[position * half + threadIdx.x], s = a.sines[position * half + threadIdx.x];
    const float x = low;
    low = x * c - high * s;
    high = high * c + x * s;
  }
  if (is_query) {
    write_pair(a.queries + (row * a.heads + head) * a.dim, half, valid ? low : NAN, valid ? high : NAN);
  } else if (valid) {
    const int64_t kv_head = head - a.heads - (is_key ? 0 : a.kv.kv_heads);
    bf16* memory = is_key ? a.kv.keys : a.kv.values;
    write_pair(memory + a.kv.offset(slot / kPagePositions, kv_head, slot % kPagePositions), half, low, high);
  }
}

}  // namespace

void rope_store(const RopeStore& a, cudaStream_t stream) {
  const char* name = "rope_store";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.dim >= 2 && a.dim % 2 == 0 && a.dim <= 2 * kThreads && a.dim == a.kv.dim, name, "dim");
  check_argument(a.heads >= 1 && a.kv.kv_heads >= 1 && a.heads + 2 * a.kv.kv_heads < 1 << 16, name, "heads");
  check_argument(a.ld >= (a.heads + 2 * a.kv.kv_heads) * a.dim, name, "ld");
  check_argument((a.q_norm == nullptr) == (a.k_norm == nullptr), name, "k_norm");
  const bool fits = a.parts.count == 0 || (a.parts.rows == a.rows && a.parts.columns == a.ld);
  check_argument(fits, name, "parts");
  if (a.rows == 0) return;
  const dim3 grid(unsigned(a.rows), unsigned(a.heads + 2 * a.kv.kv_heads));
  GPU_LAUNCH_EARLY(rope_store_kernel, grid, dim3(kThreads), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
