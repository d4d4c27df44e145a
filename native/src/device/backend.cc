#include "device/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tandem::device {
namespace {

// Sizes of decode batches; more are launched kernel by kernel.
constexpr size_t kMostRecorded = 256;

bool graphs_wanted() {
  const char* value = std::getenv("TANDEM_CUDA_GRAPHS");
  return !value || std::strcmp(value, "0") != 0;
}

}  // namespace

DeviceBackend::DeviceBackend(std::shared_ptr<const Weights> weights, std::shared_ptr<model::Model> facts, const Sizes& sizes)
    : weights_(std::move(weights)), facts_(std::move(facts)), sizes_(sizes), inputs_(sizes.forward_input_bytes),
      forward_(facts_->spec, *weights_, sizes_, stream_), records_(graphs_wanted()), sampler_(sizes_, stream_) {}

// A step that sampled nothing may still run.
void DeviceBackend::read_page(int32_t page, uint8_t* out) {
  stream_.wait();
  forward_.read_page(page, out);
}

void DeviceBackend::write_page(int32_t page, const uint8_t* bytes) {
  stream_.wait();
  forward_.write_page(page, bytes);
}

void DeviceBackend::forward(const model::ForwardBatch& batch) {
  stream_.wait();  // the last step's inputs have been read
  const std::optional<DecodeSize> size = records_ ? decode_size(batch, facts_->spec, sizes_.decode_rows) : std::nullopt;
  const Batch sent = send_batch(batch, facts_->spec, size, inputs_, stream_);
  if (!size) return forward_.run(sent);
  const bool known = recorded_.contains(*size);
  if (!known && recorded_.size() == kMostRecorded) return forward_.run(sent);
  Recorded& recorded = recorded_[*size];
  if (++recorded.uses == 1) return forward_.run(sent);
  if (recorded.uses == 2) recorded.graph.record(stream_, [&] { forward_.run(sent); });
  recorded.graph.launch(stream_);
}

void DeviceBackend::copy_hidden(int64_t row, float* out) {
  stream_.wait();
  cuda::device_copy(out, forward_.hidden(row), size_t(sizes_.hidden) * sizeof(float));
}

// In rounds: all that follow nothing, then those that follow them, and so on.
void DeviceBackend::sample(const std::vector<engine::SampleQuery>& queries) {
  std::vector<size_t> depth(queries.size(), 0);
  size_t rounds = queries.empty() ? 0 : 1;
  for (size_t i = 1; i < queries.size(); ++i) {
    if (queries[i].follows) depth[i] = depth[i - 1] + 1;
    rounds = std::max(rounds, depth[i] + 1);
  }
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<size_t> begun;
    std::vector<ops::SampleInput> inputs;
    for (size_t i = 0; i < queries.size(); ++i) {
      ops::SampleInput input{};
      if (depth[i] != round || !queries[i].begin(input)) continue;
      begun.push_back(i);
      inputs.push_back(std::move(input));
    }
    std::vector<Request> requests;
    for (size_t k = 0; k < begun.size(); ++k) requests.push_back({queries[begun[k]].hidden, &inputs[k], -1, 0, 1});
    std::vector<engine::Answer> answers = sampler_.run(requests, forward_);
    for (size_t k = 0; k < begun.size(); ++k) queries[begun[k]].take(std::move(answers[k]));
  }
}

std::vector<engine::Answer> DeviceBackend::score(const std::vector<engine::ScoreQuery>& queries) {
  std::vector<Request> requests;
  for (const engine::ScoreQuery& query : queries) requests.push_back({query.hidden, nullptr, query.token, query.best, query.scale});
  return sampler_.run(requests, forward_);
}

}  // namespace tandem::device
