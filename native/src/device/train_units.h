// How much of a trainer's work is on the device between two waits: functions of sizes, never of time.
#pragma once
#include <cstdint>
#include <vector>

#include "model/spec.h"

namespace tandem::device {

// Rows that go through a layer of so many multiply-adds per row together. Where there are many, whole tiles of the products' blocks: 2048
// rows of an 8B model make 256 to 1536 blocks, which are nearly whole rounds of a large device's 132 multiprocessors.
int64_t chunk_rows(int64_t unit_work, int64_t layer_work);

// Multiply-adds of a row in a layer's feed-forward.
int64_t feed_forward_work(const model::Spec& spec, int64_t layer);

// Tiles of the gradient of attention, all of queries or all of keys.
struct TileRange {
  int64_t first, count;
  int64_t work;  // as multiply-adds of a large product
};
// In which queries see what lies before them, at most; rows of `width` columns, all heads.
std::vector<TileRange> attention_units(int64_t unit_work, int64_t rows, int64_t width, bool of_keys);

}  // namespace tandem::device
