#include "emulation/fibers.h"

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "cuda/common/gpu.h"

namespace tandem::gpu_emulation {

struct FreeMemory {
  void operator()(unsigned char* p) const { std::free(p); }
};
using SharedMemory = std::unique_ptr<unsigned char, FreeMemory>;

namespace {

thread_local Block* current_block = nullptr;

struct Restore {
  Block* saved;
  ~Restore() { current_block = saved; }
};

constexpr unsigned kMaxThreads = 1024;
// Of variables; and what lies between two of them.
constexpr size_t kMostVariables = 48 << 10, kSharedGap = 64;

// As programs of tests say, test by test; the addon says nothing, and would take long.
std::atomic<bool> watching{std::getenv("TANDEM_WATCH_ENGINES") != nullptr};

// Of orders that are always the same. The standard library's took longer than what they order: every warp that goes on draws one.
class Dice {
 public:
  uint32_t below(size_t end) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return uint32_t((state_ >> 32) * end >> 32);
  }
  template <class T>
  void shuffle(T* begin, T* end) {
    for (size_t left = size_t(end - begin); left > 1; --left) std::swap(begin[left - 1], begin[below(left)]);
  }

 private:
  uint64_t state_ = 1;
};
thread_local Dice dice;

// Lets the thread go on if what it waits for has come, as far as its warp need not meet.
void look_again(Block& b, int thread) {
  Fiber& f = b.fibers[size_t(thread)];
  if (f.wait == Wait::kInputs && b.inputs_there) f.wait = Wait::kNone;
  if (f.wait == Wait::kCount && *f.count >= f.wanted) f.wait = Wait::kNone;
  if (f.wait != Wait::kBarrier || !f.barrier->passed(f.parity)) return;
  f.wait = Wait::kNone;
  b.races->waited(thread, f.barrier, f.barrier->phase);
}

// Runs a warp until all of its threads have ended or wait, but for one that stays behind (-1: none). True when anything ran.
bool run_warp(Block& b, std::vector<int>& order, int begin, int end, int straggler) {
  for (bool ran = false;;) {
    bool moved = false;
    int going = 0, meeting = 0, showing = 0, at_barriers = 0;
    dice.shuffle(order.data() + begin, order.data() + end);
    for (int i = begin; i < end; ++i) {
      const int thread = order[size_t(i)];
      Fiber& f = b.fibers[size_t(thread)];
      if (f.done) continue;
      if (thread != straggler && f.wait != Wait::kNone) look_again(b, thread);
      if (thread != straggler && f.wait == Wait::kNone) {
        b.current = thread;
        to_fiber(b, f);
        moved = true;
      }
      going += !f.done;
      meeting += !f.done && f.wait == Wait::kWarp;
      showing += !f.done && f.wait == Wait::kShow;
      at_barriers += !f.done && f.wait == Wait::kBarrier;
    }
    const bool met = going > 0 && (meeting == going || showing == going);
    for (int t = begin; met && t < end; ++t) b.fibers[size_t(t)].wait = Wait::kNone;
    if (met && meeting > 0) b.races->warp_met(begin);
    ran = ran || moved || met;
    // Who waits at an mbarrier may have had its turn before what it waits for came.
    if (!met && (!moved || at_barriers == 0)) return ran;
  }
}

// Any of the bulk copies that are on their way. False: there is none.
bool land_one(Block& b) {
  if (b.in_flight.empty()) return false;
  const size_t index = dice.below(b.in_flight.size());
  const std::function<void()> copy = b.in_flight[index];
  b.in_flight.erase(b.in_flight.begin() + int64_t(index));
  copy();
  return true;
}

bool waits_for(const Block& b, Wait what) {
  return std::any_of(b.fibers.begin(), b.fibers.end(), [&](const Fiber& f) { return !f.done && f.wait == what; });
}

// Every warp as far as it comes. True when anything ran.
bool run_warps(Block& b, std::vector<int>& order, int straggler) {
  const int threads = int(b.fibers.size());
  std::vector<int> warps;
  for (int w = 0; w < threads; w += 32) warps.push_back(w);
  dice.shuffle(warps.data(), warps.data() + warps.size());
  bool ran = false;
  for (int w : warps) ran = run_warp(b, order, w, std::min(w + 32, threads), straggler) || ran;
  if (b.fault.empty()) b.fault = b.races->found();
  if (!b.fault.empty()) throw std::runtime_error("emulated kernel: " + b.fault);
  return ran;
}

bool ended(const Block& b) {
  return std::all_of(b.fibers.begin(), b.fibers.end(), [](const Fiber& f) { return f.done; });
}

// Lets go on who met at the block's barrier. False: nobody did.
bool meet(Block& b) {
  if (!std::all_of(b.fibers.begin(), b.fibers.end(), [](const Fiber& f) { return f.done || f.wait == Wait::kBlock; })) return false;
  const bool waited = std::any_of(b.fibers.begin(), b.fibers.end(), [](const Fiber& f) { return f.waited; });
  for (Fiber& f : b.fibers) {
    f.wait = Wait::kNone;
    f.waited = waited;
  }
  b.races->block_met();
  return true;
}

// False: threads wait for the kernel's inputs or for other blocks, and others for them.
bool run_block(Block& b, std::vector<int>& order) {
  // A thread that runs only when the others cannot go on without it; -1: none.
  int straggler = -1;
  for (;;) {
    if (straggler < 0 && dice.below(8) == 0) straggler = int(dice.below(b.fibers.size()));
    const bool ran = run_warps(b, order, straggler);
    if (ended(b)) {
      if (!b.in_flight.empty()) throw std::runtime_error("emulated kernel: a block ended before its copies had come");
      return true;
    }
    if (meet(b)) continue;
    if (!ran && straggler >= 0 && !(toss() && land_one(b))) {
      straggler = -1;
    } else if (!ran && straggler < 0 && !b.inputs_there && waits_for(b, Wait::kInputs)) {
      return false;
    } else if (!ran && straggler < 0 && !land_one(b)) {
      if (waits_for(b, Wait::kCount)) return false;
      throw std::runtime_error("emulated kernel: threads of a block wait at different barriers, or for what never comes");
    }
  }
}

size_t padded(size_t bytes) { return (bytes + kSharedGap - 1) / kSharedGap * kSharedGap; }

}  // namespace

// A fiber that has waited may go on in another thread of the host, where current_block lies elsewhere, and compilers take a variable to stay where it
// is while a function runs. So it is read in one of its own, whose result holds for one call.
[[gnu::noinline]] Block& block() {
  asm volatile("" ::: "memory");
  return *current_block;
}
// No fiber waits in who asks.
Block* running_block() { return watching ? current_block : nullptr; }
void watch_accesses(bool on) { watching = on; }

static Fiber& running(Block& b) { return b.fibers[size_t(b.current)]; }
int lane() { return block().current % 32; }
Fiber& fiber() { return running(block()); }
dim3 thread_index() { return fiber().thread; }
dim3 block_index() { return block().index; }
dim3 block_size() { return block().size; }
dim3 grid_size() { return block().grid; }

// Of a block on a device: what it asks for begins at a multiple of 1,024 bytes (GPU_SHARED_BYTES), behind its variables.
size_t shared_on_device(const Block& b) {
  size_t variables = 0;
  for (const SharedVariable& v : b.variables) variables += (v.bytes + 15) / 16 * 16;
  return b.shared_bytes > 0 ? (variables + 1023) / 1024 * 1024 + b.shared_bytes : variables;
}

unsigned char* shared_variable(const void* key, size_t bytes) {
  Block& b = block();
  for (const SharedVariable& v : b.variables) {
    if (v.key == key) return v.memory;
  }
  unsigned char* const first = b.shared + padded(b.shared_bytes) + kSharedGap;
  unsigned char* at = b.variables.empty() ? first : b.variables.back().memory + padded(b.variables.back().bytes) + kSharedGap;
  if (at + bytes > first + kMostVariables) {
    b.fault = "more shared variables than a block has room for";
    at = first;
  }
  b.races->asked(at, bytes);
  std::memset(at, 0xff, bytes);
  b.variables.push_back({key, at, bytes});
  if (shared_on_device(b) > b.most_shared) b.fault = "more shared memory with its variables than it was allowed";
  return at;
}

static void wait(Block& b, Wait kind) {
  Fiber& f = running(b);
  f.wait = kind;
  to_main(b, f);
}
void wait(Wait kind) { wait(block(), kind); }

// It shows by turns: where it does so next, nobody still looks, so that they need not meet again.
void show(const void* value, size_t bytes) {
  Block& b = block();
  std::memcpy(b.lanes[size_t(b.current)].bytes[++running(b).shown % 2], value, bytes);
  wait(b, Wait::kShow);
}

void see(int lane, void* to, size_t bytes) {
  Block& b = block();
  const int at = b.current / 32 * 32 + lane;
  const Shown& shown = b.lanes[size_t(at < int(b.fibers.size()) ? at : b.current)];
  std::memcpy(to, shown.bytes[running(b).shown % 2], bytes);
}

void run_within(Block& block, const std::function<void()>& body) {
  const Restore restore{std::exchange(current_block, &block)};
  body();
}

int count_votes(bool own) {
  Block& b = block();
  if (own) ++b.votes;
  wait(b, Wait::kBlock);
  const int all = b.votes;
  wait(b, Wait::kBlock);
  b.votes = 0;
  wait(b, Wait::kBlock);
  return all;
}

void atomic_load(const void* from, void* to, size_t bytes) {
  Block& b = block();
  if (b.holds(from)) b.races->atomic(b.current, from, bytes, __builtin_return_address(0));
  else touch_global(b, from, bytes, true, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}

void atomic_store(const void* from, void* to, size_t bytes) { std::memcpy(to, from, bytes); }

bool toss() { return dice.below(2) != 0; }

// Blocks of a kernel, one after the other, and what they run on.
class Begun {
 public:
  explicit Begun(const Launch& launch) : order_(launch.size.x * launch.size.y * launch.size.z) {
    const size_t threads = order_.size();
    if (threads == 0 || threads > kMaxThreads) throw std::runtime_error("emulated kernel: bad block size");
    stacks_ = take_stacks(threads);
    races_ = take_races();
    const size_t bytes = launch.shared_bytes, room = (bytes + kMostVariables + 2 * kSharedGap + 1023) / 1024 * 1024;
    shared_.reset(static_cast<unsigned char*>(std::aligned_alloc(1024, room)));
    block_.grid = launch.grid;
    block_.size = launch.size;
    block_.shared = shared_.get();
    block_.shared_bytes = bytes;
    block_.room = room;
    block_.most_shared = launch.most_shared;
    block_.body = &launch.body;
    block_.fibers.resize(threads);
    block_.lanes.resize(threads);
    block_.races = races_.get();
    std::iota(order_.begin(), order_.end(), 0);
  }
  ~Begun() {
    spare_stacks.push_back(std::move(stacks_));
    spare_races.push_back(std::move(races_));
  }

  // False: it waits for its inputs, or for other blocks.
  bool run(unsigned number, bool inputs_there, const Ahead& ahead) {
    const dim3 grid = block_.grid, size = block_.size;
    number_ = number;
    block_.index = dim3(number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);
    block_.inputs_there = inputs_there;
    block_.lets_next_begin = block_.lets_next_run_beside = false;
    block_.ahead = ahead;
    block_.seen_by_async.clear();
    block_.right_sides.clear();
    races_->begin(block_.fibers.size(), block_.shared, block_.room);
    races_->asked(block_.shared, block_.shared_bytes);
    std::memset(block_.shared, 0xff, block_.shared_bytes);
    for (const SharedVariable& v : block_.variables) {
      races_->asked(v.memory, v.bytes);
      std::memset(v.memory, 0xff, v.bytes);
    }
    const Restore restore{std::exchange(current_block, &block_)};
    for (unsigned t = 0; t < block_.fibers.size(); ++t) {
      start(block_.fibers[t], (*stacks_)[t], dim3(t % size.x, t / size.x % size.y, t / size.x / size.y));
    }
    return run_block(block_, order_);
  }
  // As far as it comes now that its inputs are there.
  bool go_on(const Ahead& ahead) {
    block_.inputs_there = true;
    block_.ahead = ahead;
    const Restore restore{std::exchange(current_block, &block_)};
    return run_block(block_, order_);
  }
  unsigned number() const { return number_; }
  const Block& block() const { return block_; }

 private:
  using Stacks = std::unique_ptr<std::deque<Stack>>;
  static Stacks take_stacks(size_t count) {
    Stacks stacks = spare_stacks.empty() ? std::make_unique<std::deque<Stack>>() : std::move(spare_stacks.back());
    if (!spare_stacks.empty()) spare_stacks.pop_back();
    while (stacks->size() < count) stacks->emplace_back();
    return stacks;
  }
  static std::unique_ptr<SharedRaces> take_races() {
    if (spare_races.empty()) return std::make_unique<SharedRaces>();
    auto races = std::move(spare_races.back());
    spare_races.pop_back();
    return races;
  }
  static thread_local std::vector<Stacks> spare_stacks;
  static thread_local std::vector<std::unique_ptr<SharedRaces>> spare_races;

  Stacks stacks_;
  std::unique_ptr<SharedRaces> races_;
  SharedMemory shared_;
  Block block_;
  std::vector<int> order_;
  unsigned number_ = 0;
};
thread_local std::vector<Begun::Stacks> Begun::spare_stacks;
thread_local std::vector<std::unique_ptr<SharedRaces>> Begun::spare_races;

static size_t blocks_of(const Launch& launch) { return size_t(launch.grid.x) * launch.grid.y * launch.grid.z; }

bool lets_next_begin(const Begun& begun) { return begun.block().lets_next_begin; }

std::shared_ptr<Begun> begin(const Launch& launch) {
  auto begun = std::make_shared<Begun>(launch);
  begun->run(dice.below(blocks_of(launch)), false, {});
  return begun;
}

static std::atomic<uint64_t> launched{0};

uint64_t launches_run() { return launched; }

static std::atomic<size_t> most_in_flight{0};

size_t most_bytes_in_flight() { return most_in_flight.exchange(0); }

void note_bytes_in_flight(const Block& b) {
  size_t most = most_in_flight;
  while (most < b.bytes_in_flight && !most_in_flight.compare_exchange_weak(most, b.bytes_in_flight)) {
  }
}

void end_launches(Ahead& ahead) { ahead.running = ahead.unseen = ahead.launches + 1; }

void run(const Launch& launch, Ahead& ahead, Begun* begun) {
  ++launched;
  const uint32_t number = ++ahead.launches;
  if (!launch.early) ahead.running = ahead.unseen = number;
  std::vector<unsigned> numbers(blocks_of(launch));
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto require_end = [](bool ended) {
    if (!ended) throw std::runtime_error("emulated kernel: a block waits for others that do not come before it");
  };
  // One that runs as far as it comes before the first blocks do.
  std::unique_ptr<Begun> ahead_of_first;
  bool ended = true;
  if (begun) {
    ended = begun->go_on(ahead);
  } else if (launch.first_blocks > 0 && launch.first_blocks < numbers.size()) {
    ahead_of_first = std::make_unique<Begun>(launch);
    begun = ahead_of_first.get();
    ended = begun->run(launch.first_blocks + dice.below(numbers.size() - launch.first_blocks), true, ahead);
  }
  if (begun) numbers.erase(numbers.begin() + begun->number());
  dice.shuffle(numbers.data(), numbers.data() + numbers.size());
  std::stable_partition(numbers.begin(), numbers.end(), [&](unsigned i) { return i < launch.first_blocks; });
  Begun blocks(launch);
  for (unsigned i : numbers) {
    if (i >= launch.first_blocks && !ended) require_end(ended = begun->go_on(ahead));
    require_end(blocks.run(i, true, ahead));
  }
  if (!ended) require_end(begun->go_on(ahead));
  const bool waits = begun && begun->block().waits;
  if (launch.early && !waits && !blocks.block().waits) throw std::runtime_error("emulated kernel: it may begin early, and never waits");
  const Block& last = numbers.empty() ? begun->block() : blocks.block();
  if (!last.lets_next_begin) ahead.running = number + 1;
  else if (!last.lets_next_run_beside) ahead.running = number;
}

void let_next_begin() { block().lets_next_begin = block().lets_next_run_beside = true; }
void wait_for_inputs() {
  begin_beside();
  end_beside();
}
void wait_for_inputs_first() {
  end_beside();
  block().lets_next_begin = true;
}
void begin_beside() {
  let_next_begin();
  fiber().beside = true;
}
void end_beside() {
  block().waits = true;
  if (!block().inputs_there) wait(Wait::kInputs);
  fiber().waited = true;
}

void wait_for_count(const int32_t* count, int32_t wanted) {
  int32_t seen;
  atomic_load(count, &seen, sizeof seen);
  if (seen >= wanted) return;
  fiber().count = count;
  fiber().wanted = wanted;
  wait(Wait::kCount);
}

bool Block::is_global(const void* p) const {
  const auto within = [at = static_cast<const unsigned char*>(p)](const void* memory, size_t bytes) {
    return size_t(at - static_cast<const unsigned char*>(memory)) < bytes;
  };
  const Fiber& f = fibers[size_t(current)];
  return !within(f.stack_memory, kStack) && !within(this, sizeof *this) && !within(fibers.data(), fibers.size() * sizeof f) &&
         !within(lanes.data(), lanes.size() * sizeof lanes[0]);
}

void touch_global(Block& b, const void* p, size_t bytes, bool writes, const void* where) {
  if (b.ahead.overlaps == nullptr || !b.inputs_there || !b.is_global(p)) return;
  const Fiber& f = b.fibers[size_t(b.current)];
  const uint32_t own = b.ahead.launches, oldest = f.waited ? own : f.beside ? b.ahead.running : b.ahead.unseen;
  if (!b.ahead.overlaps->touch(p, bytes, writes, own, oldest) || !b.fault.empty()) return;
  b.fault = "a thread that has not waited " + std::string(writes ? "writes" : "reads") + " at " + place_in_program(where) +
            " what a kernel ahead of it uses";
}

}  // namespace tandem::gpu_emulation
