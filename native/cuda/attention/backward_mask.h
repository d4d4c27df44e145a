// Who sees whom in the gradient of attention, whichever instruction multiplies.
#pragma once
#include "cuda/attention/attention_backward.h"

namespace tandem::cuda {

__device__ __forceinline__ bool sees(const PackedToken& query, int64_t q, int64_t key, int key_position, int64_t window) {
  const bool reached = (key >= query.own_first && key <= q) || (key >= query.prefix_first && key < query.prefix_end);
  return reached && (window == 0 || query.position - key_position < window);
}

// Whether a query sees all keys of rows [first, first + 64).
__device__ __forceinline__ bool sees_all(const PackedToken& query, int64_t q, int64_t first, int64_t window) {
  const int64_t end = first + kBackwardTile;
  const bool reached = (first >= query.own_first && end <= q + 1) || (first >= query.prefix_first && end <= query.prefix_end);
  return reached && window == 0;
}

// Whether a row of the tile of queries may see a key of rows [first, first + 64).
__device__ __forceinline__ bool tile_sees(const PackedToken& tile, int64_t tile_first, int64_t first) {
  const int64_t end = first + kBackwardTile;
  const bool own = end > tile.own_first && first < tile_first + kBackwardTile;
  return own || (end > tile.prefix_first && first < tile.prefix_end);
}

}  // namespace tandem::cuda
