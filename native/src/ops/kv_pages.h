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
  Element element;

  int64_t dim() const { return round_up(head_dim, 16); }
  int64_t head_elements() const { return dim() * simd::kPage; }
  size_t layer_page_bytes() const { return size_t(kv_heads * 2 * head_elements()) * element_size(element); }
  size_t page_bytes() const { return size_t(layers) * layer_page_bytes(); }
};

class KvPages {
 public:
  KvPages(const KvShape& shape, int64_t pages);

  int64_t pages() const { return pages_; }
  const KvShape& shape() const { return shape_; }
  // First element of the keys (values) of one head in one page of one layer.
  uint8_t* keys(int64_t layer, int64_t page, int64_t kv_head);
  uint8_t* values(int64_t layer, int64_t page, int64_t kv_head);
  // All layers of one page to zero: no owner ever reads what another left, and masked keys are finite.
  void clear(int64_t page);
  // The page's bytes of all layers, layer after layer: page_bytes() of them. The same on every instruction set.
  void copy_out(int64_t page, uint8_t* out) const;
  void copy_in(int64_t page, const uint8_t* bytes);
  // Writes one position (0..15 within the page) of one head; head_dim floats each.
  void write(int64_t layer, int64_t page, int64_t kv_head, int slot, const float* key, const float* value);

 private:
  size_t layer_offset(int64_t layer, int64_t page) const { return size_t(layer * pages_ + page) * shape_.layer_page_bytes(); }
  KvShape shape_;
  int64_t pages_;
  Buffer<uint8_t> data_;  // [layers][pages][layer_page_bytes]
};

}  // namespace tandem::ops
