#include "device/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tandem::device {
namespace {

std::vector<Request> requests_of(const std::vector<engine::Draw>& draws) {
  std::vector<Request> requests;
  for (const engine::Draw& draw : draws) requests.push_back({{draw.row, nullptr}, &draw.input, -1, 0, 1, int32_t(draw.slot)});
  return requests;
}

// Sizes of decode batches; more are launched kernel by kernel.
constexpr size_t kMostRecorded = 256;

bool graphs_wanted() {
  const char* value = std::getenv("TANDEM_CUDA_GRAPHS");
  return !value || std::strcmp(value, "0") != 0;
}

}  // namespace

DeviceBackend::DeviceBackend(std::shared_ptr<const Weights> weights, std::shared_ptr<model::Model> facts, const Sizes& sizes)
    : weights_(std::move(weights)), facts_(std::move(facts)), sizes_(sizes), forward_(facts_->spec, *weights_, sizes_, stream_),
      records_(graphs_wanted()), sampler_(sizes_, stream_) {
  for (Lane& lane : lanes_) lane.inputs = cuda::Inputs(sizes_.forward_input_bytes);
}

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
  stream_.wait();  // a step that sampled nothing may still read its inputs
  run_layers(batch, next_lane());
}

size_t DeviceBackend::next_lane() { return lane_ = (lane_ + 1) % kLanes; }

void DeviceBackend::run_layers(const model::ForwardBatch& batch, size_t index) {
  Lane& lane = lanes_[index];
  lane.size = records_ ? decode_size(batch, facts_->spec, sizes_.decode_rows) : std::nullopt;
  lane.batch = send_batch(batch, facts_->spec, lane.size, lane.inputs, uploads_);
  lane.batch.last_tokens = sampler_.last_tokens();
  lane.batch.last_count = sizes_.sequences;
  lane.sent.record(uploads_);
  stream_.follow(lane.sent);
  launch_layers(index);
}

void DeviceBackend::launch_layers(size_t index) {
  const Lane& lane = lanes_[index];
  if (!lane.size) return forward_.run(lane.batch);
  const auto known = recorded_.find(*lane.size);
  if (known == recorded_.end()) {
    if (recorded_.size() < kMostRecorded) recorded_[*lane.size];
    return forward_.run(lane.batch);
  }
  cuda::Graph& graph = known->second[index];
  if (!graph.recorded()) graph.record(stream_, [&] { forward_.run(lane.batch); });
  graph.launch(stream_);
}

void DeviceBackend::queue(const model::ForwardBatch& batch, const std::vector<engine::Draw>& draws) {
  if (queued_.empty()) stream_.wait();
  const size_t index = next_lane();
  sampler_.send(index, requests_of(draws), uploads_);
  run_layers(batch, index);
  lanes_[index].layers.record(stream_);
  sampler_.launch(index, forward_);
  lanes_[index].done.record(stream_);
  queued_.push_back(index);
}

void DeviceBackend::queue_layers(const model::ForwardBatch& batch) {
  if (queued_.empty()) stream_.wait();
  const size_t index = next_lane();
  run_layers(batch, index);
  lanes_[index].layers.record(stream_);
  queued_.push_back(index);
}

void DeviceBackend::queue_draws(const std::vector<engine::Draw>& draws) {
  const size_t index = queued_.front();
  Lane& lane = lanes_[index];
  sampler_.send(index, requests_of(draws), uploads_);
  lane.sent.record(uploads_);
  stream_.follow(lane.sent);
  sampler_.launch(index, forward_);
  lane.done.record(stream_);
}

void DeviceBackend::wait_for_layers() { lanes_[queued_.front()].layers.wait(); }

bool DeviceBackend::ran() { return lanes_[queued_.front()].done.passed(); }

std::vector<engine::Answer> DeviceBackend::fetch() {
  const size_t index = queued_.front();
  lanes_[index].done.wait();
  queued_.pop_front();
  bool again = false;
  std::vector<engine::Answer> answers = sampler_.answers(index, again);
  if (!again || queued_.empty()) return answers;
  launch_layers(queued_.front());
  lanes_[queued_.front()].layers.record(stream_);
  return answers;
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
