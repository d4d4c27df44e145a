// A product whose parts of k blocks of their own have computed, before they are added up. What reads the product next adds them as it reads, in
// order (sum_parts.h), so the sums are those of a product that is whole; a launch less, which in decode costs as much as the work.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

struct Parts {
  const float* data = nullptr;  // [count][rows][columns]
  int64_t count = 0;            // 0: there are none, the product is whole and where it belongs
  int64_t rows = 0, columns = 0;
};

// y (+)= the parts; nothing where there are none.
void add_parts(const Parts& parts, float* y, int64_t ldy, bool accumulate, cudaStream_t stream);

}  // namespace tandem::cuda
