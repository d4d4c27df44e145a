#include "device/mixture.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::device {
namespace {

int64_t wide_columns(const model::Spec& spec) { return std::max(spec.experts.size + spec.hidden_size / 2, spec.hidden_size); }

int64_t most_tiles(const model::Spec& spec, int64_t pairs) { return pairs > 0 ? cuda::most_expert_tiles(pairs, spec.experts.count) : 0; }

}  // namespace

Mixture::Mixture(const model::Spec& spec, cuda::ExpertKernel kernel, int64_t most_rows, cuda::Stream& stream)
    : spec_(spec), kernel_(kernel), stream_(stream), most_rows_(most_rows), logits_(size_t(most_rows * spec.experts.count)) {
  const int64_t pairs = most_rows * spec.experts.used;
  chosen_ = DeviceBuffer<int32_t>(size_t(pairs));
  order_ = DeviceBuffer<int32_t>(size_t(pairs));
  weights_ = DeviceBuffer<float>(size_t(pairs));
  tiles_ = DeviceBuffer<cuda::ExpertTile>(size_t(most_tiles(spec, pairs)));
  wide_ = DeviceBuffer<float>(size_t(pairs * wide_columns(spec)));
  active_ = DeviceBuffer<bf16>(size_t(pairs * spec.experts.size));
}

size_t Mixture::bytes(const model::Spec& spec, int64_t most_rows) {
  const size_t pairs = size_t(most_rows * spec.experts.used), f = sizeof(float);
  const size_t pair = 2 * sizeof(int32_t) + f + size_t(wide_columns(spec)) * f + size_t(spec.experts.size) * sizeof(bf16);
  return size_t(most_rows * spec.experts.count) * f + pairs * pair + size_t(most_tiles(spec, int64_t(pairs))) * sizeof(cuda::ExpertTile);
}

void Mixture::route(const int32_t* slots, int64_t rows, const cuda::Parts& parts) {
  const model::Experts& experts = spec_.experts;
  require(rows <= most_rows_, ErrorKind::kState, "more rows go to experts than there is room for");
  rows_ = rows;
  cuda::route_experts({logits_.data(), experts.count, slots, rows, experts.count, experts.used, experts.normalise, chosen_.data(),
                       weights_.data(), order_.data(), tiles_.data(), parts},
                      stream_.get());
}

cuda::ExpertKernel Mixture::kernel_of(const Layer& layer) const {
  const bool quantised = layer.gate_up.data.size() == 0 || layer.down.data.size() == 0;
  return quantised ? cuda::ExpertKernel::kMma : kernel_;
}

void Mixture::run(const Layer& layer, const bf16* x, const float* onto, float* y, bf16* kept) {
  const int64_t h = spec_.hidden_size, f = spec_.experts.size;
  cuda::ExpertsMatMul gate_up = product_of(layer, layer.gate_up, 2 * f, h, x, Input::kRows);
  gate_up.gated = active_.data();
  gate_up.kept = kept;
  cuda::experts_matmul(gate_up, stream_.get());
  cuda::experts_matmul(product_of(layer, layer.down, h, f, active_.data(), Input::kPairs), stream_.get());
  combine(weights_.data(), onto, y);
}

void Mixture::back(const Layer& layer, const bf16* d_out, const bf16* gate_up, bf16* d_gate_up, float* d_weights, float* dx) {
  const int64_t h = spec_.hidden_size, f = spec_.experts.size;
  cuda::experts_matmul_transposed(product_of(layer, layer.down, h, f, d_out, Input::kRows, true), stream_.get());
  cuda::ExpertsSiluBackward silu{gate_up, wide_.data(), f, weights_.data(), d_gate_up, d_weights, pairs(), f};
  if (kernel_of(layer) == cuda::ExpertKernel::kWgmma) silu.order = order_.data();
  cuda::experts_silu_backward(silu, stream_.get());
  cuda::experts_matmul_transposed(product_of(layer, layer.gate_up, 2 * f, h, d_gate_up, Input::kPairs, true), stream_.get());
  combine(nullptr, nullptr, dx);
}

void Mixture::back_router(const float* d_weights, bf16* d_logits, int64_t ld) {
  const model::Experts& experts = spec_.experts;
  cuda::route_experts_backward({logits_.data(), experts.count, chosen_.data(), weights_.data(), d_weights, rows_, experts.count,
                                experts.used, experts.normalise, d_logits, ld},
                               stream_.get());
}

cuda::ExpertsMatMul Mixture::product_of(const Layer& layer, const Matrix& w, int64_t n, int64_t k, const bf16* x, Input input, bool back) {
  cuda::ExpertsMatMul args{};
  args.kernel = kernel_of(layer);
  args.x = x;
  args.ldx = back ? n : k;
  args.shared = input == Input::kRows ? spec_.experts.used : 1;
  args.pairs = pairs();
  args.order = order_.data();
  args.tiles = tiles_.data();
  args.w = w.data.data();
  args.experts = spec_.experts.count;
  args.n = n;
  args.k = k;
  args.y = wide_.data();
  args.ldy = back ? k : n;
  args.quantised = w.quantised();
  if (args.kernel == cuda::ExpertKernel::kMma || input == Input::kPairs) return args;
  bf16* sorted = reinterpret_cast<bf16*>(wide_.data() + pairs() * spec_.experts.size);
  cuda::gather_pairs({x, args.ldx, args.shared, args.order, args.pairs, args.ldx, sorted}, stream_.get());
  args.x = sorted;
  args.shared = 1;
  return args;
}

void Mixture::combine(const float* weights, const float* onto, float* y) {
  const int64_t h = spec_.hidden_size;
  cuda::combine_experts({wide_.data(), h, chosen_.data(), weights, rows_, spec_.experts.used, h, onto, y, h}, stream_.get());
}

}  // namespace tandem::device
