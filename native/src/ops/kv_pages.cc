#include "ops/kv_pages.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"

namespace tandem::ops {

namespace {

size_t total_bytes(const KvShape& shape, int64_t pages) {
  require(pages > 0 && size_t(pages) <= std::numeric_limits<size_t>::max() / shape.page_bytes(), ErrorKind::kRange,
          "pages: the KV memory would overflow");
  return size_t(pages) * shape.page_bytes();
}

// No exponent of all ones: neither infinity nor NaN.
bool all_finite(const uint8_t* numbers, size_t bytes, size_t size) {
  for (size_t i = size; i <= bytes; i += size) {
    if ((numbers[i - 1] & 0x7f) == 0x7f && (numbers[i - 2] & 0x80) == 0x80) return false;
  }
  return true;
}

template <typename T, typename From, typename Convert>
void put_key(const KvShape& shape, uint8_t* block, int slot, const From* key, const Convert& convert) {
  auto* out = reinterpret_cast<T*>(block);
  for (int64_t d = 0; d < shape.head_dim; ++d) out[shape.key_index(slot, d)] = convert(key[d]);
}
template <typename T, typename From, typename Convert>
void put_value(const KvShape& shape, uint8_t* block, int slot, const From* value, const Convert& convert) {
  auto* out = reinterpret_cast<T*>(block);
  for (int64_t d = 0; d < shape.head_dim; ++d) out[shape.value_index(slot, d)] = convert(value[d]);
}

// put_key and put_value of bf16: numbers become bf16 a few at a time, and those of a pair of a key are stored at once (heads have even sizes).
constexpr int64_t kPart = 64;

inline int64_t narrow_part(const float* x, int64_t first, int64_t n, uint16_t* out) {
  const int64_t count = std::min(kPart, n - first);
  for (int64_t i = 0; i < count; ++i) out[i] = float_to_bf16(x[first + i]);
  return count;
}

void put_bf16(const KvShape& shape, uint8_t* key_block, uint8_t* value_block, int slot, const float* key, const float* value) {
  auto* keys = reinterpret_cast<uint16_t*>(key_block) + 2 * slot;
  auto* values = reinterpret_cast<uint16_t*>(value_block) + slot / 2 * shape.dim() * 2 + slot % 2;
  uint16_t part[kPart];
  for (int64_t d = 0; d < shape.head_dim; d += kPart) {
    int64_t count = narrow_part(key, d, shape.head_dim, part);
    for (int64_t i = 0; i < count; i += 2) std::memcpy(keys + (d + i) * simd::kPage, part + i, 2 * sizeof(uint16_t));
    count = narrow_part(value, d, shape.head_dim, part);
    for (int64_t i = 0; i < count; ++i) values[2 * (d + i)] = part[i];
  }
}

float* scales_of(const KvShape& shape, uint8_t* block) { return reinterpret_cast<float*>(block + shape.head_elements()); }

}  // namespace

float quantise_position(const float* x, int64_t n, int8_t* values) {
  float largest = 0;
  bool finite = true;
  for (int64_t d = 0; d < n; ++d) {
    finite &= std::isfinite(x[d]);
    largest = std::max(largest, std::fabs(x[d]));
  }
  if (!finite || largest < 1e-30f) {
    std::memset(values, 0, size_t(n));
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  // 1.5 * 2^23 plus a number of magnitude below 2^22: the low bits of the sum are the nearest whole number, ties to even.
  constexpr float kShift = 12582912.0f;
  const int32_t zero = std::bit_cast<int32_t>(kShift);
  float inverse = 127.0f / largest;
  for (int64_t d = 0; d < n; ++d) values[d] = int8_t(std::bit_cast<int32_t>(x[d] * inverse + kShift) - zero);
  return largest / 127.0f;
}

KvPages::KvPages(const KvShape& shape, int64_t pages) : shape_(shape), pages_(pages), data_(total_bytes(shape, pages)) {}

uint8_t* KvPages::keys(int64_t layer, int64_t page, int64_t kv_head) {
  return data_.data() + layer_offset(layer, page) + size_t(kv_head) * 2 * shape_.block_bytes();
}

uint8_t* KvPages::values(int64_t layer, int64_t page, int64_t kv_head) { return keys(layer, page, kv_head) + shape_.block_bytes(); }

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

bool KvPages::finite(const KvShape& shape, const uint8_t* bytes) {
  if (!shape.int8) return all_finite(bytes, shape.page_bytes(), element_size(shape.element));
  size_t block = shape.block_bytes(), numbers = size_t(shape.head_elements());
  for (size_t at = 0; at < shape.page_bytes(); at += block) {
    if (!all_finite(bytes + at + numbers, block - numbers, sizeof(float))) return false;
  }
  return true;
}

void KvPages::fetch_to_write(int64_t layer, int64_t page, int64_t kv_head, int slot) {
  const uint8_t *key_block = keys(layer, page, kv_head), *value_block = values(layer, page, kv_head);
  const int64_t size = shape_.int8 ? 1 : int64_t(element_size(shape_.element)), line = 64;
  const int64_t key_step = shape_.element == Element::kBf16 ? 2 : 1, first = shape_.value_index(slot, 0) * size;
  for (int64_t d = 0; d < shape_.head_dim; d += key_step) __builtin_prefetch(key_block + shape_.key_index(slot, d) * size, 1, 3);
  const int64_t end = shape_.value_index(slot, shape_.head_dim - 1) * size;
  for (int64_t at = first / line * line; at <= end; at += line) __builtin_prefetch(value_block + at, 1, 3);
}

void KvPages::write(int64_t layer, int64_t page, int64_t kv_head, int slot, const float* key, const float* value) {
  uint8_t *key_block = keys(layer, page, kv_head), *value_block = values(layer, page, kv_head);
  if (shape_.int8) {
    thread_local std::vector<int8_t> numbers;
    numbers.resize(size_t(shape_.head_dim));
    auto same = [](int8_t x) { return x; };
    scales_of(shape_, key_block)[slot] = quantise_position(key, shape_.head_dim, numbers.data());
    put_key<int8_t>(shape_, key_block, slot, numbers.data(), same);
    scales_of(shape_, value_block)[slot] = quantise_position(value, shape_.head_dim, numbers.data());
    put_value<int8_t>(shape_, value_block, slot, numbers.data(), same);
  } else if (shape_.element == Element::kBf16) {
    put_bf16(shape_, key_block, value_block, slot, key, value);
  } else {
    auto same = [](float x) { return x; };
    put_key<float>(shape_, key_block, slot, key, same);
    put_value<float>(shape_, value_block, slot, value, same);
  }
}

}  // namespace tandem::ops
