// Mixtures of experts: a row goes to `used` of the experts, each of which multiplies its rows together. A row under one of its experts is a
// pair, number row * used + i for the i-th of its experts (ascending). Pairs lie where their numbers say; `order` has them by expert, cut in
// tiles. Which pairs share a tile, and in what order, changes no bit of a pair.
#pragma once
#include "cuda/experts/expert_variants.h"
#include "cuda/gemm/parts.h"
#include "cuda/gemm/quant_weights.h"

namespace tandem::cuda {

// Pairs order[first] to order[first + count) of one expert; count 0: there is nothing to do.
struct ExpertTile {
  int32_t expert, first, count;
};

// Most pairs of a tile where so many are shared out to experts, and most tiles that they make.
int64_t expert_tile_pairs(int64_t pairs, int64_t experts);
int64_t expert_tiles(int64_t pairs, int64_t experts);
// For every number of pairs up to that.
int64_t most_expert_tiles(int64_t most_pairs, int64_t experts);

constexpr int64_t kMostExperts = 4096;

// Which experts a row goes to, and in what proportions: the `used` largest of the router's logits, of equal ones the first; ascending by
// index. The weights are a softmax over all experts or, with `normalise`, over the chosen ones (softmax, top-k, renormalisation of Qwen3-MoE and
// Mixtral). Where a logit is no number the choice is still `used` different experts, and no weight is a number.
struct RouteExperts {
  const float* logits;  // rows, ld floats apart
  int64_t ld;
  const int32_t* slots;         // rows; below 0: nobody's row, which goes nowhere; null: all are somebody's
  int64_t rows, experts, used;  // 1 <= used <= experts <= kMostExperts
  bool normalise;
  int32_t* chosen;    // [rows][used]; of nobody's row -1
  float* weights;     // [rows][used]
  int32_t* order;     // [rows * used]; -1 behind the last
  ExpertTile* tiles;  // [expert_tiles(rows * used, experts)]
  Parts parts = {};   // instead of the logits, where there are any
};
void route_experts(const RouteExperts& args, cudaStream_t stream);

// The gradient of all logits, given that of the weights; and zeros up to ld_d.
struct RouteExpertsBackward {
  const float* logits;  // rows, ld floats apart
  int64_t ld;
  const int32_t* chosen;   // [rows][used]
  const float* weights;    // [rows][used]
  const float* d_weights;  // [rows][used]
  int64_t rows, experts, used;
  bool normalise;
  bf16* d_logits;  // rows, ld_d elements apart
  int64_t ld_d;
};
void route_experts_backward(const RouteExpertsBackward& args, cudaStream_t stream);

// y[i] = x[order[i] / shared], and nothing where that is -1.
struct GatherPairs {
  const bf16* x;  // rows, ldx elements apart; 16-byte aligned, ldx a multiple of 8
  int64_t ldx;
  int64_t shared;
  const int32_t* order;
  int64_t pairs, width;  // width a multiple of 8
  bf16* y;               // [pairs][width], 16-byte aligned
};
void gather_pairs(const GatherPairs& args, cudaStream_t stream);

// Per pair y[pair] = w[its expert] . x[pair / shared], by the chain of products of matmul.h in one part. On the way back
// y[pair] = x[pair / shared] . w[its expert]. An expert's gate and up lie row by row by turns: those of gate are outputs 2 i, of up 2 i + 1.
struct ExpertsMatMul {
  const bf16* x;  // rows, ldx elements apart; 16-byte aligned, ldx a multiple of 8
  int64_t ldx;
  int64_t shared;  // so many pairs, one after the other, read the same row
  int64_t pairs;
  const int32_t* order;
  const ExpertTile* tiles;
  const bf16* w;  // [experts][n][k], 16-byte aligned, k a multiple of 8; not read where there are quantised weights
  int64_t experts, n, k;
  float* y;  // pairs, ldy floats apart
  int64_t ldy;
  QuantWeights quantised = {};  // each expert's from a panel of its own on
  // Instead of y: [pairs][n / 2], swiglu() (elementwise/swiglu.h) of gate and up; n is a multiple of 4. And both rounded, [pairs][n];
  // null: not wanted.
  bf16 *gated = nullptr, *kept = nullptr;
  // By wgmma (which takes no quantised weights) rows of x, and of what is gated, lie in the order of `order`: row i is that of pair order[i], and
  // `shared` is 1. n is a multiple of 8 then, of 16 where it is gated, ldy one of 4, y and what is gated 16-byte aligned.
  ExpertKernel kernel = ExpertKernel::kMma;
};
void experts_matmul(const ExpertsMatMul& args, cudaStream_t stream);
// x's columns from n to the next multiple of 8 are zero; ldy is even and y 8-byte aligned.
void experts_matmul_transposed(const ExpertsMatMul& args, cudaStream_t stream);

// y[r] = onto[r] + the sum over r's pairs, ascending, of weight * z[pair]. A row that went nowhere is left as it is.
struct CombineExperts {
  const float* z;  // pairs, ldz floats apart
  int64_t ldz;
  const int32_t* chosen;  // [rows][used]
  const float* weights;   // [rows][used]; null: 1
  int64_t rows, used, width;
  const float* onto;  // rows, ldy floats apart; null: 0
  float* y;           // likewise; may be `onto`
  int64_t ldy;
};
void combine_experts(const CombineExperts& args, cudaStream_t stream);

// Of y = weight * down(silu(gate) * up): the gradient of gate beside that of up, given d, that of down's inputs without the weight; and the
// weight's, which is the sum of d times those inputs.
struct ExpertsSiluBackward {
  const bf16* x;   // [pairs][width][2]: gate and up, rounded
  const float* d;  // pairs, ldd floats apart
  int64_t ldd;
  const float* weights;  // pairs
  bf16* dx;              // [pairs][width][2]
  float* d_weights;      // pairs
  int64_t pairs, width;
  const int32_t* order = nullptr;  // row i of dx is that of pair order[i], where that is not -1; null: of pair i
};
void experts_silu_backward(const ExpertsSiluBackward& args, cudaStream_t stream);

}  // namespace tandem::cuda
