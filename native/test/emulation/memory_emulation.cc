#include "emulation/memory_emulation.h"

#include <cstdlib>
#include <mutex>
#include <unordered_map>

namespace tandem::gpu_emulation {
namespace {

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
  void* p = std::calloc(1, bytes);
  if (p == nullptr) return nullptr;
  m.taken[p] = bytes;
  m.free -= bytes;
  return p;
}

void release(void* p) {
  Memory& m = memory();
  const std::lock_guard<std::mutex> lock(m.turn);
  const auto found = m.taken.find(p);
  m.free += found->second;
  m.taken.erase(found);
  std::free(p);
}

size_t free_bytes() {
  Memory& m = memory();
  const std::lock_guard<std::mutex> lock(m.turn);
  return m.free;
}

}  // namespace tandem::gpu_emulation
