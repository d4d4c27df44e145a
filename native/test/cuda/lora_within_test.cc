// What adapters add, made by blocks of the product's own launch: the bits of lora_part behind it, and of lora_add.
#include <array>
#include <cstring>

#include "cuda/elementwise/elementwise.h"
#include "cuda/lora/lora_within.h"
#include "engine_fixture.h"
#include "product_adapters.h"

namespace tandem::test {
namespace {

using cuda::LoraPart;
using cuda::LoraWithin;

TEST(hopper_adapters_within_their_product_have_the_bits_of_those_behind) {
  if (!on_hopper()) return;
  // Segments that are full, that are not, and that are empty; one pass over the outputs and several.
  for (int64_t k : {64, 320, 2368}) {
    const AdaptedShape shape{1400, k, {{0, 1160}, {1168, 104}, {1280, 120}}};
    check_within(shape, {1}, kMixedRanks);
    check_within(shape, {-1}, kMixedRanks);
    check_within(shape, {3, 4}, kMixedRanks);
    check_within(shape, {1, 2, -1, 1, 0, 1, 1, 1}, kMixedRanks);
  }
  check_within({1400, 192, {{0, 1400}}}, turns(13, 4), kMixedRanks);
  check_within({1400, 192, {{0, 1400}}}, turns(29, 4), kMixedRanks);
}

// Sizes and places that no vector fits are left to those behind.
TEST(gpu_lora_within_takes_whole_vectors) {
  const LoraPart fits = planned(3, 1, {64, 32});
  CHECK(cuda::lora_fits_within(fits));
  const auto refuses = [&](const auto& change) {
    LoraPart part = fits;
    change(part);
    CHECK(!cuda::lora_fits_within(part));
  };
  refuses([](LoraPart& a) { a.projections[1].out = 28; });
  refuses([](LoraPart& a) { a.projections[1].first = 66; });
  refuses([](LoraPart& a) { a.columns = 98; });
  refuses([](LoraPart& a) { a.part += 2; });
  refuses([](LoraPart& a) { a.x += 4; });
  refuses([](LoraPart& a) { a.in = 4100; });
  refuses([](LoraPart& a) { a.ldx = 4100; });
}

TEST(hopper_adapters_within_take_places_and_ranks_of_each_kind) {
  if (!on_hopper()) return;
  check_within({304, 128, {{4, 96}, {100, 200}}}, {1, 1, 0, 2, -1, 1}, kMixedRanks);
  check_within({640, 320, {{0, 320}, {320, 320}}}, {0, 1}, kMixedRanks);
  check_within({64, 64, {{0, 64}}}, {0, 1, 1}, {256, 250});
  check_within({768, 64, {{0, 768}}}, {0, 1, 2, 3}, {16, 17, 32, 33});
}

// Blocks that have several tiles one after the other, and tiles that have several passes.
TEST(hopper_adapters_within_share_the_blocks_that_are_free) {
  if (!on_hopper()) return;
  std::vector<int32_t> own;
  for (int i = 0; i < 64; ++i) own.push_back(i);
  std::vector<int32_t> ranks;
  for (int i = 0; i < 64; ++i) ranks.push_back(i % 5 * 4);
  check_within({128, 64, {{0, 32}, {32, 64}, {96, 32}}}, own, ranks);
  check_within({2112, 64, {{0, 2112}}}, turns(64, 20), ranks);
  check_within({2112, 64, {{0, 2112}}}, std::vector<int32_t>(64, 2), ranks);
}

// A block's tiles of one row, and of several, whose units lie differently: a warp that is ahead has others' units in its way.
TEST(hopper_adapters_within_go_from_tiles_of_one_row_to_others) {
  if (!on_hopper()) return;
  std::vector<int32_t> rows, ranks;
  for (int i = 0; i < 64; ++i) rows.push_back(i < 20 ? i / 2 : i - 10);
  for (int i = 0; i < 54; ++i) ranks.push_back(40 + i % 2);
  const AdaptedShape shape{128, 64, {{0, 32}, {32, 64}, {96, 32}}};
  check_within(shape, rows, ranks);
  check_within(shape, {rows.rbegin(), rows.rend()}, ranks);
}

// Two and three blocks of the product on a multiprocessor leave room for fewer units.
TEST_ENGINE(hopper_adapters_within_beside_many_blocks) {
  if (!on_hopper()) return;
  for (int rows : {1, 7, 16, 30, 64}) {
    for (int64_t n : {64 * 133, 64 * 270}) check_within({n, 64, {{0, 1024}, {n - 2048, 2048}}}, turns(rows, 3), {24, 7, 16});
  }
}

bool same_rows(const DeviceBuffer<bf16>& a, const DeviceBuffer<bf16>& b) {
  const std::vector<bf16> left = a.download(), right = b.download();
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size() * sizeof(bf16)) == 0;
}

// The same behind a product that leaves its parts.
void check_gated_behind(AdaptedProduct& c, const DeviceBuffer<bf16>& wanted) {
  const int64_t each = c.p.m * c.p.n;
  DeviceBuffer<float> workspace(std::vector<float>(size_t((c.parts + 1) * each), 7.5f));
  DeviceBuffer<bf16> seen(wanted.size());
  cuda::MatMul product{
      c.p.x.data(), c.p.k, c.p.m, c.p.w.data(), c.p.n, c.p.k, workspace.data(), c.p.n, false, workspace.data(), int64_t(workspace.size())};
  product.kernel = cuda::MatMulKernel::kWgmma;
  product.leave_parts = true;
  cuda::Parts parts = cuda::matmul_parts(product);
  if (parts.count == 0) parts = {workspace.data(), 1, c.p.m, c.p.n};
  for (int times = 0; times < 2; ++times) {
    cuda::matmul(product, nullptr);
    cuda::lora_gated({c.part_in(workspace.data()), parts, seen.data()}, nullptr);
    CHECK(same_rows(seen, wanted));
  }
}

// The activation of gate and up with their adapters, by one launch: the bits of product, adapters and activation apart.
void check_gated(int64_t f, int64_t k, const std::vector<int32_t>& rows, const std::vector<int32_t>& ranks) {
  AdaptedProduct c({2 * f, k, {{0, f}, {f, f}}}, rows, ranks);
  const int64_t m = c.p.m;
  const std::vector<float> whole = c.p.run(0, m);
  std::vector<float> added(whole.size());
  for (size_t i = 0; i < 2; ++i) {
    std::vector<float> half;
    for (int64_t t = 0; t < m; ++t)
      half.insert(half.end(), whole.begin() + (2 * t + int64_t(i)) * f, whole.begin() + (2 * t + 1 + int64_t(i)) * f);
    half = c.added(i, half);
    for (int64_t t = 0; t < m; ++t) std::copy_n(half.begin() + t * f, f, added.begin() + (2 * t + int64_t(i)) * f);
  }
  DeviceBuffer<float> sums(added), part(added.size());
  DeviceBuffer<bf16> wanted(size_t(m * f)), seen(size_t(m * f));
  cuda::silu_multiply({sums.data(), 2 * f, wanted.data(), f, m, f}, nullptr);
  cuda::MatMul args{c.p.x.data(), k, m, c.p.w.data(), 2 * f, k, nullptr, 2 * f, false, nullptr, 0};
  args.kernel = cuda::MatMulKernel::kWgmma;
  args.gated = seen.data();
  const LoraPart adapters = c.part_in(part.data() - c.parts * m * c.p.n);
  args.adapters = &adapters;
  for (int times = 0; times < 2; ++times) {
    cuda::matmul(args, nullptr);
    CHECK(same_rows(seen, wanted));
    for (int32_t left : c.arrived.download()) CHECK_EQ(left, 0);
  }
  check_gated_behind(c, wanted);
}

TEST_ENGINE(hopper_adapters_within_a_gated_product_are_there_before_its_activation) {
  if (!on_hopper()) return;
  check_gated(128, 192, {1}, kMixedRanks);
  check_gated(128, 192, {-1}, kMixedRanks);
  check_gated(192, 448, {3, 1, -1, 0, 1}, kMixedRanks);
  check_gated(4096, 64, turns(13, 4), kMixedRanks);
  check_gated(64 * 140, 64, turns(20, 3), {24, 7, 16});
  check_gated(64 * 140, 64, turns(50, 20), kMixedRanks);
  check_gated(256, 128, turns(64, 40), kMixedRanks);
  check_gated(1024, 64, std::vector<int32_t>(16, 1), kMixedRanks);
  check_gated(128, 64, {0, 1, 1}, {256, 250});
}

// With so many tiles a warp has outputs several times, of some adapters none.
TEST_ENGINE(hopper_adapters_of_a_gated_product_share_few_blocks) {
  if (!on_hopper()) return;
  std::vector<int32_t> own, ranks;
  for (int i = 0; i < 64; ++i) own.push_back(i), ranks.push_back(i % 5 * 4);
  check_gated(2560, 64, own, ranks);
}

// What changes no number leaves the sign of nothing alone, of rows without an adapter and with one of no rank.
void check_gated_without(int64_t most_rank) {
  constexpr int64_t kWidth = 64;
  std::vector<float> sums(size_t(4 * kWidth), -0.0f);
  for (int64_t row = 0; row < 2; ++row) std::fill_n(sums.begin() + (2 * row + 1) * kWidth, kWidth, 1.0f);
  DeviceBuffer<float> product(sums), u(size_t(cuda::lora_part_floats(2, 2, most_rank)));
  DeviceBuffer<bf16> x(size_t(2 * 4096)), active(size_t(2 * kWidth));
  const DeviceBuffer<cuda::LoraTile> tiles(cuda::lora_tiles({-1, 0}, 1));
  const DeviceBuffer<cuda::LoraWeights> table(std::vector<cuda::LoraWeights>{{nullptr, nullptr, 0, 0}});
  LoraPart part = planned(2, 1, {kWidth, kWidth});
  for (int i = 0; i < 2; ++i) part.projections[i].adapters = table.data();
  part.tiles = tiles.data();
  part.tile_count = int64_t(tiles.size());
  part.x = x.data();
  part.u = u.data();
  part.most_rank = most_rank;
  cuda::lora_gated({part, {product.data(), 1, 2, 2 * kWidth}, active.data()}, nullptr);
  for (bf16 value : active.download()) CHECK_EQ(value.bits, uint16_t(0x8000));
}

// With little shared memory, and with all that a rank asks for.
TEST(gpu_lora_gated_leaves_rows_without_an_adapter) {
  check_gated_without(16);
  check_gated_without(LoraPart::kMostRank);
}

TEST(gpu_lora_gated_refuses_what_does_not_fit) {
  cuda::LoraGated args{planned(3, 1, {64, 64}), {nullptr, 1, 3, 128}, nullptr};
  const auto refuses = [&](const std::string& what, const auto& change) {
    cuda::LoraGated other = args;
    change(other);
    CHECK_ERROR(kRange, "lora_gated: " + what, cuda::lora_gated(other, nullptr));
  };
  refuses("projections", [](cuda::LoraGated& a) { a.adapters.count = 1; });
  refuses("projections", [](cuda::LoraGated& a) { a.adapters.projections[1].out = 32; });
  refuses("product", [](cuda::LoraGated& a) { a.product.count = 0; });
  refuses("product", [](cuda::LoraGated& a) { a.product.rows = 2; });
  refuses("product", [](cuda::LoraGated& a) { a.product.data += 2; });
  refuses("product", [](cuda::LoraGated& a) { a.active += 2; });
  refuses("product", [](cuda::LoraGated& a) {
    for (int i = 0; i < 2; ++i) a.adapters.projections[i].out = 60;
    a.product.columns = 120;
  });
  refuses("tile_count", [](cuda::LoraGated& a) { a.adapters.tile_count = 4; });
}

TEST_ONCE(gpu_lora_tiles_hold_each_row_once) {
  const std::vector<int32_t> rows{1, -1, 1, 0, 7, 1, 1, 1, 1, 1, 1, 1, -3};
  const std::vector<cuda::LoraTile> tiles = cuda::lora_tiles(rows, 2);
  CHECK_EQ(int64_t(tiles.size()), cuda::lora_most_tiles(int64_t(rows.size()), 2));
  // In the order of their first rows: eight of adapter 1, those without one, the one of adapter 0, and what is left of adapter 1.
  const std::vector<std::vector<int32_t>> wanted{{0, 2, 5, 6, 7, 8, 9, 10}, {1, 4, 12}, {3}, {11}};
  const std::vector<int32_t> adapters{1, -1, 0, 1};
  for (size_t t = 0; t < tiles.size(); ++t) {
    const std::vector<int32_t> own = t < wanted.size() ? wanted[t] : std::vector<int32_t>{};
    CHECK_EQ(tiles[t].adapter, t < wanted.size() ? adapters[t] : -1);
    CHECK_EQ(size_t(tiles[t].count), own.size());
    for (size_t i = 0; i < size_t(cuda::LoraTile::kRows); ++i) CHECK_EQ(tiles[t].rows[i], i < own.size() ? own[i] : -1);
  }
  CHECK_EQ(cuda::lora_most_tiles(64, 1), int64_t(9));
  CHECK_EQ(cuda::lora_most_tiles(1, 5), int64_t(1));
  CHECK_EQ(cuda::lora_most_tiles(0, 1), int64_t(0));
}

// What one adapter's factors are not, numbers, is nobody else's.
void check_spoilt(uint16_t bits, const std::vector<size_t>& spoilt_factors) {
  constexpr int64_t kRows = 23;
  constexpr int32_t kSpoilt = 1;
  const std::vector<int32_t> ranks{8, 40, 17, 0};
  const AdaptedShape shape{704, 1152, {{0, 200}, {200, 504}}};
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < kRows; ++i) rows.push_back(i * 7 % 6 - 1);
  AdaptedProduct clean(shape, rows, ranks), spoilt(shape, rows, ranks);
  for (size_t table = 0; table < shape.projections.size(); ++table) {
    for (size_t which : spoilt_factors) {
      auto& factors = spoilt.factors[2 * (table * ranks.size() + kSpoilt) + which];
      std::vector<bf16> values = factors.download();
      for (size_t i = 0; i < values.size(); i += 3) values[i].bits = bits;
      cuda::device_copy(factors.data(), values.data(), values.size() * sizeof(bf16));
    }
  }
  const auto others_same = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t width) {
    for (int64_t i = 0; i < int64_t(a.size()) / width; ++i) {
      if (rows[size_t(i % kRows)] != kSpoilt)
        CHECK(std::memcmp(&a[size_t(i * width)], &b[size_t(i * width)], size_t(width) * sizeof(float)) == 0);
    }
  };
  for (auto kernel : {cuda::AdapterKernel::kWithin, cuda::AdapterKernel::kBehind})
    others_same(clean.run(kernel), spoilt.run(kernel), shape.n);
  for (size_t i = 0; i < shape.projections.size(); ++i) {
    const int64_t out = shape.projections[i].second;
    const std::vector<float> y = clean.p.random.normals(size_t(kRows * out));
    others_same(clean.added(i, y), spoilt.added(i, y), out);
  }
}

TEST_ENGINE(hopper_adapters_that_are_no_numbers_change_no_other_row) {
  if (!on_hopper()) return;
  for (uint16_t bits : {0x7f80, 0xff80, 0x7fc0, 0x7f7f}) {
    check_spoilt(bits, {0});
    check_spoilt(bits, {1});
    check_spoilt(bits, {0, 1});
  }
}

void check_plan(const LoraPart& part, int64_t free, int blocks, int64_t slice) {
  const LoraWithin plan = cuda::lora_within(part, free);
  CHECK_EQ(plan.blocks, blocks);
  CHECK_EQ(plan.slice, slice);
}

TEST(gpu_lora_within_begins_no_round_for_few_rows) {
  check_plan(planned(1, 1, {4096, 1024, 1024}), 72, 6, 1024);
  check_plan(planned(1, 1, {4096}), 4, 4, 1024);
  check_plan(planned(1, 1, {12288, 12288}), 12, 12, 2048);
  check_plan(planned(1, 1, {4096}), 3, 2, 2048);
  // One adapter, and many.
  check_plan(planned(64, 1, {4096}), 136, 36, 1024);
  check_plan(planned(64, 32, {12288, 12288}), 72, 72, 12288);
  // Without room another round begins.
  check_plan(planned(64, 32, {4096}), 0, 9, 4096);
  CHECK_EQ(cuda::lora_least_within(planned(1, 1, {4096})), int64_t(1));
  CHECK_EQ(cuda::lora_least_within(planned(64, 1, {4096})), int64_t(5));
  LoraPart part = planned(65, 1, {64});
  CHECK(!cuda::lora_fits_within(part));
  CHECK_ERROR(kRange, "lora_within: rows", cuda::lora_within(part, 8));
  part = planned(4, 1, {64});
  part.most_rank = 257;
  CHECK_ERROR(kRange, "lora_within: rows", cuda::lora_within(part, 8));
}

TEST(gpu_matmul_takes_adapters_of_its_own_rows) {
  cuda::MatMul product{};
  product.m = 3, product.n = 64, product.k = product.ldx = 128, product.kernel = cuda::MatMulKernel::kWgmma;
  LoraPart part = planned(3, 1, {64});
  part.in = part.ldx = 128;
  CHECK(cuda::matmul_takes_adapters(product, part));
  const auto refuses = [&](const auto& change) {
    cuda::MatMul other = product;
    LoraPart adapters = part;
    change(other, adapters);
    CHECK(!cuda::matmul_takes_adapters(other, adapters));
  };
  refuses([](auto& p, auto&) { p.kernel = cuda::MatMulKernel::kMma; });
  refuses([](auto& p, auto&) { p.accumulate = true; });
  refuses([](auto& p, auto&) { p.quantised.data = reinterpret_cast<const uint8_t*>(&p); });
  refuses([](auto& p, auto& a) { p.k = p.ldx = a.in = a.ldx = 136; });
  refuses([](auto&, auto& a) { a.rows = 4; });
  refuses([](auto&, auto& a) { a.in = 64; });
  refuses([](auto& p, auto&) { p.gated = reinterpret_cast<bf16*>(&p); });  // of too few outputs
  // Every output of a gated product is some projection's.
  int32_t arrived = 0;
  product.n = 256;
  product.gated = reinterpret_cast<bf16*>(&arrived);
  part = planned(3, 1, {128, 128});
  part.in = part.ldx = 128;
  part.arrived = &arrived;
  CHECK(cuda::matmul_takes_adapters(product, part));
  refuses([](auto&, auto& a) { a.count = 1; });
  refuses([](auto&, auto& a) { a.projections[1].out = 120; });
  refuses([](auto&, auto& a) { a.part += 2; });
  refuses([](auto&, auto& a) { a.arrived = nullptr; });
  product.adapters = &part;
  part.rows = 4;
  product.ldy = product.n;
  CHECK_ERROR(kRange, "matmul: adapters", cuda::matmul(product, nullptr));
}

std::shared_ptr<device::Model> load_with_adapters(const TinyModel& source, const char* adapters) {
  const SettingTo setting("TANDEM_CUDA_ADAPTERS", adapters);
  return load_with_wgmma(source, {"TANDEM_CUDA_MATMUL"});
}

// Prompts of more and of fewer rows than have them within, steps that are recorded, adapters that come and go.
std::vector<Job> run_with_adapters(const char* setting) {
  TinyModel source = tiny_for_device();
  source.spec.output_bias = source.spec.mlp_bias = false;
  source.spec.hidden_size = 512;
  source.spec.intermediate_size = 512;
  source.spec.heads = 16;
  source.spec.kv_heads = 4;
  std::vector<Job> jobs = {device_job(12, 9, 6, 1), device_job(13, 70, 5), device_job(14, 3, 8), device_job(15, 30, 4)};
  auto model = load_with_adapters(source, setting);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t rank = std::array<int64_t, 3>{3, 20, 17}[i];
    jobs[i].adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, uint64_t(rank), rank, all_modules())));
  }
  Driver driver = device_driver(model, device_options());
  run_together(driver, jobs);
  return jobs;
}

TEST_ENGINE(hopper_engine_has_the_same_bits_with_adapters_within) {
  if (!on_hopper()) return;
  const std::vector<Job> behind = run_with_adapters("behind");
  check_same_jobs(behind, run_with_adapters("within"));
  const SettingTo less("TANDEM_CUDA_UNDER_WAY", "48");
  check_same_jobs(behind, run_with_adapters("within"));
}

TEST_ENGINE(hopper_adapters_within_need_products_that_have_them) {
  if (!on_hopper()) return;
  CHECK_ERROR(kRange, "TANDEM_CUDA_ADAPTERS must be within or behind", load_with_adapters(tiny_for_device(), "beside"));
  const SettingTo products("TANDEM_CUDA_MATMUL", "mma");
  const SettingTo adapters("TANDEM_CUDA_ADAPTERS", "within");
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_ADAPTERS=within needs TANDEM_CUDA_MATMUL=wgmma", load_on_device(tiny_for_device()));
}

}  // namespace
}  // namespace tandem::test
