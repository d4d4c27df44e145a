// A batch of token rows as the kernels read it, on its way to the device.
#pragma once
#include <compare>
#include <optional>

#include "cuda/attention/paged_attention.h"
#include "cuda/common/stream.h"
#include "cuda/lora/lora.h"
#include "device/adapter.h"
#include "model/forward.h"

namespace tandem::device {

// Pointers into device memory.
struct Batch {
  int64_t rows = 0, runs = 0;
  const int32_t* tokens = nullptr;     // rows: ids, or engine::sampled_by(slot)
  const int32_t* positions = nullptr;  // rows
  const int32_t* slots = nullptr;      // rows: page * 16 + offset
  const int32_t* page_table = nullptr;
  int64_t max_pages = 0;
  // Runs that fill whole groups of four tiles share the reads of their keys; of the others each split is attended to by itself.
  const cuda::AttentionTile* wide_tiles = nullptr;
  const cuda::AttentionTile* split_tiles = nullptr;
  int64_t wide_count = 0, wide_longest = 1, split_count = 0, split_longest = 1;
  int64_t split_tokens = 1;  // most of a tile
  // Of tiles of one token: sequences that begin with the same pages, in whole splits.
  const cuda::PrefixTile* prefixes = nullptr;
  const cuda::PrefixMember* members = nullptr;
  int64_t prefix_count = 0, member_count = 0;
  const int32_t* row_adapters = nullptr;        // rows, -1 = none
  const cuda::LoraWeights* adapters = nullptr;  // [layer][module][adapters of the batch]
  int64_t adapter_count = 0, most_rank = 0;
  const cuda::LoraTile* adapter_tiles = nullptr;  // of at most LoraPart::kMostRows rows: lora_most_tiles()
  // Of some batches the rows whose final state is asked for, ascending; each row's place among them, -1 = it is not; and their adapters. Null:
  // all are taken for such rows.
  const int32_t* wanted = nullptr;
  int64_t wanted_count = 0;
  const int32_t* wanted_places = nullptr;
  const int32_t* wanted_adapters = nullptr;
  const cuda::LoraTile* wanted_tiles = nullptr;
  // Per slot the token that it sampled last; null where every token is an id.
  const int32_t* last_tokens = nullptr;
  int64_t last_count = 0;
};

inline bool adapted(const Batch& batch) { return batch.adapter_count > 0 && batch.most_rank > 0; }

// Decode batches are padded to few sizes, so that what was recorded for one fits the next of its size: everything in Batch is then the
// same, only the memory that it points to differs.
struct DecodeSize {
  int64_t rows, positions;
  int64_t adapters, rank;  // 0 for the base model
  int64_t prefixes;        // 0 where no sequences begin alike
  auto operator<=>(const DecodeSize&) const = default;
};
// Nothing: the batch is of another kind, or would be larger than `most_rows`.
std::optional<DecodeSize> decode_size(const model::ForwardBatch& batch, const model::Spec& spec, int64_t most_rows);
// Positions are padded to these steps.
constexpr int64_t kPositionStep = cuda::kSplitPositions;

// Room that the inputs of a batch of such sizes take.
struct BatchSizes {
  int64_t rows, tiles, prefixes, table, adapters;
};
size_t batch_bytes(const BatchSizes& sizes, int64_t layers);
// Of the plain batches that these runs make.
BatchSizes batch_sizes(const model::ForwardBatch& batch, const model::Spec& spec);

// Sends the batch, padded to a size where one is given; what was sent before must have been read. Throws Error(kRange) for an adapter
// that is not on the device.
Batch send_batch(const model::ForwardBatch& batch, const model::Spec& spec, const std::optional<DecodeSize>& size, cuda::Inputs& inputs,
                 cuda::Stream& stream);

}  // namespace tandem::device
