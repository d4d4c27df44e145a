// Hopper's own instructions (sm_90a): mbarriers, bulk copies of boxes of a matrix (TMA), and wgmma, products of the four warps of a group.
// What follows the PTX ISA here is what the emulation follows. Kernels that use it have a body only where
// TANDEM_HOPPER_CODE is 1, so that a build for other targets has nothing of it.
#pragma once
#include "cuda/common/tensor_core.h"

#ifdef TANDEM_GPU_EMULATION
#include "emulation/hopper_emulation.h"
#define TANDEM_HOPPER_CODE 1
#else
#include <cuda.h>
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TANDEM_HOPPER_CODE 1
#else
#define TANDEM_HOPPER_CODE 0
#endif
#endif

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION
using gpu_emulation::Barrier;
using gpu_emulation::barrier_arrive;
using gpu_emulation::barrier_expect;
using gpu_emulation::barrier_init;
using gpu_emulation::barrier_init_fence;
using gpu_emulation::barrier_wait;
using gpu_emulation::bulk_load;
using gpu_emulation::bulk_load_once;
using gpu_emulation::bulk_load_panels;
using gpu_emulation::bulk_load_panels_once;
using gpu_emulation::bulk_prefetch;
using gpu_emulation::bulk_prefetch_panels;
using gpu_emulation::give_registers;
using gpu_emulation::keep_rows;
using gpu_emulation::prefetch_map;
using gpu_emulation::settle;
using gpu_emulation::shared_address;
using gpu_emulation::shared_writes_fence;
using gpu_emulation::store_same;
using gpu_emulation::take_registers;
using gpu_emulation::TensorMap;
using gpu_emulation::wgmma;
using gpu_emulation::wgmma_across;
using gpu_emulation::wgmma_commit;
using gpu_emulation::wgmma_fence;
using gpu_emulation::wgmma_first;
using gpu_emulation::wgmma_rows;
using gpu_emulation::wgmma_rows_first;
using gpu_emulation::wgmma_wait;
#else

using TensorMap = CUtensorMap;
using Barrier = uint64_t;

#if TANDEM_HOPPER_CODE

__device__ __forceinline__ void barrier_init(Barrier* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

// Makes what this thread initialised visible to bulk copies.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and announces bytes of copies that the phase waits for.
__device__ __forceinline__ void barrier_expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Until the phase of that parity has ended; before the first, the one of parity 1 has.
__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra READY_%=;\nbra AGAIN_%=;\n"
      "READY_%=:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// A box of the matrix from (row, column) on, zero outside, its rows of 128 bytes one after the other with permuted chunks; `shared` is a
// multiple of 1024. The map is a __grid_constant__ argument of the kernel.
__device__ __forceinline__ void bulk_load(void* shared, const TensorMap* map, Barrier* barrier, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
               : "memory");
}

// For what one block reads, and no other: the L2 cache drops it before what is read again. Else a layer's weights leave nothing there of norms,
// tables, activations and pages of keys, and the kernels between products wait behind all that products have asked memory for.
__device__ __forceinline__ uint64_t dropped_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void bulk_load_once(void* shared, const TensorMap* map, Barrier* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "l"(dropped_first())
      : "memory");
}
__device__ __forceinline__ void bulk_load_panels_once(void* shared, const TensorMap* map, Barrier* barrier, int panel, int row) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%5, %3, %5, %4}], [%2], "
      "%6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(row), "r"(panel), "r"(0), "l"(dropped_first())
      : "memory");
}

// As bulk_load from a map of panels (panels_map): boxes from that row of each half on, in panels from that number on, one behind the other.
__device__ __forceinline__ void bulk_load_panels(void* shared, const TensorMap* map, Barrier* barrier, int panel, int row) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%5, %3, %5, %4}], [%2];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(row), "r"(panel), "r"(0)
               : "memory");
}
__device__ __forceinline__ void bulk_prefetch_panels(const TensorMap* map, int panel, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%3, %1, %3, %2}];" ::"l"(map), "r"(row), "r"(panel), "r"(0) : "memory");
}

// Such a box to the L2 cache alone.
__device__ __forceinline__ void bulk_prefetch(const TensorMap* map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(column), "r"(row) : "memory");
}

// Has the map at hand when the first bulk copy needs it.
__device__ __forceinline__ void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// By all threads of a warp group, whose number of registers it becomes: some give what others of the block then take, which wait for it.
// In all, not more than the block began with.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// To where others may store the same value at the same time.
__device__ __forceinline__ void store_same(uint4* to, uint4 value) { *to = value; }

// Before a wgmma reads what threads wrote.
__device__ __forceinline__ void shared_writes_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before a fence: what a group of wgmmas will use is computed here and not moved behind it, where the compiler would have to wait for groups
// that are under way.
template <int kCount>
__device__ __forceinline__ void settle(float (&sums)[kCount]) {
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void settle(uint32_t (&rows)[kCount][4]) {
  GPU_UNROLL
  for (int i = 0; i < 4 * kCount; ++i) asm volatile("" : "+r"(rows[i / 4][i % 4])::"memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most `Pending` of the latest groups are under way. The sums pass through, so that no use of them is moved before the wait.
template <int Pending, int kCount>
__device__ __forceinline__ void wgmma_wait(float (&sums)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define TANDEM_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define TANDEM_SUMS_8(i) TANDEM_SUMS_4(i), TANDEM_SUMS_4(i + 4)
#define TANDEM_SUMS_16(i) TANDEM_SUMS_8(i), TANDEM_SUMS_8(i + 8)
#define TANDEM_SUMS_32(i) TANDEM_SUMS_16(i), TANDEM_SUMS_16(i + 16)
#define TANDEM_SUMS_48(i) TANDEM_SUMS_32(i), TANDEM_SUMS_16(i + 32)
#define TANDEM_SUMS_64(i) TANDEM_SUMS_32(i), TANDEM_SUMS_32(i + 32)
#define TANDEM_SUMS_128(i) TANDEM_SUMS_64(i), TANDEM_SUMS_64(i + 64)

#define TANDEM_NEW_4(i) "=f"(sums[i]), "=f"(sums[i + 1]), "=f"(sums[i + 2]), "=f"(sums[i + 3])
#define TANDEM_NEW_8(i) TANDEM_NEW_4(i), TANDEM_NEW_4(i + 4)
#define TANDEM_NEW_16(i) TANDEM_NEW_8(i), TANDEM_NEW_8(i + 8)
#define TANDEM_NEW_32(i) TANDEM_NEW_16(i), TANDEM_NEW_16(i + 16)

#define TANDEM_NAMES_4 "%0,%1,%2,%3"
#define TANDEM_NAMES_8 TANDEM_NAMES_4 ",%4,%5,%6,%7"
#define TANDEM_NAMES_16 TANDEM_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TANDEM_NAMES_32 TANDEM_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TANDEM_NAMES_48 TANDEM_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TANDEM_NAMES_64 \
  TANDEM_NAMES_32       \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TANDEM_NAMES_128                                                                                                                  \
  TANDEM_NAMES_64                                                                                                                         \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"      \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%" \
  "123,%124,%125,%126,%127"

// sums[64][kTokens] += a[64][16] . b[kTokens][16]^T, bf16 in; matrices in shared memory by their descriptors. Reads and writes until its group
// has been waited for.
template <int kTokens>
__device__ __forceinline__ void wgmma(float (&sums)[kTokens / 2], uint64_t a, uint64_t b);
// sums[64][kColumns] += a[64][16] . b[16][kColumns].
template <int kColumns>
__device__ __forceinline__ void wgmma_across(float (&sums)[kColumns / 2], uint64_t a, uint64_t b);

#define TANDEM_WGMMA(name, columns, count, across, at_a, at_b)                                                                       \
  template <>                                                                                                                        \
  __device__ __forceinline__ void name<columns>(float(&sums)[count], uint64_t a, uint64_t b) {                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" TANDEM_NAMES_##count "}, " at_a ", " at_b        \
                                                                                                         ", 1, 1, 1, 0, " across ";" \
                 : TANDEM_SUMS_##count(0)                                                                                            \
                 : "l"(a), "l"(b));                                                                                                  \
  }
TANDEM_WGMMA(wgmma, 8, 4, "0", "%4", "%5")
TANDEM_WGMMA(wgmma, 16, 8, "0", "%8", "%9")
TANDEM_WGMMA(wgmma, 32, 16, "0", "%16", "%17")
TANDEM_WGMMA(wgmma, 64, 32, "0", "%32", "%33")
TANDEM_WGMMA(wgmma, 128, 64, "0", "%64", "%65")
TANDEM_WGMMA(wgmma, 256, 128, "0", "%128", "%129")
// sums[64][64] = a[64][16] . b[64][16]^T, whatever they were: without the instructions that would make them zero.
__device__ __forceinline__ void wgmma_first(float (&sums)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32 "}, %32, %33, 0, 1, 1, 0, 0;"
               : TANDEM_NEW_32(0)
               : "l"(a), "l"(b));
}
TANDEM_WGMMA(wgmma_across, 128, 64, "1", "%64", "%65")
TANDEM_WGMMA(wgmma_across, 256, 128, "1", "%128", "%129")

// sums[64][kColumns] += rows[64][16] . b[kColumns][16]^T, or . b[16][kColumns] where kAcross. Each warp's 16 rows are a fragment as of
// mma_m16n8k16, which is read until the group has been waited for (keep_rows).
template <int kColumns, bool kAcross>
__device__ __forceinline__ void wgmma_rows(float (&sums)[kColumns / 2], const uint32_t (&rows)[4], uint64_t b);

#define TANDEM_WGMMA_ROWS(columns, count, kAcross, across, at_rows, at_b)                                                          \
  template <>                                                                                                                      \
  __device__ __forceinline__ void wgmma_rows<columns, kAcross>(float(&sums)[count], const uint32_t(&rows)[4], uint64_t b) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" TANDEM_NAMES_##count "}, {" at_rows "}, " at_b \
                                                                                                         ", 1, 1, 1, " across ";"  \
                 : TANDEM_SUMS_##count(0)                                                                                          \
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(b));                                                \
  }
TANDEM_WGMMA_ROWS(64, 32, false, "0", "%32,%33,%34,%35", "%36")
// sums[64][64] = rows[64][16] . b[64][16]^T, as wgmma_first.
__device__ __forceinline__ void wgmma_rows_first(float (&sums)[32], const uint32_t (&rows)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32 "}, {%32,%33,%34,%35}, %36, 0, 1, 1, 0;"
               : TANDEM_NEW_32(0)
               : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(b));
}
TANDEM_WGMMA_ROWS(32, 16, true, "1", "%16,%17,%18,%19", "%20")
TANDEM_WGMMA_ROWS(64, 32, true, "1", "%32,%33,%34,%35", "%36")
TANDEM_WGMMA_ROWS(96, 48, true, "1", "%48,%49,%50,%51", "%52")
TANDEM_WGMMA_ROWS(128, 64, true, "1", "%64,%65,%66,%67", "%68")

// After a wait: until here no other value took the registers that wgmma_rows read.
template <int kCount>
__device__ __forceinline__ void keep_rows(const uint32_t (&rows)[kCount][4]) {
  GPU_UNROLL
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" ::"r"(rows[i][0]), "r"(rows[i][1]), "r"(rows[i][2]), "r"(rows[i][3]) : "memory");
  }
}

#endif
#endif

#if TANDEM_HOPPER_CODE

// Where slot by slot of a ring is: its rounds have parities by turns.
template <int kCount>
struct RingTurn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ RingTurn next() const { return stage + 1 == kCount ? RingTurn{0, parity ^ 1} : RingTurn{stage + 1, parity}; }
};

// A tile of rows of 64 bf16 (128 bytes) as bulk_load leaves it, from its inputs [16 step, 16 step + 16) on: the address, a stride of 1024 bytes
// between groups of eight rows, 128-byte swizzle; all in units of 16 bytes. The stride between columns means nothing here.
__device__ inline uint64_t tile_descriptor(const void* tile, int step) {
  const uint64_t address = (shared_address(tile) & 0x3ffff) >> 4;
  return (address + 2 * uint64_t(step)) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// Panels of such rows, `panel_bytes` from one to the next 64 columns, as [16][columns] from row 16 step on: here the first stride is that
// of panels, and groups of eight rows follow each other along k.
__device__ inline uint64_t across_descriptor(const void* panels, int step, int panel_bytes) {
  const uint64_t address = (shared_address(panels) & 0x3ffff) >> 4;
  return (address + 128 * uint64_t(step)) | uint64_t(panel_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

#endif

}  // namespace tandem::cuda
