// Single elements of a KV page, for the naive references: slow, and independent of every kernel.
#pragma once
#include "base/bf16.h"
#include "ops/kv_pages.h"

namespace tandem::ops {

// Number `index` of a block of keys or values; it belongs to position `slot` of the page.
inline double number_at(const KvShape& shape, const uint8_t* block, int64_t slot, int64_t index) {
  if (shape.int8) {
    const auto* scales = reinterpret_cast<const float*>(block + shape.head_elements());
    return double(scales[slot]) * reinterpret_cast<const int8_t*>(block)[index];
  }
  if (shape.element == Element::kBf16) return bf16_to_float(reinterpret_cast<const uint16_t*>(block)[index]);
  return reinterpret_cast<const float*>(block)[index];
}

inline double key_at(KvPages& kv, int64_t layer, int64_t page, int64_t head, int64_t slot, int64_t d) {
  return number_at(kv.shape(), kv.keys(layer, page, head), slot, kv.shape().key_index(slot, d));
}

inline double value_at(KvPages& kv, int64_t layer, int64_t page, int64_t head, int64_t slot, int64_t d) {
  return number_at(kv.shape(), kv.values(layer, page, head), slot, kv.shape().value_index(slot, d));
}

}  // namespace tandem::ops
