#include "emulation/hopper_emulation.h"

#include "cuda/common/gpu.h"

namespace tandem::gpu_emulation {
namespace {

// The permutation is of address bits: 4 to 6 by 7 to 9.
uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// Two bytes of shared memory; null, which is a fault, outside of it.
unsigned char* element(uint32_t address) {
  Block& b = block();
  if (size_t(address) + 2 <= b.shared_bytes) return b.shared + address;
  b.fault = "an access beyond shared memory";
  return nullptr;
}

void settle(Barrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  ++b.phase;
  b.pending = b.count;
}

void copy_box(uint32_t to, const TensorMap& map, Barrier& barrier, int first_column, int first_row) {
  for (int r = 0; r < map.box_rows; ++r) {
    for (int c = 0; c < kSwizzleBytes / 2; ++c) {
      const int64_t row = int64_t(first_row) + r, column = int64_t(first_column) + c;
      uint16_t value = 0;
      const bool inside = row >= 0 && row < map.rows && column >= 0 && column < map.columns;
      if (inside) std::memcpy(&value, static_cast<const uint16_t*>(map.data) + row * map.ld + column, 2);
      if (unsigned char* at = element(swizzled(to + uint32_t(r * kSwizzleBytes + c * 2)))) std::memcpy(at, &value, 2);
    }
  }
  barrier.bytes -= map.box_rows * kSwizzleBytes;
  settle(barrier);
}

// A matrix in shared memory as a descriptor gives it: rows of K consecutive elements, groups of eight rows one stride apart.
class Described {
 public:
  explicit Described(uint64_t descriptor) : start_(field(descriptor, 0)), stride_(field(descriptor, 32)) {
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) block().fault = "a descriptor without 128-byte swizzle";
  }
  void row(int row, float (&out)[16]) const {
    for (uint32_t k = 0; k < 16; ++k) {
      cuda::bf16 value{};
      const uint32_t address = start_ + uint32_t(row / 8) * stride_ + uint32_t(row % 8) * kSwizzleBytes + k * 2;
      if (const unsigned char* at = element(swizzled(address))) std::memcpy(&value, at, 2);
      out[k] = cuda::to_float(value);
    }
  }

 private:
  static uint32_t field(uint64_t descriptor, int shift) { return uint32_t(descriptor >> shift & 0x3fff) << 4; }
  uint32_t start_, stride_;
};

// This thread's elements of sums[64][columns]: rows of its warp, two and eight apart (PTX ISA, "wgmma .m64nNk16: accumulator D").
void multiply(const GroupProduct& product) {
  const Described a(product.a), b(product.b);
  const int l = lane(), warp = block().current / 32 % 4;
  float rows[2][16];
  for (int h = 0; h < 2; ++h) a.row(warp * 16 + h * 8 + l / 4, rows[h]);
  for (int j = 0; j < product.columns / 8; ++j) {
    for (int e = 0; e < 2; ++e) {
      float column[16];
      b.row(j * 8 + l % 4 * 2 + e, column);
      for (int h = 0; h < 2; ++h) {
        float& sum = product.sums[j * 4 + h * 2 + e];
        for (int k = 0; k < 16; ++k) sum += rows[h][k] * column[k];
      }
    }
  }
}

}  // namespace

void barrier_init(Barrier* barrier, int count) {
  *barrier = {count, count, 0, 0};
  block().unfenced.push_back(barrier);
}

void barrier_init_fence() { block().unfenced.clear(); }

void barrier_arrive(Barrier* barrier) {
  if (--barrier->pending < 0) block().fault = "more arrivals at a barrier than it counts";
  settle(*barrier);
}

void barrier_expect(Barrier* barrier, int bytes) {
  barrier->bytes += bytes;
  barrier_arrive(barrier);
}

void barrier_wait(Barrier* barrier, int parity) {
  if (barrier->passed(parity)) return;
  fiber().barrier = barrier;
  fiber().parity = parity;
  wait(Wait::kBarrier);
}

void bulk_load(void* shared, const TensorMap* map, Barrier* barrier, int column, int row) {
  Block& b = block();
  const uint32_t to = shared_address(shared);
  if (to % (8 * kSwizzleBytes) != 0) b.fault = "a bulk copy to where no pattern of the swizzle begins";
  if (std::find(b.unfenced.begin(), b.unfenced.end(), barrier) != b.unfenced.end())
    b.fault = "a bulk copy with a barrier that it may not see";
  auto copy = [=, map = *map] { copy_box(to, map, *barrier, column, row); };
  if (toss()) copy();
  else b.in_flight.push_back(copy);
}

void wgmma_issue(float* sums, int columns, uint64_t a, uint64_t b) {
  if (!fiber().fenced) block().fault = "a wgmma without a fence before its group";
  fiber().open_products.push_back({sums, columns, a, b});
}

void wgmma_commit() {
  Fiber& f = fiber();
  f.products.push_back(std::move(f.open_products));
  f.open_products.clear();
  f.fenced = false;
}

void wgmma_land(int pending) {
  Fiber& f = fiber();
  while (int(f.products.size()) > pending) {
    for (const GroupProduct& product : f.products.front()) multiply(product);
    f.products.erase(f.products.begin());
  }
}

}  // namespace tandem::gpu_emulation
