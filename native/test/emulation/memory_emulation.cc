#include "emulation/memory_emulation.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

namespace tandem::gpu_emulation {
namespace {

// A buffer ends where a page begins that nothing may touch, as does the one before it: an access outside ends the program.
constexpr size_t kPage = 4096, kAlignment = 16;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// The pages of a buffer, and where in them it lies.
struct Extent {
  unsigned char *pages, *begin, *end;
  size_t size;  // of the pages

  Extent(unsigned char* first, size_t bytes)
      : pages(first), begin(first + rounded(bytes, kPage) - rounded(bytes, kAlignment)), end(begin + bytes), size(rounded(bytes, kPage)) {}
  // Of the bytes around it, each by its address: NaN as a number, far too large as an index.
  template <class Visit>
  void around(const Visit& visit) const {
    const auto each = [&](unsigned char* from, const unsigned char* to) {
      for (; from < to; ++from) visit(*from, uintptr_t(from) % 2 == 0 ? 0xff : 0x7f);
    };
    each(pages, begin);
    each(end, pages + size);
  }
};

void* take(size_t bytes) {
  const size_t all = rounded(bytes, kPage) + 2 * kPage;
  void* first = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (first == MAP_FAILED) return nullptr;
  const Extent extent(static_cast<unsigned char*>(first) + kPage, bytes);
  if (mprotect(extent.pages, extent.size, PROT_READ | PROT_WRITE) != 0) {
    munmap(first, all);
    return nullptr;
  }
  extent.around([](unsigned char& at, int outside) { at = static_cast<unsigned char>(outside); });
  return extent.begin;
}

void give_back(void* p, size_t bytes) {
  unsigned char* const begin = static_cast<unsigned char*>(p);
  const Extent extent(begin - (rounded(bytes, kPage) - rounded(bytes, kAlignment)), bytes);
  extent.around([&](unsigned char at, int outside) {
    if (at == outside) return;
    std::fprintf(stderr, "emulated device: something wrote beside a buffer of %zu bytes\n", bytes);
    std::abort();
  });
  munmap(extent.pages - kPage, extent.size + 2 * kPage);
}

// Adapters are placed by threads of their own.
struct Memory {
  std::mutex turn;
  std::unordered_map<void*, size_t> taken;
  size_t free = kDeviceBytes;
};

// Never destroyed: what lives as long as the process gives its memory back after it.
Memory& memory() {
  static auto* const all = new Memory;
  return *all;
}

}  // namespace

void* allocate(size_t bytes) {
  Memory& m = memory();
  const std::lock_guard<std::mutex> lock(m.turn);
  if (bytes > m.free) return nullptr;
  void* p = take(bytes);
  if (p == nullptr) return nullptr;
  m.taken[p] = bytes;
  m.free -= bytes;
  return p;
}

void release(void* p) {
  Memory& m = memory();
  const std::lock_guard<std::mutex> lock(m.turn);
  const auto found = m.taken.find(p);
  const size_t bytes = found->second;
  m.free += bytes;
  m.taken.erase(found);
  give_back(p, bytes);
}

size_t free_bytes() {
  Memory& m = memory();
  const std::lock_guard<std::mutex> lock(m.turn);
  return m.free;
}

}  // namespace tandem::gpu_emulation
