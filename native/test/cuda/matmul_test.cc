#include "cuda/gemm/matmul.h"
#include "gpu_support.h"

namespace tandem::test {
namespace {

struct Product {
  Product(int64_t m, int64_t n, int64_t k, uint64_t seed)
      : m(m), n(n), k(k), random(seed), x(bf16s(random, size_t(m * k))), w(bf16s(random, size_t(n * k))), y(random.normals(size_t(m * n))) {
  }

  // Rows [first, first + count) of x alone.
  std::vector<float> run(int64_t first, int64_t count, bool accumulate = false) {
    const auto all = y.download();
    DeviceBuffer<float> out(std::vector<float>(all.begin() + first * n, all.begin() + (first + count) * n));
    DeviceBuffer<float> workspace(size_t(cuda::matmul_workspace_floats(count, n, k)));
    const int64_t floats = int64_t(workspace.size());
    cuda::matmul({x.data() + first * k, k, count, w.data(), n, k, out.data(), n, accumulate, workspace.data(), floats}, nullptr);
    return out.download();
  }

  int64_t m, n, k;
  Random random;
  DeviceBuffer<bf16> x, w;
  DeviceBuffer<float> y;
};

void check_product(int64_t m, int64_t n, int64_t k) {
  Product p(m, n, k, uint64_t(m * 1000003 + n * 101 + k));
  const auto xs = p.x.download(), ws = p.w.download();
  const auto old = p.y.download(), set = p.run(0, m), added = p.run(0, m, true);
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t o = 0; o < n; ++o) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double term = double(cuda::to_float(xs[size_t(t * k + i)])) * cuda::to_float(ws[size_t(o * k + i)]);
        sum += term;
        size += std::fabs(term);
      }
      const size_t at = size_t(t * n + o);
      CHECK_NEAR(set[at], sum, 1e-6 * size + 1e-6);
      CHECK_NEAR(added[at], old[at] + sum, 1e-6 * size + 1e-6);
    }
  }
}

TEST(gpu_matmul_matches_plain_loops) {
  check_product(1, 64, 64);
  check_product(3, 70, 8);
  check_product(17, 130, 200);
  check_product(65, 96, 328);
}

TEST(gpu_matmul_rows_do_not_depend_on_their_batch) {
  // Two parts, computed by two blocks for few tokens and by one for many.
  Product p(130, 72, 576, 9);
  CHECK_EQ(cuda::matmul_splits(p.n, p.k), int64_t(2));
  CHECK_EQ(cuda::matmul_workspace_floats(130, p.n, p.k), int64_t(0));
  CHECK(cuda::matmul_workspace_floats(20, p.n, p.k) > 0);
  const std::vector<float> all = p.run(0, 130);
  for (auto [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {129, 1}, {7, 20}, {60, 66}}) {
    const std::vector<float> some = p.run(first, count);
    CHECK(same_bits(some, std::vector<float>(all.begin() + first * p.n, all.begin() + (first + count) * p.n)));
  }
}

TEST(gpu_matmul_refuses_what_does_not_fit) {
  alignas(16) bf16 memory[64] = {};
  float y[8] = {};
  cuda::MatMul good{memory, 8, 1, memory, 8, 8, y, 8, false, nullptr, 0};
  auto with = [&](auto change) {
    cuda::MatMul args = good;
    change(args);
    cuda::matmul(args, nullptr);
  };
  CHECK_ERROR(kRange, "matmul: k", with([](auto& a) { a.k = 12; }));
  CHECK_ERROR(kRange, "matmul: ldx", with([](auto& a) { a.ldx = 4; }));
  CHECK_ERROR(kRange, "matmul: ldy", with([](auto& a) { a.ldy = 7; }));
  CHECK_ERROR(kRange, "matmul: x", with([](auto& a) { a.x += 1; }));
  CHECK_ERROR(kRange, "workspace_floats", with([](auto& a) { a.k = a.ldx = 4096; }));
}

}  // namespace
}  // namespace tandem::test
