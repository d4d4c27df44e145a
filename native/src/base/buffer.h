// Owned, 64-byte aligned, zero-initialised memory. Large blocks ask the kernel for huge pages (fewer TLB misses when weights stream).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#ifdef __linux__
#include <sys/mman.h>
#endif
#include "base/error.h"

namespace tandem {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t count) : count_(count) {
    if (count == 0) return;
    require(count <= (std::numeric_limits<size_t>::max() - kHuge) / sizeof(T), ErrorKind::kRange, "buffer size overflows");
    size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    size_t align = 64;
    if (bytes >= kHuge) {
      align = kHuge;
      bytes = (bytes + kHuge - 1) / kHuge * kHuge;
    }
    data_ = static_cast<T*>(std::aligned_alloc(align, bytes));
    if (!data_) throw Error(ErrorKind::kState, "out of memory");
#ifdef __linux__
    if (bytes >= kHuge) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    std::memset(static_cast<void*>(data_), 0, bytes);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHuge = size_t(2) << 20;
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }
  T* data_ = nullptr;
  size_t count_ = 0;
};

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace tandem
