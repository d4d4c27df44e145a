// Rows of logits in tiles: maxima, sums, selections and masks; part of kernels_table.h, which includes it.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

void tile_max(const float* x, int64_t n, float* maxima) {
  for (int64_t start = 0, tile = 0; start < n; start += kRowTileSize, ++tile) {
    int64_t end = n - start < kRowTileSize ? n : start + kRowTileSize;
    VF best = vset(kNegInf), nan = vset(0.0f);
    for (int64_t i = start; i < end; i += kLanes) {
      VF v = load_row(x + i, lanes_left(i, end), kNegInf);
      best = vmax(best, v);
      nan = vadd(nan, vselect_nan(v));
    }
    maxima[tile] = vany_nan(nan) ? __builtin_nanf("") : horizontal_max(best);
  }
}

void tile_exp(const float* x, int64_t n, float max, float scale, float* out, float* sums) {
  for (int64_t start = 0, tile = 0; start < n; start += kRowTileSize, ++tile) {
    int64_t end = n - start < kRowTileSize ? n : start + kRowTileSize;
    VF sum = vset(0.0f);
    for (int64_t i = start; i < end; i += kLanes) {
      int left = lanes_left(i, end);
      VF e = vexp(vmul(vsub(load_row(x + i, left, kNegInf), vset(max)), vset(scale)));
      if (out) store_row(out + i, e, left);
      sum = vadd(sum, e);
    }
    sums[tile] = horizontal_sum(sum);
  }
}

int64_t collect_at_least(const float* x, int64_t n, float bound, int32_t* ids, float* values, int64_t capacity) {
  int64_t count = 0;
  VF limit = vset(bound);
  for (int64_t i = 0; i < n; i += kLanes) {
    unsigned mask = vmask_ge(load_row(x + i, lanes_left(i, n), kNegInf), limit) & ((1u << lanes_left(i, n)) - 1u);
    for (; mask != 0; mask &= mask - 1) {
      int64_t at = i + __builtin_ctz(mask);
      if (count < capacity) {
        ids[count] = int32_t(at);
        values[count] = x[at];
      }
      ++count;
    }
  }
  return count;
}

int64_t count_greater(const float* x, int64_t n, float value) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += kLanes) count += vcount_gt(load_row(x + i, lanes_left(i, n), kNegInf), vset(value));
  return count;
}

// The elements of one word of a mask; most words are all ones or all zeros.
inline void keep_word(float* row, int count, uint32_t word) {
  if (word == ~0u) return;
  if (word == 0) {
    for (int i = 0; i < count; ++i) row[i] = kNegInf;
  } else if (count == 32) {
    for (uint32_t i = 0; i < 32; ++i) row[i] = (word >> i & 1) ? row[i] : kNegInf;
  } else {
    for (int i = 0; i < count; ++i) row[i] = (word >> i & 1) ? row[i] : kNegInf;
  }
}

float keep_bits(float* x, int64_t n, const uint32_t* bits, float* maxima) {
  VF whole = vset(kNegInf), nan = vset(0.0f);
  for (int64_t start = 0, tile = 0; start < n; start += kRowTileSize, ++tile) {
    int64_t end = n - start < kRowTileSize ? n : start + kRowTileSize;
    VF best = vset(kNegInf);
    for (int64_t first = start; first < end; first += 32) {
      int count = end - first < 32 ? int(end - first) : 32;
      for (int i = 0; i < count; i += kLanes) {
        VF v = load_row(x + first + i, lanes_left(i, count), kNegInf);
        whole = vmax(whole, v);
        nan = vadd(nan, vselect_nan(v));
      }
      uint32_t word = bits[first / 32];
      keep_word(x + first, count, word);
      for (int i = 0; word != 0 && i < count; i += kLanes) best = vmax(best, load_row(x + first + i, lanes_left(i, count), kNegInf));
    }
    maxima[tile] = horizontal_max(best);
  }
  return vany_nan(nan) ? __builtin_nanf("") : horizontal_max(whole);
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
