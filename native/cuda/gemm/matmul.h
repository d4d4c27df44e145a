// y[m][n] (+)= x[m][k] . w[n][k]^T in bf16 with float sums, on tensor cores. Quantised weights are widened to bf16 where they are used.
//
// The arithmetic of an element depends on n and k alone: k is cut into `matmul_splits(n, k)` parts of whole 64s; each part is one chain of
// products of the tensor core, 16 k at a time, over k ascending, and the parts are added in order. Whether the parts are computed by one
// block or by several, and how many tokens share a tile, changes nothing: prefill and decode give the same bits.
#pragma once
#include "cuda/gemm/parts.h"
#include "cuda/gemm/quant_weights.h"

namespace tandem::cuda {

struct LoraPart;

// How a product of BF16 weights is computed (variants.h).
enum class MatMulKernel : uint8_t { kMma, kWgmma };

struct MatMul {
  const bf16* x;  // m rows, ldx elements apart; 16-byte aligned, ldx a multiple of 8
  int64_t ldx, m;
  const bf16* w;  // [n][k], 16-byte aligned, k a multiple of 8; not read where there are quantised weights
  int64_t n, k;
  float* y;  // m rows, ldy floats apart
  int64_t ldy;
  bool accumulate;   // add to the old y
  float* workspace;  // matmul_workspace_floats(m, n, k), may be null where that is 0
  int64_t workspace_floats;
  QuantWeights quantised = {};
  MatMulKernel kernel = MatMulKernel::kMma;  // not of quantised weights
  // Of products of few tokens by wgmma: so many bytes of weights have been asked for by a multiprocessor and have not come, at most; 0 = as many
  // as there is room for. It changes no bit.
  int under_way = 0;
  bool leave_parts = false;     // where there are matmul_parts(), y is left as it is
  const float* onto = nullptr;  // like y: what is added to, instead of the old y
  bool beside = false;          // the next kernel on the stream reads x too and does not wait for this product (wait_for_inputs_first)
  // [m][n / 2], 16-byte aligned, not where x is; null, or where matmul_gates() may be. Instead of y: swiglu() (elementwise/swiglu.h) of the
  // product's first half of outputs and its second.
  bf16* gated = nullptr;
  // What adapters add to the same rows, by the same launch; null, or where matmul_takes_adapters() may be. Of the part's scratch only `arrived`
  // is used, of a gated product, whose sums have it added before the activation: then each column belongs to a projection.
  const LoraPart* adapters = nullptr;
};

// Whether a product can be `gated`, whatever its number of tokens.
bool matmul_gates(const MatMul& args);

// Whether a product can have those `adapters`.
bool matmul_takes_adapters(const MatMul& args, const LoraPart& adapters);

// What a product with `leave_parts` leaves in its workspace.
Parts matmul_parts(const MatMul& args);

int64_t matmul_splits(int64_t n, int64_t k);
int64_t matmul_workspace_floats(int64_t m, int64_t n, int64_t k);
// For every m up to `most_m`.
int64_t matmul_most_workspace_floats(int64_t most_m, int64_t n, int64_t k);

// Throws Error(kRange) naming the argument.
void matmul(const MatMul& args, cudaStream_t stream);

// The way back, from the same weights: y[m][k] (+)= x[m][n] . w[n][k], parts being of n; how many there are depends on the kernel, n and k.
// x's columns from n to the next multiple of 8 are zero; ldy is even and y 8-byte aligned. The workspace is matmul_transposed_floats.
void matmul_transposed(const MatMul& args, cudaStream_t stream);
int64_t matmul_transposed_floats(MatMulKernel kernel, int64_t m, int64_t n, int64_t k);

}  // namespace tandem::cuda
