// Products of random matrices by one of the kernels, and what they must be.
#pragma once
#include "cuda/gemm/variants.h"
#include "gpu_support.h"

namespace tandem::test {

struct Product {
  Product(int64_t m, int64_t n, int64_t k, uint64_t seed, cuda::MatMulKernel kernel = cuda::MatMulKernel::kMma)
      : m(m), n(n), k(k), kernel(kernel), random(seed), x(bf16s(random, size_t(m * k))), w(bf16s(random, size_t(n * k))),
        y(random.normals(size_t(m * n))) {}

  // Rows [first, first + count) of x alone; `elsewhere`: added to what lies elsewhere, whatever y held.
  std::vector<float> run(int64_t first, int64_t count, bool accumulate = false, bool elsewhere = false) {
    const auto all = y.download();
    const DeviceBuffer<float> old(std::vector<float>(all.begin() + first * n, all.begin() + (first + count) * n));
    DeviceBuffer<float> out(elsewhere ? std::vector<float>(old.size(), NAN) : old.download());
    DeviceBuffer<float> workspace(size_t(cuda::matmul_workspace_floats(count, n, k)));
    const int64_t floats = int64_t(workspace.size());
    cuda::MatMul args{x.data() + first * k, k, count, w.data(), n, k, out.data(), n, accumulate, workspace.data(), floats, {}, kernel};
    args.onto = elsewhere ? old.data() : nullptr;
    args.under_way = under_way;
    cuda::matmul(args, nullptr);
    return out.download();
  }

  int64_t m, n, k;
  cuda::MatMulKernel kernel;
  int under_way = 0;
  Random random;
  DeviceBuffer<bf16> x, w;
  DeviceBuffer<float> y;
};

inline void check_near(const Product& p, const std::vector<float>& seen, const std::vector<float>& old) {
  const auto xs = p.x.download(), ws = p.w.download();
  for (int64_t t = 0; t < p.m; ++t) {
    for (int64_t o = 0; o < p.n; ++o) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < p.k; ++i) {
        const double term = double(cuda::to_float(xs[size_t(t * p.k + i)])) * cuda::to_float(ws[size_t(o * p.k + i)]);
        sum += term;
        size += std::fabs(term);
      }
      const size_t at = size_t(t * p.n + o);
      CHECK_NEAR(seen[at], old[at] + sum, 1e-6 * size + 1e-6);
    }
  }
}

// What lies between rows of y that are apart is left alone.
inline void check_rows_apart(Product& p, const std::vector<float>& wanted) {
  const int64_t ld = (p.n + 4) / 4 * 4;
  DeviceBuffer<float> out(std::vector<float>(size_t(p.m * ld), 7.5f)), workspace(size_t(cuda::matmul_workspace_floats(p.m, p.n, p.k)));
  const int64_t floats = int64_t(workspace.size());
  cuda::matmul({p.x.data(), p.k, p.m, p.w.data(), p.n, p.k, out.data(), ld, false, workspace.data(), floats, {}, p.kernel}, nullptr);
  const std::vector<float> seen = out.download();
  for (int64_t t = 0; t < p.m; ++t) {
    for (int64_t o = 0; o < ld; ++o) CHECK_EQ(seen[size_t(t * ld + o)], o < p.n ? wanted[size_t(t * p.n + o)] : 7.5f);
  }
}

// Against plain loops in double.
inline void check_product(int64_t m, int64_t n, int64_t k, cuda::MatMulKernel kernel = cuda::MatMulKernel::kMma) {
  Product p(m, n, k, uint64_t(m * 1000003 + n * 101 + k), kernel);
  const std::vector<float> product = p.run(0, m);
  check_near(p, product, std::vector<float>(size_t(m * n)));
  check_rows_apart(p, product);
  const std::vector<float> added = p.run(0, m, true);
  check_near(p, added, p.y.download());
  CHECK(same_bits(p.run(0, m, true, true), added));
}

// By so many tiles of 64 k per part, all parts added by one block. The same bits as by several blocks.
inline std::vector<float> run_in_one_block(Product& p) {
  const cuda::Split split = cuda::split_of(p.m, p.n, p.k);
  DeviceBuffer<float> out(p.y.download());
  const cuda::MatMul args{p.x.data(), p.k, p.m, p.w.data(), p.n, p.k, out.data(), p.n, false, nullptr, 0, {}, p.kernel};
  cuda::variant_of(p.kernel).launch(args, {split.tiles, split.parts, false}, nullptr);
  return out.download();
}

// Rows (first, count) by themselves have the bits that they have among all.
inline void check_batches(Product& p, const std::vector<std::pair<int64_t, int64_t>>& batches) {
  const std::vector<float> all = p.run(0, p.m);
  for (auto [first, count] : batches) {
    const std::vector<float> some = p.run(first, count);
    CHECK(same_bits(some, std::vector<float>(all.begin() + first * p.n, all.begin() + (first + count) * p.n)));
  }
}

}  // namespace tandem::test
