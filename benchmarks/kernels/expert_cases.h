// A mixture of experts at the shape of Qwen3-30B-A3B: rows shared out at random, and the products of their experts there and back.
#pragma once
#include <functional>
#include <set>
#include <string>

#include "cuda/experts/experts.h"
#include "device_noise.h"

namespace tandem::benchmarks {

using cuda::bf16;
using cuda::DeviceBuffer;

// What is called so, the bytes of weights that it reads once, 0 where only its time counts, the products' operations, and the call.
using TimeExperts = std::function<void(const std::string& name, double bytes, double work, const std::function<void()>& call)>;

// Buffers of the products of a mixture, and what is timed.
class ExpertCases {
 public:
  static constexpr int64_t kExperts = 128, kUsed = 8, kHidden = 2048, kSize = 768;

  ExpertCases(int64_t rows, const TimeExperts& time)
      : rows_(rows), pairs_(rows * kUsed), time_(time), name_("experts, " + std::to_string(rows) + " rows, "),
        logits_(scores(rows * kExperts)), y_(size_t(rows * kHidden)),
        wide_(size_t(pairs_ * kHidden)), weights_{size_t(pairs_)}, d_weights_{size_t(pairs_)}, chosen_{size_t(pairs_)}, order_{size_t(
                                                                                                                            pairs_)},
        tiles_(size_t(cuda::expert_tiles(pairs_, kExperts))), x_(device_noise(size_t(rows * kHidden), 1)),
        gate_up_(device_noise(size_t(kExperts * 2 * kSize * kHidden), 0.05f)),
        down_(device_noise(size_t(kExperts * kHidden * kSize), 0.05f)), active_(device_noise(size_t(pairs_ * kSize), 1)),
        kept_(device_noise(size_t(pairs_ * 2 * kSize), 1)), d_gate_up_(size_t(pairs_ * 2 * kSize)) {}

  // `hopper`: products by wgmma too.
  void time_all(bool hopper) {
    time_routes();
    time_products(cuda::ExpertKernel::kMma);
    if (hopper) time_products(cuda::ExpertKernel::kWgmma);
    time_joining();
  }

 private:
  void time_routes() {
    const cuda::RouteExperts route{logits_.data(), kExperts,       nullptr,         rows_,         kExperts,     kUsed,
                                   true,           chosen_.data(), weights_.data(), order_.data(), tiles_.data()};
    time_(name_ + "choosing and sorting", 0, 0, [&] { cuda::route_experts(route, nullptr); });
    const std::vector<int32_t> choices = chosen_.download();
    read_ = double(std::set<int32_t>(choices.begin(), choices.end()).size());
  }

  void time_joining() {
    const cuda::CombineExperts combine{wide_.data(), kHidden, chosen_.data(), weights_.data(), rows_,
                                       kUsed,        kHidden, y_.data(),      y_.data(),       kHidden};
    time_(name_ + "joining", 0, 0, [&] { cuda::combine_experts(combine, nullptr); });
    const cuda::ExpertsSiluBackward silu{kept_.data(),      wide_.data(),      kHidden, weights_.data(),
                                         d_gate_up_.data(), d_weights_.data(), pairs_,  kSize};
    if (rows_ >= 1024) time_(name_ + "activation back", 0, 0, [&] { cuda::experts_silu_backward(silu, nullptr); });
  }

  // By wgmma rows are gathered first.
  void time_products(cuda::ExpertKernel kernel) {
    const std::string by = kernel == cuda::ExpertKernel::kWgmma ? " by wgmma" : "";
    const double gate_up = double(2 * kSize * kHidden), down = double(kSize * kHidden), products = double(pairs_);
    if (kernel == cuda::ExpertKernel::kWgmma) gather();
    cuda::ExpertsMatMul gated = product(kernel, gate_up_, 2 * kSize, kHidden, x_.data(), kHidden, kUsed);
    gated.gated = active_.data();
    time_(name_ + "gate and up" + by, 2 * read_ * gate_up, 2 * products * gate_up, [&] { cuda::experts_matmul(gated, nullptr); });
    const cuda::ExpertsMatMul second = product(kernel, down_, kHidden, kSize, active_.data(), kSize, 1);
    time_(name_ + "down" + by, 2 * read_ * down, 2 * products * down, [&] { cuda::experts_matmul(second, nullptr); });
    if (rows_ < 1024) return;
    const cuda::ExpertsMatMul first_back = product(kernel, down_, kHidden, kSize, x_.data(), kHidden, kUsed);
    time_(name_ + "down back" + by, 2 * read_ * down, 2 * products * down, [&] { cuda::experts_matmul_transposed(first_back, nullptr); });
    const cuda::ExpertsMatMul back = product(kernel, gate_up_, 2 * kSize, kHidden, kept_.data(), 2 * kSize, 1);
    time_(name_ + "gate and up back" + by, 2 * read_ * gate_up, 2 * products * gate_up,
          [&] { cuda::experts_matmul_transposed(back, nullptr); });
  }

  static std::vector<float> scores(int64_t count) {
    std::vector<float> out;
    for (int64_t i = 0; i < count; ++i) out.push_back(noise_at(uint64_t(i)));
    return out;
  }

  void gather() {
    sorted_ = DeviceBuffer<bf16>(size_t(pairs_ * kHidden));
    const cuda::GatherPairs args{x_.data(), kHidden, kUsed, order_.data(), pairs_, kHidden, sorted_.data()};
    time_(name_ + "gathering", 0, 0, [&] { cuda::gather_pairs(args, nullptr); });
  }

  cuda::ExpertsMatMul product(cuda::ExpertKernel kernel, const DeviceBuffer<bf16>& w, int64_t n, int64_t k, const bf16* from, int64_t ldx,
                              int64_t shared) {
    const bool gathered = kernel == cuda::ExpertKernel::kWgmma && shared > 1;
    cuda::ExpertsMatMul args{};
    args.x = gathered ? sorted_.data() : from, args.ldx = ldx, args.shared = gathered ? 1 : shared, args.pairs = pairs_;
    args.order = order_.data(), args.tiles = tiles_.data(), args.kernel = kernel;
    args.w = w.data(), args.experts = kExperts, args.n = n, args.k = k, args.y = wide_.data(), args.ldy = kHidden;
    return args;
  }

  int64_t rows_, pairs_;
  const TimeExperts& time_;
  std::string name_;
  double read_ = 0;  // experts that have pairs
  DeviceBuffer<float> logits_, y_, wide_, weights_, d_weights_;
  DeviceBuffer<int32_t> chosen_, order_;
  DeviceBuffer<cuda::ExpertTile> tiles_;
  DeviceBuffer<bf16> x_, gate_up_, down_, active_, kept_, d_gate_up_, sorted_;
};

}  // namespace tandem::benchmarks
