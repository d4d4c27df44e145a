// Fragments of tensor cores, loads of matrices and asynchronous copies (common/tensor_core.h).
#include "cuda/common/gpu.h"
#include "emulation/gpu_emulation.h"

namespace tandem::gpu_emulation {

// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Fragment {
    uint32_t a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  auto unpack = [](uint32_t pair, float* to) {
    to[0] = cuda::to_float(cuda::bf16{uint16_t(pair)});
    to[1] = cuda::to_float(cuda::bf16{uint16_t(pair >> 16)});
  };
  const int l = lane();
  warp_exchange(mine, [&](const auto& get) {
    // The two rows and the two columns of this thread's sums.
    float rows[2][16], columns[2][16];
    for (int q = 0; q < 4; ++q) {
      const Fragment left = get(l / 4 * 4 + q);
      for (int h = 0; h < 2; ++h) {
        const Fragment right = get((l % 4 * 2 + h) * 4 + q);
        for (int k : {0, 8}) {
          unpack(left.a[k / 8 * 2 + h], rows[h] + k + q * 2);
          unpack(right.b[k / 8], columns[h] + k + q * 2);
        }
      }
    }
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) d[i] += rows[i / 2][k] * columns[i & 1][k];
    }
    return 0;
  });
}

namespace {

template <bool kTranspose>
void load_matrices(uint32_t (&r)[4], const void* row) {
  struct Row {
    uint16_t elements[8];
  } mine;
  std::memcpy(&mine, row, sizeof mine);
  const int l = lane();
  warp_exchange(mine, [&](const auto& get) {
    for (int m = 0; m < 4; ++m) {
      uint32_t pair = 0;
      for (int e = 0; e < 2; ++e) {
        const int first = l / 4, second = (l % 4) * 2 + e;
        const int at_row = kTranspose ? second : first, column = kTranspose ? first : second;
        pair |= uint32_t(get(m * 8 + at_row).elements[column]) << (16 * e);
      }
      r[m] = pair;
    }
    return 0;
  });
}

}  // namespace

void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  block().races->read(block().current, row, 16, __builtin_return_address(0));
  load_matrices<false>(r, row);
}
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  block().races->read(block().current, row, 16, __builtin_return_address(0));
  load_matrices<true>(r, row);
}

namespace {

void land(CopyGroup& group) {
  if (group.landed) return;
  for (const Copy& c : group.copies) {
    std::memset(c.to, 0, 16);
    std::memcpy(c.to, c.from, size_t(c.valid));
  }
  group.landed = true;
}

}  // namespace

void cp_async_16(void* shared, const void* global, int valid) {
  block().races->copy_issued(block().current, shared, 16, __builtin_return_address(0));
  touch_global(block(), global, size_t(valid), false, __builtin_return_address(0));
  fiber().open_group.push_back({shared, global, valid});
}

// At once, over what somebody may still read; or when it is waited for, after somebody may have read.
void cp_async_commit() {
  Fiber& f = fiber();
  f.groups.push_back({std::move(f.open_group), false});
  f.open_group.clear();
  if (toss()) land(f.groups.back());
}

void cp_async_land(int pending) {
  Fiber& f = fiber();
  while (int(f.groups.size()) > pending) {
    land(f.groups.front());
    for (const Copy& c : f.groups.front().copies) {
      block().races->copy_landed(block().current, c.to, 16);
    }
    f.groups.erase(f.groups.begin());
  }
}

}  // namespace tandem::gpu_emulation
