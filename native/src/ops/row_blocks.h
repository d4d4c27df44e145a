// Rows of a product, a block at a time: their inputs stay in a core's cache while panels of weights pass by. Part of no result.
#pragma once
#include <algorithm>
#include <cstdint>

namespace tandem::ops {

// Blocks of nearly equal height, `most` rows at most: visit(first row, rows).
template <typename Visit>
void for_row_blocks(int64_t m, int64_t most, const Visit& visit) {
  const int64_t blocks = (m - 1) / most + 1;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = block * m / blocks;
    visit(row, (block + 1) * m / blocks - row);
  }
}

// The outputs of two panels for a block of rows, side by side, while they are used: 128 KiB of a thread's stack.
struct PairedSums {
  static constexpr int64_t kCount = 32768;
  // Of so many rows; panels have 64 outputs at most.
  static int64_t rows(int64_t most, int64_t panel) { return std::min(most, kCount / (2 * panel)); }
  alignas(64) float values[kCount];
};

}  // namespace tandem::ops
