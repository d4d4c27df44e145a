#include "emulation/gpu_emulation.h"

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

thread_local Block* current_block = nullptr;
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
#else
void to_fiber(Fiber& f) { tandem_fiber_switch(&current_block->main_stack_pointer, f.stack->pointer); }
void to_main(Fiber& f, bool) { tandem_fiber_switch(&f.stack->pointer, current_block->main_stack_pointer); }
void arrived() {}
void forget_frames(const unsigned char*) {}
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

// Runs a warp until all of its threads have ended or wait for the block. True when anything ran.
bool run_warp(Block& b, std::vector<int>& order, int begin, int end) {
  bool ran = false;
  for (;;) {
    bool moved = false;
    std::shuffle(order.begin() + begin, order.begin() + end, shuffle_order);
    for (int i = begin; i < end; ++i) {
      Fiber& f = b.fibers[size_t(order[size_t(i)])];
      if (f.wait == Wait::kBarrier && f.barrier->passed(f.parity)) f.wait = Wait::kNone;
      if (f.wait == Wait::kInputs && b.inputs_there) f.wait = Wait::kNone;
      if (f.done || f.wait != Wait::kNone) continue;
      b.current = order[size_t(i)];
      to_fiber(f);
      moved = true;
    }
    bool any = false, all = true;
    for (int t = begin; t < end; ++t) {
      const Fiber& f = b.fibers[size_t(t)];
      if (f.done) continue;
      any = true;
      all = all && f.wait == Wait::kWarp;
    }
    if (any && all) {
      for (int t = begin; t < end; ++t) b.fibers[size_t(t)].wait = Wait::kNone;
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
  for (;;) {
    bool ran = false;
    std::shuffle(warps.begin(), warps.end(), shuffle_order);
    for (int w : warps) ran = run_warp(b, order, w, std::min(w + 32, threads)) || ran;
    if (b.fault) throw std::runtime_error(std::string("emulated kernel: ") + b.fault);
    bool any = false, all = true;
    for (const Fiber& f : b.fibers) {
      if (f.done) continue;
      any = true;
      all = all && f.wait == Wait::kBlock;
    }
    if (!any && !b.in_flight.empty()) throw std::runtime_error("emulated kernel: a block ended before its copies had come");
    if (!any) return true;
    if (all) {
      for (Fiber& f : b.fibers) f.wait = Wait::kNone;
    } else if (!ran && waits_for_inputs(b)) {
      return false;
    } else if (!ran && !land_one(b)) {
      throw std::runtime_error("emulated kernel: threads of a block wait at different barriers, or for what never comes");
    }
  }
}

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

void wait(Wait kind) {
  Fiber& f = fiber();
  f.wait = kind;
  to_main(f, false);
}

bool toss() { return shuffle_order() & 1; }

// Blocks of a kernel, one at a time, and what they run on.
class Begun {
 public:
  explicit Begun(const Launch& launch) : order_(launch.size.x * launch.size.y * launch.size.z) {
    const size_t threads = order_.size();
    if (threads == 0 || threads > kMaxThreads) throw std::runtime_error("emulated kernel: bad block size");
    stacks_ = take_stacks(threads);
    const size_t bytes = launch.shared_bytes;
    shared_.reset(static_cast<unsigned char*>(std::aligned_alloc(1024, (bytes + 1023) / 1024 * 1024 + 1024)));
    block_.grid = launch.grid;
    block_.size = launch.size;
    block_.shared = shared_.get();
    block_.shared_bytes = bytes;
    block_.body = &launch.body;
    block_.fibers.resize(threads);
    block_.lanes.resize(threads);
    std::iota(order_.begin(), order_.end(), 0);
  }
  ~Begun() { spare_stacks.push_back(std::move(stacks_)); }

  // False: it waits for its inputs.
  bool run(unsigned number, bool inputs_there) {
    const dim3 grid = block_.grid, size = block_.size;
    number_ = number;
    block_.index = dim3(number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);
    block_.inputs_there = inputs_there;
    block_.lets_next_begin = false;
    block_.seen_by_async.clear();
    std::memset(block_.shared, 0xff, block_.shared_bytes);
    const Restore restore{std::exchange(current_block, &block_)};
    for (unsigned t = 0; t < block_.fibers.size(); ++t) {
      start(block_.fibers[t], (*stacks_)[t], dim3(t % size.x, t / size.x % size.y, t / size.x / size.y));
    }
    return run_block(block_, order_);
  }
  void go_on() {
    block_.inputs_there = true;
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
  static thread_local std::vector<Stacks> spare_stacks;

  Stacks stacks_;
  SharedMemory shared_;
  Block block_;
  std::vector<int> order_;
  unsigned number_ = 0;
};
thread_local std::vector<Begun::Stacks> Begun::spare_stacks;

bool lets_next_begin(const Begun& begun) { return begun.block().lets_next_begin; }

std::shared_ptr<Begun> begin(const Launch& launch) {
  auto begun = std::make_shared<Begun>(launch);
  begun->run(unsigned(shuffle_order() % (size_t(launch.grid.x) * launch.grid.y * launch.grid.z)), false);
  return begun;
}

void run(const Launch& launch, Begun* begun) {
  std::vector<unsigned> numbers(size_t(launch.grid.x) * launch.grid.y * launch.grid.z);
  std::iota(numbers.begin(), numbers.end(), 0);
  bool waits = false;
  if (begun) {
    numbers.erase(numbers.begin() + begun->number());
    begun->go_on();
    waits = begun->block().waits;
  }
  std::shuffle(numbers.begin(), numbers.end(), shuffle_order);
  Begun blocks(launch);
  for (unsigned i : numbers) blocks.run(i, true);
  if (launch.early && !waits && !blocks.block().waits) throw std::runtime_error("emulated kernel: it may begin early, and never waits");
}

void wait_for_inputs() {
  block().lets_next_begin = true;
  end_beside();
}
void wait_for_inputs_first() {
  end_beside();
  block().lets_next_begin = true;
}
void begin_beside() { block().lets_next_begin = true; }
void end_beside() {
  block().waits = true;
  if (!block().inputs_there) wait(Wait::kInputs);
}

// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Fragment {
    uint32_t a[4], b[2];
  } mine;
  std::memcpy(mine.a, a, sizeof mine.a);
  std::memcpy(mine.b, b, sizeof mine.b);
  auto unpack = [](uint32_t pair, float* to) {
    to[0] = cuda::to_float(cuda::bf16{uint16_t(pair)});
    to[1] = cuda::to_float(cuda::bf16{uint16_t(pair >> 16)});
  };
  const int l = lane();
  warp_exchange(mine, [&](const auto& get) {
    // The two rows and the two columns of this thread's sums.
    float rows[2][16], columns[2][16];
    for (int q = 0; q < 4; ++q) {
      const Fragment left = get(l / 4 * 4 + q);
      for (int h = 0; h < 2; ++h) {
        const Fragment right = get((l % 4 * 2 + h) * 4 + q);
        for (int k : {0, 8}) {
          unpack(left.a[k / 8 * 2 + h], rows[h] + k + q * 2);
          unpack(right.b[k / 8], columns[h] + k + q * 2);
        }
      }
    }
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) d[i] += rows[i / 2][k] * columns[i & 1][k];
    }
    return 0;
  });
}

namespace {

uint16_t element(const void* row, int column) {
  uint16_t value;
  std::memcpy(&value, static_cast<const unsigned char*>(row) + column * 2, 2);
  return value;
}

template <bool kTranspose>
void load_matrices(uint32_t (&r)[4], const void* row) {
  const int l = lane();
  warp_exchange(row, [&](const auto& get) {
    for (int m = 0; m < 4; ++m) {
      uint32_t pair = 0;
      for (int e = 0; e < 2; ++e) {
        const int first = l / 4, second = (l % 4) * 2 + e;
        const int at_row = kTranspose ? second : first, column = kTranspose ? first : second;
        pair |= uint32_t(element(get(m * 8 + at_row), column)) << (16 * e);
      }
      r[m] = pair;
    }
    return 0;
  });
}

}  // namespace

void ldmatrix_x4(uint32_t (&r)[4], const void* row) { load_matrices<false>(r, row); }
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) { load_matrices<true>(r, row); }

namespace {

void land(std::vector<Copy>& group) {
  for (const Copy& c : group) {
    std::memset(c.to, 0, 16);
    std::memcpy(c.to, c.from, size_t(c.valid));
  }
  group.clear();
}

}  // namespace

// At once, over what somebody may still read; or when it is waited for, after somebody may have read.
void cp_async_commit() {
  Fiber& f = fiber();
  if (toss()) land(f.open_group);
  f.groups.push_back(std::move(f.open_group));
  f.open_group.clear();
}

void cp_async_land(int pending) {
  Fiber& f = fiber();
  while (int(f.groups.size()) > pending) {
    land(f.groups.front());
    f.groups.erase(f.groups.begin());
  }
}

}  // namespace tandem::gpu_emulation
