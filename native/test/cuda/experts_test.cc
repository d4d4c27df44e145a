// Mixtures of experts on a device: choices, products of pairs with their experts' weights, and what joins them, against the CPU's and plain loops.
#include "cuda/experts/experts.h"

#include <algorithm>
#include <array>
#include <limits>

#include "device/weights.h"
#include "expert_pairs.h"
#include "ops/expert_routing.h"
#include "quant_parts.h"

namespace tandem::test {
namespace {

ops::Routing routing_of(const Routed& r) { return {r.experts, r.used, r.normalise}; }

// Every pair of rows that are somebody's is in one tile of its expert, and no tile is larger than may be.
void check_tiles(const Routed& r) {
  const auto chosen = r.chosen.download(), order = r.order.download();
  const auto tiles = r.tiles.download();
  std::vector<int> seen(size_t(r.pairs()), 0);
  int64_t next = 0;
  bool ended = false;
  for (const cuda::ExpertTile& tile : tiles) {
    CHECK(tile.count >= 0 && tile.count <= cuda::expert_tile_pairs(r.pairs(), r.experts));
    ended = ended || tile.count == 0;
    CHECK(!ended || tile.count == 0);
    if (ended) continue;
    CHECK_EQ(int64_t(tile.first), next);
    for (next += tile.count; const int32_t pair : std::vector(order.begin() + tile.first, order.begin() + next)) {
      CHECK_EQ(chosen[size_t(pair)], tile.expert);
      ++seen[size_t(pair)];
    }
  }
  for (size_t pair = 0; pair < seen.size(); ++pair) CHECK_EQ(seen[pair], chosen[pair] < 0 ? 0 : 1);
}

void check_routes(const Routed& r) {
  const auto logits = r.logits.download(), weights = r.weights.download();
  const auto chosen = r.chosen.download(), slots = r.slots.download();
  std::vector<int32_t> wanted(size_t(r.used));
  std::vector<float> shares(size_t(r.used));
  for (int64_t row = 0; row < r.rows; ++row) {
    const bool nobodys = !slots.empty() && slots[size_t(row)] < 0;
    ops::route(routing_of(r), logits.data() + row * r.ld, wanted.data(), shares.data());
    for (int64_t i = 0; i < r.used; ++i) {
      const size_t pair = size_t(row * r.used + i);
      CHECK_EQ(chosen[pair], nobodys ? -1 : wanted[size_t(i)]);
      if (std::isnan(shares[size_t(i)]) && !nobodys) CHECK(std::isnan(weights[pair]));
      else CHECK_NEAR(weights[pair], nobodys ? 0 : shares[size_t(i)], 1e-6);
    }
  }
  check_tiles(r);
}

TEST(gpu_routes_are_those_of_the_cpu) {
  Random random(81);
  // By one block, by several; words of experts that are full and that are not; tiles of every size.
  for (auto [rows, experts, used] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                        {1, 128, 8},
                                                                        {5, 7, 3},
                                                                        {64, 40, 1},
                                                                        {64, 8, 8},
                                                                        {65, 8, 2},
                                                                        {70, 33, 5},
                                                                        {260, 128, 8},
                                                                        {40, 300, 40},
                                                                        {3, 4096, 256}}) {
    const int64_t ld = experts + 3;
    std::vector<float> logits = random.normals(size_t(rows * ld), 3);
    std::vector<int32_t> slots;
    if (rows % 5 == 0) {
      // Equal ones, among them at the border; and rows that are nobody's.
      for (float& logit : logits) logit = std::round(logit);
      for (int64_t row = 0; row < rows; ++row) slots.push_back(row % 3 == 1 ? -1 : int32_t(row));
    }
    check_routes(Routed(logits, ld, rows, experts, used, rows % 2 == 0, slots));
  }
}

TEST(gpu_routes_of_what_is_no_number_are_those_of_the_cpu) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {nan, nan, nan,  nan,  1,    nan,  2,   3,    nan, 1, 2,     3,    inf,   1,
                                     2,   inf, -inf, -inf, -inf, -inf, nan, -inf, inf, 0, -0.0f, 0.0f, -1.0f, -0.0f};
  for (bool normalise : {true, false}) check_routes(Routed(logits, 4, 7, 4, 3, normalise));
  check_routes(Routed(logits, 4, 7, 4, 1, true));
}

// A router whose parts have not been added up.
TEST(gpu_routes_add_up_the_parts_of_their_logits) {
  Random random(82);
  const int64_t rows = 9, experts = 20;
  for (int64_t parts : {3, 19}) {
    const std::vector<float> pieces = random.normals(size_t(parts * rows * experts));
    std::vector<float> sums(pieces.begin(), pieces.begin() + rows * experts);
    for (size_t i = sums.size(); i < pieces.size(); ++i) sums[i % sums.size()] += pieces[i];
    Routed whole(sums, experts, rows, experts, 4, false), seen(sums, experts, rows, experts, 4, false);
    const DeviceBuffer<float> data(pieces);
    cuda::RouteExperts args = seen.args();
    args.logits = nullptr;
    args.parts = {data.data(), parts, rows, experts};
    cuda::route_experts(args, nullptr);
    CHECK(same_bits(seen.weights.download(), whole.weights.download()));
    CHECK(seen.chosen.download() == whole.chosen.download());
  }
}

TEST(gpu_gradients_of_routes_are_those_of_the_cpu) {
  Random random(83);
  for (auto [rows, experts, used] : std::vector<std::array<int64_t, 3>>{{6, 9, 3}, {5, 70, 40}}) {
    for (bool normalise : {true, false}) {
      const int64_t ld_d = (experts + 7) / 8 * 8;
      Routed r(random.normals(size_t(rows * experts)), experts, rows, experts, used, normalise);
      const DeviceBuffer<float> d_weights(random.normals(size_t(r.pairs())));
      const DeviceBuffer<bf16> d(bf16s(random, size_t(rows * ld_d)));
      cuda::route_experts_backward({r.logits.data(), experts, r.chosen.data(), r.weights.data(), d_weights.data(), rows, experts, used,
                                    normalise, const_cast<bf16*>(d.data()), ld_d},
                                   nullptr);
      const auto logits = r.logits.download(), weights = r.weights.download(), of_weights = d_weights.download();
      const auto chosen = r.chosen.download();
      const auto seen = d.download();
      std::vector<float> wanted(static_cast<size_t>(experts));
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t pair = row * used;
        ops::route_backward(routing_of(r), logits.data() + row * experts, chosen.data() + pair, weights.data() + pair,
                            of_weights.data() + pair, wanted.data());
        for (int64_t e = 0; e < ld_d; ++e) {
          const double value = e < experts ? wanted[size_t(e)] : 0;
          CHECK_NEAR(cuda::to_float(seen[size_t(row * ld_d + e)]), value, kBf16 * std::fabs(value) + 1e-7);
        }
      }
    }
  }
}

TEST(gpu_experts_multiply_their_pairs) {
  Random random(84);
  // Tiles of 16, 32, 64 and 128 pairs, which are full, nearly empty, or not there.
  for (auto [rows, experts, used] : std::vector<std::array<int64_t, 3>>{{1, 8, 3}, {9, 4, 2}, {20, 3, 2}, {70, 3, 1}, {70, 2, 2}}) {
    Routed routed(random, rows, experts, used);
    for (bool transposed : {false, true}) {
      check_pairs(routed, 40, 72, used, transposed);
      check_pairs(routed, 136, 16, 1, transposed);
    }
  }
  std::vector<int32_t> slots;
  for (int32_t row = 0; row < 12; ++row) slots.push_back(row < 7 ? row : -1);
  Routed padded(random.normals(12 * 5), 5, 12, 5, 2, true, slots);
  check_pairs(padded, 70, 136, 2, false);
}

// Of plain weights and of quantised ones, which have the same outputs.
TEST(gpu_experts_gate_what_they_multiply) {
  Random random(90);
  for (auto [rows, experts, used] : std::vector<std::array<int64_t, 3>>{{5, 4, 3}, {20, 3, 2}, {70, 3, 1}, {70, 2, 2}}) {
    Routed routed(random, rows, experts, used);
    for (int64_t n : {40, 136}) {
      for (bool keeps : {false, true}) check_gates(routed, n, 72, keeps);
    }
  }
}

TEST(gpu_pairs_do_not_depend_on_their_batch) {
  for (bool transposed : {false, true}) check_pairs_alone(transposed);
}

std::vector<bf16> gated(cuda::ExpertsMatMul args) {
  DeviceBuffer<bf16> active(size_t(args.pairs * args.n / 2));
  args.gated = active.data();
  cuda::experts_matmul(args, nullptr);
  return active.download();
}

void check_quantised(Routed& routed, const std::vector<ops::QuantFormat>& formats, int64_t n, int64_t k) {
  Random random(86);
  ThreadPool pool(1);
  const int64_t padded = (n + cuda::kQuantPanel - 1) / cuda::kQuantPanel * cuda::kQuantPanel;
  std::vector<ops::QuantFormat> each;
  for (int64_t e = 0; e < routed.experts; ++e) each.push_back(formats[size_t(e) % formats.size()]);
  const QuantParts weights(random, each, std::vector<int64_t>(size_t(routed.experts), padded), k);
  const device::Matrix matrix = device::quantised_matrix(weights.parts(), k, pool);
  for (bool transposed : {false, true}) {
    Pairs p(routed, random, n, k, routed.used, transposed);
    for (int64_t e = 0; e < routed.experts; ++e) {
      std::copy_n(weights.plain.begin() + e * padded * k, n * k, p.ws.begin() + e * n * k);
    }
    p.w = DeviceBuffer<bf16>(p.ws);
    cuda::ExpertsMatMul args = p.args();
    args.w = nullptr;
    args.quantised = matrix.quantised();
    CHECK(same_bits(Pairs::run(args, transposed), p.run()));
    if (!transposed) CHECK(same_bits(gated(args), gated(p.args())));
  }
}

TEST(gpu_experts_take_quantised_weights_for_what_they_stand_for) {
  Random random(87);
  const std::vector<ops::QuantFormat> all(std::begin(kDeviceFormats), std::end(kDeviceFormats));
  for (auto [rows, experts, used] : std::vector<std::array<int64_t, 3>>{{1, 7, 3}, {14, 3, 2}, {30, 3, 2}, {70, 2, 1}, {70, 2, 2}}) {
    Routed routed(random, rows, experts, used);
    check_quantised(routed, {ops::QuantFormat::kInt4}, 64, 136);
    check_quantised(routed, all, 128, 72);
  }
  for (ops::QuantFormat format : kDeviceFormats) {
    Routed routed(random, 9, 3, 2);
    check_quantised(routed, {format}, 64, 328);
  }
}

TEST(gpu_experts_are_joined_by_their_weights) {
  Random random(88);
  for (auto [rows, used, width, ldz, ldy] :
       std::vector<std::array<int64_t, 5>>{{3, 1, 4, 4, 4}, {5, 6, 70, 71, 73}, {2, 8, 1032, 1032, 1036}, {4, 3, 516, 520, 516}}) {
    const std::vector<float> z = random.normals(size_t(rows * used * ldz)), weights = random.normals(size_t(rows * used)),
                             old = random.normals(size_t(rows * ldy));
    std::vector<int32_t> choices(size_t(rows * used), 1);
    std::fill_n(choices.begin() + used, used, -1);
    const DeviceBuffer<float> device_z(z), device_weights(weights), onto(old);
    const DeviceBuffer<int32_t> chosen(choices);
    for (int what = 0; what < 4; ++what) {
      const bool adds = what & 1, weighs = what & 2;
      DeviceBuffer<float> y(std::vector<float>(old.size(), 7.5f));
      cuda::combine_experts({device_z.data(), ldz, chosen.data(), weighs ? device_weights.data() : nullptr, rows, used, width,
                             adds ? onto.data() : nullptr, y.data(), ldy},
                            nullptr);
      const std::vector<float> seen = y.download();
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < ldy; ++i) {
          double sum = adds ? old[size_t(row * ldy + i)] : 0;
          for (int64_t pair = row * used; i < width && pair < (row + 1) * used; ++pair) {
            sum += (weighs ? double(weights[size_t(pair)]) : 1.0) * z[size_t(pair * ldz + i)];
          }
          CHECK_NEAR(seen[size_t(row * ldy + i)], row == 1 || i >= width ? 7.5 : sum, 1e-5);
        }
      }
    }
  }
}

TEST(gpu_gradients_of_experts_activations_match_plain_loops) {
  Random random(89);
  for (auto [pairs, width, ldd] : std::vector<std::array<int64_t, 3>>{{3, 5, 6}, {4, 768, 768}, {2, 520, 524}, {1, 1036, 1040}}) {
    const std::vector<bf16> xs = bf16s(random, size_t(pairs * 2 * width));
    const std::vector<float> ds = random.normals(size_t(pairs * ldd)), ws = random.normals(size_t(pairs));
    const DeviceBuffer<bf16> x(xs);
    const DeviceBuffer<float> d(ds), weights(ws);
    DeviceBuffer<bf16> dx(xs.size());
    DeviceBuffer<float> d_weights(ws.size());
    cuda::experts_silu_backward({x.data(), d.data(), ldd, weights.data(), dx.data(), d_weights.data(), pairs, width}, nullptr);
    const auto seen = dx.download();
    const auto of_weights = d_weights.download();
    for (int64_t pair = 0; pair < pairs; ++pair) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) {
        const size_t at = size_t(2 * (pair * width + i));
        const double gate = cuda::to_float(xs[at]), up = cuda::to_float(xs[at + 1]);
        const double sigmoid = 1 / (1 + std::exp(-gate)), of_y = ds[size_t(pair * ldd + i)], g = of_y * ws[size_t(pair)];
        sum += of_y * gate * sigmoid * up;
        const double d_gate = g * up * sigmoid * (1 + gate * (1 - sigmoid)), d_up = g * gate * sigmoid;
        CHECK_NEAR(cuda::to_float(seen[at]), d_gate, kBf16 * std::fabs(d_gate) + 1e-5);
        CHECK_NEAR(cuda::to_float(seen[at + 1]), d_up, kBf16 * std::fabs(d_up) + 1e-5);
      }
      CHECK_NEAR(of_weights[size_t(pair)], sum, kBf16 * std::sqrt(double(width)) * 2);
    }
  }
}

TEST(gpu_experts_have_room_for_every_number_of_tiles) {
  for (int64_t experts : {1, 7, 128}) {
    int64_t most = 0;
    for (int64_t pairs = 1; pairs < 9000; ++pairs) {
      most = std::max(most, cuda::expert_tiles(pairs, experts));
      CHECK_EQ(cuda::most_expert_tiles(pairs, experts), most);
    }
  }
}

TEST(gpu_experts_refuse_what_does_not_fit) {
  alignas(16) bf16 memory[64] = {};
  float y[8] = {};
  auto with = [&](auto change) {
    cuda::ExpertsMatMul args{memory, 8, 1, 1, nullptr, nullptr, memory, 1, 8, 8, y, 8};
    change(args);
    cuda::experts_matmul_transposed(args, nullptr);
    cuda::experts_matmul(args, nullptr);
  };
  CHECK_ERROR(kRange, "experts_matmul_transposed: k", with([](auto& a) { a.k = 12; }));
  CHECK_ERROR(kRange, "ldx", with([](auto& a) { a.ldx = 4; }));
  CHECK_ERROR(kRange, "ldy", with([](auto& a) { a.ldy = 7; }));
  CHECK_ERROR(kRange, "shared", with([](auto& a) { a.shared = 0; }));
  CHECK_ERROR(kRange, "experts", with([](auto& a) { a.experts = 5000; }));
  cuda::RouteExperts route{};
  route.rows = 1, route.ld = route.experts = 4, route.used = 5;
  CHECK_ERROR(kRange, "route_experts: used", cuda::route_experts(route, nullptr));
  route.ld = route.experts = 5000;
  CHECK_ERROR(kRange, "route_experts: experts", cuda::route_experts(route, nullptr));
  CHECK_ERROR(kRange, "combine_experts: width",
              cuda::combine_experts({nullptr, 4, nullptr, nullptr, 1, 1, 8, nullptr, nullptr, 8}, nullptr));
}

}  // namespace
}  // namespace tandem::test
