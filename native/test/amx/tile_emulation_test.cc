// The emulated tiles themselves: products against plain loops, and what the hardware would refuse.
#include "amx/tile_emulation.h"

#include <array>
#include <vector>

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

using namespace tile_emulation;

// Tile 0: sums, `rows` of `columns`; 1: x, `steps` numbers of 4 bytes wide; 2: w.
struct Shape {
  unsigned char bytes[64] = {1};
  Shape(int rows, int columns, int steps) {
    set(0, rows, 4 * columns);
    set(1, rows, 4 * steps);
    set(2, steps, 4 * columns);
  }
  void set(int tile, int rows, int row_bytes) {
    bytes[16 + 2 * tile] = static_cast<unsigned char>(row_bytes);
    bytes[48 + tile] = static_cast<unsigned char>(rows);
  }
};

void configure_products(int rows, int columns, int steps) { configure(Shape(rows, columns, steps).bytes); }

// Sums of a product of small whole numbers, which both kinds of product hold exactly. `across` inputs per 4 bytes.
template <typename T, typename Sum, typename Convert>
void check_product(int across, void (*add)(int, int, int), const Convert& convert) {
  Random random(31);
  for (auto [rows, columns, steps] : {std::array{16, 16, 16}, {1, 16, 16}, {16, 16, 3}, {5, 7, 2}}) {
    std::vector<int> x(size_t(rows * steps * across)), w(size_t(columns * steps * across));
    std::vector<T> x_bits, w_bits;
    for (int& v : x) x_bits.push_back(convert(v = int(random.whole(-128, 127))));
    for (int& v : w) w_bits.push_back(convert(v = int(random.whole(-128, 127))));
    std::vector<Sum> sums(size_t(rows * columns), Sum(7)), wanted = sums;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) {
        for (int i = 0; i < steps * across; ++i)
          wanted[size_t(r * columns + c)] +=
              Sum(x[size_t(r * steps * across + i)] * w[size_t((i / across * columns + c) * across + i % across)]);
      }
    }
    configure_products(rows, columns, steps);
    load(0, sums.data(), 4 * columns);
    load(1, x_bits.data(), 4 * steps);
    load(2, w_bits.data(), 4 * columns);
    add(0, 1, 2);
    store(0, sums.data(), 4 * columns);
    CHECK(sums == wanted);
    zero(0);
    store(0, sums.data(), 4 * columns);
    CHECK(sums == std::vector<Sum>(sums.size(), Sum(0)));
  }
  release();
}

TEST(emulated_tiles_multiply_bf16) {
  check_product<uint16_t, float>(2, add_bf16, [](int v) { return float_to_bf16(float(v)); });
}

TEST(emulated_tiles_multiply_bytes) {
  check_product<int8_t, int32_t>(4, add_int8, [](int v) { return int8_t(v); });
}

// One input of 1 after another: even and odd ones are rounded apart, and denormals count as 0.
TEST(emulated_tiles_round_as_described) {
  auto product = [](float even, float odd, float weight, float sum) {
    uint16_t x[2] = {float_to_bf16(even), float_to_bf16(odd)}, w[2] = {float_to_bf16(weight), float_to_bf16(weight)};
    configure_products(1, 1, 1);
    load(0, &sum, 4);
    load(1, x, 4);
    load(2, w, 4);
    add_bf16(0, 1, 2);
    store(0, &sum, 4);
    release();
    return sum;
  };
  CHECK_EQ(product(0x1p-24f, 0x1p-24f, 1, 1), 1 + 0x1p-23f);  // one by one they would be lost
  CHECK_EQ(product(0x1p-130f, 0, 0x1p100f, 0), 0.0f);
  CHECK_EQ(product(0x1p-70f, 0, 0x1p-70f, 0), 0.0f);
  CHECK_EQ(product(0, 0, 1, 0x1p-140f), 0.0f);
}

TEST(emulated_tiles_refuse_what_the_hardware_does) {
  std::vector<float> memory(256);
  release();
  CHECK_ERROR(kState, "without a configuration", zero(0));
  CHECK_ERROR(kState, "without a configuration", load(0, memory.data(), 64));
  configure_products(4, 16, 16);
  CHECK_ERROR(kState, "this number", zero(8));
  CHECK_ERROR(kState, "without a shape", store(3, memory.data(), 64));
  CHECK_ERROR(kState, "stands twice", add_bf16(0, 1, 1));
  Shape wrong(4, 16, 16);
  wrong.set(1, 3, 64);
  configure(wrong.bytes);
  CHECK_ERROR(kState, "other rows", add_bf16(0, 1, 2));
  wrong.set(1, 4, 60);
  configure(wrong.bytes);
  CHECK_ERROR(kState, "other inputs", add_int8(0, 1, 2));
  wrong.set(1, 4, 64);
  wrong.set(2, 16, 32);
  configure(wrong.bytes);
  CHECK_ERROR(kState, "other columns", add_bf16(0, 1, 2));
  wrong.set(0, 17, 64);
  CHECK_ERROR(kState, "no shape of a tile", configure(wrong.bytes));
  wrong.set(0, 0, 64);
  CHECK_ERROR(kState, "no shape of a tile", configure(wrong.bytes));
  wrong.bytes[0] = 2;
  CHECK_ERROR(kState, "palette", configure(wrong.bytes));
  release();
}

}  // namespace
}  // namespace tandem::test
