// The block types of GGUF files: small whole numbers beside their scales. A row is a whole number of blocks.
#pragma once
#include <cstdint>

#include "model/spec.h"
#include "ops/quantised_matrix.h"

namespace tandem::model {

// What one block holds, and the format that keeps its numbers exactly.
struct BlockTraits {
  int64_t elements, bytes;
  ops::QuantFormat format;
};

bool is_blocks(Stored stored);
// Only of block types.
BlockTraits block_traits(Stored stored);

// `columns` elements of one row, a multiple of the block's. Numbers, scales and minima go to the places of the format's groups;
// `minima` may be null where the format has none.
void unpack_row(Stored stored, const uint8_t* raw, int64_t columns, uint8_t* values, float* scales, float* minima);

// The same row as floats: scale * (number - offset), then + minimum.
void dequantise_row(Stored stored, const uint8_t* raw, int64_t columns, float* out);

}  // namespace tandem::model
