#include "cuda/gemm/matmul.h"

#include "device/weights.h"
#include "product.h"
#include "quant_parts.h"
#include "widen_probe.h"

namespace tandem::test {
namespace {

TEST(gpu_matmul_matches_plain_loops) {
  check_product(1, 64, 64);
  check_product(3, 70, 8);
  check_product(17, 130, 200);
  check_product(65, 96, 328);
  // Every number of tokens that blocks have, with rows of y that four, two and one floats divide.
  for (int64_t m : {2, 20, 40, 70}) {
    for (int64_t n : {68, 66, 67}) check_product(m, n, 72);
  }
}

TEST(gpu_matmul_rows_do_not_depend_on_their_batch) {
  // Two parts, computed by two blocks for few tokens and by one for many.
  Product p(130, 72, 576, 9);
  CHECK_EQ(cuda::matmul_splits(p.n, p.k), int64_t(2));
  check_batches(p, {{0, 1}, {129, 1}, {7, 20}, {60, 66}});
  CHECK(same_bits(run_in_one_block(p), p.run(0, p.m)));
}

TEST(gpu_matmul_splits_parts_among_blocks_where_these_are_few) {
  // 96 blocks of 128 outputs and up to 384 tokens; then 128.
  CHECK(cuda::matmul_workspace_floats(384, 4096, 4096) > 0);
  CHECK_EQ(cuda::matmul_workspace_floats(385, 4096, 4096), int64_t(0));
  for (int64_t n : {1024, 4096, 24576}) {
    int64_t most = 0;
    for (int64_t m = 1; m <= 3000; ++m) {
      most = std::max(most, cuda::matmul_workspace_floats(m, n, 4096));
      if (m % 100 == 0) CHECK_EQ(cuda::matmul_most_workspace_floats(m, n, 4096), most);
      CHECK_EQ(cuda::split_of(m, n, 4096).tiles, cuda::split_of(1, n, 4096).tiles);
    }
  }
}

// The product of quantised weights, and of the bf16 weights that they stand for; also with all parts added by one block.
void check_quantised(const std::vector<ops::QuantFormat>& formats, const std::vector<int64_t>& rows, int64_t m, int64_t k) {
  ThreadPool pool(1);
  Random random(uint64_t(m * k) + uint64_t(formats[0]));
  const QuantParts weights(random, formats, rows, k);
  const device::Matrix quantised = device::quantised_matrix(weights.parts(), k, pool);
  const int64_t n = int64_t(weights.plain.size()) / k, floats = cuda::matmul_workspace_floats(m, n, k);
  DeviceBuffer<bf16> x(bf16s(random, size_t(m * k))), w(weights.plain);
  DeviceBuffer<float> seen(size_t(m * n)), wanted(size_t(m * n)), workspace(static_cast<size_t>(floats));
  cuda::matmul({x.data(), k, m, w.data(), n, k, wanted.data(), n, false, workspace.data(), floats}, nullptr);
  cuda::MatMul args{x.data(), k, m, nullptr, n, k, seen.data(), n, false, workspace.data(), floats, quantised.quantised()};
  cuda::matmul(args, nullptr);
  CHECK(same_bits(seen.download(), wanted.download()));
  DeviceBuffer<float> in_one_block(size_t(m * n));
  args.y = in_one_block.data();
  const cuda::Split split = cuda::split_of(m, n, k);
  cuda::matmul_mma(args, {split.tiles, split.parts, false}, nullptr);
  CHECK(same_bits(in_one_block.download(), wanted.download()));
}

TEST(gpu_matmul_takes_quantised_weights_for_what_they_stand_for) {
  for (ops::QuantFormat format : kDeviceFormats) {
    check_quantised({format}, {70}, 3, 136);
    // Blocks of 128 outputs and many tokens, of which the last has one panel; the last tile of k has 8 inputs.
    check_quantised({format}, {140}, 70, 136);
    // Two parts of k, round all stages.
    check_quantised({format}, {72}, 20, 584);
  }
  // Parts of several formats meet in a panel, and panels of several formats in a block.
  const ops::QuantFormat narrow = ops::QuantFormat::kInt4Min, fine = ops::QuantFormat::kInt8Fine;
  for (int64_t m : {20, 40, 70}) check_quantised({narrow, fine, narrow}, {64, 40, 90}, m, 72);
  check_quantised({ops::QuantFormat::kInt4}, {72}, 40, 544);
  check_quantised({ops::QuantFormat::kInt8}, {64}, 130, 96);
  check_quantised({ops::QuantFormat::kFp8, ops::QuantFormat::kFp8}, {40, 72}, 20, 544);
  check_quantised({fine, ops::QuantFormat::kInt8}, {64, 64}, 66, 544);
}

// Every number of tokens that blocks have, and ends of k in each tile of a unit and round the rings.
TEST(gpu_matmul_takes_quantised_weights_with_few_tokens) {
  const int64_t widths[] = {40, 72, 136, 200, 256, 264, 456, 520, 1032};
  for (ops::QuantFormat format : kDeviceFormats) {
    for (int64_t k : widths) check_quantised({format}, {68}, 1 + k % 8, k);
    for (int64_t m : {8, 9, 16, 17, 33, 64, 65}) check_quantised({format}, {70}, m, 328);
  }
  // A panel of each format.
  const std::vector<ops::QuantFormat> formats(std::begin(kDeviceFormats), std::end(kDeviceFormats));
  for (int64_t m : {1, 16, 30, 64}) check_quantised(formats, {64, 64, 64, 64, 64, 40}, m, 328);
}

// Weights of 4 bits are rounded once, whatever the scale: subnormal, zero, negative, the largest. (The sign of a zero changes no sum.)
TEST(gpu_matmul_widens_4_bits_by_every_scale) {
  DeviceBuffer<uint32_t> out(size_t(kScales) * kPerScale);
  widen_every_scale(out.data());
  const std::vector<uint32_t> seen = out.download();
  int64_t wrong = 0;
  auto check = [&](uint32_t bits, uint32_t scale, uint32_t stored) {
    const float weight = cuda::half_to_float(uint16_t(scale)) * float(int(stored) - 8);
    if (!std::isfinite(weight)) return;
    const uint16_t wanted = cuda::to_bf16(weight).bits;
    wrong += (wanted & 0x7fff) == 0 ? (bits & 0x7fff) != 0 : bits != wanted;
  };
  for (uint32_t scale = 0; scale < uint32_t(kScales); ++scale) {
    for (int i = 0; i < kProbeWords; ++i) {
      const uint32_t* pairs = &seen[size_t(scale) * kPerScale + size_t(i) * 8];
      auto number = [&](int bit) { return number_word(i) >> bit & 15; };
      for (int j = 0; j < 4; ++j) {
        for (int high = 0; high < 2; ++high) {
          check(pairs[j] >> 16 * high & 0xffff, j % 2 ? other_scale(scale) : scale, number(4 * j + 16 * high));
          check(pairs[4 + j] >> 16 * high & 0xffff, high ? other_scale(scale) : scale, number(16 * (j % 2) + 8 * (j / 2) + 4 * high));
        }
      }
    }
  }
  CHECK_EQ(wrong, int64_t(0));
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
  CHECK_ERROR(kRange, "matmul: onto", with([](auto& a) { a.onto = a.y; }));
  CHECK_ERROR(kRange, "matmul: x", with([](auto& a) { a.x += 1; }));
  CHECK_ERROR(kRange, "matmul: quantised", with([](auto& a) { a.quantised.data = reinterpret_cast<const uint8_t*>(a.x); }));
  CHECK_ERROR(kRange, "workspace_floats", with([](auto& a) { a.k = a.ldx = 4096; }));
}

}  // namespace
}  // namespace tandem::test
