// What kernels use of sm_90 alone: mbarriers, bulk copies of tensors (TMA) and products of four warps (wgmma), by the PTX ISA's layouts. A
// bulk copy lands at once or only when no thread can go on, by turns. A wgmma reads shared memory and registers and writes its sums only
// when its group is waited for: a dropped wait leaves the old sums, a stage that is given back too early is read after it was filled anew.
// What threads themselves wrote to shared memory it does not see before a fence, though here one thread's is enough for all.
#pragma once
#include "emulation/gpu_emulation.h"

namespace tandem::gpu_emulation {

// A row-major matrix of 16-bit elements, copied in boxes of 64 columns whose 16-byte chunks are permuted by row (128-byte swizzle).
struct TensorMap {
  const void* data;
  int64_t rows, columns, ld;
  int box_rows;
  int halves = 1, panels = 1;  // of the rows, and of a copy of panels
};

inline constexpr int kSwizzleBytes = 128;

// Where in the block's shared memory.
inline uint32_t shared_address(const void* p) { return uint32_t(static_cast<const unsigned char*>(p) - block().shared); }

void barrier_init(Barrier* barrier, int count);
void barrier_init_fence();
void barrier_arrive(Barrier* barrier);
// Arrives, and announces bytes of copies that the phase waits for.
void barrier_expect(Barrier* barrier, int bytes);
// Until the phase of that parity has ended.
void barrier_wait(Barrier* barrier, int parity);

void bulk_load(void* shared, const TensorMap* map, Barrier* barrier, int column, int row);
// Its box of each panel and half of the rows, one behind the other.
void bulk_load_panels(void* shared, const TensorMap* map, Barrier* barrier, int panel, int row);
inline void bulk_load_once(void* shared, const TensorMap* map, Barrier* barrier, int column, int row) {
  bulk_load(shared, map, barrier, column, row);
}
inline void bulk_load_panels_once(void* shared, const TensorMap* map, Barrier* barrier, int panel, int row) {
  bulk_load_panels(shared, map, barrier, panel, row);
}
inline void bulk_prefetch(const TensorMap*, int, int) {}
inline void bulk_prefetch_panels(const TensorMap*, int, int) {}
inline void prefetch_map(const TensorMap*) {}
void store_same(uint4* to, uint4 value);
void shared_writes_fence();
template <int kCount>
void give_registers() {}
template <int kCount>
void take_registers() {}

inline void wgmma_fence() { fiber().fenced = true; }
void wgmma_issue(const GroupProduct& product);
void wgmma_commit();
void wgmma_land(int pending);
template <int kTokens>
void wgmma(float (&sums)[kTokens / 2], uint64_t a, uint64_t b) {
  wgmma_issue({sums, kTokens, nullptr, a, b, false});
}
inline void wgmma_first(float (&sums)[32], uint64_t a, uint64_t b) { wgmma_issue({sums, 64, nullptr, a, b, false, true}); }
template <int kColumns>
void wgmma_across(float (&sums)[kColumns / 2], uint64_t a, uint64_t b) {
  wgmma_issue({sums, kColumns, nullptr, a, b, true});
}
template <int kColumns, bool kAcross>
void wgmma_rows(float (&sums)[kColumns / 2], const uint32_t (&rows)[4], uint64_t b) {
  wgmma_issue({sums, kColumns, rows, 0, b, kAcross});
}
inline void wgmma_rows_first(float (&sums)[32], const uint32_t (&rows)[4], uint64_t b) { wgmma_issue({sums, 64, rows, 0, b, false, true}); }
template <int kCount>
void settle(float (&)[kCount]) {}
template <int kCount>
void settle(uint32_t (&)[kCount][4]) {}
template <int kCount>
void keep_rows(const uint32_t (&)[kCount][4]) {}
template <int Pending, int kCount>
void wgmma_wait(float (&)[kCount]) {
  wgmma_land(Pending);
}

}  // namespace tandem::gpu_emulation
