// From hidden rows to tokens: logits in bounded pieces, the device's sampler, and on the host what only the host knows (histories, grammars).
#pragma once
#include <array>

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
  int32_t slot = -1;  // of a queued draw: its token is kept for what is queued behind it
};

class Sampler {
 public:
  Sampler(const Sizes& sizes, cuda::Stream& stream);

  // Waits for the answers, group by group. Nothing is queued.
  std::vector<engine::Answer> run(const std::vector<Request>& requests, Forward& forward);

  // The same without the host in between, for one group of draws (limits()): their inputs are sent on `uploads`, the work is put on the
  // stream, the answers are read once it has been done. A lane is used again when its answers have been read.
  engine::QueueLimits limits() const { return {sizes_.logit_rows, sizes_.edits, sizes_.best}; }
  void send(size_t lane, const std::vector<Request>& requests, cuda::Stream& uploads);
  void launch(size_t lane, Forward& forward);
  // Where inputs ask, they are asked now, and the logits are still there. `again`: some token was drawn again, behind what the stream was given.
  std::vector<engine::Answer> answers(size_t lane, bool& again);
  // [sequences], written by launch().
  const int32_t* last_tokens() const { return last_tokens_.data(); }

 private:
  // Requests whose logits are computed together, as the kernel takes them.
  struct Group {
    std::vector<cuda::SampleRow> rows;
    std::vector<cuda::LogitEdit> edits;
    std::vector<const ops::SampleInput*> masked;  // read before the requests are gone
    int64_t samplable = 0, best = 0;
  };
  struct Lane {
    explicit Lane(const Sizes& sizes);
    cuda::Inputs inputs;
    cuda::PinnedBuffer<cuda::Sampled> results;
    cuda::PinnedBuffer<cuda::BestEntry> best;
    // What send() has sent.
    Group group;
    std::vector<Request> asking;  // all of them, where some ask
    const float* logits = nullptr;
    const int32_t* from = nullptr;
    cuda::SampleBatch batch{};
  };
  // False: it does not fit any more.
  bool add(Group& group, const Request& request) const;
  // The rows' logits, on their way.
  const float* compute(const Request* requests, int64_t count, Forward& forward);
  // All of it but the logits.
  cuda::SampleBatch put(const Group& group, cuda::Inputs& inputs);
  void launch(cuda::SampleBatch batch, const float* logits, Lane& lane);
  // Waits for the rows' results in the lane.
  void sample(const float* logits, const Group& group, Lane& lane);
  static std::vector<engine::Answer> answers_of(const Group& group, const Lane& lane);
  static engine::Answer answer_of(const cuda::SampleRow& row, int64_t index, const Lane& lane);
  // Draws the row again until its input takes the token; false: it took the first.
  bool settle(const Request& request, const float* logits, engine::Answer& answer, Lane& lane);

  Sizes sizes_;
  cuda::Stream& stream_;
  cuda::Inputs from_;
  cuda::PinnedBuffer<float> copies_;  // [logit_rows][hidden]: states from earlier passes
  std::array<Lane, kLanes> lanes_;
  DeviceBuffer<float> work_;
  DeviceBuffer<cuda::Sampled> device_results_;
  DeviceBuffer<cuda::BestEntry> device_best_;
  DeviceBuffer<int32_t> last_tokens_;  // [sequences]
};

}  // namespace tandem::device
