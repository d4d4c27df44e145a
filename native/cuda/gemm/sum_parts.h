// Reading a product that is in parts.
#pragma once
#include "cuda/common/fours.h"
#include "cuda/gemm/parts.h"

namespace tandem::cuda {

inline bool in_fours(const Parts& parts) { return in_fours(parts.data, parts.columns); }

// The pointer moves on from one part to the next, as it is written: the compiler would multiply for every part, which is most of the code of a
// kernel that is short.
#ifdef TANDEM_GPU_EMULATION
inline void keep(const float*&) {}
#else
__device__ __forceinline__ void keep(const float*& pointer) {
  asm volatile("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
}
#endif

// Pieces of a row of the product, at some columns, left[i] columns of each: their parts added in order. The loads of kAtOnce parts are under
// way at a time.
template <bool kWhole, int kAtOnce, int kFours>
__device__ __forceinline__ void sum_parts(const Parts& parts, int64_t row, const int (&column)[kFours], const int (&left)[kFours],
                                          Four (&total)[kFours]) {
  const int64_t apart = parts.rows * parts.columns;
  const int count = int(parts.count);
  const float* from = parts.data + row * parts.columns + column[0];
  for (int first = 0; first < count; first += kAtOnce) {
    Four some[kAtOnce][kFours];
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      GPU_UNROLL
      for (int j = 0; j < kFours; ++j) {
        some[i][j] = load_four<kWhole>(from + (column[j] - column[0]), first + i < count ? left[j] : 0);
      }
      from += apart;
      keep(from);
    }
    GPU_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= count) break;
      GPU_UNROLL
      for (int j = 0; j < kFours; ++j) {
        GPU_UNROLL
        for (int c = 0; c < 4; ++c) total[j].at[c] = first + i == 0 ? some[i][j].at[c] : total[j].at[c] + some[i][j].at[c];
      }
    }
  }
}

}  // namespace tandem::cuda
