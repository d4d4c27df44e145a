// The kernels that use instructions of sm_90 alone: first each instruction by itself, so that on a first device a misread layout shows under
// its own name (scripts/gpu-check runs these one by one, before anything else), then the product and attention made of them. On other
// devices they are skipped.
#include "attention_batch.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/elementwise/elementwise.h"
#include "cuda/lora/lora.h"
#include "cuda/lora/lora_variants.h"
#include "cuda/norm/rms_norm.h"
#include "hopper_probe.h"
#include "product.h"
#include "transposed_product.h"

namespace tandem::test {
namespace {

using cuda::AttentionKernel;
using cuda::MatMulKernel;

constexpr MatMulKernel kWgmma = MatMulKernel::kWgmma;
constexpr AttentionKernel kWgmmaAttention = AttentionKernel::kWgmma;

// Whole numbers that bf16 holds, all different along rows and columns.
std::vector<bf16> numbered(int64_t rows, int64_t columns) {
  std::vector<bf16> out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out.push_back(cuda::to_bf16(float((r * 7 + c * 3) % 251 - 125)));
  }
  return out;
}

// Of a matrix with `rows` rows and 72 columns.
void check_copy(int64_t rows, int box_rows, int row, int column) {
  const std::vector<bf16> matrix = numbered(rows, 72), seen = copied_box(matrix, rows, box_rows, row, column);
  int wrong = 0;
  for (int r = 0; r < box_rows; ++r) {
    for (int c = 0; c < 64; ++c) {
      const bool inside = row + r < rows && column + c < 72;
      const float wanted = inside ? cuda::to_float(matrix[size_t((row + r) * 72 + column + c)]) : 0.0f;
      wrong += cuda::to_float(seen[size_t(r * 64 + ((c / 8) ^ (r % 8)) * 8 + c % 8)]) != wanted;
    }
  }
  CHECK_EQ(wrong, 0);
}

TEST(hopper_bulk_copies_permute_chunks_by_row) {
  if (!on_hopper()) return;
  check_copy(64, 8, 0, 0);
  check_copy(64, 64, 0, 0);
  // Heads of 32 begin in the middle of a panel.
  check_copy(64, 16, 8, 32);
}

TEST(hopper_bulk_copies_are_zero_outside) {
  if (!on_hopper()) return;
  check_copy(40, 16, 32, 0);
  check_copy(40, 64, 0, 64);
}

// One copy brings panels, of both halves of the rows; rows behind a half and panels behind the last are zero.
void check_panels(int64_t rows, int64_t columns, PanelBox box, int row, int panel) {
  const std::vector<bf16> matrix = numbered(rows, columns), seen = copied_panels(matrix, rows, box, row, panel);
  const int64_t half = rows / box.halves;
  int wrong = 0;
  for (int i = 0; i < box.panels * box.halves * box.rows; ++i) {
    const int r = i % box.rows, h = i / box.rows % box.halves, p = i / box.rows / box.halves;
    for (int c = 0; c < 64; ++c) {
      const int64_t at = row + r, column = (panel + p) * 64 + c;
      const bool inside = at < half && column < columns;
      const float wanted = inside ? cuda::to_float(matrix[size_t((h * half + at) * columns + column)]) : 0.0f;
      wrong += cuda::to_float(seen[size_t(i * 64 + ((c / 8) ^ (r % 8)) * 8 + c % 8)]) != wanted;
    }
  }
  CHECK_EQ(wrong, 0);
}

TEST(hopper_bulk_copies_bring_panels) {
  if (!on_hopper()) return;
  check_panels(64, 256, {64, 1, 4}, 0, 0);
  check_panels(40, 192, {8, 1, 2}, 8, 1);
  check_panels(64, 128, {32, 2, 2}, 0, 0);
  check_panels(80, 192, {32, 2, 2}, 16, 2);
}

// Of sums[64][columns] by thread and register. Exact: whole numbers.
template <class Right>
void check_sums(const std::vector<float>& seen, int64_t columns, int step, const std::vector<bf16>& a, const Right& right) {
  int wrong = 0;
  for (int64_t thread = 0; thread < 128; ++thread) {
    for (int64_t i = 0; i < columns / 2; ++i) {
      const int64_t row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      float sum = 0;
      for (int64_t k = 16 * step; k < 16 * step + 16; ++k) {
        sum += cuda::to_float(a[size_t(row * 64 + k)]) * cuda::to_float(right(column, k));
      }
      wrong += seen[size_t(thread * columns / 2 + i)] != sum;
    }
  }
  CHECK_EQ(wrong, 0);
}

void check_wgmma(int64_t tokens, int step) {
  const std::vector<bf16> a = numbered(64, 64), b = numbered(tokens, 64);
  check_sums(one_wgmma(a, b, step), tokens, step, a, [&](int64_t column, int64_t k) { return b[size_t(column * 64 + k)]; });
}

TEST(hopper_wgmma_multiplies_what_descriptors_say) {
  if (!on_hopper()) return;
  check_wgmma(8, 0);
}

TEST(hopper_wgmma_steps_along_k) {
  if (!on_hopper()) return;
  for (int step : {1, 2, 3}) check_wgmma(8, step);
}

TEST(hopper_wgmma_takes_more_tokens) {
  if (!on_hopper()) return;
  check_wgmma(32, 1);
  check_wgmma(256, 3);
}

TEST(hopper_wgmma_begins_new_sums) {
  if (!on_hopper()) return;
  const std::vector<bf16> a = numbered(64, 64), b = numbered(64, 64);
  const auto right = [&](int64_t column, int64_t k) { return b[size_t(column * 64 + k)]; };
  for (int step : {0, 2}) {
    check_sums(first_wgmma(a, b, step, false), 64, step, a, right);
    check_sums(first_wgmma(a, b, step, true), 64, step, a, right);
  }
}

TEST(hopper_wgmma_takes_more_columns_across) {
  if (!on_hopper()) return;
  const std::vector<bf16> a = numbered(64, 64);
  for (int64_t columns : {128, 256}) {
    const std::vector<bf16> b = numbered(64, columns);
    for (int step : {0, 1, 3}) {
      const auto right = [&](int64_t column, int64_t k) { return b[size_t(k * columns + column)]; };
      check_sums(one_wgmma(a, b, step, true), columns, step, a, right);
    }
  }
}

TEST(hopper_wgmma_takes_rows_from_registers) {
  if (!on_hopper()) return;
  const std::vector<bf16> a = numbered(64, 64), b = numbered(64, 64);
  for (int step : {0, 3}) {
    check_sums(one_wgmma_of_rows(a, b, step, false), 64, step, a, [&](int64_t column, int64_t k) { return b[size_t(column * 64 + k)]; });
  }
}

TEST(hopper_wgmma_takes_columns_across) {
  if (!on_hopper()) return;
  const std::vector<bf16> a = numbered(64, 64);
  for (int64_t columns : {64, 32, 128, 96}) {
    const std::vector<bf16> b = numbered(64, columns);
    for (int step : {0, 2}) {
      const auto right = [&](int64_t column, int64_t k) { return b[size_t(k * columns + column)]; };
      check_sums(one_wgmma_of_rows(a, b, step, true), columns, step, a, right);
    }
  }
}

TEST(hopper_matmul_matches_plain_loops) {
  if (!on_hopper()) return;
  check_product(1, 64, 64, kWgmma);
  check_product(3, 70, 8, kWgmma);
  check_product(9, 130, 200, kWgmma);
  check_product(30, 66, 136, kWgmma);
  check_product(65, 96, 328, kWgmma);
  check_product(140, 130, 72, kWgmma);
  // Parts of k, in blocks of their own and in one.
  check_product(50, 40, 520, kWgmma);
  check_product(66, 40, 1032, kWgmma);
}

// Blocks of 256 tokens where there are many, and tokens in groups that share what the cache holds; fewer have other blocks and the same bits.
TEST_ENGINE(hopper_matmul_takes_wide_blocks) {
  if (!on_hopper()) return;
  Product p(17000, 520, 24, 11, kWgmma);
  check_near(p, p.run(0, p.m), std::vector<float>(size_t(p.m * p.n)));
  check_batches(p, {{0, 1}, {16000, 100}, {3000, 2300}});
  check_product(2200, 130, 520, kWgmma);
}

// Blocks of three groups for 64, 128 and 256 tokens, whose stages come round, beside those of two.
TEST_ENGINE(hopper_matmul_takes_three_groups) {
  if (!on_hopper()) return;
  Product p(260, 192 * 119, 64 * 4 + 8, 12, kWgmma);
  check_batches(p, {{3, 250}, {30, 100}, {7, 40}});
}

// The activation of gate and up: the bits of silu_multiply() of the product.
void check_gated(const std::vector<std::array<int64_t, 3>>& shapes) {
  for (auto [m, n, k] : shapes) {
    Product p(m, n, k, uint64_t(m + n), kWgmma);
    const int64_t f = n / 2;
    DeviceBuffer<float> y(p.run(0, m));
    DeviceBuffer<bf16> wanted(size_t(m * f)), seen(size_t(m * f));
    cuda::silu_multiply({y.data(), n, wanted.data(), f, m, f}, nullptr);
    cuda::MatMul args{p.x.data(), k, m, p.w.data(), n, k, nullptr, n, false, nullptr, 0, {}, kWgmma};
    args.gated = seen.data();
    cuda::matmul(args, nullptr);
    const std::vector<bf16> a = seen.download(), b = wanted.download();
    CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0);
  }
}

TEST(hopper_matmul_gates) {
  if (!on_hopper()) return;
  check_gated({{1, 256, 200}, {1, 384, 448}, {9, 128, 72}, {20, 256, 64}, {40, 384, 8}, {100, 256, 72}, {130, 512, 8}});
  Product p(1, 192, 64, 1, kWgmma);
  DeviceBuffer<bf16> gated(96);
  cuda::MatMul args{p.x.data(), p.k, 1, p.w.data(), p.n, p.k, nullptr, p.n, false, nullptr, 0, {}, kWgmma};
  args.gated = gated.data();
  CHECK_ERROR(kRange, "matmul: gated", cuda::matmul(args, nullptr));
}

// Blocks of every kind.
TEST_ENGINE(hopper_matmul_gates_in_wide_blocks) {
  if (!on_hopper()) return;
  check_gated({{30, 17024, 192}, {50, 17024, 8}, {2100, 256, 72}, {17000, 1024, 8}});
  check_gated({{40, 23040, 8}, {100, 23040, 8}, {200, 23040, 72}});
}

TEST(hopper_matmul_goes_round_its_stages) {
  if (!on_hopper()) return;
  // Tiles by themselves and several per copy, the last of which are not full.
  for (int64_t k : {64 * 29 + 8, 64 * 61}) {
    for (int64_t m : {1, 12, 20, 70, 130}) {
      Product p(m, 64, k, uint64_t(m), kWgmma);
      DeviceBuffer<float> y(size_t(m * p.n));
      const cuda::MatMul args{p.x.data(), p.k, m, p.w.data(), p.n, p.k, y.data(), p.n, false, nullptr, 0};
      cuda::matmul_wgmma(args, {int(k / 64 + 1), 1, false}, nullptr);
      check_near(p, y.download(), std::vector<float>(y.size()));
    }
  }
}

TEST(hopper_matmul_rows_do_not_depend_on_their_batch) {
  if (!on_hopper()) return;
  Product parts(130, 72, 576, 9, kWgmma);
  CHECK_EQ(cuda::matmul_splits(parts.n, parts.k), int64_t(2));
  check_batches(parts, {{0, 1}, {129, 1}, {3, 11}, {7, 20}, {60, 50}, {60, 66}});
  CHECK(same_bits(run_in_one_block(parts), parts.run(0, parts.m)));
  Product whole(260, 72, 200, 10, kWgmma);
  check_batches(whole, {{0, 1}, {259, 1}, {3, 11}, {7, 20}, {60, 50}, {130, 66}, {100, 129}});
}

TEST(hopper_matmul_transposed_matches_plain_loops) {
  if (!on_hopper()) return;
  check_transposed(1, 64, 64, false, kWgmma);
  check_transposed(3, 103, 40, false, kWgmma);
  check_transposed(70, 8, 72, true, kWgmma);
  check_transposed(130, 9, 264, true, kWgmma);
  Random random(51);
  for (int i = 0; i < 4; ++i) {
    const int64_t m = random.whole(1, 150), n = random.whole(1, 300), k = 8 * random.whole(1, 40);
    check_transposed(m, n, k, i % 2 == 1, kWgmma);
  }
}

// Blocks of 256 outputs, which 128 of them are for; fewer rows have blocks of 128, and the same bits.
TEST(hopper_matmul_transposed_takes_wide_blocks) {
  if (!on_hopper()) return;
  TransposedProduct p(8100, 9, 296, 5, kWgmma);
  check_near(p, p.run(0, p.m), false);
  check_batches(p, {{0, 1}, {8000, 100}});
}

TEST(hopper_matmul_transposed_goes_round_its_stages) {
  if (!on_hopper()) return;
  TransposedProduct p(20, 64 * 15 + 5, 72, 6, kWgmma);
  check_near(p, p.run(0, p.m), false);
}

TEST(hopper_matmul_transposed_adds_its_parts_in_order) {
  if (!on_hopper()) return;
  TransposedProduct p(70, 64 * 7 + 3, 136, 7, kWgmma);
  const cuda::Split asked{3, 3, true};
  const std::vector<float> added = p.run(0, p.m, true, &asked);
  check_near(p, added, true);
  CHECK(same_bits(p.run(0, p.m, true, &asked, true), added));
  check_batches(p, {{0, 1}, {69, 1}, {3, 40}}, &asked);
}

TEST(hopper_matmul_transposed_rows_do_not_depend_on_their_batch) {
  if (!on_hopper()) return;
  TransposedProduct p(300, 200, 136, 8, kWgmma);
  check_batches(p, {{0, 1}, {299, 1}, {3, 11}, {60, 66}, {100, 129}});
}

// Layers of a norm, a product and what adapters add to it, each reading what the one before made, with nothing waited for in between.
struct AdaptedLayers {
  static constexpr int64_t kRank = 16, kLayers = 12;

  AdaptedLayers(int64_t rows, int64_t width)
      : p(rows, width, width, 31, kWgmma), a(bf16s(p.random, size_t(kRank * width))), b(bf16s(p.random, size_t(kRank * width))),
        table(std::vector<cuda::LoraWeights>{{a.data(), b.data(), int32_t(kRank), 0.5f}}),
        tiles(cuda::lora_tiles(std::vector<int32_t>(size_t(rows)), 1)), ones(std::vector<float>(size_t(width), 1.0f)) {}

  std::vector<float> run(bool beside) {
    const int64_t each = p.m * p.n, splits = cuda::matmul_splits(p.n, p.k);
    DeviceBuffer<float> hidden(p.y.download()), u(size_t(cuda::lora_part_floats(p.m, 1, kRank)));
    DeviceBuffer<float> workspace(size_t((splits + 1) * each));
    DeviceBuffer<int32_t> arrived(size_t(cuda::LoraPart::kArrivals));
    const int64_t floats = int64_t(workspace.size());
    cuda::MatMul product{p.x.data(), p.k, p.m, p.w.data(), p.n, p.k, workspace.data(), p.n, false, workspace.data(), floats};
    product.kernel = kWgmma;
    product.leave_parts = true;
    product.beside = beside;
    cuda::Parts parts = cuda::matmul_parts(product);
    if (parts.count == 0) parts = {workspace.data(), 1, p.m, p.n};
    float* part = workspace.data() + parts.count++ * each;
    cuda::LoraPart added{};
    added.projections[0] = {table.data(), 0, p.n};
    added.count = added.adapter_count = 1;
    added.tiles = tiles.data();
    added.tile_count = int64_t(tiles.size());
    added.rows = p.m;
    added.in = added.ldx = p.k;
    added.most_rank = kRank;
    added.x = p.x.data();
    added.u = u.data();
    added.arrived = arrived.data();
    added.part = part;
    added.columns = p.n;
    added.beside = beside;
    for (int64_t i = 0; i < kLayers; ++i) {
      cuda::rms_norm({hidden.data(), p.k, ones.data(), p.x.data(), p.k, p.m, p.k, 1e-6f, i == 0 ? cuda::Parts{} : parts, hidden.data()},
                     nullptr);
      cuda::matmul(product, nullptr);
      cuda::lora_part(added, nullptr);
    }
    cuda::add_parts(parts, hidden.data(), p.n, true, nullptr);
    return hidden.download();
  }

  Product p;
  DeviceBuffer<bf16> a, b;
  DeviceBuffer<cuda::LoraWeights> table;
  DeviceBuffer<cuda::LoraTile> tiles;
  DeviceBuffer<float> ones;
};

TEST_ENGINE(hopper_adapters_run_beside_their_product) {
  if (!on_hopper()) return;
  for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 512}, {13, 320}, {70, 128}}) {
    AdaptedLayers layers(rows, width);
    const std::vector<float> wanted = layers.run(false);
    for (float value : wanted) CHECK(std::isfinite(value));
    for (int times = 0; times < 3; ++times) CHECK(same_bits(layers.run(true), wanted));
  }
}

TEST(hopper_adapters_are_chosen_by_name) {
  CHECK(cuda::adapter_kernel(nullptr, 9, 0) == cuda::AdapterKernel::kWithin);
  for (int major : {8, 10, 12}) CHECK(cuda::adapter_kernel(nullptr, major, 0) == cuda::AdapterKernel::kBehind);
  CHECK(cuda::adapter_kernel("within", 9, 0) == cuda::AdapterKernel::kWithin);
  CHECK(cuda::adapter_kernel("behind", 8, 6) == cuda::AdapterKernel::kBehind);
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_ADAPTERS=within needs a GPU of compute capability 9.x, and this one has 8.6",
              cuda::adapter_kernel("within", 8, 6));
  CHECK_ERROR(kRange, "TANDEM_CUDA_ADAPTERS must be within or behind", cuda::adapter_kernel("beside", 9, 0));
}

TEST(hopper_matmul_is_chosen_by_name) {
  CHECK(cuda::matmul_kernel(nullptr, 9, 0) == kWgmma);
  CHECK(cuda::matmul_kernel("", 9, 0) == kWgmma);
  for (int major : {8, 10, 12}) CHECK(cuda::matmul_kernel(nullptr, major, 0) == MatMulKernel::kMma);
  CHECK(cuda::matmul_kernel("mma", 8, 6) == MatMulKernel::kMma);
  CHECK(cuda::matmul_kernel("wgmma", 9, 0) == MatMulKernel::kWgmma);
  for (MatMulKernel kernel : {MatMulKernel::kMma, kWgmma}) CHECK(cuda::variant_of(kernel).kernel == kernel);
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_MATMUL=wgmma needs a GPU of compute capability 9.x, and this one has 8.6",
              cuda::matmul_kernel("wgmma", 8, 6));
  CHECK_ERROR(kUnsupported, "this one has 10.0", cuda::matmul_kernel("wgmma", 10, 0));
  CHECK_ERROR(kRange, "TANDEM_CUDA_MATMUL must be wgmma or mma", cuda::matmul_kernel("fast", 9, 0));
}

void check_hopper_attention(AttentionShape shape, const std::vector<std::pair<int, int>>& sequences, uint64_t seed) {
  shape.kernel = kWgmmaAttention;
  const AttentionBatch batch(shape, sequences, seed);
  check_attention(batch);
#ifdef TANDEM_GPU_EMULATION
  // Where products of both kernels are the same chains of additions, all else must be the same too.
  AttentionBatch other = batch;
  other.s.kernel = AttentionKernel::kMma;
  CHECK(same_bits(other.run(false), batch.run(false)));
#endif
}

TEST(hopper_attention_matches_plain_loops) {
  if (!on_hopper()) return;
  check_hopper_attention({}, {{1, 1}, {70, 1}, {33, 33}, {62, 2}}, 1);
  check_hopper_attention({.heads = 16, .kv_heads = 1, .dim = 128}, {{66, 2}}, 3);
  check_hopper_attention({.heads = 9, .kv_heads = 3, .dim = 32}, {{20, 9}, {5, 1}}, 2);
  check_hopper_attention({.heads = 2, .kv_heads = 2, .dim = 96}, {{18, 18}}, 4);
}

TEST(hopper_attention_goes_round_its_stages) {
  if (!on_hopper()) return;
  check_hopper_attention({.heads = 4, .kv_heads = 1}, {{350, 17}}, 5);
  check_hopper_attention({.heads = 2, .kv_heads = 1, .dim = 128}, {{530, 3}}, 6);
}

TEST(hopper_attention_merges_splits) {
  if (!on_hopper()) return;
  check_hopper_attention({.heads = 3, .kv_heads = 1, .dim = 128}, {{1100, 1}, {256, 1}, {250, 1}, {257, 2}}, 7);
  check_hopper_attention({.heads = 16, .kv_heads = 1, .dim = 96}, {{300, 1}}, 8);
  check_hopper_attention({.heads = 16, .kv_heads = 1, .dim = 32}, {{4200, 1}}, 9);
  check_hopper_attention({.heads = 16, .kv_heads = 2, .dim = 128, .window = 300}, {{700, 1}, {900, 1}, {40, 1}}, 33);
}

// In prefill a block has two groups of four tiles: of one sequence or of two, and the last one may be alone.
TEST(hopper_attention_groups_share_their_keys) {
  if (!on_hopper()) return;
  // The second group sees a tile more, and keys that are the block's but not the first group's to see are there already.
  check_hopper_attention({.heads = 4, .kv_heads = 1}, {{523, 40}}, 7);
  check_hopper_attention({.heads = 8, .kv_heads = 2, .dim = 128}, {{70, 33}}, 8);
  // One after the other, through stages of which some have been cleared: one key of a tile, and all but one.
  check_hopper_attention({.heads = 4, .kv_heads = 1, .dim = 32}, {{449, 3}, {703, 17}, {130, 2}}, 9);
  check_hopper_attention({.heads = 2, .kv_heads = 1, .dim = 128}, {{63, 2}, {450, 2}}, 10);
}

TEST(hopper_attention_groups_may_be_empty) {
  if (!on_hopper()) return;
  AttentionBatch batch({.heads = 4, .kv_heads = 1, .dim = 32, .kernel = kWgmmaAttention}, {{70, 9}}, 14);
  batch.empty_behind = 1;
  check_attention(batch);
  std::swap(batch.empty_before, batch.empty_behind);
  check_attention(batch);
}

TEST(hopper_attention_groups_have_windows_of_their_own) {
  if (!on_hopper()) return;
  // The second group's begins a split later.
  check_hopper_attention({.heads = 4, .kv_heads = 1, .dim = 32, .window = 10}, {{580, 64}}, 11);
  // Tiles that all see whole, and edges of the window on both sides of them.
  check_hopper_attention({.heads = 4, .kv_heads = 1, .dim = 32, .window = 200}, {{400, 40}}, 12);
  check_hopper_attention({.heads = 4, .kv_heads = 1, .dim = 32, .window = 192}, {{333, 36}, {600, 5}}, 13);
}

TEST(hopper_attention_sees_its_window_only) {
  if (!on_hopper()) return;
  check_hopper_attention({.heads = 4, .kv_heads = 2, .window = 5}, {{3, 3}, {90, 20}}, 5);
  check_hopper_attention({.heads = 4, .kv_heads = 1, .dim = 32, .window = 40}, {{295, 1}, {296, 1}, {552, 1}, {600, 2}}, 6);
}

TEST(hopper_attention_rows_do_not_depend_on_their_batch) {
  if (!on_hopper()) return;
  check_rows_alone({.heads = 4, .kv_heads = 2, .dim = 64, .kernel = kWgmmaAttention});
}

TEST(hopper_attention_reads_shared_prefixes_once) {
  if (!on_hopper()) return;
  check_prefixes({.heads = 6, .kv_heads = 2, .dim = 32, .kernel = kWgmmaAttention}, {600, 30, 513, 580, 520, 540, 700}, {{2, 0, 4}, {5, 6}},
                 1);
  check_prefixes({.heads = 2, .kv_heads = 1, .dim = 64, .kernel = kWgmmaAttention}, {1030, 1025, 1100}, {{0, 1, 2}}, 2);
  check_prefixes({.heads = 6, .kv_heads = 2, .dim = 128, .kernel = kWgmmaAttention}, {600, 30, 513, 580}, {{2, 0}}, 1);
}

TEST(hopper_attention_takes_lists_of_mixed_lengths) {
  if (!on_hopper()) return;
  check_lists({.heads = 4, .kv_heads = 2, .dim = 32, .kernel = kWgmmaAttention});
  check_lists({.heads = 2, .kv_heads = 1, .dim = 128, .kernel = kWgmmaAttention});
  // The first splits of the long ones are not seen.
  check_lists({.heads = 4, .kv_heads = 2, .dim = 96, .window = 100, .kernel = kWgmmaAttention});
}

TEST(hopper_attention_recorded_once_serves_other_lengths) {
  if (!on_hopper()) return;
  for (int64_t few_blocks : {int64_t(0), kAnyBlocks})
    for (int64_t dim : {32, 128}) check_replays({.heads = 4, .kv_heads = 1, .dim = dim, .kernel = kWgmmaAttention}, few_blocks);
}

TEST(hopper_attention_takes_one_item) {
  if (!on_hopper()) return;
  check_hopper_attention({.heads = 2, .kv_heads = 1, .dim = 32}, {{5, 1}}, 26);
  check_hopper_attention({.heads = 2, .kv_heads = 1, .dim = 128}, {{256, 1}}, 27);
}

TEST(hopper_attention_takes_pages_that_are_not_there_for_zeros) {
  if (!on_hopper()) return;
  check_missing_pages({.heads = 4, .kv_heads = 2, .dim = 32, .kernel = kWgmmaAttention});
}

TEST(hopper_attention_is_chosen_by_name) {
  CHECK(cuda::attention_kernel(nullptr, 9, 0) == kWgmmaAttention);
  for (int major : {8, 10, 12}) CHECK(cuda::attention_kernel(nullptr, major, 0) == AttentionKernel::kMma);
  CHECK(cuda::attention_kernel("mma", 8, 0) == AttentionKernel::kMma);
  CHECK(cuda::attention_kernel("wgmma", 9, 0) == kWgmmaAttention);
  for (AttentionKernel kernel : {AttentionKernel::kMma, kWgmmaAttention}) CHECK(cuda::variant_of(kernel).kernel == kernel);
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_ATTENTION=wgmma needs a GPU of compute capability 9.x, and this one has 10.0",
              cuda::attention_kernel("wgmma", 10, 0));
  CHECK_ERROR(kRange, "TANDEM_CUDA_ATTENTION must be wgmma or mma", cuda::attention_kernel("flash", 9, 0));
}

}  // namespace
}  // namespace tandem::test
