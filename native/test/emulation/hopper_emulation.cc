#include "emulation/hopper_emulation.h"

#include "cuda/common/gpu.h"

namespace tandem::gpu_emulation {
namespace {

// The permutation is of address bits: 4 to 6 by 7 to 9.
uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// Whether two bytes of shared memory are there; it is a fault where they are not.
bool is_element(Block& b, uint32_t address) {
  const bool there = size_t(address) + 2 <= b.shared_bytes;
  if (!there) b.fault = "an access beyond shared memory";
  return there;
}

unsigned char* seen_by_async(Block& b) {
  if (b.seen_by_async.empty()) b.seen_by_async.assign(b.shared_bytes, 0xff);
  return b.seen_by_async.data();
}

unsigned char* changed_for_async(Block& b) {
  b.right_sides.clear();
  return seen_by_async(b);
}

void settle(Barrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  ++b.phase;
  b.pending = b.count;
  block().races->phase_ended(&b);
}

void copy_box(uint32_t to, const TensorMap& map, Barrier& barrier, int first_column, int first_row) {
  Block& b = block();
  unsigned char* const seen = changed_for_async(b);
  for (int r = 0; r < map.box_rows; ++r) {
    for (int c = 0; c < kSwizzleBytes / 2; ++c) {
      const int64_t row = int64_t(first_row) + r, column = int64_t(first_column) + c;
      uint16_t value = 0;
      const bool inside = row >= 0 && row < map.rows && column >= 0 && column < map.columns;
      if (inside) std::memcpy(&value, static_cast<const uint16_t*>(map.data) + row * map.ld + column, 2);
      const uint32_t at = swizzled(to + uint32_t(r * kSwizzleBytes + c * 2));
      if (!is_element(b, at)) continue;
      std::memcpy(b.shared + at, &value, 2);
      std::memcpy(seen + at, &value, 2);
    }
  }
  barrier.bytes -= map.box_rows * kSwizzleBytes;
  settle(barrier);
}

// A matrix in shared memory as a descriptor gives it: rows of K consecutive elements, groups of eight rows one stride apart; or, across,
// rows of 64 columns for each k, groups of eight k one stride apart and the next 64 columns one other stride.
class Described {
 public:
  Described(Block& b, uint64_t descriptor, bool across)
      : block_(b), seen_(seen_by_async(b)), start_(field(descriptor, 0)), panel_(field(descriptor, 16)), stride_(field(descriptor, 32)),
        across_(across) {
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) b.fault = "a descriptor without 128-byte swizzle";
  }
  // Of a row, or column of the product.
  float number(uint32_t index, uint32_t k) const {
    cuda::bf16 value{};
    const uint32_t place = at(index, k);
    if (is_element(block_, place)) std::memcpy(&value, seen_ + place, 2);
    return cuda::to_float(value);
  }
  uint32_t at(uint32_t index, uint32_t k) const { return swizzled(start_ + (across_ ? below(index, k) : beside(index, k))); }
  // The sixteen bytes that lie beside each other, of a row of consecutive k.
  template <class Each>
  void each_chunk(uint32_t row, const Each& each) const {
    for (uint32_t k = 0; k < 16; k += 8) each(at(row, k), size_t(16));
  }

 private:
  static uint32_t field(uint64_t descriptor, int shift) { return uint32_t(descriptor >> shift & 0x3fff) << 4; }
  uint32_t beside(uint32_t row, uint32_t k) const { return row / 8 * stride_ + row % 8 * kSwizzleBytes + k * 2; }
  uint32_t below(uint32_t column, uint32_t k) const {
    return column / 64 * panel_ + k / 8 * stride_ + k % 8 * kSwizzleBytes + column % 64 * 2;
  }
  Block& block_;
  const unsigned char* seen_;
  uint32_t start_, panel_, stride_;
  bool across_;
};

// The two rows of the left side that this thread's sums belong to, from what its quad holds (PTX ISA, "wgmma .m64nNk16: multiplicand A").
void rows_of_quad(const uint32_t* registers, float (&rows)[2][16]) {
  struct Fragment {
    uint32_t pairs[4];
  } mine;
  std::memcpy(mine.pairs, registers, sizeof mine.pairs);
  const int quad = lane() / 4 * 4;
  warp_exchange(mine, [&](const auto& get) {
    for (int h = 0; h < 2; ++h) {
      for (int k = 0; k < 16; ++k) {
        const uint32_t pair = get(quad + k % 8 / 2).pairs[k / 8 * 2 + h];
        rows[h][k] = cuda::to_float(cuda::bf16{uint16_t(k & 1 ? pair >> 16 : pair)});
      }
    }
    return 0;
  });
}

// What the product reads of shared memory: of the left side the warp's rows; all of the right side, which the four warps of a group read
// alike, each time of one of them.
void watch(const GroupProduct& product, uint32_t number) {
  Block& b = block();
  auto reads = [&](uint32_t address, size_t bytes) {
    if (size_t(address) + bytes <= b.shared_bytes) b.races->product_read(b.current, number, b.shared + address, bytes);
  };
  if (!product.rows) {
    const Described a(b, product.a, false);
    for (uint32_t row = 0; row < 16; ++row) a.each_chunk(uint32_t(b.current) / 32 % 4 * 16 + row, reads);
  }
  if ((number + number / 4 + uint32_t(b.current) / 32) % 4 != 0) return;
  const Described right(b, product.b, product.across);
  if (!product.across) {
    for (int column = 0; column < product.columns; ++column) right.each_chunk(uint32_t(column), reads);
    return;
  }
  for (int column = 0; column < product.columns; column += 8) {
    for (uint32_t k = 0; k < 16; ++k) reads(right.at(uint32_t(column), k), 16);
  }
}

const std::vector<float>& numbers_of_right_side(Block& b, const GroupProduct& product) {
  for (const RightSide& r : b.right_sides) {
    if (r.descriptor == product.b && r.columns == product.columns && r.across == product.across) return r.numbers;
  }
  std::vector<float>& numbers = b.right_sides.emplace_back(RightSide{product.b, product.columns, product.across, {}}).numbers;
  numbers.reserve(16 * size_t(product.columns));
  const Described right(b, product.b, product.across);
  for (uint32_t in_quad = 0; in_quad < 4; ++in_quad) {
    for (uint32_t k = 0; k < 16; ++k) {
      for (uint32_t own = 0; own < uint32_t(product.columns) / 4; ++own) {
        numbers.push_back(right.number(own / 2 * 8 + in_quad * 2 + own % 2, k));
      }
    }
  }
  return numbers;
}

// Of numbers that were looked at where they were read; a sanitizer would keep the compiler from doing several at once.
[[gnu::no_sanitize("address", "undefined")]] void add_products(float* __restrict sums, const float (&row)[16],
                                                               const float* __restrict right, int columns) {
  for (int k = 0; k < 16; ++k, right += columns) {
    for (int c = 0; c < columns; ++c) sums[c] += row[k] * right[c];
  }
}

// This thread's elements of sums[64][columns]: rows of its warp, two and eight apart (PTX ISA, "wgmma .m64nNk16: accumulator D").
void multiply(const GroupProduct& product) {
  constexpr int kMost = 256 / 4;
  Block& b = block();
  const int l = lane(), warp = b.current / 32 % 4, own = product.columns / 4;
  float rows[2][16];
  if (product.rows) {
    rows_of_quad(product.rows, rows);
  } else {
    const Described a(b, product.a, false);
    for (int h = 0; h < 2; ++h) {
      for (int k = 0; k < 16; ++k) rows[h][k] = a.number(uint32_t(warp * 16 + h * 8 + l / 4), uint32_t(k));
    }
  }
  const float* const right = numbers_of_right_side(b, product).data() + l % 4 * 16 * own;
  for (int h = 0; h < 2; ++h) {
    float sums[kMost];
    for (int c = 0; c < own; ++c) sums[c] = product.first ? 0 : product.sums[c / 2 * 4 + h * 2 + c % 2];
    add_products(sums, rows[h], right, own);
    for (int c = 0; c < own; ++c) product.sums[c / 2 * 4 + h * 2 + c % 2] = sums[c];
  }
}

}  // namespace

void barrier_init(Barrier* barrier, int count) {
  block().races->write(block().current, barrier, sizeof *barrier, __builtin_return_address(0));
  *barrier = {count, count, 0, 0};
  block().unfenced.push_back(barrier);
}

// Who comes later changes nothing.
void store_same(uint4* to, uint4 value) {
  if (std::memcmp(to, &value, sizeof value) == 0) return;
  block().races->write(block().current, to, sizeof *to, __builtin_return_address(0), Access::kSame);
  *to = value;
}

void shared_writes_fence() {
  block().races->fenced(block().current);
  std::memcpy(changed_for_async(block()), block().shared, block().shared_bytes);
}

void barrier_init_fence() { block().unfenced.clear(); }

void barrier_arrive(Barrier* barrier) {
  block().races->atomic(block().current, barrier, sizeof *barrier, __builtin_return_address(0));
  block().races->arrived(block().current, barrier);
  if (--barrier->pending < 0) block().fault = "more arrivals at a barrier than it counts";
  settle(*barrier);
}

void barrier_expect(Barrier* barrier, int bytes) {
  barrier->bytes += bytes;
  barrier_arrive(barrier);
}

void barrier_wait(Barrier* barrier, int parity) {
  block().races->atomic(block().current, barrier, sizeof *barrier, __builtin_return_address(0));
  if (barrier->passed(parity)) {
    block().races->waited(block().current, barrier, barrier->phase);
    return;
  }
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
  const size_t bytes = size_t(map->box_rows) * kSwizzleBytes;
  b.races->bulk_issued(b.current, shared, bytes, barrier, barrier->phase);
  for (int r = 0; r < map->box_rows; ++r) {
    const int64_t from = int64_t(row) + r, columns = std::min<int64_t>(kSwizzleBytes / 2, map->columns - column);
    if (from < 0 || from >= map->rows || columns <= 0) continue;
    touch_global(b, static_cast<const uint16_t*>(map->data) + from * map->ld + column, size_t(columns) * 2, false, nullptr);
  }
  b.bytes_in_flight += bytes;
  note_bytes_in_flight(b);
  auto copy = [=, &b, map = *map] {
    b.bytes_in_flight -= bytes;
    copy_box(to, map, *barrier, column, row);
  };
  if (toss()) copy();
  else b.in_flight.push_back(copy);
}

void bulk_load_panels(void* shared, const TensorMap* map, Barrier* barrier, int panel, int row) {
  const int64_t half = map->rows / map->halves;
  unsigned char* to = static_cast<unsigned char*>(shared);
  for (int p = 0; p < map->panels; ++p) {
    for (int h = 0; h < map->halves; ++h, to += map->box_rows * kSwizzleBytes) {
      const auto* data = static_cast<const uint16_t*>(map->data) + h * half * map->ld;
      const TensorMap one{data, half, map->columns, map->ld, map->box_rows};
      bulk_load(to, &one, barrier, (panel + p) * kSwizzleBytes / int(sizeof(uint16_t)), row);
    }
  }
}

void wgmma_issue(const GroupProduct& product) {
  if (!fiber().fenced) block().fault = "a wgmma without a fence before its group";
  fiber().open_products.push_back(product);
}

void wgmma_commit() {
  Fiber& f = fiber();
  f.products.push_back(std::move(f.open_products));
  f.open_products.clear();
  f.fenced = false;
}

void wgmma_land(int pending) {
  Block& b = block();
  Fiber& f = fiber();
  while (int(f.products.size()) > pending) {
    if (b.races->first_of_warp(b.current, f.products_landed + 1)) {
      for (const GroupProduct& product : f.products.front()) watch(product, f.products_landed + 1);
    }
    for (const GroupProduct& product : f.products.front()) multiply(product);
    f.products.erase(f.products.begin());
    ++f.products_landed;
    b.races->product_landed(b.current, f.products_landed);
  }
}

}  // namespace tandem::gpu_emulation
