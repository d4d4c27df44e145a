// Floats to quantised weights, for a model that is quantised while it is loaded.
#pragma once
#include <cstdint>

#include "ops/quantised_matrix.h"

namespace tandem::ops {

// One row of k weights as kInt8, kInt4 or kFp8: k stored numbers and a scale (an f16) per group, or one for the row.
//   kInt8: scale = largest magnitude / 127, rounded up, so that nothing is cut off.
//   kInt4: of several candidates around largest magnitude / 8 the scale with the smallest squared error; the extreme weight has the sign
//   of -8, the side that has one step more.
//   kFp8: the scale is the smallest power of two that leaves no magnitude above 448. The codes have an exponent of their own, so a finer
//   scale, or one per group, would hardly make them more exact (a row's small weights lose steps 2^-15 below its largest); and a power of
//   two makes every number that a code stands for a bf16 number, so nothing is rounded a second time.
// A group with a number that is not finite, or whose scale no f16 holds, gets a scale that is not (of kFp8: such a row): its outputs are
// NaN, as they were.
void quantise_weights(QuantFormat format, const float* row, int64_t k, uint8_t* values, float* scales);

}  // namespace tandem::ops
