// Causal grouped-query attention over paged keys and values, for a batch of rows of different sequences.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "ops/kv_pages.h"
#include "simd/kernels.h"

namespace tandem::ops {

// A run of queries of one sequence: `count` positions from `first_position`; their q vectors start at row `first_row`.
struct AttentionRun {
  int64_t first_row;
  int64_t first_position;
  int64_t count;
  // Page ids of the sequence; position p lies in pages[p / 16].
  const int32_t* pages;
};

struct AttentionShape {
  int64_t heads;
  // 0 = all earlier positions; w = the query's own position and w-1 before it.
  int64_t window;
};

// Runs whose first pages are the same, so that one pass over these serves them all.
struct AttentionGroups {
  struct Group {
    int32_t first, count;  // in `order`
    int64_t tiles;         // leading tiles of keys that all of them share and see whole
  };
  std::vector<int32_t> order;  // of the runs
  std::vector<Group> groups;   // each run is in one
};

// Groups for layers without a window. `sharing_heads`: query heads per KV head.
void group_runs(const std::vector<AttentionRun>& runs, int64_t sharing_heads, AttentionGroups& groups);

// Whether every run is one query, as when sequences decode.
bool single_queries(const std::vector<AttentionRun>& runs);

// Called before a row's queries under a KV head are read, and its position of that head: once for each, by any thread.
using BeforeHead = std::function<void(int64_t row, int64_t kv_head)>;

// q: rows of heads x dim elements (the type KvShape::element; dim as there, padding zero), row r at q + r * heads * dim.
// out: rows of element type, head h at out + r * ld_out + h * head_dim.
// Every position up to the last of each run must have been written. Results of a row depend on its sequence alone.
// `groups`, of these very runs, only saves reads: each row's tiles are merged in the same order. Not with a window.
// `before` may write a row's queries and its own position; with it every run is one query, which is the last of its sequence.
void attention(const simd::Kernels& kernels, ThreadPool& pool, const AttentionShape& shape, KvPages& kv, int64_t layer, const void* q,
               const std::vector<AttentionRun>& runs, void* out, int64_t ld_out, const AttentionGroups* groups = nullptr,
               const BeforeHead& before = {});

// The naive truth, in double, reading the same pages. q and out as floats: rows of heads x head_dim.
void attention_reference(const AttentionShape& shape, KvPages& kv, int64_t layer, const float* q, const std::vector<AttentionRun>& runs,
                         float* out);

}  // namespace tandem::ops
