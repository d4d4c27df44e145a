// Attention over pages of keys and values; part of kernels_body.h, which includes it.
#pragma once

namespace TANDEM_SIMD_NS {
namespace {

// acc[R][U units of 16 columns] += a (R rows, `steps` steps) . b; unit u's columns start at b[u], its steps are `stride` elements apart.
template <typename S, int R, int U>
inline void small_gemm(const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps, float* out,
                       int64_t ldo) {
  constexpr int C = U * kUnit;
  VF acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) acc[r][c] = vload(out + r * ldo + c * kLanes);
  }
  for (int64_t s = 0; s < steps; ++s) {
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

template <typename S, int U>
inline void small_gemm_rows(int rows, const typename S::T* a, int64_t lda, const typename S::T* const* b, int64_t stride, int64_t steps,
                            float* out, int64_t ldo) {
#if TANDEM_AMX
  if constexpr (S::kDepth == 2) return small_gemm_tiles<U>(rows, a, lda, b, stride, steps, out, ldo);
#endif
  int r = 0;
  for (; r + kAttendTileRows <= rows; r += kAttendTileRows) {
    small_gemm<S, kAttendTileRows, U>(a + r * lda, lda, b, stride, steps, out + r * ldo, ldo);
  }
  for (; r < rows; ++r) small_gemm<S, 1, U>(a + r * lda, lda, b, stride, steps, out + r * ldo, ldo);
}

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

  // scores[rows][kKeyTile] = q . k for the pages of the tile that hold visible keys.
  void score(int tile, int pages) {
    float* scores = args.scratch;
    for (int i = 0; i < args.rows * kKeyTile; ++i) scores[i] = 0.0f;
    for (int page = 0; page < pages; page += kU) {
      const T* keys[kU];
      int units = pages - page < kU ? pages - page : kU;
      for (int u = 0; u < units; ++u) keys[u] = elements(keys_of(tile * kPagesPerTile + page + u), page + u);
      int64_t steps = args.dim / S::kDepth;
      float* out = scores + page * kPage;
      if (units == kU) {
        small_gemm_rows<S, kU>(args.rows, args.q, args.dim, keys, kPage * S::kDepth, steps, out, kKeyTile);
      } else {
        for (int u = 0; u < units; ++u) {
          small_gemm_rows<S, 1>(args.rows, args.q, args.dim, keys + u, kPage * S::kDepth, steps, out + u * kPage, kKeyTile);
        }
      }
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
        store_row(weights + r * kKeyTile + i, kInt8 ? vmul(e, vload(value_scales + i)) : e, kLanes);
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

  // out[rows][dim] += weights . v, page by page. Keys that no row sees have weight 0; their pages hold finite numbers.
  void gather(int tile, int pages) {
#if TANDEM_AMX
    if constexpr (S::kDepth == 2) {
      const T* values[kPagesPerTile];
      for (int page = 0; page < pages; ++page) values[page] = elements(values_of(tile * kPagesPerTile + page), page);
      return gather_tiles(args.rows, weights, values, pages, args.dim, args.out);
    }
#endif
    for (int page = 0; page < pages; ++page) {
      const T* values = elements(values_of(tile * kPagesPerTile + page), page);
      const T* w = weights + page * kPage;
      int64_t stride = int64_t(args.dim) * S::kDepth, steps = kPage / S::kDepth;
      int d = 0;
      for (; d + 16 * kU <= args.dim; d += 16 * kU) {
        const T* columns[kU];
        for (int u = 0; u < kU; ++u) columns[u] = values + int64_t(d + 16 * u) * S::kDepth;
        small_gemm_rows<S, kU>(args.rows, w, kKeyTile, columns, stride, steps, args.out + d, args.dim);
      }
      for (; d < args.dim; d += 16) {
        const T* column = values + int64_t(d) * S::kDepth;
        small_gemm_rows<S, 1>(args.rows, w, kKeyTile, &column, stride, steps, args.out + d, args.dim);
      }
    }
  }

  void run() {
    for (int i = 0; args.begins && i < args.rows * args.dim; ++i) args.out[i] = 0.0f;
    int last = last_key(), tile = first_key() / kKeyTile, end = last / kKeyTile + 1;
    if (args.state) {
      tile = tile < args.first_tile ? args.first_tile : tile;
      end = args.end_tile;
    }
    for (; tile < end; ++tile) {
      int base = tile * kKeyTile;
      int pages = (last - base) / kPage + 1;
      if (pages > kPagesPerTile) pages = kPagesPerTile;
      if constexpr (kInt8) load_scales(tile, pages);
      score(tile, pages);
      soften(base);
      gather(tile, pages);
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
