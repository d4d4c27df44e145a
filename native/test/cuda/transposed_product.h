// Products of the way back by one of the kernels, and what they must be.
#pragma once
#include "cuda/gemm/variants.h"
#include "gpu_support.h"

namespace tandem::test {

struct TransposedProduct {
  TransposedProduct(int64_t m, int64_t n, int64_t k, uint64_t seed, cuda::MatMulKernel kernel = cuda::MatMulKernel::kMma)
      : m(m), n(n), k(k), ldx((n + 7) / 8 * 8), kernel(kernel), random(seed), xs(bf16s(random, size_t(m * ldx))),
        ws(bf16s(random, size_t(n * k))), old(random.normals(size_t(m * k))) {
    for (int64_t t = 0; t < m; ++t) {
      for (int64_t i = n; i < ldx; ++i) xs[size_t(t * ldx + i)] = {0};
    }
    x = DeviceBuffer<bf16>(xs);
    w = DeviceBuffer<bf16>(ws);
  }

  // Rows [first, first + count) of x alone, in so many parts as the kernel wants, or as asked for. `elsewhere`: added to what lies elsewhere,
  // whatever y held.
  std::vector<float> run(int64_t first, int64_t count, bool accumulate = false, const cuda::Split* asked = nullptr,
                         bool elsewhere = false) {
    const DeviceBuffer<float> before(std::vector<float>(old.begin() + first * k, old.begin() + (first + count) * k));
    DeviceBuffer<float> y(elsewhere ? std::vector<float>(before.size(), NAN) : before.download());
    DeviceBuffer<float> workspace(size_t(asked ? asked->parts * count * k : cuda::matmul_transposed_floats(kernel, count, n, k)));
    const int64_t floats = int64_t(workspace.size());
    cuda::MatMul args{x.data() + first * ldx, ldx, count, w.data(), n, k, y.data(), k, accumulate, workspace.data(), floats, {}, kernel};
    args.onto = elsewhere ? before.data() : nullptr;
    if (asked) cuda::variant_of(kernel).launch_transposed(args, *asked, nullptr);
    else cuda::matmul_transposed(args, nullptr);
    return y.download();
  }

  int64_t m, n, k, ldx;
  cuda::MatMulKernel kernel;
  Random random;
  std::vector<bf16> xs, ws;
  std::vector<float> old;
  DeviceBuffer<bf16> x, w;
};

inline void check_near(const TransposedProduct& p, const std::vector<float>& seen, bool accumulate) {
  for (int64_t t = 0; t < p.m; ++t) {
    for (int64_t c = 0; c < p.k; ++c) {
      double sum = accumulate ? p.old[size_t(t * p.k + c)] : 0, size = 1;
      for (int64_t o = 0; o < p.n; ++o) {
        const double term = double(cuda::to_float(p.xs[size_t(t * p.ldx + o)])) * cuda::to_float(p.ws[size_t(o * p.k + c)]);
        sum += term;
        size += std::fabs(term);
      }
      CHECK_NEAR(seen[size_t(t * p.k + c)], sum, 1e-6 * size);
    }
  }
}

// Against plain loops in double.
inline void check_transposed(int64_t m, int64_t n, int64_t k, bool accumulate, cuda::MatMulKernel kernel = cuda::MatMulKernel::kMma) {
  TransposedProduct p(m, n, k, uint64_t(m * 1000003 + n * 101 + k), kernel);
  const std::vector<float> seen = p.run(0, m, accumulate);
  check_near(p, seen, accumulate);
  if (accumulate) CHECK(same_bits(p.run(0, m, true, nullptr, true), seen));
}

// Rows (first, count) by themselves have the bits that they have among all.
inline void check_batches(TransposedProduct& p, const std::vector<std::pair<int64_t, int64_t>>& batches,
                          const cuda::Split* asked = nullptr) {
  const std::vector<float> all = p.run(0, p.m, false, asked);
  for (auto [first, count] : batches) {
    const std::vector<float> some = p.run(first, count, false, asked);
    CHECK(same_bits(some, std::vector<float>(all.begin() + first * p.k, all.begin() + (first + count) * p.k)));
  }
}

}  // namespace tandem::test
