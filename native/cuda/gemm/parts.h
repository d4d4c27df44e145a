// A product whose parts of k blocks of their own have computed, before they are added up. What reads the product next adds them as it reads, in
// order, so the sums are those of a product that is whole; a launch less, which in decode costs as much as the work.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

struct Parts {
  const float* data = nullptr;  // [count][rows][columns]
  int64_t count = 0;            // 0: there are none, the product is whole and where it belongs
  int64_t rows = 0, columns = 0;

  __device__ __forceinline__ float sum(int64_t row, int64_t column) const {
    constexpr int kAtOnce = 8;
    const float* at = data + row * columns + column;
    float total = 0;
    for (int64_t first = 0; first < count; first += kAtOnce) {
      float some[kAtOnce];
      GPU_UNROLL
      for (int i = 0; i < kAtOnce; ++i) some[i] = first + i < count ? at[(first + i) * rows * columns] : 0.0f;
      GPU_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < count) total = first + i == 0 ? some[i] : total + some[i];
      }
    }
    return total;
  }
};

// y (+)= the parts; nothing where there are none.
void add_parts(const Parts& parts, float* y, int64_t ldy, bool accumulate, cudaStream_t stream);

}  // namespace tandem::cuda
