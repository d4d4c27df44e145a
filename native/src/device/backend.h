// The back-end of an engine on a device.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <optional>

#include "cuda/common/graph.h"
#include "device/forward.h"
#include "device/sampler.h"
#include "engine/backend.h"

namespace tandem::device {

// Steps run in order on one stream. Their inputs are sent on another, into one of two lanes by turns, so that those of a queued step arrive
// while the step before it runs; the stream waits for them, the host does not. What makes this safe:
// - a lane is written again two steps later, when the first of these has been fetched, or waited for before a step that is not queued;
// - draws that wait for the results of the step before are sent once these are there; behind them nothing but layers is queued, so their logits
//   are still there when a token is drawn again, and the layers that were fed the other one can be repeated;
// - KV pages, activations, results and the tokens that slots sampled last are written on the one stream alone: a page that a step was given
//   after its owner ended is written behind a queued step that still feeds the owner, and whoever reads it comes after both;
// - pages are copied out and in when the stream has done all that it was given.
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
  engine::QueueLimits queue_limits() const override { return sampler_.limits(); }
  void queue(const model::ForwardBatch& batch, const std::vector<engine::Draw>& draws) override;
  void queue_layers(const model::ForwardBatch& batch) override;
  void queue_draws(const std::vector<engine::Draw>& draws) override;
  void wait_for_layers() override;
  bool ran() override;
  std::vector<engine::Answer> fetch() override;

 private:
  struct Lane {
    cuda::Inputs inputs;
    cuda::Event sent, layers, done;
    Batch batch;
    std::optional<DecodeSize> size;  // of a batch whose kernels are recorded
  };
  size_t next_lane();
  // The layers over the batch, behind what is sent on uploads_.
  void run_layers(const model::ForwardBatch& batch, size_t lane);
  void launch_layers(size_t lane);

  std::shared_ptr<const Weights> weights_;
  std::shared_ptr<model::Model> facts_;
  Sizes sizes_;
  // Destroyed after what runs on them.
  cuda::Stream stream_, uploads_;
  std::array<Lane, kLanes> lanes_;
  size_t lane_ = 0;
  std::deque<size_t> queued_;  // lanes of steps that were not fetched, oldest first
  Forward forward_;
  // Forward passes of decode batches, each lane's recorded when a size has come before: then all of its kernels are loaded.
  using Recorded = std::array<cuda::Graph, kLanes>;
  bool records_;
  std::map<DecodeSize, Recorded> recorded_;
  Sampler sampler_;
};

}  // namespace tandem::device
