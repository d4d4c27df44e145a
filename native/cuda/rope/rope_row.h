// A row's heads of q, k and v from what a product gave: the sums, the norms and the rotation, in the one order that all kernels keep. Some
// neighbouring threads have a head.
#pragma once
#include "cuda/common/reduce.h"
#include "cuda/gemm/sum_parts.h"
#include "cuda/rope/rope_store.h"

namespace tandem::cuda::rope {

// Threads of a head: by its size alone, as the order of its sum.
constexpr int lanes_of(int64_t dim) { return dim <= 32 ? 4 : dim <= 64 ? 8 : dim <= 128 ? 16 : 32; }

enum class Kind { kQuery, kKey, kValue };

// What a thread has of a head: four pairs (i, i + dim / 2), from i = `pair` on, of which `left` are in the head; none beyond the last head.
struct Share {
  int64_t row;
  int head, column, pair, left;
  Kind kind;
};

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

// What no kernel writes of a thread's share: it may be on its way before the row is there.
struct Constants {
  Four weight[2] = {}, bias[2] = {}, cosine, sine;
  int slot;
  bool valid, normed;
  int turned;  // pairs left to rotate
};

template <bool kWhole>
__device__ __forceinline__ Constants load_constants(const RopeStore& a, const Share& s, int half) {
  Constants c;
  const float* norm = s.kind == Kind::kQuery ? a.q_norm : s.kind == Kind::kKey ? a.k_norm : nullptr;
  c.normed = norm != nullptr;
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    if (norm != nullptr) c.weight[j] = load_four<kWhole>(norm + s.pair + j * half, s.left);
    if (a.bias != nullptr) c.bias[j] = load_four<kWhole>(a.bias + s.column + j * half, s.left);
  }
  // Inputs of the step and a table.
  const int position = __ldcg(a.positions + s.row);
  c.slot = __ldcg(a.slots + s.row);
  c.valid = position >= 0 && position < a.table_positions && c.slot >= 0 && c.slot < a.kv.pages * kPagePositions;
  const int64_t turn = int64_t(c.valid ? position : 0) * half + s.pair;
  c.turned = c.valid && s.kind != Kind::kValue ? s.left : 0;
  c.cosine = load_four<kWhole>(a.cosines + turn, c.turned);
  c.sine = load_four<kWhole>(a.sines + turn, c.turned);
  return c;
}

__device__ __forceinline__ void add_bias(const RopeStore& a, const Constants& c, Four (&pairs)[2]) {
  if (a.bias == nullptr) return;
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) pairs[j].at[i] += c.bias[j].at[i];
  }
}

// Norm and rotation.
template <int kLanes>
__device__ __forceinline__ void finish_pairs(const RopeStore& a, const Constants& c, Four (&pairs)[2]) {
  if (a.q_norm != nullptr) normalise_pairs<kLanes>(a, c.normed, c.weight, pairs);
  if (c.turned > 0) rotate_pairs(c.cosine, c.sine, pairs);
}

}  // namespace tandem::cuda::rope
