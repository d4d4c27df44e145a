// The gradient of attention (ops/attention.h), for sequences that may share the keys and values of a common prefix.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace tandem::ops {

// Some queries of a sequence and where the gradients of its keys and values gather. Rows count over the whole packed batch: positions
// 0 .. prefix - 1 belong to the rows from prefix_row on, the later ones to those from own_row on.
struct AttentionBackwardRun {
  AttentionRun run;
  int64_t prefix, prefix_row;
  int64_t own_row;
};

// q and d_out: rows of heads x dim elements of the KV type (the padding zero), the rows of a run from its first_row on.
// dq: rows of heads x dim floats, written. dk, dv: rows of kv_heads x dim floats, added to: a row gathers from every query that sees it,
// in the order of runs and of queries in a run, whatever the threads.
struct AttentionGradients {
  const void* q;
  const void* d_out;
  float* dq;
  float* dk;
  float* dv;
};

void attention_backward(const simd::Kernels& kernels, ThreadPool& pool, const AttentionShape& shape, KvPages& kv, int64_t layer,
                        const std::vector<AttentionBackwardRun>& runs, const AttentionGradients& gradients);

// The naive truth in double. q and d_out as floats, all rows of heads (kv_heads) x head_dim.
void attention_backward_reference(const AttentionShape& shape, KvPages& kv, int64_t layer, const std::vector<AttentionBackwardRun>& runs,
                                  const float* q, const float* d_out, float* dq, float* dk, float* dv);

}  // namespace tandem::ops
