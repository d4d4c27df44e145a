// Attention over pages of keys and values; part of kernels_table.h, which includes it.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

// acc[R][U units of 16 columns] += a (R rows, `steps` steps) . b; unit u's columns start at b[u], its steps are `stride` elements apart.
// With Fetch, what lies `ahead` bytes behind each line of b is fetched.
template <typename S, int R, int U, bool Fetch>
inline void small_gemm(const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps, float* out,
                       int64_t ldo, int64_t ahead) {
  constexpr int C = U * kUnit;
  VF acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = vload(out + r * ldo + c * kLanes);
  }
  for (int64_t s = 0; s < steps; ++s) {
    if constexpr (Fetch) {
      for (int u = 0; u < U; ++u) __builtin_prefetch(reinterpret_cast<const char*>(b[u] + s * stride) + ahead);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      typename S::X x = S::broadcast(a + r * lda + s * S::kDepth);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        acc[r][c] = S::fma(x, b[c / kUnit] + s * stride + (c % kUnit) * kLanes * S::kDepth, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) vstore(out + r * ldo + c * kLanes, acc[r][c]);
  }
}

// At most R rows.
template <typename S, int R, int U, bool Fetch>
inline void small_gemm_most(int rows, const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps,
                            float* out, int64_t ldo, int64_t ahead) {
  if (rows == R) return small_gemm<S, R, U, Fetch>(a, lda, b, stride, steps, out, ldo, ahead);
  if constexpr (R > 1) small_gemm_most<S, R - 1, U, Fetch>(rows, a, lda, b, stride, steps, out, ldo, ahead);
}

// The first rows fetch.
template <typename S, int U, bool Fetch = false>
inline void small_gemm_rows(int rows, const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps,
                            float* out, int64_t ldo, int64_t ahead = 0) {
#if TANDEM_AMX
  if constexpr (S::kDepth == 2) return small_gemm_tiles<U>(rows, a, lda, b, stride, steps, out, ldo);
#endif
  constexpr int R = kAttendTileRows;
  if (rows < R) return small_gemm_most<S, R, U, Fetch>(rows, a, lda, b, stride, steps, out, ldo, ahead);
  small_gemm<S, R, U, Fetch>(a, lda, b, stride, steps, out, ldo, ahead);
  int r = R;
  for (; r + R <= rows; r += R) small_gemm<S, R, U, false>(a + r * lda, lda, b, stride, steps, out + r * ldo, ldo, 0);
  if (r < rows) small_gemm_most<S, R, U, false>(rows - r, a + r * lda, lda, b, stride, steps, out + r * ldo, ldo, 0);
}

// At most U units.
template <typename S, int U, bool Fetch = false>
inline void small_gemm_units(int units, int rows, const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride,
                             int64_t steps, float* out, int64_t ldo, int64_t ahead = 0) {
  if (units == U) return small_gemm_rows<S, U, Fetch>(rows, a, lda, b, stride, steps, out, ldo, ahead);
  if constexpr (U > 1) small_gemm_units<S, U - 1, Fetch>(units, rows, a, lda, b, stride, steps, out, ldo, ahead);
}

// Pages of values and how far behind each the keys lie that are needed next, in bytes.
template <typename T>
struct ValuePages {
  const T* values[kPagesPerTile];
  int64_t ahead[kPagesPerTile];
  int count;
};

// out[R][U units from column d on] += weights . values, page by page.
template <typename S, int R, int U, bool Fetch>
inline void gather_columns(const typename S::T* weights, const ValuePages<typename S::T>& pages, int64_t dim, int64_t d, float* out) {
  constexpr int C = U * kUnit;
  VF acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = vload(out + r * dim + d + c * kLanes);
  }
  for (int page = 0; page < pages.count; ++page) {
    const typename S::T* values = pages.values[page] + d * S::kDepth;
    for (int s = 0; s < kPage / S::kDepth; ++s, values += dim * S::kDepth) {
      if constexpr (Fetch) {
        for (int u = 0; u < U; ++u) {
          __builtin_prefetch(reinterpret_cast<const char*>(values + u * 16 * S::kDepth) + pages.ahead[page]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        typename S::X x = S::broadcast(weights + r * kKeyTile + page * kPage + s * S::kDepth);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) acc[r][c] = S::fma(x, values + c * kLanes * S::kDepth, acc[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) vstore(out + r * dim + d + c * kLanes, acc[r][c]);
  }
}

// At most R rows.
template <typename S, int R, bool Fetch>
inline void gather_rows(int rows, const typename S::T* weights, const ValuePages<typename S::T>& pages, int64_t dim, float* out) {
  if (rows < R) {
    if constexpr (R > 1) gather_rows<S, R - 1, Fetch>(rows, weights, pages, dim, out);
    return;
  }
  int64_t d = 0;
  for (; d + 16 * kAttendTileUnits <= dim; d += 16 * kAttendTileUnits) {
    gather_columns<S, R, kAttendTileUnits, Fetch>(weights, pages, dim, d, out);
  }
  for (; d < dim; d += 16) gather_columns<S, R, 1, Fetch>(weights, pages, dim, d, out);
}

inline void store_weights(uint16_t* out, VF v) { vstore_bf16_normal(out, v); }
inline void store_weights(float* out, VF v) { vstore(out, v); }

// Bytes as elements, exactly: n of them, a multiple of 256 (a page of a head).
inline void widen_bytes(const int8_t* in, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += 2 * kLanes) vstore_bf16_exact(out + i, vwiden_bytes(in + i), vwiden_bytes(in + i + kLanes));
}
inline void widen_bytes(const int8_t* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) vstore(out + i, vwiden_bytes(in + i));
}

template <typename S, bool kInt8>
struct Attend {
  using T = typename S::T;
  static constexpr int kU = kAttendTileUnits;
  const AttendArgs<T>& args;
  float max[kAttendRows];
  float sum[kAttendRows];
  // One row of probabilities as the element type of the values.
  alignas(64) T weights[kAttendRows * kKeyTile];
  // Of the tile's positions, with int8; args.scale is part of the keys'.
  alignas(64) float key_scales[kKeyTile], value_scales[kKeyTile];

  explicit Attend(const AttendArgs<T>& a) : args(a) {
    for (int r = 0; r < a.rows; ++r) {
      max[r] = a.begins ? kNegInf : a.state[2 * r];
      sum[r] = a.begins ? 0.0f : a.state[2 * r + 1];
    }
  }

  int first_key() const {
    int first = args.first[0];
    for (int r = 1; r < args.rows; ++r) first = args.first[r] < first ? args.first[r] : first;
    return first;
  }
  int last_key() const {
    int last = args.last[0];
    for (int r = 1; r < args.rows; ++r) last = args.last[r] > last ? args.last[r] : last;
    return last;
  }

  const uint8_t* keys_of(int page) const { return args.keys + int64_t(args.pages[page]) * args.page_stride; }
  const uint8_t* values_of(int page) const { return keys_of(page) + args.value_offset; }

  // The elements of a block; bytes are widened to one of the places in `wide`.
  const T* elements(const uint8_t* block, int place) const {
    if constexpr (kInt8) {
      int64_t numbers = int64_t(args.dim) * kPage;
      T* out = args.wide + place * numbers;
      widen_bytes(reinterpret_cast<const int8_t*>(block), numbers, out);
      return out;
    } else {
      return reinterpret_cast<const T*>(block);
    }
  }

  // Positions of pages that are not read have a scale of 0.
  void load_scales(int tile, int pages) {
    auto scales_of = [&](const uint8_t* block) { return reinterpret_cast<const float*>(block + int64_t(args.dim) * kPage); };
    for (int i = 0; i < kKeyTile; ++i) {
      int page = tile * kPagesPerTile + i / kPage;
      bool read = i / kPage < pages;
      key_scales[i] = read ? args.scale * scales_of(keys_of(page))[i % kPage] : 0.0f;
      value_scales[i] = read ? scales_of(values_of(page))[i % kPage] : 0.0f;
    }
  }

  // scores[rows][kKeyTile] = q . k for the pages of the tile that hold visible keys. Their values are fetched meanwhile.
  void score(int tile, int pages) {
    float* scores = args.scratch;
    for (int i = 0; i < args.rows * kKeyTile; ++i) scores[i] = 0.0f;
    for (int page = 0; page < pages; page += kU) {
      const T* keys[kU];
      int units = pages - page < kU ? pages - page : kU;
      for (int u = 0; u < units; ++u) keys[u] = elements(keys_of(tile * kPagesPerTile + page + u), page + u);
      int64_t steps = args.dim / S::kDepth;
      small_gemm_units<S, kU, !kInt8>(units, args.rows, args.q, args.dim, keys, kPage * S::kDepth, steps, scores + page * kPage, kKeyTile,
                                      args.value_offset);
    }
  }

  // Scales a row's scores, those that it does not see to -inf; returns the largest.
  float scale_scores(int row, int base) {
    float* scores = args.scratch + row * kKeyTile;
    int low = args.first[row] - base, high = args.last[row] - base;
    if (low > 0 || high < kKeyTile - 1) {
      for (int i = 0; i < kKeyTile; ++i) scores[i] = i >= low && i <= high ? scores[i] : kNegInf;
    }
    VF top = vset(kNegInf);
    for (int i = 0; i < kKeyTile; i += kLanes) {
      // An unseen position stays unseen where its scale is 0.
      VF scaled = vmul(vload(scores + i), kInt8 ? vload(key_scales + i) : vset(args.scale));
      if constexpr (kInt8) scaled = vselect_lt(vload(scores + i), vset(-__FLT_MAX__), vset(kNegInf), scaled);
      vstore(scores + i, scaled);
      top = vmax(top, scaled);
    }
    return horizontal_max(top);
  }

  // Turns the rows' scores into weights and rescales what the rows have gathered so far.
  void soften(int base) {
    alignas(64) float best[kAttendRows], keep[kAttendRows];
    for (int r = 0; r < args.rows; ++r) {
      best[r] = scale_scores(r, base);
      best[r] = best[r] > max[r] ? best[r] : max[r];
      keep[r] = max[r] - (best[r] == kNegInf ? 0.0f : best[r]);
    }
    for (int r = args.rows; r % kLanes != 0; ++r) keep[r] = 0.0f;
    for (int r = 0; r < args.rows; r += kLanes) vstore(keep + r, vexp(vload(keep + r)));
    for (int r = 0; r < args.rows; ++r) {
      const float* scores = args.scratch + r * kKeyTile;
      VF shift = vset(best[r] == kNegInf ? 0.0f : best[r]), total = vset(0.0f);
      for (int i = 0; i < kKeyTile; i += kLanes) {
        VF e = vexp(vsub(vload(scores + i), shift));
        store_weights(weights + r * kKeyTile + i, kInt8 ? vmul(e, vload(value_scales + i)) : e);
        total = vadd(total, e);
      }
      sum[r] = sum[r] * keep[r] + horizontal_sum(total);
      if (best[r] != max[r]) {
        float* out = args.out + int64_t(r) * args.dim;
        for (int d = 0; d < args.dim; d += kLanes) vstore(out + d, vmul(vload(out + d), vset(keep[r])));
      }
      max[r] = best[r];
    }
  }

  // out[rows][dim] += weights . v, page by page. Keys that no row sees have weight 0; their pages hold finite numbers. The keys that are read
  // next are fetched meanwhile.
  void gather(int tile, int pages, const typename AttendArgs<T>::Next& next) {
    ValuePages<T> of;
    of.count = pages;
    for (int page = 0; page < pages; ++page) {
      const uint8_t* block = values_of(tile * kPagesPerTile + page);
      of.values[page] = elements(block, page);
      of.ahead[page] = page < next.count ? next.keys + int64_t(next.pages[page]) * args.page_stride - block : 0;
    }
#if TANDEM_AMX
    if constexpr (S::kDepth == 2) return gather_tiles(args.rows, weights, of.values, pages, args.dim, args.out);
#endif
    constexpr int R = kAttendTileRows;
    if (!kInt8 && next.count > 0) gather_rows<S, R, true>(args.rows < R ? args.rows : R, weights, of, args.dim, args.out);
    else gather_rows<S, R, false>(args.rows < R ? args.rows : R, weights, of, args.dim, args.out);
    for (int r = R; r < args.rows; r += R) {
      int rows = args.rows - r < R ? args.rows - r : R;
      gather_rows<S, R, false>(rows, weights + r * kKeyTile, of, args.dim, args.out + int64_t(r) * args.dim);
    }
  }

  static int pages_of(int tile, int last) {
    int pages = (last - tile * kKeyTile) / kPage + 1;
    return pages < kPagesPerTile ? pages : kPagesPerTile;
  }

  void run() {
    for (int i = 0; args.begins && i < args.rows * args.dim; ++i) args.out[i] = 0.0f;
    int last = last_key(), tile = first_key() / kKeyTile, end = last / kKeyTile + 1;
    if (args.state) {
      tile = tile < args.first_tile ? args.first_tile : tile;
      end = args.end_tile;
    }
    for (; tile < end; ++tile) {
      int base = tile * kKeyTile, pages = pages_of(tile, last);
      if constexpr (kInt8) load_scales(tile, pages);
      score(tile, pages);
      soften(base);
      if (tile + 1 == end) gather(tile, pages, args.next);
      else gather(tile, pages, {args.keys, args.pages + (tile + 1) * kPagesPerTile, pages_of(tile + 1, last)});
    }
    for (int r = 0; !args.finishes && r < args.rows; ++r) {
      args.state[2 * r] = max[r];
      args.state[2 * r + 1] = sum[r];
    }
    for (int r = 0; args.finishes && r < args.rows; ++r) {
      float* out = args.out + int64_t(r) * args.dim;
      VF inverse = vset(1.0f / sum[r]);
      for (int d = 0; d < args.dim; d += kLanes) vstore(out + d, vmul(vload(out + d), inverse));
    }
  }
};

template <typename S, bool kInt8>
void attend(const AttendArgs<typename S::T>& args) {
#if TANDEM_AMX
  TileUse use;
#endif
  Attend<S, kInt8>(args).run();
}

}  // namespace
}  // namespace TANDEM_SIMD_NS
