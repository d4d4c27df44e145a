// An adapter's factors on the device, beside the host's.
#pragma once
#include "cuda/common/device_buffer.h"
#include "cuda/lora/lora.h"
#include "model/adapter.h"

namespace tandem::device {

class Adapter final : public model::Adapter {
 public:
  Adapter(model::Adapter adapter, int64_t layers);
  // Factors that somebody else keeps on the device, [layer][module]; the host's are empty.
  Adapter(model::Adapter empty, std::vector<cuda::LoraWeights> weights);
  // Factors on the device alone, in that memory.
  Adapter(model::Adapter empty, std::vector<cuda::LoraWeights> weights, cuda::DeviceBuffer<cuda::bf16> memory);

  size_t bytes() const override;

  const cuda::LoraWeights& weights(int64_t layer, model::Module module) const {
    return weights_[size_t(layer) * model::kModules + size_t(module)];
  }
  int64_t most_rank() const { return most_rank_; }

 private:
  const cuda::bf16* place(const std::vector<float>& values);

  std::vector<cuda::LoraWeights> weights_;  // [layer][module]
  std::vector<cuda::DeviceBuffer<cuda::bf16>> memory_;
  int64_t most_rank_ = 0;
};

}  // namespace tandem::device
