// The sparse changes of a row of logits before the draw.
#pragma once
#include "ops/sampling.h"

namespace tandem::ops {

// True when apply_controls would change anything.
bool has_controls(const SampleInput& input);

// Allowed ids, bad words, banned ids, bias, penalties, in this order, on ids below input.samplable.
void apply_controls(const simd::Kernels& kernels, const SampleInput& input, SamplingScratch& scratch);

}  // namespace tandem::ops
