// From hidden rows to tokens: logits in bounded pieces, the device's sampler, and on the host what only the host knows (histories, grammars).
#pragma once
#include "cuda/common/stream.h"
#include "cuda/sampling/sample.h"
#include "device/forward.h"

namespace tandem::device {

// A row to be sampled, or a given token to be scored.
struct Request {
  engine::HiddenRow hidden;
  const ops::SampleInput* input;  // null: score
  // Of a given token.
  int32_t given;
  int64_t best;
  float scale;
};

class Sampler {
 public:
  Sampler(const Sizes& sizes, cuda::Stream& stream);

  std::vector<engine::Answer> run(const std::vector<Request>& requests, Forward& forward);

 private:
  // Requests whose logits are computed together, as the kernel takes them.
  struct Group {
    std::vector<cuda::SampleRow> rows;
    std::vector<cuda::LogitEdit> edits;
    std::vector<uint32_t> masks;
    int64_t samplable = 0, best = 0;
  };
  // False: it does not fit any more.
  bool add(Group& group, const Request& request) const;
  void set_mask(Group& group, cuda::SampleRow& row, const ops::SampleInput& input) const;
  // The rows' logits, on their way.
  const float* compute(const Request* requests, int64_t count, Forward& forward);
  // Waits for the rows' results in results_ and best_.
  void sample(const float* logits, const Group& group);
  engine::Answer answer_of(const Request& request, const cuda::SampleRow& row, const cuda::Sampled& sampled) const;
  // Draws the row again until its input takes the token.
  void settle(const Request& request, const float* logits, engine::Answer& answer);

  Sizes sizes_;
  cuda::Stream& stream_;
  cuda::Inputs from_, inputs_;
  cuda::PinnedBuffer<float> copies_;  // [logit_rows][hidden]: states from earlier passes
  DeviceBuffer<float> work_;          // [logit_rows][vocab]
  DeviceBuffer<cuda::Sampled> device_results_;
  DeviceBuffer<cuda::BestEntry> device_best_;
  cuda::PinnedBuffer<cuda::Sampled> results_;
  cuda::PinnedBuffer<cuda::BestEntry> best_;
};

}  // namespace tandem::device
