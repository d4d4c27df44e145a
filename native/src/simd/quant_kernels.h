// Products with quantised weights (quant_format.h), as one table per instruction set, beside Kernels (kernels.h).
//
// Rows of activations are quantised too, each row by itself, so that what one group of inputs adds to an output is a product of whole numbers:
// exact, whatever instructions make it. Those products are scaled and summed in floats, group by group, k ascending.
#pragma once
#include <cstdint>

#include "simd/isa.h"
#include "simd/quant_format.h"

namespace tandem::simd {

// Inputs per entry of `sums`: the smallest group of any format.
constexpr int kQuantSumGroup = 16;

// Rows of quantised activations: value = scale * whole number. `block` inputs of a row lie side by side, those of the next row behind them;
// then follow the next inputs of all rows. So the rows that one block of weights is multiplied with are one piece of memory. A last block is
// as long as the others; what lies beyond k is not read. With block >= k a row is one piece.
struct QuantRowsView {
  const int8_t* values;
  const float* scales;  // one per kQuantRowGroup values; those of a kQuantScaleBlock are powers of two apart
  const int32_t* sums;  // of kQuantSumGroup values each
  int64_t block;        // a multiple of kQuantScaleBlock, or all of a row
  int64_t rows;         // in all

  // Where the values of a row's block are.
  int64_t place(int64_t row, int64_t first_input) const { return (first_input / block * rows + row) * block + first_input % block; }
};

struct QuantGemmArgs {
  QuantRowsView x;
  int64_t m;
  QuantFormat format;
  const uint8_t* w;  // one panel
  int64_t k;         // padded
  float* y;
  int64_t ldy;
  bool accumulate;
};

struct QuantKernels {
  // Rows that a caller with more of them multiplies with a few panels before it goes on: their x stays in L2.
  int64_t row_block;
  // So many rows are multiplied at once, input by input, and want their rows whole (QuantRowsView::block >= k); more want blocks of
  // input_block inputs.
  int64_t few_rows, input_block;
  // One row of k elements (a multiple of kQuantRowGroup) to values, scales and sums. The same on every instruction set.
  // x begins at a multiple of kQuantScaleBlock of its row. A block with a number that is not finite has scales of NaN and values 0; one whose
  // largest magnitude is below 1e-30 is all zeros.
  void (*quantise_bf16)(const uint16_t* x, int64_t k, int8_t* values, float* scales, int32_t* sums);
  void (*quantise_f32)(const float* x, int64_t k, int8_t* values, float* scales, int32_t* sums);
  // y[m][panel] (+)= x . w of one panel. The chain of y[i][j]: for each kQuantScaleBlock inputs, k ascending, y + S * (largest scale of x in
  // the block), S being a chain from 0 over the groups of the format: first + minimum * (ratio * sum of x's values) where the format has
  // minima, then + (whole-number product * ratio) * scale of w, with ratio = the group's scale of x over the largest. With AMX, AVX2
  // and scalars every group is added to y by itself: + minimum * (scale of x * sum), + (product * scale of w) * scale of x.
  void (*gemm)(const QuantGemmArgs& args);
  // Columns k0 .. k0 + columns of one panel (multiples of 16) in the layout of unquantised panels: f32 [columns][panel], or rounded to
  // bf16 [columns / 2][panel][2].
  void (*dequantise_bf16)(QuantFormat format, const uint8_t* w, int64_t k0, int64_t columns, uint16_t* out);
  void (*dequantise_f32)(QuantFormat format, const uint8_t* w, int64_t k0, int64_t columns, float* out);
};

// The table of one set; throws Error(kUnsupported) if the build lacks it.
const QuantKernels& quant_kernels_for(Isa isa);

}  // namespace tandem::simd
