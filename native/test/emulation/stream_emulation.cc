#include <map>
#include <stdexcept>

#include "cuda/common/gpu.h"

namespace tandem::gpu_emulation {
namespace {

thread_local std::vector<Work>* recording = nullptr;

// Of a block without asking, and of a large device's.
constexpr size_t kPlainShared = 48 << 10, kMostShared = 227 << 10;
thread_local std::map<const void*, size_t> allowed_shared;

// Launches that begin before the one ahead of them has run, at most: each keeps a block.
constexpr size_t kMostBegun = 2;

thread_local int64_t undone_work = 0;

}  // namespace

bool allow_shared_bytes(const void* kernel, size_t bytes) {
  if (bytes > kMostShared) return false;
  allowed_shared[kernel] = bytes;
  return true;
}

void launch_or_record(cudaStream_t stream, const Launch& launch, const void* kernel) {
  const auto allowed = allowed_shared.find(kernel);
  const bool asked = allowed != allowed_shared.end();
  if (launch.shared_bytes > (asked ? allowed->second : kPlainShared)) {
    throw std::runtime_error("emulated kernel: more shared memory than it was allowed");
  }
  Launch own = launch;
  own.most_shared = asked ? kMostShared : kPlainShared;
  const Work work{nullptr, std::make_shared<const Launch>(std::move(own))};
  if (recording) return recording->push_back(work);
  if (stream) return static_cast<Queue*>(stream)->add(work);
  Ahead none;
  run(*work.launch, none);
}

int64_t undone() { return undone_work; }

Queue::Queue() : at_once_(toss()) {
  ahead_.counts = true;
  end_launches(ahead_);
}

Queue::~Queue() { undone_work -= int64_t(waiting_.size()); }

void Queue::add(Work work) {
  ++undone_work;
  waiting_.push_back(std::move(work));
  if (at_once_) run_next();
}

void Queue::run_to(int64_t end) {
  while (done_ < end) run_next();
  if (!waiting_.empty()) return;
  at_once_ = toss();
  end_launches(ahead_);
}

bool Queue::run_one(int64_t end) {
  if (done_ >= end) return true;
  run_next();
  return false;
}

// Those behind a kernel that may begin before it has run.
void Queue::begin_early() {
  for (size_t i = 1; i < waiting_.size() && i <= kMostBegun; ++i) {
    Work& next = waiting_[i];
    if (!next.launch || !next.launch->early) return;
    if (!next.begun) next.begun = begin(*next.launch);
    if (!lets_next_begin(*next.begun)) return;
  }
}

void Queue::run_next() {
  if (waiting_.front().launch) begin_early();
  const Work work = std::move(waiting_.front());
  waiting_.pop_front();
  ++done_;
  --undone_work;
  if (work.launch) return run(*work.launch, ahead_, work.begun.get());
  work.run();
  end_launches(ahead_);
}

std::vector<Work> record(const std::function<void()>& body) {
  std::vector<Work> launches;
  recording = &launches;
  try {
    body();
  } catch (...) {
    recording = nullptr;
    throw;
  }
  recording = nullptr;
  return launches;
}

}  // namespace tandem::gpu_emulation
