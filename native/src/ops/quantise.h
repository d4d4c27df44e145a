// Floats to quantised weights, for a model that is quantised while it is loaded.
#pragma once
#include <cstdint>

#include "ops/quantised_matrix.h"

namespace tandem::ops {

// One row of k weights as kInt8 or kInt4: k stored numbers and a scale (an f16) per group.
//   kInt8: scale = largest magnitude / 127, rounded up, so that nothing is cut off.
//   kInt4: of several candidates around largest magnitude / 8 the scale with the smallest squared error; the extreme weight has the sign
//   of -8, the side that has one step more.
// A group with a number that is not finite, or whose scale no f16 holds, gets a scale that is not: its outputs are NaN, as they were.
void quantise_weights(QuantFormat format, const float* row, int64_t k, uint8_t* values, float* scales);

}  // namespace tandem::ops
