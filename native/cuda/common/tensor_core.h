// Tensor-core fragments and asynchronous copies of sm_80 and later, by their PTX names; the emulation follows the PTX ISA's layouts.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION
using gpu_emulation::cp_async_16;
using gpu_emulation::cp_async_commit;
using gpu_emulation::cp_async_wait;
using gpu_emulation::ldmatrix_x4;
using gpu_emulation::ldmatrix_x4_trans;
using gpu_emulation::mma_m16n8k16;

inline uint32_t pack_rounded(float low, float high) { return pack(to_bf16(low), to_bf16(high)); }
inline float exp2_flushed(float x) { return x < -126 ? 0.0f : exp2f(x); }
inline int thread_again() { return int(threadIdx.x); }
// Four bytes of a's and b's eight, each by a digit of the selector, the lowest byte by the lowest; a's are 0 to 3.
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t(b) << 32 | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) picked |= uint32_t(both >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  return picked;
}
inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  auto half = [](uint32_t pair, int high) { return to_float(bf16{uint16_t(high ? pair >> 16 : pair)}); };
  return pack_rounded(half(a, 0) * half(b, 0), half(a, 1) * half(b, 1));
}
// bits & mask | more
inline uint32_t mask_or(uint32_t bits, uint32_t mask, uint32_t more) { return (bits & mask) | more; }
// The pair's low half (0) or its high half (1), twice.
template <int kHalf>
inline uint32_t both_halves(uint32_t pair) {
  const uint32_t half = kHalf == 0 ? pair & 0xffffu : pair >> 16;
  return half << 16 | half;
}
// Each rounded once: a double holds what bf16's product and sum need but for what is far below, of which one bit tells.
inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  auto one = [&](int shift) {
    auto part = [&](uint32_t pair) { return double(to_float(bf16{uint16_t(pair >> shift)})); };
    const double exact = std::fma(part(a), part(b), part(c));
    float cut = float(exact);
    if (std::fabs(double(cut)) > std::fabs(exact)) cut = std::nextafterf(cut, 0.0f);
    uint32_t bits;
    memcpy(&bits, &cut, 4);
    if (double(cut) != exact && exact == exact) bits |= 1;
    memcpy(&cut, &bits, 4);
    return to_bf16(cut);
  };
  return pack(one(0), one(16));
}
// 16 bytes that this thread alone takes, and once.
inline void load_once(uint32_t (&words)[4], const uint8_t* from) { memcpy(words, __builtin_assume_aligned(from, 16), 16); }
// That others take too, from memory that no kernel writes.
template <int kCount>
inline void load_among_lanes(uint32_t (&words)[kCount], const uint8_t* from) {
  memcpy(words, __builtin_assume_aligned(from, 4 * kCount), 4 * kCount);
}
#else

// threadIdx.x, of which the compiler does not know that it was read before: what was computed from it needs no register until here.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }

// Two bf16 products, each rounded to the nearest bf16. What is added is -0, which changes none.
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(0x80008000u));
  return pair;
}

// bits & mask | more, by one instruction, also where mask and more are known when it is compiled.
__device__ __forceinline__ uint32_t mask_or(uint32_t bits, uint32_t mask, uint32_t more) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(bits), "r"(mask), "r"(more));
  return out;
}

// The pair's low half (0) or its high half (1), twice; as an operand of what follows, in whose instruction it is named.
template <int kHalf>
__device__ __forceinline__ uint32_t both_halves(uint32_t pair) {
  uint32_t out;
  if constexpr (kHalf == 0) asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(out) : "r"(pair));
  else asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(out) : "r"(pair));
  return out;
}

// a b + c of two bf16 each, rounded once to the nearest bf16.
__device__ __forceinline__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  return pair;
}

// 16 bytes that this thread alone takes, and once. Where the source has it: a load that is made early stays there.
__device__ __forceinline__ void load_once(uint32_t (&words)[4], const uint8_t* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(from));
}

// Two words or four that other lanes take too, from memory that no kernel writes; likewise.
__device__ __forceinline__ void load_among_lanes(uint32_t (&words)[2], const uint8_t* from) {
  asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
}
__device__ __forceinline__ void load_among_lanes(uint32_t (&words)[4], const uint8_t* from) {
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "l"(from));
}

// 2^x by one instruction, within two units in the last place; what is smaller than the smallest normal number is 0.
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers rounded to the nearest bf16, beside each other: as to_bf16, but for the bits of NaN, by one instruction.
__device__ __forceinline__ uint32_t pack_rounded(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// d[16 x 8] += a[16 x 16] . b[16 x 8], bf16 in, float sums.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

// 16 bytes from global to shared memory, of which `valid` (0 or 16) are read and the rest is zero.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, int valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(valid));
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }

// Until at most `Pending` of this thread's latest groups are on their way.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

#endif

}  // namespace tandem::cuda
