#include "emulation/gpu_emulation.h"

#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>

#include "cuda/common/gpu.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers of the System V ABI on the old stack and takes the new one's.
asm(R"(.text
.globl tandem_fiber_switch
tandem_fiber_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret)");
extern "C" void tandem_fiber_switch(void** save, void* load);

namespace tandem::gpu_emulation {

// What a fiber runs on. Having run a thread of a kernel, it stays for one of a later block: the address sanitizer keeps memory of its own for
// every fiber, and to map that anew for each thread took most of the time of its run.
struct Stack {
  unsigned char* memory;
  void* pointer = nullptr;  // of the fiber while it does not run
  bool resting = false;     // it has run its thread to the end

  Stack();
  Stack(const Stack&) = delete;
  ~Stack();
};

struct FreeMemory {
  void operator()(unsigned char* p) const { std::free(p); }
};
using SharedMemory = std::unique_ptr<unsigned char, FreeMemory>;

namespace {

constexpr size_t kStack = 64 << 10;
constexpr unsigned kMaxThreads = 1024;
// Of variables; and what lies between two of them.
constexpr size_t kMostVariables = 48 << 10, kSharedGap = 64;

thread_local Block* current_block = nullptr;
std::atomic<bool> watching{true};
thread_local uint32_t launches = 0;  // run by this thread
thread_local LaunchOverlaps overlaps;
thread_local std::mt19937 shuffle_order(1);

#if defined(__SANITIZE_ADDRESS__)
thread_local const void* main_stack = nullptr;
thread_local size_t main_stack_size = 0;
void switch_stacks(void** save, void* load, const void* stack, size_t size, bool dying) {
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(dying ? nullptr : &fake, stack, size);
  tandem_fiber_switch(save, load);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}
void to_fiber(Fiber& f) { switch_stacks(&current_block->main_stack_pointer, f.stack->pointer, f.stack->memory, kStack, false); }
void to_main(Fiber& f, bool dying) {
  switch_stacks(&f.stack->pointer, current_block->main_stack_pointer, main_stack, main_stack_size, dying);
}
void arrived() { __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_stack_size); }
// The frames of a fiber that was left where it stood never returned: their marks are still there.
void forget_frames(const unsigned char* stack) { __asan_unpoison_memory_region(stack, kStack); }
void forbid(const unsigned char* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
void permit(const unsigned char* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
void to_fiber(Fiber& f) { tandem_fiber_switch(&current_block->main_stack_pointer, f.stack->pointer); }
void to_main(Fiber& f, bool) { tandem_fiber_switch(&f.stack->pointer, current_block->main_stack_pointer); }
void arrived() {}
void forget_frames(const unsigned char*) {}
void forbid(const unsigned char*, size_t) {}
void permit(const unsigned char*, size_t) {}
#endif

void fiber_entry() {
  arrived();
  while (const std::function<void()>* body = current_block->body) {
    (*body)();
    Fiber& f = fiber();
    f.done = true;
    f.stack->resting = true;
    to_main(f, false);
  }
  to_main(fiber(), true);
  std::abort();  // a fiber that ended is never resumed
}

void start(Fiber& f, Stack& stack, dim3 thread) {
  f = Fiber{};
  f.stack = &stack;
  f.stack_memory = stack.memory;
  f.done = false;
  f.thread = thread;
  if (!stack.resting) {
    forget_frames(stack.memory);
    void** top = reinterpret_cast<void**>(stack.memory + kStack) - 1;
    *top-- = nullptr;
    *top = reinterpret_cast<void*>(&fiber_entry);
    stack.pointer = top - 6;
  }
  stack.resting = false;
}

// Runs a warp until all of its threads have ended or wait, but for one that stays behind (-1: none). True when anything ran.
bool run_warp(Block& b, std::vector<int>& order, int begin, int end, int straggler) {
  bool ran = false;
  for (;;) {
    bool moved = false;
    std::shuffle(order.begin() + begin, order.begin() + end, shuffle_order);
    for (int i = begin; i < end; ++i) {
      if (order[size_t(i)] == straggler) continue;
      Fiber& f = b.fibers[size_t(order[size_t(i)])];
      if (f.wait == Wait::kBarrier && f.barrier->passed(f.parity)) {
        f.wait = Wait::kNone;
        if (kWatched) b.races->waited(order[size_t(i)], f.barrier, f.barrier->phase);
      }
      if (f.wait == Wait::kInputs && b.inputs_there) f.wait = Wait::kNone;
      if (f.done || f.wait != Wait::kNone) continue;
      b.current = order[size_t(i)];
      to_fiber(f);
      moved = true;
    }
    for (const Wait kind : {Wait::kWarp, Wait::kShow}) {
      bool any = false, all = true;
      for (int t = begin; t < end; ++t) {
        const Fiber& f = b.fibers[size_t(t)];
        if (f.done) continue;
        any = true;
        all = all && f.wait == kind;
      }
      if (!any || !all) continue;
      for (int t = begin; t < end; ++t) b.fibers[size_t(t)].wait = Wait::kNone;
      if (kWatched && kind == Wait::kWarp) b.races->warp_met(begin);
      moved = true;
    }
    ran = ran || moved;
    if (!moved) return ran;
  }
}

// Any of the bulk copies that are on their way. False: there is none.
bool land_one(Block& b) {
  if (b.in_flight.empty()) return false;
  const size_t index = shuffle_order() % b.in_flight.size();
  const std::function<void()> copy = b.in_flight[index];
  b.in_flight.erase(b.in_flight.begin() + int64_t(index));
  copy();
  return true;
}

bool waits_for_inputs(const Block& b) {
  return !b.inputs_there && std::any_of(b.fibers.begin(), b.fibers.end(), [](const Fiber& f) { return f.wait == Wait::kInputs; });
}

// False: threads wait for the kernel's inputs, and others for them.
bool run_block(Block& b, std::vector<int>& order) {
  const int threads = int(b.fibers.size());
  std::vector<int> warps;
  for (int w = 0; w < threads; w += 32) warps.push_back(w);
  // A thread that runs only when the others cannot go on without it.
  int straggler = -1;
  for (;;) {
    if (straggler < 0 && shuffle_order() % 8 == 0) straggler = int(shuffle_order() % size_t(threads));
    bool ran = false;
    std::shuffle(warps.begin(), warps.end(), shuffle_order);
    for (int w : warps) ran = run_warp(b, order, w, std::min(w + 32, threads), straggler) || ran;
    if (b.fault.empty()) b.fault = b.races->found();
    if (!b.fault.empty()) throw std::runtime_error("emulated kernel: " + b.fault);
    bool any = false, all = true;
    for (const Fiber& f : b.fibers) {
      if (f.done) continue;
      any = true;
      all = all && f.wait == Wait::kBlock;
    }
    if (!any && !b.in_flight.empty()) throw std::runtime_error("emulated kernel: a block ended before its copies had come");
    if (!any) return true;
    if (all) {
      const bool waited = std::any_of(b.fibers.begin(), b.fibers.end(), [](const Fiber& f) { return f.waited; });
      for (Fiber& f : b.fibers) {
        f.wait = Wait::kNone;
        f.waited = waited;
      }
      if (kWatched) b.races->block_met();
    } else if (!ran && straggler >= 0 && !(toss() && land_one(b))) {
      straggler = -1;
    } else if (!ran && straggler < 0 && waits_for_inputs(b)) {
      return false;
    } else if (!ran && straggler < 0 && !land_one(b)) {
      throw std::runtime_error("emulated kernel: threads of a block wait at different barriers, or for what never comes");
    }
  }
}

size_t padded(size_t bytes) { return (bytes + kSharedGap - 1) / kSharedGap * kSharedGap; }

struct Restore {
  Block* saved;
  ~Restore() { current_block = saved; }
};

}  // namespace

Stack::Stack() : memory(static_cast<unsigned char*>(std::aligned_alloc(64, kStack))) {}

Stack::~Stack() {
  if (resting) {
    Block b;
    b.fibers.resize(1);
    b.fibers[0].stack = this;
    Restore restore{current_block};
    current_block = &b;
    to_fiber(b.fibers[0]);
  }
  std::free(memory);
}

Block& block() { return *current_block; }
Block* running_block() { return watching ? current_block : nullptr; }
void watch_accesses(bool on) { watching = on; }
int lane() { return current_block->current % 32; }
Fiber& fiber() { return current_block->fibers[size_t(current_block->current)]; }
dim3 thread_index() { return fiber().thread; }
dim3 block_index() { return current_block->index; }
dim3 block_size() { return current_block->size; }
dim3 grid_size() { return current_block->grid; }

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
  permit(at, bytes);
  std::memset(at, 0xff, bytes);
  b.variables.push_back({key, at, bytes});
  return at;
}

void wait(Wait kind) {
  Fiber& f = fiber();
  f.wait = kind;
  to_main(f, false);
}

int vote_any(bool own) {
  Block& b = block();
  if (own) b.votes = 1;
  wait(Wait::kBlock);
  const int all = b.votes;
  wait(Wait::kBlock);
  b.votes = 0;
  wait(Wait::kBlock);
  return all;
}

void atomic_load(const void* from, void* to, size_t bytes) {
  Block& b = block();
  if (kWatched && b.holds(from)) b.races->atomic(b.current, from, bytes, __builtin_return_address(0));
  else if (kWatched) touch_global(b, from, bytes, true, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}

void atomic_store(const void* from, void* to, size_t bytes) { std::memcpy(to, from, bytes); }

bool toss() { return shuffle_order() & 1; }

// Blocks of a kernel, one at a time, and what they run on.
class Begun {
 public:
  explicit Begun(const Launch& launch) : order_(launch.size.x * launch.size.y * launch.size.z) {
    const size_t threads = order_.size();
    if (threads == 0 || threads > kMaxThreads) throw std::runtime_error("emulated kernel: bad block size");
    stacks_ = take_stacks(threads);
    block_.races = take_races();
    const size_t bytes = launch.shared_bytes, room = (bytes + kMostVariables + 2 * kSharedGap + 1023) / 1024 * 1024;
    shared_.reset(static_cast<unsigned char*>(std::aligned_alloc(1024, room)));
    forbid(shared_.get() + bytes, room - bytes);
    block_.grid = launch.grid;
    block_.size = launch.size;
    block_.shared = shared_.get();
    block_.shared_bytes = bytes;
    block_.room = room;
    block_.body = &launch.body;
    block_.fibers.resize(threads);
    block_.lanes.resize(threads);
    std::iota(order_.begin(), order_.end(), 0);
  }
  ~Begun() {
    spare_stacks.push_back(std::move(stacks_));
    spare_races.push_back(std::move(block_.races));
  }

  // False: it waits for its inputs.
  bool run(unsigned number, bool inputs_there, const Ahead& ahead) {
    const dim3 grid = block_.grid, size = block_.size;
    number_ = number;
    block_.index = dim3(number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);
    block_.inputs_there = inputs_there;
    block_.lets_next_begin = block_.lets_next_run_beside = false;
    block_.ahead = ahead;
    block_.seen_by_async.clear();
    if (kWatched) block_.races->begin(block_.fibers.size(), block_.shared, block_.room);
    std::memset(block_.shared, 0xff, block_.shared_bytes);
    for (const SharedVariable& v : block_.variables) std::memset(v.memory, 0xff, v.bytes);
    const Restore restore{std::exchange(current_block, &block_)};
    for (unsigned t = 0; t < block_.fibers.size(); ++t) {
      start(block_.fibers[t], (*stacks_)[t], dim3(t % size.x, t / size.x % size.y, t / size.x / size.y));
    }
    return run_block(block_, order_);
  }
  void go_on(const Ahead& ahead) {
    block_.inputs_there = true;
    block_.ahead = ahead;
    const Restore restore{std::exchange(current_block, &block_)};
    run_block(block_, order_);
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
  SharedMemory shared_;
  Block block_;
  std::vector<int> order_;
  unsigned number_ = 0;
};
thread_local std::vector<Begun::Stacks> Begun::spare_stacks;
thread_local std::vector<std::unique_ptr<SharedRaces>> Begun::spare_races;

bool lets_next_begin(const Begun& begun) { return begun.block().lets_next_begin; }

std::shared_ptr<Begun> begin(const Launch& launch) {
  auto begun = std::make_shared<Begun>(launch);
  begun->run(unsigned(shuffle_order() % (size_t(launch.grid.x) * launch.grid.y * launch.grid.z)), false, {});
  return begun;
}

void end_launches(Ahead& ahead) { ahead.running = ahead.unseen = launches + 1; }

void run(const Launch& launch, Ahead& ahead, Begun* begun) {
  const uint32_t number = ++launches;
  if (!launch.early) ahead.running = ahead.unseen = number;
  std::vector<unsigned> numbers(size_t(launch.grid.x) * launch.grid.y * launch.grid.z);
  std::iota(numbers.begin(), numbers.end(), 0);
  bool waits = false;
  if (begun) {
    numbers.erase(numbers.begin() + begun->number());
    begun->go_on(ahead);
    waits = begun->block().waits;
  }
  std::shuffle(numbers.begin(), numbers.end(), shuffle_order);
  Begun blocks(launch);
  for (unsigned i : numbers) blocks.run(i, true, ahead);
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

bool Block::is_global(const void* p) const {
  const auto within = [at = static_cast<const unsigned char*>(p)](const void* memory, size_t bytes) {
    return size_t(at - static_cast<const unsigned char*>(memory)) < bytes;
  };
  const Fiber& f = fibers[size_t(current)];
  return !within(f.stack_memory, kStack) && !within(this, sizeof *this) && !within(fibers.data(), fibers.size() * sizeof f) &&
         !within(lanes.data(), lanes.size() * sizeof lanes[0]);
}

void touch_global(Block& b, const void* p, size_t bytes, bool writes, const void* where) {
  if (!b.ahead.counts || !b.inputs_there || !b.is_global(p)) return;
  const Fiber& f = b.fibers[size_t(b.current)];
  const uint32_t oldest = f.waited ? launches : f.beside ? b.ahead.running : b.ahead.unseen;
  if (!overlaps.touch(p, bytes, writes, launches, oldest) || !b.fault.empty()) return;
  b.fault = "a thread that has not waited " + std::string(writes ? "writes" : "reads") + " at " + place_in_program(where) +
            " what a kernel ahead of it uses";
}

}  // namespace tandem::gpu_emulation
