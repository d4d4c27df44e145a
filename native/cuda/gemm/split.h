// How a product's k is cut in parts, whichever kernel computes it: a function of n and k alone.
#pragma once
#include "cuda/gemm/matmul.h"

namespace tandem::cuda {

constexpr int kSplitDepth = 64;  // a tile has so many k
constexpr int kSplitTiles = 4;   // parts are whole groups of so many tiles

struct Split {
  int tiles;     // of a part; the last may have fewer
  int parts;     // added in order
  bool in_grid;  // blocks of their own for each part, into the workspace [part][m][n]; otherwise one block adds all parts
};

Split split_of(int64_t m, int64_t n, int64_t k);

// The parts in the workspace, added in order, to y; unless they are to be left.
void add_parts(const MatMul& args, const Split& split, cudaStream_t stream);
// Some parts to the product's y, or onto what it is added to.
void add_parts(const MatMul& args, const Parts& parts, cudaStream_t stream);

}  // namespace tandem::cuda
