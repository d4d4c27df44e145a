// The KV memory of one layer on the device.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

constexpr int kPagePositions = 16;

// Keys and values alike: [pages][kv_heads][16 positions][dim]; a page of a head is one run of memory.
struct KvLayer {
  bf16* keys;
  bf16* values;
  int64_t pages, kv_heads, dim;

  __host__ __device__ int64_t offset(int64_t page, int64_t kv_head, int64_t position) const {
    return ((page * kv_heads + kv_head) * kPagePositions + position) * dim;
  }
};

}  // namespace tandem::cuda
