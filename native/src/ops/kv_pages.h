// The paged KV memory of all layers, and the layout of one page (simd/kernels.h AttendArgs).
#pragma once
#include <cstdint>

#include "base/buffer.h"
#include "ops/element.h"
#include "simd/kernels.h"

namespace tandem::ops {

// One layer's page: kv_heads x [keys: dim x 16][values: 16 x dim], dim = head_dim rounded up to 16.
struct KvShape {
  int64_t layers, kv_heads, head_dim;
  // Of queries; of keys and values unless they are int8. It decides the order of a block's numbers either way.
  Element element;
  // Keys and values are whole numbers in -127..127 times a scale per position and head: the numbers of a block, then its 16 scales in f32.
  bool int8 = false;

  int64_t dim() const { return round_up(head_dim, 16); }
  int64_t head_elements() const { return dim() * simd::kPage; }
  // Of the keys of one head, or its values.
  size_t block_bytes() const {
    return int8 ? size_t(head_elements()) + simd::kPage * sizeof(float) : size_t(head_elements()) * element_size(element);
  }
  size_t layer_page_bytes() const { return size_t(kv_heads) * 2 * block_bytes(); }
  size_t page_bytes() const { return size_t(layers) * layer_page_bytes(); }
  // Where number d of a position lies in a block of keys, or of values.
  int64_t key_index(int64_t slot, int64_t d) const {
    return element == Element::kBf16 ? d / 2 * simd::kPage * 2 + slot * 2 + d % 2 : d * simd::kPage + slot;
  }
  int64_t value_index(int64_t slot, int64_t d) const {
    return element == Element::kBf16 ? slot / 2 * dim() * 2 + d * 2 + slot % 2 : slot * dim() + d;
  }
};

// Symmetric quantisation of one position's key or value: the scale is the largest magnitude over 127. All zeros where that is below 1e-30;
// a scale of NaN and zeros where a number is not finite. The same on every instruction set.
float quantise_position(const float* x, int64_t n, int8_t* values);

class KvPages {
 public:
  KvPages(const KvShape& shape, int64_t pages);

  int64_t pages() const { return pages_; }
  const KvShape& shape() const { return shape_; }
  // The block of keys (values) of one head in one page of one layer.
  uint8_t* keys(int64_t layer, int64_t page, int64_t kv_head);
  uint8_t* values(int64_t layer, int64_t page, int64_t kv_head);
  // All layers of one page to zero: no owner ever reads what another left, and masked keys are finite.
  void clear(int64_t page);
  // The page's bytes of all layers, layer after layer: page_bytes() of them. The same on every instruction set.
  void copy_out(int64_t page, uint8_t* out) const;
  void copy_in(int64_t page, const uint8_t* bytes);
  // Whether the bytes of a page hold no infinity and no NaN.
  static bool finite(const KvShape& shape, const uint8_t* bytes);
  // Writes one position (0..15 within the page) of one head; head_dim floats each.
  void write(int64_t layer, int64_t page, int64_t kv_head, int slot, const float* key, const float* value);
  // Begins to bring what that writes into the calling thread's cache: a position's key lies in as many lines as it has pairs of numbers.
  void fetch_to_write(int64_t layer, int64_t page, int64_t kv_head, int slot);

 private:
  size_t layer_offset(int64_t layer, int64_t page) const { return size_t(layer * pages_ + page) * shape_.layer_page_bytes(); }
  KvShape shape_;
  int64_t pages_;
  Buffer<uint8_t> data_;  // [layers][pages][layer_page_bytes]
};

}  // namespace tandem::ops
