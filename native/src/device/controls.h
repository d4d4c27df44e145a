// The controls of one row as the device's sampler takes them: one edit per id, one mask.
#pragma once
#include <vector>

#include "cuda/sampling/sample.h"
#include "ops/sampling.h"

namespace tandem::device {

// Without mask, edits and places.
cuda::SampleRow row_of(const ops::SampleInput& input);
std::vector<cuda::LogitEdit> edits_of(const ops::SampleInput& input);
bool has_mask(const ops::SampleInput& input);
// Writes `words` words: the ids that grammar and lists of allowed ids leave.
void write_mask(const ops::SampleInput& input, int64_t words, uint32_t* mask);

}  // namespace tandem::device
