#include "ops/quantised_matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/e4m3.h"
#include "base/error.h"

namespace tandem::ops {
namespace {

using simd::QuantTraits;
using simd::traits_of;

// Where a part's rows lie in the matrix and in the panel that is packed.
struct Overlap {
  const QuantPart* part;
  int64_t first_in_part, first_in_panel, count;
};

// Where each part ends in the matrix.
std::vector<int64_t> ends_of(const std::vector<QuantPart>& parts) {
  std::vector<int64_t> ends;
  for (const QuantPart& part : parts) ends.push_back((ends.empty() ? 0 : ends.back()) + part.rows);
  return ends;
}

// A matrix may have a part per row, so those before `first` are not gone through.
std::vector<Overlap> overlaps(const std::vector<QuantPart>& parts, const std::vector<int64_t>& ends, int64_t first, int64_t end) {
  std::vector<Overlap> found;
  size_t i = size_t(std::upper_bound(ends.begin(), ends.end(), first) - ends.begin());
  for (; i < parts.size() && ends[i] - parts[i].rows < end; ++i) {
    const int64_t part_first = ends[i] - parts[i].rows;
    int64_t from = std::max(first, part_first), to = std::min(end, ends[i]);
    if (from < to) found.push_back({&parts[i], from - part_first, from - first, to - from});
  }
  return found;
}

// Writes and reads the fields of one group of a packed panel.
struct Group {
  uint8_t* data;
  const QuantTraits& t;
  int64_t panel;

  void put_scale(int64_t row, float scale, float minimum) const {
    if (t.floating) return;
    if (t.wide_scales) {
      std::memcpy(data + 4 * row, &scale, 4);
    } else {
      uint16_t half = float_to_half(scale);
      std::memcpy(data + 2 * row, &half, 2);
    }
    if (t.minima) std::memcpy(data + t.scale_bytes(panel) + 4 * row, &minimum, 4);
  }
  // `c`: the column within the group.
  void put_value(int64_t row, int64_t c, uint8_t stored) const {
    uint8_t* values = data + t.scale_bytes(panel) + t.minimum_bytes(panel);
    if (t.bits == 8) {
      values[(c / 4 * panel + row) * 4 + c % 4] = stored;
      return;
    }
    int64_t half = t.group / 2, within = c % half;
    values[(within / 4 * panel + row) * 4 + within % 4] |= uint8_t(c < half ? stored : stored << 4);
  }
};

struct ConstGroup {
  const uint8_t* data;
  const QuantTraits& t;
  int64_t panel;

  float scale(int64_t row) const {
    if (t.wide_scales) return load<float>(data + 4 * row);
    return half_to_float(load<uint16_t>(data + 2 * row));
  }
  float minimum(int64_t row) const { return t.minima ? load<float>(data + t.scale_bytes(panel) + 4 * row) : 0.0f; }
  int value(int64_t row, int64_t c) const {
    const uint8_t* values = data + t.scale_bytes(panel) + t.minimum_bytes(panel);
    if (t.bits == 8) return values[(c / 4 * panel + row) * 4 + c % 4] - t.offset;
    int64_t half = t.group / 2, within = c % half;
    uint8_t byte = values[(within / 4 * panel + row) * 4 + within % 4];
    return (c < half ? byte & 15 : byte >> 4) - t.offset;
  }

 private:
  template <typename T>
  static T load(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
};

}  // namespace

QuantisedMatrix::QuantisedMatrix(int64_t panel, int64_t k, const std::vector<QuantPart>& parts, ThreadPool& pool)
    : k_(k), k_padded_(round_up(k, simd::kQuantRowGroup)), panel_(panel) {
  for (const QuantPart& part : parts) n_ += part.rows;
  require(n_ > 0 && k > 0, ErrorKind::kRange, "matrix dimensions must be positive");
  n_padded_ = round_up(n_, panel);
  const std::vector<int64_t> ends = ends_of(parts);
  place_panels(parts, ends);
  std::atomic<bool> ok{true};
  pool.run(int64_t(formats_.size()), [&](int64_t p) {
    thread_local std::vector<uint8_t> values;
    thread_local std::vector<float> numbers;
    if (ok && !pack_panel(p, parts, ends, values, numbers)) ok = false;
  });
  require(ok, ErrorKind::kIo, "could not read the weights");
}

QuantisedMatrix::QuantisedMatrix(int64_t panel, int64_t n, int64_t k, QuantFormat format,
                                 const std::function<bool(uint8_t* data, int64_t bytes)>& fill)
    : n_(n), n_padded_(round_up(n, panel)), k_(k), k_padded_(round_up(k, simd::kQuantRowGroup)), panel_(panel) {
  require(n > 0 && k > 0, ErrorKind::kRange, "matrix dimensions must be positive");
  place_panels({{n, format, nullptr}}, {n});
  if (!fill(data_.data(), int64_t(data_.size()))) *this = {};
}

void QuantisedMatrix::place_panels(const std::vector<QuantPart>& parts, const std::vector<int64_t>& ends) {
  size_t bytes = 0;
  for (int64_t first = 0; first < n_; first += panel_) {
    std::vector<Overlap> rows = overlaps(parts, ends, first, first + panel_);
    QuantFormat format = rows.front().part->format;
    for (const Overlap& overlap : rows) {
      if (overlap.part->format == format) continue;
      const bool floating = traits_of(overlap.part->format).floating || traits_of(format).floating;
      require(!floating, ErrorKind::kRange, "floating and whole numbers cannot share a panel");
      format = QuantFormat::kInt8FineMin;
    }
    formats_.push_back(format);
    offsets_.push_back(bytes);
    bytes += size_t(traits_of(format).panel_bytes(panel_, k_padded_));
  }
  data_ = Buffer<uint8_t>(bytes);
}

bool QuantisedMatrix::pack_panel(int64_t panel, const std::vector<QuantPart>& parts, const std::vector<int64_t>& ends,
                                 std::vector<uint8_t>& values, std::vector<float>& numbers) {
  const QuantTraits to = traits_of(format(panel));
  uint8_t* data = data_.data() + offsets_[size_t(panel)];
  uint8_t* group_data = data + to.head_bytes(panel_);
  for (int64_t k0 = 0; k0 < k_padded_; k0 += to.group) {
    Group group{group_data + k0 / to.group * to.group_bytes(panel_), to, panel_};
    for (int64_t row = 0; row < panel_; ++row) {
      for (int64_t c = 0; c < to.group; ++c) {
        if (k0 + c >= k_ || panel * panel_ + row >= n_) group.put_value(row, c, uint8_t(to.offset));
      }
    }
  }
  for (const Overlap& overlap : overlaps(parts, ends, panel * panel_, (panel + 1) * panel_)) {
    const QuantTraits from = traits_of(overlap.part->format);
    int64_t groups = from.scales_of(k_);
    values.resize(size_t(overlap.count * k_));
    numbers.assign(size_t(2 * overlap.count * groups), 0.0f);
    float* minima = numbers.data() + overlap.count * groups;
    if (!overlap.part->read(overlap.first_in_part, overlap.count, {values.data(), numbers.data(), from.minima ? minima : nullptr})) {
      return false;
    }
    for (int64_t r = 0; r < overlap.count; ++r) {
      int64_t row = overlap.first_in_panel + r;
      if (to.floating) std::memcpy(data + 4 * row, &numbers[size_t(r)], 4);
      for (int64_t k0 = 0; k0 < k_; k0 += to.group) {
        Group group{group_data + k0 / to.group * to.group_bytes(panel_), to, panel_};
        int64_t at = r * groups + std::min(k0 / from.group, groups - 1);
        group.put_scale(row, numbers[size_t(at)], minima[at]);
        for (int64_t c = 0; c < std::min<int64_t>(to.group, k_ - k0); ++c) {
          group.put_value(row, c, uint8_t(values[size_t(r * k_ + k0 + c)] - from.offset + to.offset));
        }
      }
    }
  }
  return true;
}

void QuantisedMatrix::copy_row(int64_t row, float* out) const {
  const uint8_t* data = panel_data(row / panel_);
  const QuantTraits t = traits_of(format(row / panel_));
  for (int64_t k0 = 0; k0 < k_; k0 += t.group) {
    ConstGroup group{data + t.head_bytes(panel_) + k0 / t.group * t.group_bytes(panel_), t, panel_};
    float scale = t.floating ? ConstGroup{data, t, panel_}.scale(row % panel_) : group.scale(row % panel_),
          minimum = group.minimum(row % panel_);
    for (int64_t c = 0; c < std::min<int64_t>(t.group, k_ - k0); ++c) {
      const int value = group.value(row % panel_, c);
      float product = scale * (t.floating ? e4m3_to_float(uint8_t(value)) : float(value));
      out[k0 + c] = t.minima ? product + minimum : product;
    }
  }
}

void quantise_activation_reference(const float* x, int64_t k_padded, int8_t* values, float* scales) {
  constexpr int64_t kGroup = simd::kQuantRowGroup, kBlock = simd::kQuantScaleBlock;
  auto largest_of = [&](int64_t first, int64_t end) {
    float largest = 0;
    for (int64_t i = first; i < end; ++i) largest = std::isfinite(x[i]) ? std::max(largest, std::fabs(x[i])) : INFINITY;
    return largest;
  };
  for (int64_t k0 = 0; k0 < k_padded; k0 += kGroup) {
    const int64_t block = k0 / kBlock * kBlock;
    const float top = largest_of(block, std::min(k_padded, block + kBlock)), largest = largest_of(k0, k0 + kGroup);
    const bool finite = std::isfinite(top), zero = !finite || top < 1e-30f;
    int finer = 0;
    if (!zero && largest > 0 && largest * simd::kQuantUneven < top) finer = std::min(simd::kQuantFinest, std::ilogb(top / largest));
    scales[k0 / kGroup] = !finite ? NAN : zero ? 0.0f : std::ldexp(top / 127.0f, -finer);
    const float inverse = zero ? 0.0f : std::ldexp(127.0f / top, finer);
    for (int64_t i = k0; i < k0 + kGroup; ++i) values[i] = zero ? int8_t(0) : int8_t(std::nearbyint(x[i] * inverse));
  }
}

void quantised_matmul_reference(const float* x, int64_t ldx, int64_t m, const QuantisedMatrix& w, float* y, int64_t ldy, bool accumulate) {
  std::vector<int8_t> values(size_t(w.columns_padded()));
  std::vector<float> scales(size_t(w.columns_padded() / simd::kQuantRowGroup));
  for (int64_t i = 0; i < m; ++i) {
    quantise_activation_reference(x + i * ldx, w.columns_padded(), values.data(), scales.data());
    for (int64_t n = 0; n < w.rows(); ++n) {
      const QuantTraits t = traits_of(w.format(n / w.panel()));
      double sum = accumulate ? double(y[i * ldy + n]) : 0.0;
      for (int64_t k0 = 0; k0 < w.columns_padded(); k0 += t.group) {
        ConstGroup group{w.panel_data(n / w.panel()) + k0 / t.group * t.group_bytes(w.panel()), t, w.panel()};
        int64_t dot = 0, total = 0, row = n % w.panel();
        for (int64_t c = 0; c < t.group; ++c) {
          dot += int64_t(group.value(row, c)) * values[size_t(k0 + c)];
          total += values[size_t(k0 + c)];
        }
        double scale = double(scales[size_t(k0 / simd::kQuantRowGroup)]);
        sum += scale * (double(group.scale(row)) * double(dot) + double(group.minimum(row)) * double(total));
      }
      y[i * ldy + n] = float(sum);
    }
  }
}

}  // namespace tandem::ops
