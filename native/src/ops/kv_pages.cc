#include "ops/kv_pages.h"

#include <cstring>
#include <limits>

#include "base/bf16.h"

namespace tandem::ops {

namespace {

size_t total_bytes(const KvShape& shape, int64_t pages) {
  require(pages > 0 && size_t(pages) <= std::numeric_limits<size_t>::max() / shape.page_bytes(), ErrorKind::kRange,
          "pages: the KV memory would overflow");
  return size_t(pages) * shape.page_bytes();
}

}  // namespace

KvPages::KvPages(const KvShape& shape, int64_t pages) : shape_(shape), pages_(pages), data_(total_bytes(shape, pages)) {}

uint8_t* KvPages::keys(int64_t layer, int64_t page, int64_t kv_head) {
  size_t head_bytes = size_t(2 * shape_.head_elements()) * element_size(shape_.element);
  return data_.data() + layer_offset(layer, page) + size_t(kv_head) * head_bytes;
}

uint8_t* KvPages::values(int64_t layer, int64_t page, int64_t kv_head) {
  return keys(layer, page, kv_head) + size_t(shape_.head_elements()) * element_size(shape_.element);
}

void KvPages::clear(int64_t page) {
  for (int64_t layer = 0; layer < shape_.layers; ++layer) std::memset(keys(layer, page, 0), 0, shape_.layer_page_bytes());
}

void KvPages::copy_out(int64_t page, uint8_t* out) const {
  size_t bytes = shape_.layer_page_bytes();
  for (int64_t layer = 0; layer < shape_.layers; ++layer)
    std::memcpy(out + size_t(layer) * bytes, data_.data() + layer_offset(layer, page), bytes);
}

void KvPages::copy_in(int64_t page, const uint8_t* in) {
  size_t bytes = shape_.layer_page_bytes();
  for (int64_t layer = 0; layer < shape_.layers; ++layer)
    std::memcpy(data_.data() + layer_offset(layer, page), in + size_t(layer) * bytes, bytes);
}

void KvPages::write(int64_t layer, int64_t page, int64_t kv_head, int slot, const float* key, const float* value) {
  int64_t dim = shape_.dim();
  if (shape_.element == Element::kBf16) {
    auto* k = reinterpret_cast<uint16_t*>(keys(layer, page, kv_head));
    auto* v = reinterpret_cast<uint16_t*>(values(layer, page, kv_head));
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      k[(d / 2) * simd::kPage * 2 + slot * 2 + d % 2] = float_to_bf16(key[d]);
      v[int64_t(slot / 2) * dim * 2 + d * 2 + slot % 2] = float_to_bf16(value[d]);
    }
    return;
  }
  auto* k = reinterpret_cast<float*>(keys(layer, page, kv_head));
  auto* v = reinterpret_cast<float*>(values(layer, page, kv_head));
  for (int64_t d = 0; d < shape_.head_dim; ++d) {
    k[d * simd::kPage + slot] = key[d];
    v[int64_t(slot) * dim + d] = value[d];
  }
}

}  // namespace tandem::ops
