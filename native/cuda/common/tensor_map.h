// What a bulk copy needs to know of a matrix in the device's memory.
#pragma once
#include "cuda/common/hopper.h"

namespace tandem::cuda {

// Of a row-major matrix, `ld` elements from row to row: boxes of box_rows rows (8 to 256, a multiple of 8) and 64 columns, zero outside. The
// data is 16-byte aligned, ld a multiple of 8. Throws Error(kState) where the driver refuses.
TensorMap tensor_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows);

// For bulk_load_panels: one copy of `panels` panels of 64 columns, each with box_rows rows of the matrix or, where it has two `halves`, of
// either. columns is a multiple of 64, rows one of halves.
TensorMap panels_map(const bf16* data, int64_t rows, int64_t columns, int64_t ld, int box_rows, int halves, int panels);

}  // namespace tandem::cuda
