// Blocks of products that bring tokens to each other: the same bits as single ones, whatever blocks there are and whichever has no partner.
#include <array>

#include "cuda/elementwise/elementwise.h"
#include "engine_fixture.h"
#include "hopper_probe.h"
#include "product.h"
#include "train_support.h"
#include "transposed_product.h"

namespace tandem::test {
namespace {

using cuda::MatMulBlocks;
using cuda::MatMulKernel;

TEST(hopper_pairs_bring_each_other_boxes) {
  if (!on_hopper()) return;
  for (int box_rows : {8, 64, 128}) {
    constexpr int kBoxes = 5;
    // The last box ends in the middle of one's half: zero behind it.
    const int rows = 2 * box_rows * kBoxes - box_rows / 2;
    std::vector<bf16> matrix;
    for (int i = 0; i < rows * 64; ++i) matrix.push_back(cuda::to_bf16(float(i / 64 % 199 + i % 64)));
    const std::vector<bf16> seen = copied_by_pair(matrix, box_rows, kBoxes);
    int wrong = 0;
    for (int i = 0; i < 2 * kBoxes * 2 * box_rows * 64; ++i) {
      const int row = i / 64 % (2 * box_rows * kBoxes), chunk = i / 8 % 8 ^ row % 8;
      const float wanted = row < rows ? cuda::to_float(matrix[size_t(row * 64 + chunk * 8 + i % 8)]) : 0.0f;
      wrong += cuda::to_float(seen[size_t(i)]) != wanted;
    }
    CHECK_EQ(wrong, 0);
  }
}

void check_pairs(int64_t m, int64_t n, int64_t k) {
  Product p(m, n, k, uint64_t(m + 3 * n), MatMulKernel::kWgmma);
  const std::vector<float> wanted = p.run(0, m, true);
  p.blocks = MatMulBlocks::kPairs;
  CHECK(same_bits(p.run(0, m, true), wanted));
}

TEST(hopper_pairs_have_the_bits_of_single_blocks) {
  if (!on_hopper()) return;
  check_pairs(100, 256, 72);    // one tile of tokens
  check_pairs(300, 512, 1096);  // parts of k, which a block adds up; stages come round
  check_pairs(70, 256, 600);    // and parts in blocks of their own
  check_pairs(130, 384, 200);   // an odd number of tiles: one has no partner
}

TEST_ENGINE(hopper_pairs_have_the_bits_of_single_blocks_of_256_tokens) {
  if (!on_hopper()) return;
  check_pairs(17000, 512, 24);
  check_pairs(200, 192 * 120, 64 * 4 + 8);  // three groups
}

// The way back: outputs of 128 and of 256, parts, and an odd number of tiles of tokens, which stay single.
TEST(hopper_pairs_have_the_bits_of_single_blocks_back) {
  if (!on_hopper()) return;
  for (auto [m, n, k] : {std::array<int64_t, 3>{200, 700, 320}, {2048, 72, 2080}, {300, 136, 128}}) {
    TransposedProduct p(m, n, k, uint64_t(m + n), MatMulKernel::kWgmma);
    const cuda::Split parts{4, int((n + 255) / 256), n > 256};
    const std::vector<float> wanted = p.run(0, m, true), in_parts = p.run(0, m, false, &parts);
    p.blocks = MatMulBlocks::kPairs;
    CHECK(same_bits(p.run(0, m, true), wanted));
    CHECK(same_bits(p.run(0, m, false, &parts), in_parts));
  }
}

// The activation of gate and up.
TEST_ENGINE(hopper_pairs_gate) {
  if (!on_hopper()) return;
  for (auto [m, n, k] : {std::array<int64_t, 3>{100, 512, 72}, {17000, 1024, 8}, {200, 23040, 72}}) {
    Product p(m, n, k, uint64_t(m + n), MatMulKernel::kWgmma);
    DeviceBuffer<bf16> single(size_t(m * n / 2)), paired(size_t(m * n / 2));
    cuda::MatMul args{p.x.data(), k, m, p.w.data(), n, k, nullptr, n, false, nullptr, 0, {}, MatMulKernel::kWgmma};
    args.gated = single.data();
    cuda::matmul(args, nullptr);
    args.gated = paired.data(), args.blocks = MatMulBlocks::kPairs;
    cuda::matmul(args, nullptr);
    const std::vector<bf16> a = single.download(), b = paired.download();
    CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0);
  }
}

// Prompts and steps of more and of fewer rows than have pairs, and the trainer.
TEST_ENGINE(hopper_engine_has_the_same_bits_with_pairs) {
  if (!on_hopper()) return;
  TinyModel source = tiny_for_device();
  source.spec.hidden_size = source.spec.intermediate_size = 256;
  source.spec.heads = 4;
  source.spec.kv_heads = 2;
  std::vector<Job> single = {device_job(12, 9, 6, 1), device_job(13, 100, 5), device_job(14, 3, 8)}, pairs = single;
  Random random(21);
  const train::State state = random_state(random, source.spec, all_modules(), 3);
  const Row row = Group(random, source.spec.vocab_size, 70, {20}).alone(0);
  std::vector<float> learnt[2];
  for (auto [jobs, setting] : {std::pair{&single, "single"}, {&pairs, "pairs"}}) {
    const SettingTo clusters("TANDEM_CUDA_CLUSTERS", setting);
    auto model = load_with_wgmma(source, {"TANDEM_CUDA_MATMUL"});
    Driver driver = device_driver(model, device_options());
    run_together(driver, *jobs);
    auto trainer = model->make_trainer({128, kRoom, false, 1}, state);
    trainer->forward(row, train::Under::kCurrent);
    run(*trainer);
    trainer->backward(weights_of(row, 5));
    run(*trainer);
    learnt[jobs == &pairs] = gradients(*trainer);
  }
  check_same_jobs(single, pairs);
  CHECK(same_bits(learnt[0], learnt[1]));
}

TEST(hopper_pairs_need_products_that_have_them) {
  if (!on_hopper()) return;
  const SettingTo products("TANDEM_CUDA_MATMUL", "mma"), clusters("TANDEM_CUDA_CLUSTERS", "pairs");
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_CLUSTERS=pairs needs TANDEM_CUDA_MATMUL=wgmma", load_on_device(tiny_for_device()));
}

TEST(hopper_pairs_are_chosen_by_name) {
  for (int major : {8, 9, 12}) CHECK(cuda::matmul_blocks(nullptr, major, 0) == MatMulBlocks::kSingle);
  CHECK(cuda::matmul_blocks("pairs", 9, 0) == MatMulBlocks::kPairs);
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_CLUSTERS=pairs needs a GPU of compute capability 9.x, and this one has 8.6",
              cuda::matmul_blocks("pairs", 8, 6));
  CHECK_ERROR(kRange, "TANDEM_CUDA_CLUSTERS must be single or pairs", cuda::matmul_blocks("both", 9, 0));
}

}  // namespace
}  // namespace tandem::test
