// Rows in pieces of four columns, which one load or store of 16 (of bf16: 8) bytes moves: a row's kernel is bound by what is under way at a
// time. kWhole: all pieces lie so. Otherwise each column is moved by itself, of a row's last piece `left` columns; who computes what is the
// same, so the bits are too.
#pragma once
#include "cuda/common/tensor_core.h"

namespace tandem::cuda {

struct Four {
  float at[4];
};

// Whether rows that begin here, `ld` elements apart, are made of whole pieces. Null is.
template <class T>
inline bool in_fours(const T* rows, int64_t ld = 0) {
  return reinterpret_cast<uintptr_t>(rows) % (4 * sizeof(T)) == 0 && ld % 4 == 0;
}

// Zeros where nothing is left.
template <bool kWhole>
__device__ __forceinline__ Four load_four(const float* from, int left) {
  Four v{};
  if constexpr (kWhole) {
    if (left <= 0) return v;
    const float4 all = *reinterpret_cast<const float4*>(from);
    v = {all.x, all.y, all.z, all.w};
  } else {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < left) v.at[i] = from[i];
    }
  }
  return v;
}

template <bool kWhole>
__device__ __forceinline__ Four load_four(const bf16* from, int left) {
  Four v{};
  if constexpr (kWhole) {
    if (left <= 0) return v;
    const uint64_t all = *reinterpret_cast<const uint64_t*>(from);
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) v.at[i] = to_float(bf16{uint16_t(all >> (16 * i))});
  } else {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < left) v.at[i] = to_float(from[i]);
    }
  }
  return v;
}

template <bool kWhole>
__device__ __forceinline__ void store_four(float* to, int left, const Four& v) {
  if constexpr (kWhole) {
    if (left > 0) *reinterpret_cast<float4*>(to) = float4{v.at[0], v.at[1], v.at[2], v.at[3]};
  } else {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < left) to[i] = v.at[i];
    }
  }
}

// Rounded.
template <bool kWhole>
__device__ __forceinline__ void store_four(bf16* to, int left, const Four& v) {
  const uint32_t low = pack_rounded(v.at[0], v.at[1]), high = pack_rounded(v.at[2], v.at[3]);
  const uint64_t all = uint64_t(high) << 32 | low;
  if constexpr (kWhole) {
    if (left > 0) *reinterpret_cast<uint64_t*>(to) = all;
  } else {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i < left) to[i] = bf16{uint16_t(all >> (16 * i))};
    }
  }
}

// A block's row, and the first of its thread's columns: blocks of a row follow each other, `runs` of them.
struct ColumnPlace {
  int64_t row;
  int column;
};

__device__ __forceinline__ ColumnPlace place_of(unsigned runs, int block_columns) {
  const unsigned row = blockIdx.x / runs, run = blockIdx.x - row * runs;
  return {int64_t(row), int(run) * block_columns + 4 * int(threadIdx.x)};
}

}  // namespace tandem::cuda
