// A product that norms its row: the bits of rms_norm() and the product apart.
#include <cstring>

#include "cuda/gemm/matmul_normed.h"
#include "cuda/norm/rms_norm.h"
#include "product.h"

namespace tandem::test {
namespace {

struct NormedCase {
  int64_t n, k, parts = 6;
  bool gated = false, leave = false;
  int under_way = 0;
};

class Normed {
 public:
  explicit Normed(const NormedCase& c)
      : c_(c), p_(1, c.n, c.k, 67, cuda::MatMulKernel::kWgmma), x_(p_.random.normals(size_t(c.k))),
        parts_(p_.random.normals(size_t(std::max<int64_t>(c.parts, 1) * c.k))), weight_(p_.random.normals(size_t(c.k))), sums_(size_t(c.k)),
        workspace_(std::vector<float>(size_t(cuda::matmul_workspace_floats(1, c.n, c.k)) + 4, NAN)),
        y_(std::vector<float>(size_t(c.n), NAN)), gated_(size_t(c.n / 2)) {}

  cuda::Parts parts() const { return c_.parts > 0 ? cuda::Parts{parts_.data(), c_.parts, 1, c_.k} : cuda::Parts{}; }
  cuda::NormedRow row() { return {x_.data(), parts(), weight_.data(), 1e-6f, sums_.data()}; }
  cuda::MatMul product() {
    cuda::MatMul out{p_.x.data(), c_.k, 1, p_.w.data(), c_.n, c_.k, y_.data(), c_.n, false, workspace_.data(), int64_t(workspace_.size())};
    out.kernel = cuda::MatMulKernel::kWgmma;
    out.leave_parts = c_.leave;
    out.under_way = c_.under_way;
    if (c_.gated) out.gated = gated_.data();
    return out;
  }

  // What is left of the product, and v.
  struct Seen {
    std::vector<float> y, workspace, sums;
    std::vector<bf16> gated;
  };
  Seen apart() {
    DeviceBuffer<float> hidden(x_.download());
    cuda::rms_norm({hidden.data(), c_.k, weight_.data(), p_.x.data(), c_.k, 1, c_.k, 1e-6f, parts(), hidden.data()}, nullptr);
    cuda::matmul(product(), nullptr);
    return {y_.download(), workspace_.download(), hidden.download(), gated_.download()};
  }
  Seen fused() {
    const std::vector<float> x = x_.download(), before = parts_.download();
    y_ = DeviceBuffer<float>(std::vector<float>(y_.size(), NAN));
    workspace_ = DeviceBuffer<float>(std::vector<float>(workspace_.size(), NAN));
    gated_ = DeviceBuffer<bf16>(gated_.size());
    cuda::MatMul args = product();
    args.x = nullptr;
    for (int times = 0; times < 2; ++times) cuda::matmul_normed(args, row(), nullptr);
    CHECK(same_bits(x_.download(), x));
    CHECK(same_bits(parts_.download(), before));
    return {y_.download(), workspace_.download(), sums_.download(), gated_.download()};
  }

 private:
  NormedCase c_;
  Product p_;
  DeviceBuffer<float> x_, parts_, weight_, sums_, workspace_, y_;
  DeviceBuffer<bf16> gated_;
};

bool same_left(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_normed(const NormedCase& c) {
  Normed n(c);
  CHECK(cuda::matmul_normalises(n.product(), n.row()));
  const Normed::Seen apart = n.apart(), fused = n.fused();
  CHECK(same_left(fused.sums, apart.sums));
  CHECK(same_left(fused.y, apart.y));
  CHECK(same_left(fused.workspace, apart.workspace));
  CHECK(std::memcmp(fused.gated.data(), apart.gated.data(), apart.gated.size() * sizeof(bf16)) == 0);
}

TEST(hopper_normed_product_has_the_bits_of_norm_and_product) {
  if (!on_hopper()) return;
  for (int64_t k : {64, 192, 1024, 1088, 2048}) {
    for (int64_t parts : {0, 1, 6, 9}) check_normed({.n = 192, .k = k, .parts = parts});
  }
  check_normed({.n = 130, .k = 320});
}

TEST(hopper_normed_product_comes_in_parts) {
  if (!on_hopper()) return;
  for (int64_t k : {512, 1024, 1920}) {
    CHECK(cuda::matmul_splits(256, k) > 1);
    for (bool leave : {false, true}) check_normed({.n = 256, .k = k, .leave = leave});
  }
  check_normed({.n = 4096, .k = 1024, .leave = true});
}

TEST(hopper_normed_product_gates) {
  if (!on_hopper()) return;
  check_normed({.n = 128, .k = 64, .gated = true});
  check_normed({.n = 256, .k = 448, .parts = 8, .gated = true});
  check_normed({.n = 6144, .k = 1024, .parts = 8, .gated = true});
}

TEST(hopper_normed_product_has_the_same_bits_with_less_under_way) {
  if (!on_hopper()) return;
  for (int kib : {1, 40, 1000}) {
    check_normed({.n = 192, .k = 2048, .under_way = kib << 10});
    check_normed({.n = 64 * 140, .k = 576, .under_way = kib << 10});
  }
}

#ifdef TANDEM_GPU_EMULATION
// A stage is two tiles of weights, of a block that shares its multiprocessor.
TEST(hopper_normed_product_bounds_what_is_under_way) {
  gpu_emulation::most_bytes_in_flight();
  Normed({.n = 64 * 140, .k = 576, .under_way = 1}).fused();
  CHECK_EQ(gpu_emulation::most_bytes_in_flight(), size_t(2 * 64 * 128));
}
#endif

// More blocks than multiprocessors: two share one.
TEST(hopper_normed_product_shares_multiprocessors) {
  if (!on_hopper()) return;
  check_normed({.n = 64 * 140, .k = 128});
  check_normed({.n = 64 * 160, .k = 1088, .gated = true});
}

TEST(hopper_normed_product_is_made_where_it_can_be) {
  Normed n({.n = 128, .k = 256});
  CHECK(cuda::matmul_normalises(n.product(), n.row()));
  const auto refuses = [&](const auto& change) {
    cuda::MatMul args = n.product();
    cuda::NormedRow row = n.row();
    change(args, row);
    CHECK(!cuda::matmul_normalises(args, row));
    CHECK_ERROR(kRange, "matmul_normed: row", cuda::matmul_normed(args, row, nullptr));
  };
  refuses([](auto& a, auto&) { a.m = 2; });
  refuses([](auto& a, auto&) { a.kernel = cuda::MatMulKernel::kMma; });
  refuses([](auto& a, auto&) { a.accumulate = true; });
  refuses([](auto& a, auto&) { a.beside = true; });
  refuses([](auto& a, auto&) { a.k = 248; });
  refuses([](auto& a, auto&) { a.k = 2112; });
  refuses([](auto& a, auto&) { a.n = 64 * 265; });
  refuses([](auto& a, auto&) { a.n = 192, a.gated = reinterpret_cast<bf16*>(256); });
  refuses([](auto&, auto& r) { r.parts.rows = 2; });
  refuses([](auto&, auto& r) { r.sums = const_cast<float*>(r.x); });
  refuses([](auto&, auto& r) { r.weight += 1; });
  cuda::NormedRow row = n.row();
  row.eps = 0;
  CHECK_ERROR(kRange, "matmul_normed: eps", cuda::matmul_normed(n.product(), row, nullptr));
}

}  // namespace
}  // namespace tandem::test
