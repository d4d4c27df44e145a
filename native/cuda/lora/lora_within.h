// What the adapters of few rows add to a product (LoraPart), by the first blocks of the product's own launch. Blocks behind it come when the
// product leaves, for it fills each multiprocessor's shared memory; these have theirs of it, and work while the others bring weights.
#pragma once
#include "cuda/lora/lora.h"

namespace tandem::cuda {

// Parts that product's blocks can make, and how they share them.
struct LoraWithin {
  static constexpr int kMostRows = 64, kMostRank = 256;
  static constexpr int kThreads = 128;  // the first ones of a block; others have nothing to do
  static constexpr int kTileRows = 8;

  LoraPart part;
  int blocks;                      // the first of the launch
  int slice;                       // outputs of a block's projection, whole vectors
  int slices_to[LoraPart::kMost];  // of a tile: those of the projections up to this one
  int per_tile;                    // of all
};

bool lora_fits_within(const LoraPart& part);
// With fewer blocks than this one would make too many tiles, one after the other.
int64_t lora_least_within(const LoraPart& part);
// `free` blocks, if there are any, begin together with the product's last ones. Throws Error(kRange) naming the argument.
LoraWithin lora_within(const LoraPart& part, int64_t free);

}  // namespace tandem::cuda
