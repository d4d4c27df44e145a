#include <map>
#include <mutex>
#include <stdexcept>

#include "cuda/common/gpu.h"

namespace tandem::gpu_emulation {
namespace {

thread_local std::vector<Work>* recording = nullptr;

// Of a block without asking, and of a large device's.
constexpr size_t kPlainShared = 48 << 10, kMostShared = 227 << 10;
std::mutex allowing;
std::map<const void*, size_t> allowed_shared;

// Launches that begin before the one ahead of them has run, at most: each keeps a block.
constexpr size_t kMostBegun = 2;

std::atomic<int64_t> undone_work{0};

}  // namespace

bool allow_shared_bytes(const void* kernel, size_t bytes) {
  if (bytes > kMostShared) return false;
  const std::lock_guard<std::mutex> lock(allowing);
  allowed_shared[kernel] = bytes;
  return true;
}

// As it was allowed; 0: nobody asked.
static size_t shared_of(const void* kernel) {
  const std::lock_guard<std::mutex> lock(allowing);
  const auto found = allowed_shared.find(kernel);
  return found == allowed_shared.end() ? 0 : found->second;
}

void launch_or_record(cudaStream_t stream, const Launch& launch, const void* kernel) {
  const size_t allowed = shared_of(kernel);
  if (launch.shared_bytes > (allowed > 0 ? allowed : kPlainShared)) {
    throw std::runtime_error("emulated kernel: more shared memory than it was allowed");
  }
  Launch own = launch;
  own.most_shared = allowed > 0 ? kMostShared : kPlainShared;
  const Work work{nullptr, std::make_shared<const Launch>(std::move(own))};
  if (recording) return recording->push_back(work);
  if (stream) return static_cast<Queue*>(stream)->add(work);
  Ahead none;
  run(*work.launch, none);
}

int64_t undone() { return undone_work; }

Queue::Queue() : at_once_(toss()) {
  ahead_.overlaps = &overlaps_;
  end_launches(ahead_);
}

Queue::~Queue() { undone_work -= int64_t(waiting_.size()); }

int64_t Queue::end() const {
  const Turn turn(turn_);
  return done_ + int64_t(waiting_.size());
}

void Queue::add(Work work) {
  const Turn turn(turn_);
  ++undone_work;
  waiting_.push_back(std::move(work));
  if (at_once_) run_next();
}

void Queue::run_to(int64_t end) {
  while (!run_one(end)) {
  }
  // Who has its turn goes on with it, and may wait for the stream that waits here.
  const std::unique_lock<std::recursive_mutex> turn(turn_, std::try_to_lock);
  if (!turn || !waiting_.empty()) return;
  at_once_ = toss();
  end_launches(ahead_);
}

bool Queue::run_one(int64_t end) {
  if (done_ >= end) return true;
  const Turn turn(turn_);
  if (done_ < end) run_next();
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
  // Done when it has been: another thread goes on then without asking for a turn.
  struct Done {
    Queue& queue;
    ~Done() {
      queue.waiting_.pop_front();
      ++queue.done_;
      --undone_work;
    }
  } const done{*this};
  const Work& work = waiting_.front();
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
