#include "amx/tile_emulation.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "simd/isa.h"

// Takes the place of simd/has_tiles.cc. Only asked where the CPU has AVX-512, with which this file is compiled.
bool tandem::simd::has_tiles() { return true; }

namespace tandem::tile_emulation {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

// What lies outside of the shape is zero, as in the hardware. No rows: the tile has no shape.
struct Tile {
  int rows = 0, bytes = 0;
  alignas(64) unsigned char data[kRows][kRowBytes] = {};
};
struct Tiles {
  bool configured = false;
  Tile tiles[kTiles];
};
thread_local Tiles own;

void demand(bool ok, const char* what) {
  if (!ok) throw Error(ErrorKind::kState, std::string("tiles: ") + what);
}

Tile& tile_of(int number) {
  demand(number >= 0 && number < kTiles, "no tile has this number");
  demand(own.configured, "used without a configuration");
  Tile& tile = own.tiles[number];
  demand(tile.rows > 0, "a tile without a shape");
  return tile;
}

struct Operands {
  Tile &sum, &x, &w;
};
// Of a product: sum [m][n], x [m][k], w [k][n] in numbers of 4 bytes.
Operands operands(int sum, int x, int w) {
  demand(sum != x && sum != w && x != w, "an operand stands twice in a product");
  Operands o{tile_of(sum), tile_of(x), tile_of(w)};
  demand(o.sum.bytes % 4 == 0 && o.x.bytes % 4 == 0 && o.w.bytes % 4 == 0, "a product of parts of numbers");
  demand(o.sum.rows == o.x.rows, "x and the sums have other rows");
  demand(o.sum.bytes == o.w.bytes, "w and the sums have other columns");
  demand(o.x.bytes == 4 * o.w.rows, "x and w have other inputs");
  return o;
}

__m512i read(const unsigned char* row) { return _mm512_load_si512(row); }
int32_t number_at(const Tile& x, int row, int k) {
  int32_t number;
  std::memcpy(&number, x.data[row] + 4 * k, 4);
  return number;
}

// Even and odd inputs have sums of their own, fused, which meet at the end. Not inlined: the caller sets how numbers are rounded.
[[gnu::noinline]] void add_rows_bf16(const Operands& o) {
  auto high = [](__m512i v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int32_t(0xffff0000)))); };
  auto low = [](__m512i v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); };
  for (int row = 0; row < o.sum.rows; ++row) {
    __m512 even = _mm512_setzero_ps(), odd = even;
    for (int k = 0; k < o.w.rows; ++k) {
      __m512i x = _mm512_set1_epi32(number_at(o.x, row, k)), w = read(o.w.data[k]);
      even = _mm512_fmadd_ps(low(x), low(w), even);
      odd = _mm512_fmadd_ps(high(x), high(w), odd);
    }
    float* to = reinterpret_cast<float*>(o.sum.data[row]);
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even, odd)));
  }
}

}  // namespace

void configure(const void* shape) {
  unsigned char from[64];
  std::memcpy(from, shape, 64);
  demand(from[0] == 1, "only palette 1 has tiles");
  for (int i = 1; i < 64; ++i) demand((i >= 16 && i < 32) || (i >= 48 && i < 56) || from[i] == 0, "a reserved byte is set");
  release();
  for (int i = 0; i < kTiles; ++i) {
    const int bytes = from[16 + 2 * i] + 256 * from[17 + 2 * i], rows = from[48 + i];
    demand(rows <= kRows && bytes <= kRowBytes && (rows == 0) == (bytes == 0), "no shape of a tile");
    own.tiles[i].rows = rows;
    own.tiles[i].bytes = bytes;
  }
  own.configured = true;
}

void release() { own = {}; }

void zero(int tile) {
  Tile& zeroed = tile_of(tile);
  std::memset(zeroed.data, 0, sizeof zeroed.data);
}

void load(int tile, const void* from, int64_t stride) {
  Tile& to = tile_of(tile);
  zero(tile);
  for (int row = 0; row < to.rows; ++row) std::memcpy(to.data[row], static_cast<const char*>(from) + row * stride, size_t(to.bytes));
}

void store(int tile, void* to, int64_t stride) {
  const Tile& from = tile_of(tile);
  for (int row = 0; row < from.rows; ++row) std::memcpy(static_cast<char*>(to) + row * stride, from.data[row], size_t(from.bytes));
}

void add_bf16(int sum, int x, int w) {
  constexpr unsigned kNearestWithoutDenormals = 0x9fc0;  // whatever the thread has set
  const Operands o = operands(sum, x, w);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kNearestWithoutDenormals);
  add_rows_bf16(o);
  _mm_setcsr(before);
}

void add_int8(int sum, int x, int w) {
  const Operands o = operands(sum, x, w);
  for (int row = 0; row < o.sum.rows; ++row) {
    __m512i total = read(o.sum.data[row]);
    for (int k = 0; k < o.w.rows; ++k) {
      for (int i = 0; i < 4; ++i) {
        const int32_t factor = static_cast<int8_t>(o.x.data[row][4 * k + i]);
        __m512i bytes = _mm512_srai_epi32(_mm512_slli_epi32(read(o.w.data[k]), unsigned(24 - 8 * i)), 24);
        total = _mm512_add_epi32(total, _mm512_mullo_epi32(bytes, _mm512_set1_epi32(factor)));
      }
    }
    _mm512_store_si512(o.sum.data[row], total);
  }
}

}  // namespace tandem::tile_emulation
