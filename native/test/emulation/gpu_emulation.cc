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

#if !defined(__x86_64__)
#error "the fibers of the emulation are written for x86-64"
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

namespace {

constexpr size_t kStack = 64 << 10;
constexpr unsigned kMaxThreads = 1024;

thread_local Block* current_block = nullptr;
thread_local std::mt19937 shuffle_order(1);

struct FreeMemory {
  void operator()(unsigned char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<unsigned char, FreeMemory>;

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

void run_block(Block& b, std::vector<int>& order) {
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
    if (!any) return;
    if (all) {
      for (Fiber& f : b.fibers) f.wait = Wait::kNone;
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

void launch(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& body) {
  const unsigned threads = size.x * size.y * size.z;
  if (threads == 0 || threads > kMaxThreads) throw std::runtime_error("emulated kernel: bad block size");
  static thread_local std::deque<Stack> stacks;
  while (stacks.size() < threads) stacks.emplace_back();
  Memory shared(static_cast<unsigned char*>(std::aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024 + 1024)));
  Block b;
  b.grid = grid;
  b.size = size;
  b.shared = shared.get();
  b.shared_bytes = shared_bytes;
  b.body = &body;
  b.fibers.resize(threads);
  b.lanes.resize(threads);
  Restore restore{current_block};
  current_block = &b;
  std::vector<int> order(threads);
  std::iota(order.begin(), order.end(), 0);
  std::vector<unsigned> numbers(size_t(grid.x) * grid.y * grid.z);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), shuffle_order);
  for (unsigned i : numbers) {
    b.index = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
    std::memset(b.shared, 0xff, shared_bytes);
    for (unsigned t = 0; t < threads; ++t) {
      start(b.fibers[t], stacks[t], dim3(t % size.x, t / size.x % size.y, t / size.x / size.y));
    }
    run_block(b, order);
  }
}

namespace {
thread_local std::vector<std::function<void()>>* recording = nullptr;
}

void launch_or_record(cudaStream_t stream, dim3 grid, dim3 size, size_t shared_bytes, std::function<void()> body) {
  auto work = [=] { launch(grid, size, shared_bytes, body); };
  if (recording) return recording->push_back(work);
  if (stream) return static_cast<Queue*>(stream)->add(work);
  work();
}

Queue::Queue() : at_once_(toss()) {}

void Queue::add(std::function<void()> work) {
  waiting_.push_back(std::move(work));
  if (at_once_) run_next();
}

void Queue::run_to(int64_t end) {
  while (done_ < end) run_next();
  if (waiting_.empty()) at_once_ = toss();
}

bool Queue::run_one(int64_t end) {
  if (done_ >= end) return true;
  run_next();
  return false;
}

void Queue::run_next() {
  const std::function<void()> work = std::move(waiting_.front());
  waiting_.pop_front();
  ++done_;
  work();
}

std::vector<std::function<void()>> record(const std::function<void()>& body) {
  std::vector<std::function<void()>> launches;
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
