// A mixture of experts at the shape of Qwen3-30B-A3B: rows shared out at random, and the products of their experts there and back.
#pragma once
#include <functional>
#include <set>
#include <string>

#include "cuda/experts/experts.h"
#include "device_noise.h"

namespace tandem::benchmarks {

// What is called so, the bytes of weights that it reads once, 0 where only its time counts, the products' operations, and the call.
using TimeExperts = std::function<void(const std::string& name, double bytes, double work, const std::function<void()>& call)>;

inline void time_experts(int64_t rows, const TimeExperts& time) {
  using namespace cuda;
  const int64_t experts = 128, used = 8, hidden = 2048, size = 768, pairs = rows * used;
  std::vector<float> scores;
  for (int64_t i = 0; i < rows * experts; ++i) scores.push_back(noise_at(uint64_t(i)));
  DeviceBuffer<float> logits(scores), weights{size_t(pairs)}, d_weights{size_t(pairs)}, y(size_t(rows * hidden)),
      wide(size_t(pairs * hidden));
  DeviceBuffer<int32_t> chosen{size_t(pairs)}, order{size_t(pairs)};
  DeviceBuffer<ExpertTile> tiles(size_t(expert_tiles(pairs, experts)));
  const RouteExperts route{logits.data(), experts,       nullptr,        rows,         experts,     used,
                           true,          chosen.data(), weights.data(), order.data(), tiles.data()};
  route_experts(route, nullptr);
  const std::vector<int32_t> choices = chosen.download();
  const double read = double(std::set<int32_t>(choices.begin(), choices.end()).size()), products = double(pairs);
  DeviceBuffer<bf16> x(device_noise(size_t(rows * hidden), 1)), gate_up(device_noise(size_t(experts * 2 * size * hidden), 0.05f)),
      down(device_noise(size_t(experts * hidden * size), 0.05f)), active(device_noise(size_t(pairs * size), 1)),
      kept(device_noise(size_t(pairs * 2 * size), 1)), d_gate_up(size_t(pairs * 2 * size));
  const double gate_up_weights = double(2 * size * hidden), down_weights = double(size * hidden);
  auto product = [&](const DeviceBuffer<bf16>& w, int64_t n, int64_t k, const bf16* from, int64_t ldx, int64_t shared) {
    ExpertsMatMul args{};
    args.x = from, args.ldx = ldx, args.shared = shared, args.pairs = pairs, args.order = order.data(), args.tiles = tiles.data();
    args.w = w.data(), args.experts = experts, args.n = n, args.k = k, args.y = wide.data(), args.ldy = hidden;
    return args;
  };
  const std::string name = "experts, " + std::to_string(rows) + " rows, ";
  time(name + "choosing and sorting", 0, 0, [&] { route_experts(route, nullptr); });
  ExpertsMatMul gated = product(gate_up, 2 * size, hidden, x.data(), hidden, used);
  gated.gated = active.data();
  time(name + "gate and up", 2 * read * gate_up_weights, 2 * products * gate_up_weights, [&] { experts_matmul(gated, nullptr); });
  const ExpertsMatMul second = product(down, hidden, size, active.data(), size, 1);
  time(name + "down", 2 * read * down_weights, 2 * products * down_weights, [&] { experts_matmul(second, nullptr); });
  const CombineExperts combine{wide.data(), hidden, chosen.data(), weights.data(), rows, used, hidden, y.data(), y.data(), hidden};
  time(name + "joining", 0, 0, [&] { combine_experts(combine, nullptr); });
  if (rows < 1024) return;
  const ExpertsMatMul back_down = product(down, hidden, size, x.data(), hidden, used);
  time(name + "down back", 2 * read * down_weights, 2 * products * down_weights, [&] { experts_matmul_transposed(back_down, nullptr); });
  const ExpertsMatMul back_up = product(gate_up, 2 * size, hidden, kept.data(), 2 * size, 1);
  time(name + "gate and up back", 2 * read * gate_up_weights, 2 * products * gate_up_weights,
       [&] { experts_matmul_transposed(back_up, nullptr); });
  const ExpertsSiluBackward silu{kept.data(), wide.data(), hidden, weights.data(), d_gate_up.data(), d_weights.data(), pairs, size};
  time(name + "activation back", 0, 0, [&] { experts_silu_backward(silu, nullptr); });
}

}  // namespace tandem::benchmarks
