// Low-rank adapters beside a product: y[t] += B_a (scale_a * A_a x[t]) for every row t with an adapter a, mixed ranks in one batch
// (grouped as S-LoRA and Punica do). What a row gets depends on the row and its factors alone: the orders of the sums are those of
// lora_sums.h, in every kernel, and B u is added to the product's sum once.
#pragma once
#include <vector>

#include "cuda/common/gpu.h"
#include "cuda/gemm/parts.h"

namespace tandem::cuda {

// Factors of one projection in device memory. Those of a product's own launch (LoraWithin) and of LoraGated begin at
// multiples of 16 bytes.
struct LoraWeights {
  const bf16* a;  // [rank][in]
  const bf16* b;  // [rank][out]: transposed, so that neighbouring threads read neighbouring outputs
  int32_t rank;   // 0 = this adapter leaves the projection as it is
  float scale;
};

struct Lora {
  static constexpr int64_t kMost = 3;

  const LoraWeights* adapters;  // in device memory
  int64_t adapter_count;
  const int32_t* row_adapters;  // rows; an index outside [0, adapter_count) = none
  int64_t rows, in, out;
  int64_t most_rank;  // of all adapters: columns of u
  const bf16* x;      // rows, ldx elements apart
  int64_t ldx;
  float* u;  // [rows][most_rank], scratch
  float* y;  // rows, ldy floats apart
  int64_t ldy;
  // Not null, then rows ldy floats apart of which every one is made: whole[t] = onto[t] + (y[t] + B u), and y is left as it is.
  const float* onto = nullptr;
  float* whole = nullptr;
};

// All throw Error(kRange) naming the argument. Up to kMost at a time by one launch each, of as many rows, adapters and ranks, that neither
// read nor write what another writes. The first two are the halves of lora_add: u alone, and B u added to y.
void lora_shrink(const Lora* all, int64_t count, cudaStream_t stream);
void lora_expand(const Lora* all, int64_t count, cudaStream_t stream);
void lora_add(const Lora* all, int64_t count, cudaStream_t stream);

// Rows of a batch that have one adapter, or none, ascending.
struct alignas(16) LoraTile {
  static constexpr int kRows = 8;

  int32_t adapter = -1;  // -1 = none
  int32_t count = 0;     // 0: it is nobody's
  int32_t unused[2] = {};
  int32_t rows[kRows] = {-1, -1, -1, -1, -1, -1, -1, -1};
};

// At most one that is not full per adapter, and one of rows without.
int64_t lora_most_tiles(int64_t rows, int64_t adapter_count);
// Tiles in the order of their first rows, and empty ones behind them: lora_most_tiles() in all. An index outside [0, adapter_count) = none.
std::vector<LoraTile> lora_tiles(const std::vector<int32_t>& row_adapters, int64_t adapter_count);

// Projections that read the same rows and whose outputs lie in one product: B u of all of them, as one more part of the product, by
// two launches. They go on the stream right behind the product, and the first runs beside that where it may.
struct LoraPart {
  struct Projection {
    const LoraWeights* adapters;  // of all adapters of the batch, as in Lora
    int64_t first, out;           // columns of the part
  };
  static constexpr int kMost = 3;
  static constexpr int64_t kMostRows = 256, kMostRank = 1024, kArrivals = 2;

  Projection projections[kMost];
  int64_t count;
  int64_t adapter_count;
  const LoraTile* tiles;  // of the rows, in device memory: inputs of a step
  int64_t tile_count;
  int64_t rows, in, most_rank;
  const bf16* x;
  int64_t ldx;
  float* u;          // lora_part_floats(): scratch
  int32_t* arrived;  // kArrivals zeros, as they are again afterwards: of a gated product (MatMul::adapters)
  float* part;       // [rows][columns]: B u, or what changes no sum where a row has none
  int64_t columns;
  // What the product behind this one will read: its factors may be fetched to the L2 cache meanwhile (LoraWithin).
  Projection next[kMost] = {};
  int64_t next_count = 0, next_in = 0;
  // The kernel right before on the stream is a product by wgmma with MatMul::beside, of the same rows, that uses nothing written here.
  bool beside = false;
};
// Of `u`.
int64_t lora_part_floats(int64_t rows, int64_t count, int64_t most_rank);
// Throws Error(kRange) naming the argument.
void lora_part(const LoraPart& args, cudaStream_t stream);
void check_lora_part(const LoraPart& args, const char* name);

// Gate and up of few rows with their adapters, and the activation of both: swiglu() (elementwise/swiglu.h) of the product's first half of
// columns and its second, each with what the adapters add.
struct LoraGated {
  LoraPart adapters;  // of two projections, each half of the product's columns, a multiple of 8; `part` is not used
  Parts product;      // of the same rows, at least one part; each part, and `active`, begins at a multiple of 16 (8) bytes
  bf16* active;       // [rows][columns / 2]
};
// Throws Error(kRange) naming the argument. Launches as lora_part() does.
void lora_gated(const LoraGated& args, cudaStream_t stream);

}  // namespace tandem::cuda
