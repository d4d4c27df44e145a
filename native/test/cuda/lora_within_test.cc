// What adapters add, made by blocks of the product's own launch: the bits of lora_part behind it, and of lora_add.
#include <array>

#include "cuda/lora/lora_within.h"
#include "engine_fixture.h"
#include "product.h"

namespace tandem::test {
namespace {

using cuda::LoraPart;
using cuda::LoraWithin;

struct WithinShape {
  int64_t n, k;
  std::vector<std::pair<int64_t, int64_t>> projections;  // first output and count
  int64_t odd = 0;                                       // elements from whole vectors, of all factors
};

// A product, and adapters of some ranks on projections of it. Projection i has the table of adapters turned by i.
struct WithinCase {
  WithinCase(const WithinShape& s, const std::vector<int32_t>& rows, const std::vector<int32_t>& ranks)
      : shape(s), p(int64_t(rows.size()), s.n, s.k, 61, cuda::MatMulKernel::kWgmma), which(rows), adapters(rows) {
    for (size_t i = 0; i < s.projections.size(); ++i) {
      std::vector<cuda::LoraWeights> table;
      for (size_t j = 0; j < ranks.size(); ++j) {
        const int32_t rank = ranks[(i + j) % ranks.size()];
        factors.emplace_back(bf16s(p.random, size_t(rank * s.k + s.odd)));
        const bf16* a = factors.back().data() + s.odd;
        factors.emplace_back(bf16s(p.random, size_t(rank * s.projections[i].second + s.odd)));
        table.push_back({a, factors.back().data() + s.odd, rank, 0.5f + float(rank)});
        most_rank = std::max<int64_t>(most_rank, rank);
      }
      tables.emplace_back(table);
    }
    parts = cuda::matmul_splits(s.n, s.k);
    u = DeviceBuffer<float>(size_t(std::max(p.m, LoraPart::kLeastRows) * LoraPart::kMost * most_rank));
    arrived = DeviceBuffer<int32_t>(size_t(LoraPart::kMostRows * LoraPart::kMost));
  }

  LoraPart part_in(float* workspace) {
    LoraPart part{};
    for (size_t i = 0; i < tables.size(); ++i) {
      part.projections[i] = {tables[i].data(), shape.projections[i].first, shape.projections[i].second};
    }
    part.count = int64_t(tables.size());
    part.adapter_count = int64_t(tables[0].size());
    part.row_adapters = adapters.data();
    part.rows = p.m;
    part.in = part.ldx = p.k;
    part.most_rank = most_rank;
    part.x = p.x.data();
    part.u = u.data();
    part.arrived = arrived.data();
    part.part = workspace + parts * p.m * p.n;
    part.columns = p.n;
    return part;
  }

  // The product's parts and that of the adapters, where nobody writes what was there.
  std::vector<float> run(bool within, int times = 1) {
    DeviceBuffer<float> workspace(std::vector<float>(size_t((parts + 1) * p.m * p.n), 7.5f));
    const LoraPart part = part_in(workspace.data());
    cuda::MatMul product{
        p.x.data(), p.k, p.m, p.w.data(), p.n, p.k, workspace.data(), p.n, false, workspace.data(), int64_t(workspace.size())};
    product.kernel = cuda::MatMulKernel::kWgmma;
    product.leave_parts = true;
    if (within) product.adapters = &part;
    for (int i = 0; i < times; ++i) cuda::matmul(product, nullptr);
    if (!within) cuda::lora_part(part, nullptr);
    for (int32_t left : arrived.download()) CHECK_EQ(left, 0);
    return workspace.download();
  }

  // One projection's rows, added to y.
  std::vector<float> added(size_t i, const std::vector<float>& y) {
    DeviceBuffer<float> sums(y);
    const int64_t out = shape.projections[i].second;
    const cuda::Lora args{tables[i].data(),
                          int64_t(tables[i].size()),
                          adapters.data(),
                          p.m,
                          p.k,
                          out,
                          most_rank,
                          p.x.data(),
                          p.k,
                          u.data(),
                          sums.data(),
                          out};
    cuda::lora_add(&args, 1, nullptr);
    return sums.download();
  }

  WithinShape shape;
  Product p;
  std::vector<int32_t> which;
  DeviceBuffer<int32_t> adapters, arrived;
  std::vector<DeviceBuffer<bf16>> factors;
  std::vector<DeviceBuffer<cuda::LoraWeights>> tables;
  DeviceBuffer<float> u;
  int64_t parts = 1, most_rank = 1;
};

void check_within(const WithinShape& shape, const std::vector<int32_t>& rows, const std::vector<int32_t>& ranks) {
  WithinCase c(shape, rows, ranks);
  const std::vector<float> seen = c.run(true, 2);
  CHECK(same_bits(seen, c.run(false)));
  const float* part = seen.data() + c.parts * c.p.m * c.p.n;
  for (size_t i = 0; i < shape.projections.size(); ++i) {
    const auto [first, out] = shape.projections[i];
    const std::vector<float> y = c.p.random.normals(size_t(c.p.m * out));
    std::vector<float> sums;
    for (int64_t t = 0; t < c.p.m; ++t) {
      for (int64_t o = 0; o < out; ++o) sums.push_back(y[size_t(t * out + o)] + part[t * c.p.n + first + o]);
    }
    CHECK(same_bits(sums, c.added(i, y)));
  }
}

// So many rows, by turns of the adapters and of those that there are not.
std::vector<int32_t> turns(int count, int adapters) {
  std::vector<int32_t> rows;
  for (int i = 0; i < count; ++i) rows.push_back(i * 7 % (adapters + 2) - 1);
  return rows;
}

const std::vector<int32_t> kRanks{8, 40, 1, 0};

TEST(hopper_adapters_within_their_product_have_the_bits_of_those_behind) {
  if (!on_hopper()) return;
  // Segments that are full, that are not, and that are empty; one pass over the outputs and several.
  for (int64_t k : {64, 320, 2368}) {
    const WithinShape shape{1400, k, {{0, 1160}, {1168, 104}, {1280, 120}}};
    check_within(shape, {1}, kRanks);
    check_within(shape, {-1}, kRanks);
    check_within(shape, {3, 4}, kRanks);
    check_within(shape, {1, 2, -1, 1, 0, 1, 1, 1}, kRanks);
  }
  check_within({1400, 192, {{0, 1400}}}, turns(13, 4), kRanks);
  check_within({1400, 192, {{0, 1400}}}, turns(29, 4), kRanks);
}

TEST(hopper_adapters_within_take_odd_sizes) {
  if (!on_hopper()) return;
  check_within({304, 128, {{0, 303}}, 1}, {1, 1, 0, 2, -1, 1}, kRanks);
  check_within({306, 128, {{3, 102}, {105, 200}}}, {1, 1, 0, 2, -1, 1}, kRanks);
  check_within({640, 320, {{0, 320}, {320, 320}}, 4}, {0, 1}, kRanks);
  check_within({64, 64, {{0, 64}}}, {0, 1, 1}, {256, 250});
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

// Two and three blocks of the product on a multiprocessor leave room for fewer units.
TEST_ENGINE(hopper_adapters_within_beside_many_blocks) {
  if (!on_hopper()) return;
  for (int rows : {1, 7, 16, 30, 64}) {
    for (int64_t n : {64 * 133, 64 * 270}) check_within({n, 64, {{0, 1024}, {n - 2048, 2048}}}, turns(rows, 3), {24, 7, 16});
  }
}

LoraPart planned(int64_t rows, int64_t adapters, std::vector<int64_t> outs) {
  LoraPart part{};
  for (size_t i = 0; i < outs.size(); ++i) {
    part.projections[i] = {nullptr, part.columns, outs[i]};
    part.columns += outs[i];
  }
  part.count = int64_t(outs.size());
  part.adapter_count = adapters;
  part.rows = rows;
  part.in = part.ldx = 4096;
  part.most_rank = 16;
  return part;
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
  check_plan(planned(64, 1, {4096}), 136, 34, 2048);
  check_plan(planned(64, 32, {12288, 12288}), 72, 72, 12288);
  // Without room another round begins.
  check_plan(planned(64, 32, {4096}), 0, 10, 4096);
  CHECK_EQ(cuda::lora_least_within(planned(1, 1, {4096})), int64_t(1));
  CHECK_EQ(cuda::lora_least_within(planned(64, 1, {4096})), int64_t(9));
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
  product.adapters = &part;
  part.rows = 4;
  product.ldy = 64;
  CHECK_ERROR(kRange, "matmul: adapters", cuda::matmul(product, nullptr));
}

std::shared_ptr<device::Model> load_with_adapters(const TinyModel& source, const char* adapters) {
  const SettingTo setting("TANDEM_CUDA_ADAPTERS", adapters);
  return load_with_wgmma(source, {"TANDEM_CUDA_MATMUL"});
}

// Prompts of more and of fewer rows than have them within, steps that are recorded, adapters that come and go.
TEST_ENGINE(hopper_engine_has_the_same_bits_with_adapters_within) {
  if (!on_hopper()) return;
  TinyModel source = tiny_for_device();
  source.spec.output_bias = source.spec.mlp_bias = false;
  source.spec.hidden_size = source.spec.intermediate_size = 512;
  source.spec.heads = 16;
  source.spec.kv_heads = 4;
  std::vector<Job> behind = {device_job(12, 9, 6, 1), device_job(13, 70, 5), device_job(14, 3, 8), device_job(15, 30, 4)};
  std::vector<Job> within = behind;
  for (auto [jobs, setting] : {std::pair{&behind, "behind"}, {&within, "within"}}) {
    auto model = load_with_adapters(source, setting);
    for (size_t i = 0; i < 3; ++i) {
      const int64_t rank = std::array<int64_t, 3>{3, 20, 17}[i];
      (*jobs)[i].adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, uint64_t(rank), rank, all_modules())));
    }
    Driver driver = device_driver(model, device_options());
    run_together(driver, *jobs);
  }
  check_same_jobs(behind, within);
}

TEST_ENGINE(hopper_adapters_within_need_products_that_have_them) {
  if (!on_hopper()) return;
  CHECK_ERROR(kRange, "TANDEM_CUDA_ADAPTERS must be within or behind", load_with_adapters(tiny_for_device(), "beside"));
  const SettingTo products("TANDEM_CUDA_MATMUL", "mma"), adapters("TANDEM_CUDA_ADAPTERS", "within");
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_ADAPTERS=within needs TANDEM_CUDA_MATMUL=wgmma", load_on_device(tiny_for_device()));
}

}  // namespace
}  // namespace tandem::test
