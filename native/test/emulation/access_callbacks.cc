// What g++ -fsanitize=thread has a kernel call before it reads and writes memory. The sanitizer's own library is not linked.
#include "emulation/gpu_emulation.h"

namespace tandem::gpu_emulation {
namespace {

template <bool kWrites>
void touch(const void* p, size_t bytes, const void* where) {
  Block* const b = running_block();
  if (b == nullptr) return;
  if (!b->holds(p)) return touch_global(*b, p, bytes, kWrites, where);
  if (kWrites) b->races->write(b->current, p, bytes, where);
  else b->races->read(b->current, p, bytes, where);
}

}  // namespace
}  // namespace tandem::gpu_emulation

#define TANDEM_ACCESS(name, writes, bytes) \
  __attribute__((visibility("default"))) void name(void* p) { tandem::gpu_emulation::touch<writes>(p, bytes, __builtin_return_address(0)); }
#define TANDEM_ACCESSES(bytes)                              \
  TANDEM_ACCESS(__tsan_read##bytes, false, bytes)           \
  TANDEM_ACCESS(__tsan_write##bytes, true, bytes)           \
  TANDEM_ACCESS(__tsan_unaligned_read##bytes, false, bytes) \
  TANDEM_ACCESS(__tsan_unaligned_write##bytes, true, bytes)

extern "C" {
void __tsan_init() {}
void __tsan_vptr_update(void*, void*) {}
TANDEM_ACCESSES(1)
TANDEM_ACCESSES(2)
TANDEM_ACCESSES(4)
TANDEM_ACCESSES(8)
TANDEM_ACCESSES(16)
void __tsan_read_range(void* p, size_t bytes) { tandem::gpu_emulation::touch<false>(p, bytes, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t bytes) { tandem::gpu_emulation::touch<true>(p, bytes, __builtin_return_address(0)); }
}
