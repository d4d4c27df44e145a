// The back-end of an engine on a device.
#pragma once
#include <map>

#include "cuda/common/graph.h"
#include "device/forward.h"
#include "device/sampler.h"
#include "engine/backend.h"

namespace tandem::device {

class DeviceBackend final : public engine::Backend {
 public:
  DeviceBackend(std::shared_ptr<const Weights> weights, std::shared_ptr<model::Model> facts, const Sizes& sizes);

  size_t page_bytes() const override { return size_t(sizes_.page_bytes); }
  void read_page(int32_t page, uint8_t* out) override;
  void write_page(int32_t page, const uint8_t* bytes) override;
  void forward(const model::ForwardBatch& batch) override;
  void copy_hidden(int64_t row, float* out) override;
  void sample(const std::vector<engine::SampleQuery>& queries) override;
  std::vector<engine::Answer> score(const std::vector<engine::ScoreQuery>& queries) override;

 private:
  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<model::Model> facts_;
  Sizes sizes_;
  // Destroyed after what runs on it.
  cuda::Stream stream_;
  cuda::Inputs inputs_;
  Forward forward_;
  // Forward passes of decode batches, recorded when a size comes for the second time: then all of its kernels are loaded.
  struct Recorded {
    int64_t uses = 0;
    cuda::Graph graph;
  };
  bool records_;
  std::map<DecodeSize, Recorded> recorded_;
  Sampler sampler_;
};

}  // namespace tandem::device
