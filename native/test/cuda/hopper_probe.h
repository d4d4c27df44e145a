// How Hopper's instructions place what they move, one at a time: kernels of a few lines (hopper_probe.cu).
#pragma once
#include "cuda/common/device_buffer.h"

namespace tandem::test {

// Shared memory after a bulk copy of a box of box_rows rows from (row, column) on; matrix[rows][columns].
std::vector<cuda::bf16> copied_box(const std::vector<cuda::bf16>& matrix, int64_t rows, int box_rows, int row, int column);

// The same of one copy of panels of 64 columns, [panel][half][row][64].
struct PanelBox {
  int rows, halves, panels;
};
std::vector<cuda::bf16> copied_panels(const std::vector<cuda::bf16>& matrix, int64_t rows, PanelBox box, int row, int panel);

// sums[64][tokens] of one wgmma, by thread and register, over inputs [16 step, 16 step + 16) of a[64][64] and b[tokens][64], which threads
// wrote to shared memory where a bulk copy would have put them. 8, 32 or 256 tokens. Or across, of b[64][tokens], whose rows are k: 128 or 256.
std::vector<float> one_wgmma(const std::vector<cuda::bf16>& a, const std::vector<cuda::bf16>& b, int step, bool across = false);

// The same with a in registers: of b[64][64]; or across, of b[64][columns], whose rows are k: 32, 64, 96 or 128 columns.
std::vector<float> one_wgmma_of_rows(const std::vector<cuda::bf16>& a, const std::vector<cuda::bf16>& b, int step, bool across);

// sums[64][64] likewise, which were something else before; a in registers where `of_rows`.
std::vector<float> first_wgmma(const std::vector<cuda::bf16>& a, const std::vector<cuda::bf16>& b, int step, bool of_rows);

// 2^x by one instruction.
std::vector<float> powers_of_two(const std::vector<float>& values);

// Pairs of neighbours, rounded by one instruction.
std::vector<uint32_t> rounded_pairs(const std::vector<float>& values);

}  // namespace tandem::test
