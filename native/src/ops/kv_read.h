// Single elements of a KV page, for the naive references: slow, and independent of every kernel.
#pragma once
#include "base/bf16.h"
#include "ops/kv_pages.h"

namespace tandem::ops {

inline double key_at(KvPages& kv, int64_t layer, int64_t page, int64_t head, int64_t slot, int64_t d) {
  const uint8_t* base = kv.keys(layer, page, head);
  if (kv.shape().element == Element::kBf16) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(base)[(d / 2) * simd::kPage * 2 + slot * 2 + d % 2]);
  }
  return reinterpret_cast<const float*>(base)[d * simd::kPage + slot];
}

inline double value_at(KvPages& kv, int64_t layer, int64_t page, int64_t head, int64_t slot, int64_t d) {
  const uint8_t* base = kv.values(layer, page, head);
  if (kv.shape().element == Element::kBf16) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(base)[(slot / 2) * kv.shape().dim() * 2 + d * 2 + slot % 2]);
  }
  return reinterpret_cast<const float*>(base)[slot * kv.shape().dim() + d];
}

}  // namespace tandem::ops
