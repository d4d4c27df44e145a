// Panels of quantised weights in the order in which the device's kernels take them (cuda/gemm/quant_weights.h).
#pragma once
#include "cuda/gemm/quant_weights.h"
#include "ops/quantised_matrix.h"

namespace tandem::device {

// Of that format; its first byte is not set.
cuda::QuantPanel panel_of(ops::QuantFormat format);

// The same numbers, scales and minima as of `packed`, whose panels are of 64 outputs. `to` has panel_of(format).bytes(columns) bytes.
void reorder_panel(const ops::QuantisedMatrix& packed, int64_t panel, uint8_t* to);

}  // namespace tandem::device
