// Adapters, log-probabilities with their gradient, and the optimizer against plain loops in double.
#include <array>
#include <limits>

#include "cuda/lora/lora.h"
#include "cuda/lora/lora_back.h"
#include "cuda/lora/lora_silu.h"
#include "cuda/loss/log_prob.h"
#include "cuda/optimizer/adamw.h"
#include "gpu_support.h"

namespace tandem::test {
namespace {

struct LoraCase {
  static constexpr int64_t kMostRank = 40;

  LoraCase(int64_t inputs, int64_t outputs) : in(inputs), out(outputs), random(21) {
    for (int32_t rank : {8, 40, 1, 0}) {
      a.emplace_back(bf16s(random, size_t(rank * in)));
      b.emplace_back(bf16s(random, size_t(rank * out)));
      weights.push_back({a.back().data(), b.back().data(), rank, 0.5f + float(rank)});
    }
  }

  // With `onto` what the rows come to when they are added to that.
  std::vector<float> run(const std::vector<int32_t>& rows, const std::vector<bf16>& x, const std::vector<float>& y,
                         const std::vector<float>& onto = {}) {
    DeviceBuffer<LoraWeights> table(weights);
    DeviceBuffer<int32_t> adapters(rows);
    DeviceBuffer<bf16> device_x(x);
    DeviceBuffer<float> device_y(y), u(rows.size() * size_t(kMostRank)), device_onto(onto), whole(onto.size());
    const cuda::Lora args{table.data(),
                          int64_t(weights.size()),
                          adapters.data(),
                          int64_t(rows.size()),
                          in,
                          out,
                          kMostRank,
                          device_x.data(),
                          in,
                          u.data(),
                          device_y.data(),
                          out,
                          onto.empty() ? nullptr : device_onto.data(),
                          onto.empty() ? nullptr : whole.data()};
    cuda::lora_add(&args, 1, nullptr);
    if (!onto.empty()) CHECK(same_bits(device_y.download(), y));
    return onto.empty() ? device_y.download() : whole.download();
  }

  using LoraWeights = cuda::LoraWeights;
  int64_t in, out;
  Random random;
  std::vector<DeviceBuffer<bf16>> a, b;
  std::vector<LoraWeights> weights;
};

template <typename T>
std::vector<T> row_of(const std::vector<T>& values, size_t row, int64_t width) {
  return {values.begin() + int64_t(row) * width, values.begin() + int64_t(row + 1) * width};
}

// Rows of 16-byte vectors in several segments, and others.
constexpr std::array<int64_t, 2> kLoraShapes[] = {{100, 302}, {2312, 1032}, {64, 4104}};

void check_lora_rows(LoraCase& c) {
  const std::vector<int32_t> rows{1, -1, 0, 2, 3, 0, 4};
  const std::vector<bf16> x = bf16s(c.random, rows.size() * size_t(c.in));
  const std::vector<float> y = c.random.normals(rows.size() * size_t(c.out));
  const std::vector<float> out = c.run(rows, x, y);
  for (size_t t = 0; t < rows.size(); ++t) {
    const bool used = rows[t] >= 0 && rows[t] < 4;
    const int32_t rank = used ? c.weights[size_t(rows[t])].rank : 0;
    std::vector<double> u(size_t(rank), 0.0);
    const std::vector<bf16> a = used ? c.a[size_t(rows[t])].download() : std::vector<bf16>{};
    const std::vector<bf16> b = used ? c.b[size_t(rows[t])].download() : std::vector<bf16>{};
    for (size_t r = 0; r < u.size(); ++r) {
      for (size_t k = 0; k < size_t(c.in); ++k) {
        u[r] += double(cuda::to_float(a[r * size_t(c.in) + k])) * cuda::to_float(x[t * size_t(c.in) + k]);
      }
    }
    for (size_t o = 0; o < size_t(c.out); ++o) {
      const size_t at = t * size_t(c.out) + o;
      double wanted = y[at], size = 1;
      for (size_t r = 0; r < u.size(); ++r) {
        const double added = double(c.weights[size_t(rows[t])].scale) * u[r] * cuda::to_float(b[r * size_t(c.out) + o]);
        wanted += added, size += std::fabs(added);
      }
      CHECK_NEAR(out[at], wanted, 1e-5 * size);  // of u 16 bits are taken
      if (rank == 0) CHECK_EQ(out[at], y[at]);
    }
  }
  // Alone: the same bits.
  CHECK(same_bits(c.run({1}, row_of(x, 0, c.in), row_of(y, 0, c.out)), row_of(out, 0, c.out)));
}

TEST(gpu_lora_adds_each_rows_own_adapter) {
  for (auto [in, out] : kLoraShapes) {
    LoraCase c(in, out);
    check_lora_rows(c);
  }
}

// Many rows go by tiles, where they have one adapter and where they have several.
TEST(gpu_lora_rows_do_not_depend_on_their_batch) {
  for (auto [in, out] : kLoraShapes) {
    LoraCase c(in, out);
    std::vector<int32_t> rows;
    for (int32_t i = 0; i < 275; ++i) rows.push_back(i < 70 ? 0 : i < 90 ? i % 6 - 1 : i < 200 ? 1 : i < 220 ? 7 : 2);
    const std::vector<bf16> x = bf16s(c.random, rows.size() * size_t(c.in));
    const std::vector<float> y = c.random.normals(rows.size() * size_t(c.out)), onto = c.random.normals(y.size());
    const std::vector<float> all = c.run(rows, x, y), whole = c.run(rows, x, y, onto);
    for (size_t t : {0, 63, 69, 70, 75, 79, 80, 89, 90, 150, 199, 200, 220, 273, 274}) {
      const std::vector<bf16> row = row_of(x, t, c.in);
      const std::vector<float> old = row_of(y, t, c.out), under = row_of(onto, t, c.out);
      const std::vector<float> alone = c.run({rows[t]}, row, old);
      CHECK(same_bits(alone, row_of(all, t, c.out)));
      std::vector<float> sums;
      for (size_t o = 0; o < alone.size(); ++o) sums.push_back(under[o] + alone[o]);
      CHECK(same_bits(c.run({rows[t]}, row, old, under), sums) && same_bits(row_of(whole, t, c.out), sums));
    }
  }
}

// Projections of one launch with adapters of their own, of which one's factors do not begin with a whole vector.
TEST(gpu_lora_shrinks_many_rows_as_one) {
  const int64_t in = 2312, most = LoraCase::kMostRank;
  LoraCase c(in, 8);
  std::vector<cuda::LoraWeights> others(c.weights.rbegin(), c.weights.rend());
  const DeviceBuffer<bf16> odd(bf16s(c.random, size_t(others[3].rank * in + 1)));
  others[3].a = odd.data() + 1;
  const DeviceBuffer<cuda::LoraWeights> tables[] = {DeviceBuffer(c.weights), DeviceBuffer(others)};
  std::vector<int32_t> which;
  for (int32_t i = 0; i < 301; ++i) which.push_back(i < 100 ? 0 : i < 112 ? i % 5 - 1 : i < 200 ? 3 : 1);
  const int64_t rows = int64_t(which.size());
  const DeviceBuffer<int32_t> adapters(which);
  const DeviceBuffer<bf16> x(bf16s(c.random, size_t(rows * in)));
  std::vector<DeviceBuffer<float>> together, alone;
  std::vector<cuda::Lora> all;
  for (const auto& table : tables) {
    together.emplace_back(size_t(rows * most));
    alone.emplace_back(size_t(rows * most));
    all.push_back(
        {table.data(), int64_t(table.size()), adapters.data(), rows, in, 8, most, x.data(), in, together.back().data(), nullptr, 8});
  }
  cuda::lora_shrink(all.data(), 2, nullptr);
  for (size_t i = 0; i < all.size(); ++i) {
    for (int64_t row = 0; row < rows; ++row) {
      cuda::Lora one = all[i];
      one.row_adapters += row, one.x += row * in, one.rows = 1;
      one.u = alone[i].data() + row * most;
      cuda::lora_shrink(&one, 1, nullptr);
    }
    CHECK(same_bits(together[i].download(), alone[i].download()));
  }
}

// Two projections beside each other, the second with other adapters than the first.
void check_lora_part(LoraCase& c, const std::vector<int32_t>& rows) {
  const int64_t count = int64_t(rows.size()), columns = 2 * c.out + 8;
  std::vector<cuda::LoraWeights> turned(c.weights.rbegin(), c.weights.rend());
  DeviceBuffer<cuda::LoraWeights> table(c.weights), other(turned);
  const DeviceBuffer<cuda::LoraTile> tiles(cuda::lora_tiles(rows, 4));
  const std::vector<bf16> x = bf16s(c.random, size_t(count * c.in));
  const std::vector<float> old(size_t(count * columns), 7.5f), y = c.random.normals(size_t(count * c.out));
  DeviceBuffer<bf16> device_x(x);
  DeviceBuffer<float> u(size_t(cuda::lora_part_floats(count, 2, LoraCase::kMostRank))), part(old);
  cuda::LoraPart args{};
  args.projections[0] = {table.data(), 0, c.out};
  args.projections[1] = {other.data(), c.out + 4, c.out};
  args.count = 2;
  args.adapter_count = 4;
  args.tiles = tiles.data();
  args.tile_count = int64_t(tiles.size());
  args.rows = count;
  args.in = args.ldx = c.in;
  args.most_rank = LoraCase::kMostRank;
  args.x = device_x.data();
  args.u = u.data();
  args.part = part.data();
  args.columns = columns;
  for (int times = 0; times < 2; ++times) cuda::lora_part(args, nullptr);
  const std::vector<float> seen = part.download();
  std::vector<int32_t> opposite;
  for (int32_t row : rows) opposite.push_back(3 - row);
  for (int which = 0; which < 2; ++which) {
    const std::vector<float> wanted = c.run(which == 0 ? rows : opposite, x, y);
    std::vector<float> sums;
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t o = 0; o < c.out; ++o) sums.push_back(y[size_t(t * c.out + o)] + seen[size_t(t * columns + which * (c.out + 4) + o)]);
      CHECK_EQ(seen[size_t(t * columns + c.out + which * (c.out + 4))], 7.5f);
    }
    CHECK(same_bits(sums, wanted));
  }
}

TEST(gpu_lora_part_is_what_the_adapters_add) {
  for (auto [in, out] : kLoraShapes) {
    LoraCase c(in, out);
    check_lora_part(c, {1});
    check_lora_part(c, {-1});
    check_lora_part(c, {1, 2, -1, 1, 0, 1});
    check_lora_part(c, {1, -1, 0, 2, 3, 0, 4, 1, 1});
    std::vector<int32_t> many;
    for (int32_t i = 0; i < 175; ++i) many.push_back(i % 7 - 1);  // several groups of ranks to a block
    check_lora_part(c, many);
  }
  LoraCase c(100, 302);
  cuda::LoraPart args{};
  CHECK_ERROR(kRange, "lora_part: count", cuda::lora_part(args, nullptr));
  args.rows = cuda::LoraPart::kMostRows + 1;
  CHECK_ERROR(kRange, "lora_part: rows", cuda::lora_part(args, nullptr));
}

// What changes no number leaves the sign of nothing alone.
TEST(gpu_lora_part_leaves_rows_without_an_adapter) {
  LoraCase c(100, 302);
  DeviceBuffer<cuda::LoraWeights> table(c.weights);
  const DeviceBuffer<cuda::LoraTile> tiles(cuda::lora_tiles({-1, 3}, 4));
  DeviceBuffer<bf16> x(size_t(2 * c.in));
  DeviceBuffer<float> u(size_t(cuda::lora_part_floats(2, 1, LoraCase::kMostRank))), part(size_t(2 * c.out));
  cuda::lora_part({{{table.data(), 0, c.out}},
                   1,
                   4,
                   tiles.data(),
                   int64_t(tiles.size()),
                   2,
                   c.in,
                   LoraCase::kMostRank,
                   x.data(),
                   c.in,
                   u.data(),
                   nullptr,
                   part.data(),
                   c.out},
                  nullptr);
  for (float value : part.download()) CHECK(std::signbit(-0.0f + value) && !std::signbit(0.0f + value));
}

// Gate and up under adapters of their own, factors that lie `odd` elements from whole vectors: the bits of adapters and activation apart.
void check_lora_silu(int64_t width, int64_t odd) {
  LoraCase c(64, width + 1);
  const std::vector<int32_t> which{1, 1, 1, 1, 1, 1, 0, 0, -1, -1, 2, 1, 1, 3, 3, 0, 0, 0, 0, 0, 4, 1, 1};
  const int64_t rows = int64_t(which.size()), ranks = LoraCase::kMostRank;
  std::vector<cuda::LoraWeights> gate(c.weights), up(c.weights.rbegin(), c.weights.rend());
  for (auto& w : gate) w.b += odd;
  DeviceBuffer<cuda::LoraWeights> gates(gate), ups(up);
  DeviceBuffer<int32_t> adapters(which);
  DeviceBuffer<float> gate_u(c.random.normals(size_t(rows * ranks))), up_u(c.random.normals(size_t(rows * ranks)));
  std::vector<float> xs = c.random.normals(size_t(rows * 2 * width), 4);
  for (int64_t row : {8, 13}) xs[size_t(row * 2 * width)] = -0.0f;  // stays it where there is no adapter, and where one has no rank
  DeviceBuffer<float> x(xs);
  DeviceBuffer<bf16> seen(size_t(rows * width)), wanted(size_t(rows * width)), kept(size_t(rows * 2 * width)), kept_wanted(kept.size());
  cuda::LoraSilu args{{x.data(), 2 * width, seen.data(), width, rows, width, {}, kept.data()},
                      gates.data(),
                      ups.data(),
                      4,
                      adapters.data(),
                      ranks,
                      gate_u.data(),
                      up_u.data()};
  const std::vector<float> before = x.download();
  cuda::lora_silu_multiply(args, nullptr);
  CHECK(same_bits(x.download(), before));
  const cuda::Lora both[] = {
      {gates.data(), 4, adapters.data(), rows, 64, width, ranks, nullptr, 64, gate_u.data(), x.data(), 2 * width},
      {ups.data(), 4, adapters.data(), rows, 64, width, ranks, nullptr, 64, up_u.data(), x.data() + width, 2 * width}};
  cuda::lora_expand(both, 2, nullptr);
  cuda::silu_multiply({x.data(), 2 * width, wanted.data(), width, rows, width, {}, kept_wanted.data()}, nullptr);
  CHECK(same_bits(seen.download(), wanted.download()));
  CHECK(same_bits(kept.download(), kept_wanted.download()));
}

TEST(gpu_lora_silu_has_the_bits_of_adapters_and_activation) {
  for (int64_t width : {301, 1032, 516}) check_lora_silu(width, 0);
  check_lora_silu(1032, 1);
  cuda::LoraSilu args{};
  args.silu = {nullptr, 8, nullptr, 4, 1, 5};
  CHECK_ERROR(kRange, "lora_silu_multiply: width", cuda::lora_silu_multiply(args, nullptr));
  args.silu = {nullptr, 8, nullptr, 4, 1, 4};
  args.most_rank = -1;
  CHECK_ERROR(kRange, "lora_silu_multiply: most_rank", cuda::lora_silu_multiply(args, nullptr));
}

void check_lora_silu_backward(int64_t width, int64_t rank) {
  Random random(29);
  const int64_t rows = 22;
  DeviceBuffer<bf16> x(bf16s(random, size_t(rows * 2 * width))), a(bf16s(random, size_t(std::max<int64_t>(rank, 1) * width)));
  DeviceBuffer<bf16> seen(size_t(rows * 2 * width)), wanted(size_t(rows * 2 * width)), y(size_t(rows * width)),
      y_wanted(size_t(rows * width));
  DeviceBuffer<float> d(random.normals(size_t(rows * width))), u(random.normals(size_t(rows * std::max<int64_t>(rank, 1))));
  cuda::LoraSiluBackward args{{x.data(), d.data(), width, seen.data(), y.data(), rows, width}, a.data(), rank, u.data()};
  cuda::lora_silu_multiply_backward(args, nullptr);
  cuda::LoraBack back{};
  if (rank > 0) back.projections[back.count++] = {a.data(), nullptr, rank, 1, 0, 8, u.data()};
  back.rows = rows, back.in = back.lddx = width, back.ldd = 8, back.dx = d.data();
  cuda::lora_back_expand(back, nullptr);
  cuda::silu_multiply_backward({x.data(), d.data(), width, wanted.data(), y_wanted.data(), rows, width}, nullptr);
  CHECK(same_bits(seen.download(), wanted.download()));
  CHECK(same_bits(y.download(), y_wanted.download()));
}

TEST(gpu_lora_silu_backward_has_the_bits_of_adapter_and_activation) {
  for (int64_t width : {301, 1032}) {
    for (int64_t rank : {0, 8, 11}) check_lora_silu_backward(width, rank);
  }
  cuda::LoraSiluBackward args{};
  args.silu = {nullptr, nullptr, 4, nullptr, nullptr, 1, 4};
  CHECK_ERROR(kRange, "lora_silu_multiply_backward: d", cuda::lora_silu_multiply_backward(args, nullptr));
}

TEST(gpu_lora_outer_sums_all_rows_and_ranks) {
  Random random(25);
  // Ranks that are whole groups, in rows that are whole vectors, and others; x likewise.
  for (auto [rows, ranks, ldu, columns] : {std::array<int64_t, 4>{45, 16, 16, 70},
                                           {136, 10, 12, 33},
                                           {3, 8, 9, 32},
                                           {1900, 16, 16, 72},
                                           {257, 8, 8, 100},
                                           {130, 10, 12, 40},
                                           {12, 3, 3, 8}}) {
    const std::vector<float> us = random.normals(size_t(rows * ldu)), old = random.normals(size_t(ranks * columns));
    const std::vector<bf16> xs = bf16s(random, size_t(rows * columns));
    DeviceBuffer<float> u(us), gradient(old);
    DeviceBuffer<bf16> x(xs);
    // Beside one of other ranks and columns.
    DeviceBuffer<float> small(size_t(1));
    const cuda::LoraOuter both[] = {{u.data(), ldu, x.data(), columns, rows, 1, 1, small.data()},
                                    {u.data(), ldu, x.data(), columns, rows, ranks, columns, gradient.data()}};
    cuda::lora_outer(both, 2, nullptr);
    const std::vector<float> seen = gradient.download();
    for (int64_t r = 0; r < ranks; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = old[size_t(r * columns + j)];
        for (int64_t t = 0; t < rows; ++t) sum += double(us[size_t(t * ldu + r)]) * cuda::to_float(xs[size_t(t * columns + j)]);
        // u is taken to 16 bits.
        CHECK_NEAR(seen[size_t(r * columns + j)], sum, 1e-4 * (1 + std::fabs(sum)) + 1e-5 * std::sqrt(double(rows)));
        if (r + j == 0) CHECK_NEAR(small.download()[0], sum - old[0], 1e-4 * (1 + std::fabs(sum)) + 1e-5 * std::sqrt(double(rows)));
      }
    }
  }
}

// Rows that several outer products share are read once for two groups of ranks: what each gets is what it gets alone.
TEST(gpu_lora_outer_has_the_same_bits_beside_others) {
  Random random(26);
  const int64_t rows = 150, columns = 136, most = 24;
  DeviceBuffer<bf16> shared(bf16s(random, size_t(rows * columns))), own(bf16s(random, size_t(rows * columns)));
  const DeviceBuffer<float> u(random.normals(size_t(rows * most)));
  std::vector<DeviceBuffer<float>> alone, beside;
  std::vector<cuda::LoraOuter> all;
  for (int64_t ranks : {8, 16, 11, 3, 24}) {
    alone.emplace_back(size_t(ranks * columns));
    beside.emplace_back(size_t(ranks * columns));
    const bf16* x = ranks == 16 ? own.data() : shared.data();
    all.push_back({u.data(), most, x, columns, rows, ranks, columns, alone.back().data()});
    cuda::lora_outer(&all.back(), 1, nullptr);
    all.back().gradient = beside.back().data();
  }
  cuda::lora_outer(all.data(), int64_t(all.size()), nullptr);
  for (size_t i = 0; i < all.size(); ++i) CHECK(same_bits(alone[i].download(), beside[i].download()));
}

TEST(gpu_log_prob_and_its_gradient) {
  Random random(22);
  // Rows of gradients that do not begin with whole pieces, and targets that there are not.
  const int64_t rows = 5, vocab = 1100, ld = 1103;
  const std::vector<float> values = random.normals(size_t(rows * ld), 4);
  const std::vector<int32_t> targets{0, 1099, -1, 17, 1100};
  DeviceBuffer<float> logits(values), scores{size_t(rows)}, entropies{size_t(rows)};
  DeviceBuffer<bf16> g(bf16s(random, size_t(rows * ld)));
  DeviceBuffer<int32_t> device_targets(targets);
  DeviceBuffer<float> work(size_t(cuda::log_prob_workspace_floats(rows, vocab)));
  cuda::log_prob({logits.data(), ld, rows, vocab, device_targets.data(), scores.data(), entropies.data(), g.data(), ld, work.data(),
                  int64_t(work.size())},
                 nullptr);
  const auto seen = scores.download(), seen_entropies = entropies.download();
  const auto gradients = g.download();
  for (int64_t t = 0; t < rows; ++t) {
    const float* l = values.data() + t * ld;
    double sum = 0, entropy = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(double(l[i]));
    for (int64_t i = 0; i < vocab; ++i) entropy -= std::exp(double(l[i])) / sum * (l[i] - std::log(sum));
    const int32_t target = targets[size_t(t)];
    const bool there = target >= 0 && target < vocab;
    CHECK_NEAR(seen[size_t(t)], there ? l[target] - std::log(sum) : 0, 1e-5);
    CHECK_NEAR(seen_entropies[size_t(t)], there ? entropy : 0, 1e-4);
    for (int64_t i = 0; i < ld; ++i) {
      const double wanted = !there || i >= vocab ? 0 : (i == target) - std::exp(double(l[i])) / sum;
      CHECK_NEAR(cuda::to_float(gradients[size_t(t * ld + i)]), wanted, 1.0 / 256 * std::fabs(wanted) + 1e-6);
    }
  }
}

// A slice without its last id, and one in which nothing counts; what lies behind the ids is larger than they are.
TEST(gpu_log_prob_goes_through_slices) {
  Random random(24);
  const int64_t slice = 4096, vocab = 2 * slice - 1, ld = vocab + 1;
  std::vector<float> values = random.normals(size_t(ld), 2);
  std::fill(values.begin(), values.begin() + slice, -std::numeric_limits<float>::infinity());
  values[size_t(vocab)] = 50;
  DeviceBuffer<float> logits(values), score{size_t(1)}, entropy{size_t(1)};
  DeviceBuffer<int32_t> target(std::vector<int32_t>{int32_t(vocab) - 1});
  DeviceBuffer<float> work(size_t(cuda::log_prob_workspace_floats(1, vocab)));
  cuda::log_prob({logits.data(), ld, 1, vocab, target.data(), score.data(), entropy.data(), nullptr, 0, work.data(), int64_t(work.size())},
                 nullptr);
  double sum = 0, wanted = 0;
  for (int64_t i = slice; i < vocab; ++i) sum += std::exp(double(values[size_t(i)]));
  for (int64_t i = slice; i < vocab; ++i) wanted -= std::exp(double(values[size_t(i)])) / sum * (values[size_t(i)] - std::log(sum));
  CHECK_NEAR(score.download()[0], values[size_t(vocab) - 1] - std::log(sum), 1e-4);
  CHECK_NEAR(entropy.download()[0], wanted, 1e-3);
}

TEST(gpu_log_prob_marks_rows_that_are_not_finite) {
  std::vector<float> values(2 * 40, 1.0f);
  values[45] = std::numeric_limits<float>::infinity();
  DeviceBuffer<float> logits(values), scores{size_t(2)}, entropies{size_t(2)};
  DeviceBuffer<bf16> g{size_t(80)};
  DeviceBuffer<int32_t> targets(std::vector<int32_t>{3, 3});
  DeviceBuffer<float> work(size_t(cuda::log_prob_workspace_floats(2, 40)));
  cuda::log_prob(
      {logits.data(), 40, 2, 40, targets.data(), scores.data(), entropies.data(), g.data(), 40, work.data(), int64_t(work.size())},
      nullptr);
  CHECK(std::isfinite(scores.download()[0]) && std::isnan(scores.download()[1]) && std::isnan(entropies.download()[1]));
  for (size_t i = 40; i < 80; ++i) CHECK_EQ(cuda::to_float(g.download()[i]), 0.0f);
}

struct Optimizer {
  static constexpr int64_t kCount = 1000;
  Random random{23};
  DeviceBuffer<float> weights{random.normals(kCount)}, m{size_t(kCount)}, v{size_t(kCount)}, gradients{size_t(kCount)};
  DeviceBuffer<bf16> rounded{size_t(kCount)};
  DeviceBuffer<float> parts{size_t(cuda::kSumParts)}, total{size_t(1)}, norm{size_t(1)}, scale{size_t(1)};

  void step(int64_t index, const std::vector<float>& values, float largest) {
    gradients = DeviceBuffer<float>(values);
    total = DeviceBuffer<float>(size_t(1));
    cuda::add_sum_squares({gradients.data(), kCount, parts.data(), total.data()}, nullptr);
    cuda::clip_scale(total.data(), largest, norm.data(), scale.data(), nullptr);
    cuda::adamw({weights.data(), gradients.data(), m.data(), v.data(), rounded.data(), kCount, 0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, index,
                 scale.data()},
                nullptr);
  }
};

TEST(gpu_adamw_follows_the_formula) {
  Optimizer o;
  const std::vector<float> start = o.weights.download();
  std::vector<double> w(start.begin(), start.end()), m(w.size(), 0), v(w.size(), 0);
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<float> g = o.random.normals(Optimizer::kCount);
    double norm = 0;
    for (float x : g) norm += double(x) * x;
    norm = std::sqrt(norm);
    const double clip = norm > 10 ? 10 / (norm + 1e-6) : 1;
    o.step(step, g, 10);
    CHECK_NEAR(o.norm.download()[0], norm, 1e-4 * norm);
    const std::vector<float> seen = o.weights.download();
    const std::vector<bf16> rounded = o.rounded.download();
    for (size_t i = 0; i < w.size(); ++i) {
      const double x = g[i] * clip;
      m[i] = 0.9 * m[i] + 0.1 * x;
      v[i] = 0.99 * v[i] + 0.01 * x * x;
      const double first = m[i] / (1 - std::pow(0.9, double(step))), second = v[i] / (1 - std::pow(0.99, double(step)));
      w[i] = w[i] * (1 - 0.01 * 0.1) - 0.01 * first / (std::sqrt(second) + 1e-8);
      CHECK_NEAR(seen[i], w[i], 2e-5);
      CHECK_EQ(rounded[i].bits, cuda::to_bf16(seen[i]).bits);
    }
  }
  for (float x : o.gradients.download()) CHECK_EQ(x, 0.0f);
}

// Every part of the sum has something, and some more than others; it is added to what was there.
TEST(gpu_gradients_are_clipped_by_their_norm) {
  const int64_t count = cuda::kSumParts * 256 + 5;
  DeviceBuffer<float> values(std::vector<float>(size_t(count), 1)), parts{size_t(cuda::kSumParts)}, total(std::vector<float>{2});
  cuda::add_sum_squares({values.data(), count, parts.data(), total.data()}, nullptr);
  CHECK_EQ(total.download()[0], float(count + 2));
  // A norm of the largest size is left alone, and a small one is not taken for it.
  for (auto [square, largest, wanted] : {std::array<float, 3>{4, 2, 1}, {4e-12f, 1e-6f, 1.0f / 3}}) {
    DeviceBuffer<float> sum(std::vector<float>{square}), norm{size_t(1)}, scale{size_t(1)};
    cuda::clip_scale(sum.data(), largest, norm.data(), scale.data(), nullptr);
    CHECK_NEAR(scale.download()[0], wanted, 1e-7);
  }
}

TEST(gpu_adamw_skips_a_step_that_is_not_finite) {
  Optimizer o;
  const std::vector<float> before = o.weights.download();
  std::vector<float> g(Optimizer::kCount, 1.0f);
  g[77] = std::numeric_limits<float>::quiet_NaN();
  o.step(1, g, 10);
  CHECK(std::isnan(o.norm.download()[0]));
  CHECK(same_bits(o.weights.download(), before));
  CHECK(same_bits(o.m.download(), std::vector<float>(Optimizer::kCount, 0.0f)));
}

}  // namespace
}  // namespace tandem::test
