// Owned, 64-byte aligned, zero-initialised memory. Large blocks ask the kernel for huge pages (fewer TLB misses when weights stream).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include <sys/mman.h>

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
    if (bytes >= kHuge) map(bytes);
    else allocate(bytes);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (mapping_) munmap(mapping_, mapped_bytes_);
    else std::free(data_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  static constexpr size_t kHuge = size_t(2) << 20;
  void allocate(size_t bytes) {
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (!data_) throw Error(ErrorKind::kState, "out of memory");
    std::memset(static_cast<void*>(data_), 0, bytes);
  }
  // Fresh pages of the kernel: zero already, and taken when first touched.
  void map(size_t bytes) {
    mapped_bytes_ = bytes + kHuge;
    void* mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw Error(ErrorKind::kState, "out of memory");
    mapping_ = mapping;
    auto address = (reinterpret_cast<uintptr_t>(mapping) + kHuge - 1) / kHuge * kHuge;
    data_ = reinterpret_cast<T*>(address);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
  }
  T* data_ = nullptr;
  size_t count_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
};

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace tandem
