#include "cuda/rope/rope_store.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"
#include "cuda/gemm/sum_parts.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostDim = 256;

enum class Kind { kQuery, kKey, kValue };

// What a thread has of a head: four pairs (i, i + dim / 2), from i = `pair` on, of which `left` are in the head; none beyond the last head.
struct Share {
  int64_t row;
  int head, column, pair, left;
  Kind kind;
};

template <int kLanes>
__device__ __forceinline__ Share share_of(const RopeStore& a, unsigned runs) {
  constexpr int kHeads = kThreads / kLanes;
  const unsigned row = blockIdx.x / runs;
  Share s;
  s.row = row;
  s.head = int(blockIdx.x - row * runs) * kHeads + int(threadIdx.x) / kLanes;
  s.pair = 4 * (int(threadIdx.x) % kLanes);
  const int queries = int(a.heads), keys = int(a.kv.kv_heads);
  s.left = s.head < queries + 2 * keys ? int(a.dim) / 2 - s.pair : 0;
  s.column = s.head * int(a.dim) + s.pair;
  s.kind = s.head < queries ? Kind::kQuery : s.head < queries + keys ? Kind::kKey : Kind::kValue;
  return s;
}

template <bool kWhole>
__device__ __forceinline__ void store_pairs(bf16* to, const Share& s, int half, const Four (&pairs)[2]) {
  store_four<kWhole>(to, s.left, pairs[0]);
  store_four<kWhole>(to + half, s.left, pairs[1]);
}

// kAtOnce: parts whose loads are under way at a time; 0, there are none.
template <bool kWhole, int kAtOnce>
__device__ __forceinline__ void load_pairs(const RopeStore& a, const Share& s, int half, Four (&pairs)[2]) {
  const int column[2] = {s.column, s.column + half}, left[2] = {s.left, s.left};
  if constexpr (kAtOnce > 0) {
    if (a.parts.count > 0) return sum_parts<kWhole, kAtOnce>(a.parts, s.row, column, left, pairs);
  }
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) pairs[j] = load_four<kWhole>(a.qkv + s.row * a.ld + column[j], left[j]);
}

// The norm of a head, whose share all kLanes neighbours have; not wanted: of a head beside one that has a norm.
template <int kLanes>
__device__ __forceinline__ void normalise_pairs(const RopeStore& a, bool wanted, const Four (&weight)[2], Four (&pairs)[2]) {
  float squares = 0;
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) squares = fmaf(pairs[j].at[c], pairs[j].at[c], squares);
  }
  const float scale = rsqrtf(group_sum<kLanes>(squares) / float(a.dim) + a.eps);
  if (!wanted) return;
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    GPU_UNROLL
    for (int c = 0; c < 4; ++c) pairs[j].at[c] *= scale * weight[j].at[c];
  }
}

__device__ __forceinline__ void rotate_pairs(const Four& cosine, const Four& sine, Four (&pairs)[2]) {
  GPU_UNROLL
  for (int c = 0; c < 4; ++c) {
    const float x = pairs[0].at[c], y = pairs[1].at[c];
    pairs[0].at[c] = x * cosine.at[c] - y * sine.at[c];
    pairs[1].at[c] = y * cosine.at[c] + x * sine.at[c];
  }
}

// To the queries, or into the pages; of a row without a place NaN queries and no more.
template <bool kWhole>
__device__ __forceinline__ void store_share(const RopeStore& a, const Share& s, int half, int slot, bool valid, Four (&pairs)[2]) {
  bf16* to = a.queries + s.row * a.heads * a.dim + s.column;
  if (s.kind != Kind::kQuery) {
    if (!valid) return;
    const bool key = s.kind == Kind::kKey;
    const int kv_head = s.head - int(a.heads) - (key ? 0 : int(a.kv.kv_heads));
    to = (key ? a.kv.keys : a.kv.values) + a.kv.offset(slot / kPagePositions, kv_head, slot % kPagePositions) + s.pair;
  }
  const Four nan{NAN, NAN, NAN, NAN};
  if (!valid) pairs[0] = pairs[1] = nan;
  store_pairs<kWhole>(to, s, half, pairs);
}

// kLanes threads have a head; the heads of a row, of q, then of k, then of v, are `runs` blocks beside each other. What no kernel writes is on
// its way before the row is there.
template <int kLanes, bool kWhole, int kAtOnce>
__global__ void __launch_bounds__(kThreads) rope_store_kernel(RopeStore a, unsigned runs) {
  const Share s = share_of<kLanes>(a, runs);
  const int half = int(a.dim) / 2;
  const float* norm = s.kind == Kind::kQuery ? a.q_norm : s.kind == Kind::kKey ? a.k_norm : nullptr;
  Four weight[2] = {}, bias[2] = {}, pairs[2] = {};
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    if (norm != nullptr) weight[j] = load_four<kWhole>(norm + s.pair + j * half, s.left);
    if (a.bias != nullptr) bias[j] = load_four<kWhole>(a.bias + s.column + j * half, s.left);
  }
  // Inputs of the step and a table, which no kernel writes.
  const int position = __ldcg(a.positions + s.row), slot = __ldcg(a.slots + s.row);
  const bool valid = position >= 0 && position < a.table_positions && slot >= 0 && slot < a.kv.pages * kPagePositions;
  const int64_t turn = int64_t(valid ? position : 0) * half + s.pair;
  const int turned = valid && s.kind != Kind::kValue ? s.left : 0;
  const Four cosine = load_four<kWhole>(a.cosines + turn, turned), sine = load_four<kWhole>(a.sines + turn, turned);
  wait_for_inputs();
  load_pairs<kWhole, kAtOnce>(a, s, half, pairs);
  if (a.bias != nullptr) {
    GPU_UNROLL
    for (int j = 0; j < 2; ++j) {
      GPU_UNROLL
      for (int c = 0; c < 4; ++c) pairs[j].at[c] += bias[j].at[c];
    }
  }
  const int64_t kept_heads = a.heads + a.kv.kv_heads;
  if (a.qk != nullptr && s.kind != Kind::kValue) store_pairs<kWhole>(a.qk + s.row * kept_heads * a.dim + s.column, s, half, pairs);
  if (a.q_norm != nullptr) normalise_pairs<kLanes>(a, norm != nullptr, weight, pairs);
  if (turned > 0) rotate_pairs(cosine, sine, pairs);
  store_share<kWhole>(a, s, half, slot, valid, pairs);
}

template <int kLanes>
void launch_rope_store(const RopeStore& a, bool whole, cudaStream_t stream) {
  const int64_t runs = ceil_div(a.heads + 2 * a.kv.kv_heads, kThreads / kLanes);
  check_argument(a.rows * runs < int64_t(1) << 31, "rope_store", "rows");
  const dim3 grid(unsigned(a.rows * runs)), block(kThreads);
  // Loads of few parts are few instructions.
  if (!whole) GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, false, 8>), grid, block, 0, stream, a, unsigned(runs));
  else if (a.parts.count > 4) GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, true, 8>), grid, block, 0, stream, a, unsigned(runs));
  else if (a.parts.count > 0) GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, true, 4>), grid, block, 0, stream, a, unsigned(runs));
  else GPU_LAUNCH_EARLY((rope_store_kernel<kLanes, true, 0>), grid, block, 0, stream, a, unsigned(runs));
}

bool lies_in_fours(const RopeStore& a) {
  const bool read = in_fours(a.qkv, a.ld) && in_fours(a.parts) && in_fours(a.bias) && in_fours(a.q_norm) && in_fours(a.k_norm);
  const bool written = in_fours(a.queries) && in_fours(a.kv.keys) && in_fours(a.kv.values) && in_fours(a.qk);
  return a.dim % 8 == 0 && read && written && in_fours(a.cosines) && in_fours(a.sines);
}

}  // namespace

void rope_store(const RopeStore& a, cudaStream_t stream) {
  const char* name = "rope_store";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.dim >= 2 && a.dim % 2 == 0 && a.dim <= kMostDim && a.dim == a.kv.dim, name, "dim");
  check_argument(a.heads >= 1 && a.kv.kv_heads >= 1 && a.heads + 2 * a.kv.kv_heads < 1 << 16, name, "heads");
  check_argument(a.ld >= (a.heads + 2 * a.kv.kv_heads) * a.dim, name, "ld");
  check_argument((a.q_norm == nullptr) == (a.k_norm == nullptr), name, "k_norm");
  const bool fits = a.parts.count == 0 || (a.parts.rows == a.rows && a.parts.columns == a.ld);
  check_argument(fits, name, "parts");
  if (a.rows == 0) return;
  const bool whole = lies_in_fours(a);
  // By the size of a head alone, as the order of its sum.
  if (a.dim <= 32) launch_rope_store<4>(a, whole, stream);
  else if (a.dim <= 64) launch_rope_store<8>(a, whole, stream);
  else if (a.dim <= 128) launch_rope_store<16>(a, whole, stream);
  else launch_rope_store<32>(a, whole, stream);
  check_launch(name);
}

}  // namespace tandem::cuda
