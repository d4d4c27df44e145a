// What the adapters of few rows add to a product (LoraPart), by warps of the product's own blocks, which multiply nothing: so A x takes no
// block's place, and all of it is made once. A warp makes pieces of A x, eight ranks of one of the segments that lora_sums.h adds up, for
// two of a tile of rows with one adapter; those of blocks that have outputs of the product's last part then wait until all pieces are there,
// and make B u of these outputs.
#pragma once
#include "cuda/lora/lora.h"

namespace tandem::cuda {

struct LoraAlong {
  static constexpr int kMostRows = 64, kMostRank = 256;
  static constexpr int kTileRows = 4;
  // Of a piece, [rank][row], and of all pieces: [tile][projection][eight ranks][segment].
  static constexpr int kPieceFloats = 8 * kTileRows;
  // LoraPart::arrived: pieces of each tile; warps that have added. Zeros, as they are again afterwards.
  static constexpr int kCounters = kMostRows + 1;

  LoraPart part;  // u has the pieces
  int makers;     // warps that make pieces: of the first blocks, one after the other
  int adders;     // that add
};

bool lora_fits_along(const LoraPart& part);
// Floats of LoraPart::u.
int64_t lora_along_floats(const LoraPart& part);
// By blocks of so many such warps each; `adding` of the blocks add. Throws Error(kRange) naming the argument.
LoraAlong lora_along(const LoraPart& part, int64_t blocks, int64_t adding, int warps);

}  // namespace tandem::cuda
