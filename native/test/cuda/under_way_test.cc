// Products of few tokens that have fewer weights under way than there is room for (MatMul::under_way).
#include "engine_fixture.h"
#include "product.h"

namespace tandem::test {
namespace {

constexpr auto kWgmma = cuda::MatMulKernel::kWgmma;

// However little has been asked for at a time: blocks that have a multiprocessor each, and two and three to one; parts, and a few stages of each.
TEST(hopper_matmul_has_the_same_bits_with_less_under_way) {
  if (!on_hopper()) return;
  struct Case {
    int64_t m, n, k;
  };
  for (const Case& c : {Case{1, 192, 64 * 61}, Case{40, 192, 64 * 29 + 8}, Case{1, 64 * 140, 576}, Case{9, 64 * 270, 192}}) {
    Product p(c.m, c.n, c.k, uint64_t(c.m + c.n), kWgmma);
    const std::vector<float> wanted = p.run(0, c.m);
    for (int kib : {1, 40, 100, 1000}) {
      p.under_way = kib << 10;
      CHECK(same_bits(p.run(0, c.m), wanted));
    }
  }
}

#ifdef TANDEM_GPU_EMULATION
// A block that has a multiprocessor to itself: a stage is four tiles of weights, and of 8 tokens.
TEST(hopper_matmul_bounds_what_is_under_way) {
  Product p(1, 64, 64 * 61, 5, kWgmma);
  DeviceBuffer<float> y(size_t(p.n));
  cuda::MatMul args{p.x.data(), p.k, 1, p.w.data(), p.n, p.k, y.data(), p.n, false, nullptr, 0};
  const auto most = [&](int stages) {
    args.under_way = stages * 4 * 64 * 128;
    gpu_emulation::most_bytes_in_flight();
    for (int times = 0; times < 4; ++times) cuda::matmul_wgmma(args, {62, 1, false}, nullptr);
    return gpu_emulation::most_bytes_in_flight();
  };
  // All of a ring's tokens may be on their way beside them.
  const size_t stage = 4 * 64 * 128, tokens = 6 * 4 * 8 * 128;
  CHECK(most(1) <= stage + tokens);
  CHECK(most(2) <= 2 * stage + tokens);
  CHECK(most(0) > 2 * stage + tokens);
}
#endif

TEST_ENGINE(gpu_engine_says_how_much_may_be_under_way) {
  const TinyModel source = tiny_for_device();
  for (const char* value : {"-1", "1025", "48K", " 48"}) {
    const SettingTo under_way("TANDEM_CUDA_UNDER_WAY", value);
    CHECK_ERROR(kRange, "TANDEM_CUDA_UNDER_WAY must be a number of KiB from 0 to 1024", load_on_device(source));
  }
  const SettingTo under_way("TANDEM_CUDA_UNDER_WAY", "48"), matmul("TANDEM_CUDA_MATMUL", "mma");
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_UNDER_WAY needs TANDEM_CUDA_MATMUL=wgmma", load_on_device(source));
}

}  // namespace
}  // namespace tandem::test
