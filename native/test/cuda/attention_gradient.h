// The gradient of attention over packed rows by one of the kernels, and what it must be.
#pragma once
#include "cuda/attention/attention_variants.h"
#include "gpu_support.h"

namespace tandem::test {

// A packed row of segments, each {count, parent}; what each row sees by the mask alone.
struct Packed {
  struct Segment {
    int64_t count;
    int parent;
  };
  int64_t heads, kv_heads, dim, window;
  float scale;
  std::vector<int64_t> first, segment;
  std::vector<cuda::PackedToken> tokens, tiles;
  std::vector<int> parents;
  std::vector<bf16> q, k, v, out, d_out;
  std::vector<float> log_sums;

  Packed(int64_t h, int64_t kv, int64_t d, int64_t w, const std::vector<Segment>& segments, uint64_t seed)
      : heads(h), kv_heads(kv), dim(d), window(w), scale(1 / std::sqrt(float(d))) {
    for (const Segment& s : segments) add(s);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i % cuda::kBackwardTile == 0) tiles.push_back(tokens[i]);
      cuda::PackedToken& tile = tiles.back();
      tile.own_first = std::min(tile.own_first, tokens[i].own_first);
      if (tokens[i].prefix_end == 0) continue;
      tile.prefix_first = tile.prefix_end == 0 ? tokens[i].prefix_first : std::min(tile.prefix_first, tokens[i].prefix_first);
      tile.prefix_end = std::max(tile.prefix_end, tokens[i].prefix_end);
    }
    Random random(seed);
    q = bf16s(random, tokens.size() * size_t(heads * dim));
    k = bf16s(random, tokens.size() * size_t(kv_heads * dim));
    v = bf16s(random, k.size());
    d_out = bf16s(random, q.size());
    out = q;
    log_sums.resize(tokens.size() * size_t(heads));
  }

  void add(const Segment& s) {
    const int64_t begin = int64_t(tokens.size());
    first.push_back(begin);
    parents.push_back(s.parent);
    cuda::PackedToken token{0, int32_t(begin), 0, 0};
    int64_t position = 0;
    if (s.parent >= 0) {
      token.prefix_first = int32_t(first[size_t(s.parent)]);
      while (position + token.prefix_first < begin && segment[size_t(position + token.prefix_first)] == s.parent) ++position;
      token.prefix_end = int32_t(token.prefix_first + position);
    }
    for (int64_t i = 0; i < s.count; ++i) {
      token.position = int32_t(position + i);
      tokens.push_back(token);
      segment.push_back(int64_t(parents.size()) - 1);
    }
  }

  // To the first rows, of whole sequences.
  void cut(int64_t rows) {
    const int64_t tile_count = (rows + cuda::kBackwardTile - 1) / cuda::kBackwardTile;
    tokens.resize(size_t(rows));
    tiles.resize(size_t(tile_count));
    for (auto* values : {&q, &out, &d_out}) values->resize(size_t(rows * heads * dim));
    for (auto* values : {&k, &v}) values->resize(size_t(rows * kv_heads * dim));
    log_sums.resize(size_t(rows * heads));
  }

  // causal, and of the same sequence or of the prefix (and within the window).
  bool sees(int64_t query, int64_t key) const {
    const int64_t own = segment[size_t(query)], other = segment[size_t(key)];
    const bool near = window == 0 || tokens[size_t(query)].position - tokens[size_t(key)].position < window;
    return key <= query && (own == other || parents[size_t(own)] == other) && near;
  }

  static double at(const std::vector<bf16>& values, int64_t index) { return cuda::to_float(values[size_t(index)]); }

  double dot(const std::vector<bf16>& a, int64_t ia, const std::vector<bf16>& b, int64_t ib) const {
    double sum = 0;
    for (int64_t i = 0; i < dim; ++i) sum += at(a, ia * dim + i) * at(b, ib * dim + i);
    return sum;
  }

  // Forward, and the gradients.
  void run(std::vector<double>& dq, std::vector<double>& dk, std::vector<double>& dv) {
    for (int64_t row_index = 0; row_index < int64_t(tokens.size()); ++row_index) {
      for (int64_t head = 0; head < heads; ++head) row(row_index, head, dq, dk, dv);
    }
  }

  // Forward of one row and head, into out and log_sums; then its gradients.
  void row(int64_t query, int64_t head, std::vector<double>& dq, std::vector<double>& dk, std::vector<double>& dv) {
    const int64_t kv = head / (heads / kv_heads), at_q = query * heads + head;
    std::vector<std::pair<int64_t, double>> weights;
    double sum = 0, mean = 0;
    for (int64_t key = 0; key <= query; ++key) {
      if (!sees(query, key)) continue;
      weights.push_back({key * kv_heads + kv, std::exp(dot(q, at_q, k, key * kv_heads + kv) * scale)});
      sum += weights.back().second;
    }
    log_sums[size_t(at_q)] = float(std::log(sum));
    std::vector<double> o(static_cast<size_t>(dim));
    for (auto& [at_k, p] : weights) {
      p /= sum;
      mean += p * dot(d_out, at_q, v, at_k);
      for (int64_t i = 0; i < dim; ++i) o[size_t(i)] += p * at(v, at_k * dim + i);
    }
    for (int64_t i = 0; i < dim; ++i) out[size_t(at_q * dim + i)] = cuda::to_bf16(float(o[size_t(i)]));
    for (const auto& [at_k, p] : weights) {
      const double ds = p * (dot(d_out, at_q, v, at_k) - mean) * scale;
      for (int64_t i = 0; i < dim; ++i) {
        dq[size_t(at_q * dim + i)] += ds * at(k, at_k * dim + i);
        dk[size_t(at_k * dim + i)] += ds * at(q, at_q * dim + i);
        dv[size_t(at_k * dim + i)] += p * at(d_out, at_q * dim + i);
      }
    }
  }
};

// Of the first tile only the last row is seen by others, as their prefix and as the first of their own; of the third only the first one.
inline const std::vector<Packed::Segment> kSingleRowsOfTiles{{63, -1}, {66, -1}, {63, -1}, {10, 1}};

inline void check_gradient(const std::vector<float>& seen, const std::vector<double>& wanted) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK_NEAR(seen[i], wanted[i], 0.03 * (1 + std::fabs(wanted[i])));
    difference += (seen[i] - wanted[i]) * (seen[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  CHECK_NEAR(std::sqrt(difference), 0, 0.01 * std::sqrt(size) + 1e-4);
}

// The kernels over a row whose forward pass is done.
struct AttentionGradient {
  AttentionGradient(const Packed& p, cuda::AttentionKernel kernel)
      : q(p.q), k(p.k), v(p.v), out(p.out), d_out(p.d_out), log_sums(p.log_sums), deltas(p.log_sums.size()), dq(p.q.size()), dk(p.k.size()),
        dv(p.k.size()), tokens(p.tokens), tiles(p.tiles), tile_count(int64_t(p.tiles.size())),
        args{q.data(),   k.data(),  v.data(),  out.data(),    d_out.data(), log_sums.data(),          deltas.data(),
             dq.data(),  dk.data(), dv.data(), tokens.data(), tiles.data(), int64_t(p.tokens.size()), p.heads,
             p.kv_heads, p.dim,     p.scale,   p.window,      kernel} {}

  // In ranges of so many tiles.
  void run(int64_t step) {
    cuda::attention_deltas(args, nullptr);
    for (int64_t tile = 0; tile < tile_count; tile += step) {
      const int64_t count = std::min(step, tile_count - tile);
      cuda::attention_backward_queries(args, tile, count, nullptr);
      cuda::attention_backward_keys(args, tile, count, nullptr);
    }
  }

  DeviceBuffer<bf16> q, k, v, out, d_out;
  DeviceBuffer<float> log_sums, deltas, dq, dk, dv;
  DeviceBuffer<cuda::PackedToken> tokens, tiles;
  int64_t tile_count;
  cuda::AttentionBackward args;
};

// Against plain loops in double; by one tile at a time and by all at once the same bits.
inline void check_attention_gradient(Packed p, cuda::AttentionKernel kernel = cuda::AttentionKernel::kMma) {
  std::vector<double> dq(p.q.size()), dk(p.k.size()), dv(p.k.size());
  p.run(dq, dk, dv);
  AttentionGradient seen(p, kernel), whole(p, kernel);
  seen.run(1);
  whole.run(seen.tile_count);
  check_gradient(seen.dq.download(), dq);
  check_gradient(seen.dk.download(), dk);
  check_gradient(seen.dv.download(), dv);
  CHECK(same_bits(seen.dq.download(), whole.dq.download()));
  CHECK(same_bits(seen.dk.download(), whole.dk.download()));
  CHECK(same_bits(seen.dv.download(), whole.dv.download()));
}

// The first rows of a packed row, alone.
inline void check_rows_before_others(const Packed& alone, const Packed& all, cuda::AttentionKernel kernel) {
  AttentionGradient first(alone, kernel), both(all, kernel);
  first.run(first.tile_count);
  both.run(both.tile_count);
  for (auto member : {&AttentionGradient::dq, &AttentionGradient::dk, &AttentionGradient::dv}) {
    const std::vector<float> wanted = (first.*member).download(), seen = (both.*member).download();
    CHECK(same_bits(wanted, std::vector<float>(seen.begin(), seen.begin() + int64_t(wanted.size()))));
  }
}

}  // namespace tandem::test
