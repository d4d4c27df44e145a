// Products of pairs with random weights of their experts by one of the kernels, and what they must be.
#pragma once
#include <algorithm>

#include "cuda/gemm/matmul.h"
#include "routed.h"

namespace tandem::test {

using cuda::ExpertKernel;

// x has rows that `shared` pairs read; by wgmma they are gathered, each pair's at its place of the order.
struct Pairs {
  Pairs(Routed& routed, Random& random, int64_t n, int64_t k, int64_t shared, bool transposed, ExpertKernel kernel = ExpertKernel::kMma)
      : routed(routed), n(n), k(k), shared(shared), transposed(transposed), depth(transposed ? (n + 7) / 8 * 8 : k),
        outputs(transposed ? k : n), kernel(kernel), xs(bf16s(random, size_t(routed.pairs() / shared * depth))),
        ws(bf16s(random, size_t(routed.experts * n * k))) {
    for (size_t i = 0; i < xs.size(); ++i) {
      if (transposed && int64_t(i) % depth >= n) xs[i] = {0};
    }
    x = DeviceBuffer<bf16>(xs);
    w = DeviceBuffer<bf16>(ws);
    if (kernel == ExpertKernel::kMma) return;
    sorted = DeviceBuffer<bf16>(size_t(routed.pairs() * depth));
    cuda::gather_pairs({x.data(), depth, shared, routed.order.data(), routed.pairs(), depth, sorted.data()}, nullptr);
  }

  int64_t ldy() const { return outputs + (kernel == ExpertKernel::kMma ? 2 : 4); }
  cuda::ExpertsMatMul args() const {
    const bool plain = kernel == ExpertKernel::kMma;
    cuda::ExpertsMatMul e{plain ? x.data() : sorted.data(),
                          depth,
                          plain ? shared : 1,
                          routed.pairs(),
                          routed.order.data(),
                          routed.tiles.data(),
                          w.data(),
                          routed.experts,
                          n,
                          k,
                          nullptr,
                          ldy()};
    e.kernel = kernel;
    return e;
  }
  static std::vector<float> run(const cuda::ExpertsMatMul& e, bool transposed) {
    DeviceBuffer<float> y(std::vector<float>(size_t(e.pairs * e.ldy), 7.5f));
    cuda::ExpertsMatMul args = e;
    args.y = y.data();
    if (transposed) cuda::experts_matmul_transposed(args, nullptr);
    else cuda::experts_matmul(args, nullptr);
    return y.download();
  }
  std::vector<float> run() const { return run(args(), transposed); }

  Routed& routed;
  int64_t n, k, shared;
  bool transposed;
  int64_t depth, outputs;
  ExpertKernel kernel;
  std::vector<bf16> xs, ws;
  DeviceBuffer<bf16> x, w, sorted;
};

inline void check_pairs(Routed& routed, int64_t n, int64_t k, int64_t shared, bool transposed, ExpertKernel kernel = ExpertKernel::kMma) {
  Random random(uint64_t(n * 1009 + k));
  const Pairs p(routed, random, n, k, shared, transposed, kernel);
  const std::vector<float> seen = p.run();
  const auto chosen = routed.chosen.download();
  const int64_t ldy = p.ldy();
  for (int64_t pair = 0; pair < routed.pairs(); ++pair) {
    const bool there = chosen[size_t(pair)] >= 0;
    const bf16* x = p.xs.data() + pair / shared * p.depth;
    const bf16* w = p.ws.data() + int64_t(std::max(chosen[size_t(pair)], 0)) * n * k;
    for (int64_t o = 0; o < ldy; ++o) {
      double sum = 0, size = 1;
      for (int64_t i = 0; o < p.outputs && i < (transposed ? n : k); ++i) {
        const double term = double(cuda::to_float(x[i])) * cuda::to_float(transposed ? w[i * k + o] : w[o * k + i]);
        sum += term;
        size += std::fabs(term);
      }
      CHECK_NEAR(seen[size_t(pair * ldy + o)], there && o < p.outputs ? sum : 7.5, 1e-6 * size);
    }
  }
}

// A pair has the bits that it has alone, which are those of its expert's own product by the dense kernel.
inline void check_pairs_alone(bool transposed, ExpertKernel kernel = ExpertKernel::kMma) {
  Random random(85);
  const int64_t rows = 67, experts = 3, used = 2, n = 72, k = 200;
  Routed routed(random, rows, experts, used);
  const Pairs p(routed, random, n, k, used, transposed, kernel);
  const std::vector<float> all = p.run();
  const auto chosen = routed.chosen.download(), order = routed.order.download();
  const int64_t ldy = p.ldy();
  for (int32_t pair : {0, 1, 40, 133}) {
    const DeviceBuffer<int32_t> first(std::vector<int32_t>{0});
    const DeviceBuffer<cuda::ExpertTile> tiles(std::vector<cuda::ExpertTile>{{chosen[size_t(pair)], 0, 1}});
    cuda::ExpertsMatMul one = p.args();
    const int64_t place = kernel == ExpertKernel::kMma ? pair / used : std::find(order.begin(), order.end(), pair) - order.begin();
    one.x += place * p.depth, one.pairs = one.shared = 1, one.order = first.data(), one.tiles = tiles.data();
    const std::vector<float> row(all.begin() + pair * ldy, all.begin() + (pair + 1) * ldy);
    CHECK(same_bits(Pairs::run(one, transposed), row));
    DeviceBuffer<float> y(std::vector<float>(size_t(ldy), 7.5f));
    cuda::MatMul plain{one.x, p.depth, 1, p.w.data() + int64_t(chosen[size_t(pair)]) * n * k, n, k, y.data(), ldy, false, nullptr, 0};
    plain.kernel = kernel == ExpertKernel::kMma ? cuda::MatMulKernel::kMma : cuda::MatMulKernel::kWgmma;
    if (transposed) cuda::matmul_transposed(plain, nullptr);
    else cuda::matmul(plain, nullptr);
    CHECK(same_bits(y.download(), row));
  }
}

// With the activation, whose rows lie as those of x do: the bits of the product's.
inline void check_gates(Routed& routed, int64_t n, int64_t k, bool keeps, ExpertKernel kernel = ExpertKernel::kMma) {
  Random random(uint64_t(n * 7 + k));
  const Pairs p(routed, random, n, k, routed.used, false, kernel);
  const std::vector<float> sums = p.run();
  DeviceBuffer<bf16> active(size_t(routed.pairs() * n / 2)), kept(keeps ? size_t(routed.pairs() * n) : 0);
  cuda::ExpertsMatMul args = p.args();
  args.gated = active.data();
  args.kept = keeps ? kept.data() : nullptr;
  cuda::experts_matmul(args, nullptr);
  const auto seen = active.download(), both = kept.download();
  const auto order = routed.order.download();
  for (int64_t place = 0; place < routed.pairs(); ++place) {
    const int64_t pair = kernel == ExpertKernel::kMma ? place : order[size_t(place)];
    if (pair < 0) continue;
    for (int64_t i = 0; i < n; ++i) {
      const float* gate = &sums[size_t(pair * p.ldy() + i / 2 * 2)];
      if (keeps) CHECK_EQ(both[size_t(pair * n + i)].bits, cuda::to_bf16(gate[i % 2]).bits);
      const double wanted = double(gate[0]) / (1 + std::exp(-double(gate[0]))) * double(gate[1]);
      CHECK_NEAR(cuda::to_float(seen[size_t((place * n + i) / 2)]), wanted, kBf16 * std::fabs(wanted) + 1e-5);
    }
  }
}

}  // namespace tandem::test
