// Around the kernel that ends rows: before it the few ids are listed that filters may leave, or that the alternatives can be; after it what ranks
// need is counted. A slice's warps have left the largest of their values, so warps go through the tiles alone that have something to list or
// to count.
#pragma once
#include "cuda/sampling/sample.h"

namespace tandem::cuda {

void list_candidates(const SampleBatch& args, cudaStream_t stream);
void count_ranks(const SampleBatch& args, cudaStream_t stream);

}  // namespace tandem::cuda
