// The CPU kernels as one table per instruction set. One source (kernels_body.h) is compiled once per set.
//
// Reduction contract (ARCHITECTURE.md): every output element is one chain of operations whose order depends on the operation's
// own sizes only - never on how many rows are computed together, on which thread, or on where a chunk begins.
#pragma once
#include <cstdint>

#include "simd/isa.h"

namespace tandem::simd {

// Attention reads keys in tiles of this many positions, at multiples of it, and merges tiles in ascending order.
constexpr int kKeyTile = 64;
// Positions per KV page; a tile is kKeyTile / kPage pages.
constexpr int kPage = 16;
// Most rows (query x head) of one attend call.
constexpr int kAttendRows = 32;

// Rows that share one KV head. T is uint16_t (bf16) or float.
//   q     rows x dim; row r at q + r * dim. dim = head_dim rounded up to 16, the padding is zero.
//   keys  page p: [dim/2][16 keys][2] for bf16, [dim][16 keys] for float, at keys + pages[p] * page_stride
//   values page p: [8 key pairs][dim][2] for bf16, [16 keys][dim] for float, value_offset behind its keys
//   The int8 kernels read pages of the same order with bytes for elements, each followed by its keys' 16 scales. Bytes are exact in T: they
//   are widened to `wide` (kKeyTile x dim elements), a score is multiplied by its key's scale, a weight by its value's.
//   Row r sees the positions first[r] .. last[r], both inclusive.
//   out   rows x dim floats: softmax(scale * q.k) . v
//   scratch: kAttendRows * (2 * kKeyTile) floats
template <typename T>
struct AttendArgs {
  const T* q;
  const uint8_t* keys;
  int64_t page_stride, value_offset;  // bytes
  const int32_t* pages;
  const int32_t* first;
  const int32_t* last;
  int rows;
  int dim;
  float scale;
  float* out;
  float* scratch;
  T* wide;
  // A row's keys may be read in several calls, tile ranges in ascending order: with `state` (rows x 2 floats) the call reads tiles
  // first_tile .. end_tile - 1 only, and `out` holds sums that are not yet divided until a call finishes the row.
  float* state = nullptr;
  int first_tile = 0, end_tile = 0;
  bool begins = true, finishes = true;
  // Pages whose keys (of the same layer and type, `keys` being their page 0) the thread reads after these; they are fetched meanwhile.
  struct Next {
    const uint8_t* keys;
    const int32_t* pages;
    int count;
  } next = {};
};

// The down-projection of a low-rank adapter: u[i][r] = scale * (x of row rows[i]) . a[r], for m rows and `ranks` ranks. Lanes run over k
// and are added up in a tree at the end. k is a multiple of 32; what pads it is zero.
template <typename T>
struct LoraShrinkArgs {
  const T* x;
  int64_t ldx;
  const int32_t* rows;
  int64_t m;
  const T* a;  // [ranks][k]
  int64_t ranks;
  int64_t k;
  float scale;
  float* u;
  int64_t ldu;
};

// Its up-projection on one panel of outputs: y of row rows[i] += sum over r ascending of u[i][r] * b[r], the sum made first.
//   b  bf16: [ranks/2][panel][2], ranks even; f32: [ranks][panel]
template <typename T>
struct LoraExpandArgs {
  const float* u;
  int64_t ldu;
  const int32_t* rows;
  int64_t m;
  const T* b;
  int64_t ranks;
  float* y;  // of row `first_row`
  int64_t ldy, first_row;
};

// Vocabulary rows are reduced in tiles of this many elements, merged in ascending order.
constexpr int kRowTileSize = 1024;

inline int64_t row_tiles(int64_t n) { return (n + kRowTileSize - 1) / kRowTileSize; }

struct Kernels {
  Isa isa;
  // Columns of one packed panel of weights.
  int panel;
  // Rows that a product of many rows takes at once, for all panels of a claim: they then stay in L2. Part of no result.
  int64_t row_block;
  // y[m][panel] (+)= x[m][k] . w for one panel. x rows are ldx apart, y rows ldy apart.
  //   bf16 panel: [k/2][panel][2], k a multiple of 32; f32 panel: [k][panel].
  //   The chain of y[i][j] is over k ascending (AMX: 32 at a time), starting at 0 or, with accumulate, at the old y[i][j].
  void (*gemm_bf16)(const uint16_t* x, int64_t ldx, int64_t m, const uint16_t* w, int64_t k, float* y, int64_t ldy, bool accumulate);
  void (*gemm_f32)(const float* x, int64_t ldx, int64_t m, const float* w, int64_t k, float* y, int64_t ldy, bool accumulate);
  // out = weight * (x / sqrt(mean(x^2) + eps)), n elements.
  void (*rms_norm_bf16)(const float* x, const float* weight, int64_t n, float eps, uint16_t* out);
  void (*rms_norm_f32)(const float* x, const float* weight, int64_t n, float eps, float* out);
  // out = gate / (1 + exp(-gate)) * up
  void (*silu_mul_bf16)(const float* gate, const float* up, int64_t n, uint16_t* out);
  void (*silu_mul_f32)(const float* gate, const float* up, int64_t n, float* out);
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*attend_bf16)(const AttendArgs<uint16_t>& args);
  void (*attend_f32)(const AttendArgs<float>& args);
  void (*attend_int8_bf16)(const AttendArgs<uint16_t>& args);
  void (*attend_int8_f32)(const AttendArgs<float>& args);
  // The largest element of each tile (row_tiles(n) of them); a tile with a NaN gives NaN.
  void (*tile_max)(const float* x, int64_t n, float* maxima);
  // Terms exp((x - max) * scale): the sum of each tile to `sums`, each term to `out` unless null.
  void (*tile_exp)(const float* x, int64_t n, float max, float scale, float* out, float* sums);
  // Indices and values of the elements >= bound, ascending by index, at most `capacity`; returns how many there are in all.
  int64_t (*collect_at_least)(const float* x, int64_t n, float bound, int32_t* ids, float* values, int64_t capacity);
  // How many of x are > value.
  int64_t (*count_greater)(const float* x, int64_t n, float value);
  void (*lora_shrink_bf16)(const LoraShrinkArgs<uint16_t>& args);
  void (*lora_shrink_f32)(const LoraShrinkArgs<float>& args);
  void (*lora_expand_bf16)(const LoraExpandArgs<uint16_t>& args);
  void (*lora_expand_f32)(const LoraExpandArgs<float>& args);
  // x[i] = -inf where bit i % 32 of bits[i / 32] is not set; the largest remaining element of each tile to `maxima`. Returns the largest
  // element before, NaN if there is one (`maxima` then hold anything).
  float (*keep_bits)(float* x, int64_t n, const uint32_t* bits, float* maxima);
};

// The table of one set; throws Error(kUnsupported) if the build lacks it.
const Kernels& kernels_for(Isa isa);

}  // namespace tandem::simd
