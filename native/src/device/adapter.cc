#include "device/adapter.h"

#include <algorithm>

namespace tandem::device {

Adapter::Adapter(model::Adapter adapter, int64_t layers) : model::Adapter(std::move(adapter)) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int module = 0; module < model::kModules; ++module) {
      const ops::LoraFactors& f = factors(layer, model::Module(module));
      const int64_t rank = f.rank(), in = f.shape().in, out = f.shape().out;
      if (rank == 0) {
        weights_.push_back({nullptr, nullptr, 0, 0});
        continue;
      }
      std::vector<float> a(size_t(rank * in)), b(size_t(out * rank)), turned(b.size());
      f.copy_a(a.data());
      f.copy_b(b.data());
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t r = 0; r < rank; ++r) turned[size_t(r * out + o)] = b[size_t(o * rank + r)];
      }
      const cuda::bf16* placed_a = place(a);
      weights_.push_back({placed_a, place(turned), int32_t(rank), f.scale()});
      most_rank_ = std::max(most_rank_, rank);
    }
  }
}

Adapter::Adapter(model::Adapter empty, std::vector<cuda::LoraWeights> weights)
    : model::Adapter(std::move(empty)), weights_(std::move(weights)) {
  const auto whole = [](const cuda::bf16* factors) { return reinterpret_cast<uintptr_t>(factors) % 16 == 0; };
  for (const cuda::LoraWeights& w : weights_) {
    require(whole(w.a) && whole(w.b), ErrorKind::kState, "factors of an adapter must begin at multiples of 16 bytes");
    most_rank_ = std::max<int64_t>(most_rank_, w.rank);
  }
}

Adapter::Adapter(model::Adapter empty, std::vector<cuda::LoraWeights> weights, cuda::DeviceBuffer<cuda::bf16> memory)
    : Adapter(std::move(empty), std::move(weights)) {
  memory_.push_back(std::move(memory));
}

size_t Adapter::bytes() const {
  size_t on_device = 0;
  for (const auto& part : memory_) on_device += part.size() * sizeof(cuda::bf16);
  return std::max(model::Adapter::bytes(), on_device);
}

// The values were rounded to bf16 before.
const cuda::bf16* Adapter::place(const std::vector<float>& values) {
  std::vector<cuda::bf16> rounded;
  rounded.reserve(values.size());
  for (float value : values) rounded.push_back(cuda::to_bf16(value));
  memory_.emplace_back(rounded);
  return memory_.back().data();
}

}  // namespace tandem::device
