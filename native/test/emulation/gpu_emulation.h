// CUDA on the CPU for tests: every thread of a block is a fiber, barriers and shuffles yield. Blocks run one after the other in shuffled
// order, warps as far ahead as they can, in shuffled order too, now and then without one of their threads; shared memory begins as NaN and
// asynchronous copies land at once or only when somebody waits, by turns: a missing barrier, a dropped wait or a read before a write shows as
// a wrong result, a divergent barrier as an exception. Where launches may begin early, a block of one runs as far as it can before the kernel ahead
// of it does, and where blocks wait for the first ones, one of them before these. What shows in no order of threads or blocks here, shared_races.h
// and launch_overlaps.h see. It says nothing of speed, bank conflicts or fences, but for those of Hopper (hopper_emulation.h).
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "emulation/launch_overlaps.h"
#include "emulation/shared_races.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define GPU_SHARED_BYTES(name) unsigned char* name = tandem::gpu_emulation::block().shared
#define GPU_SHARED(name, ...)       \
  static const char name##_key = 0; \
  auto& name = *reinterpret_cast<tandem::cuda::Is<__VA_ARGS__>*>(tandem::gpu_emulation::shared_variable(&name##_key, sizeof(__VA_ARGS__)))
#define GPU_LAUNCH(kernel, grid, block_size, shared_bytes, stream, ...) \
  GPU_LAUNCH_AS(false, 0, kernel, grid, block_size, shared_bytes, stream, __VA_ARGS__)
#define GPU_LAUNCH_EARLY(kernel, grid, block_size, shared_bytes, stream, ...) \
  GPU_LAUNCH_AS(true, 0, kernel, grid, block_size, shared_bytes, stream, __VA_ARGS__)
#define GPU_LAUNCH_EARLY_FIRST(first, kernel, grid, block_size, shared_bytes, stream, ...) \
  GPU_LAUNCH_AS(true, (first), kernel, grid, block_size, shared_bytes, stream, __VA_ARGS__)
#define GPU_LAUNCH_AS(early, first, kernel, grid, block_size, shared_bytes, stream, ...)                            \
  tandem::gpu_emulation::launch_or_record(                                                                          \
      (stream), {(grid), (block_size), size_t(shared_bytes), [=] { kernel(__VA_ARGS__); }, early, unsigned(first)}, \
      reinterpret_cast<const void*>(+(kernel)))
#define GPU_UNROLL
#define GPU_UNROLL_1
#define GPU_UNROLL_2
#define GPU_UNROLL_4
#define GPU_UNROLL_8
#define GPU_NO_UNROLL
#define GPU_CALLED inline

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
using cudaStream_t = void*;

namespace tandem::gpu_emulation {

// kShow: for a warp whose threads show each other something, which orders nothing else. kCount: for other blocks.
enum class Wait { kNone, kBlock, kWarp, kShow, kBarrier, kInputs, kCount };

struct Copy {
  void* to;
  const void* from;
  int valid;
};
struct CopyGroup {
  std::vector<Copy> copies;
  bool landed;
};

// An mbarrier of Hopper (hopper_emulation.h). A phase ends when all arrivals and all announced bytes have come.
struct Barrier {
  int32_t count, pending, bytes, phase;

  bool passed(int32_t parity) const { return (phase & 1) != parity; }
};

// A wgmma that was issued: what it adds up, and what it multiplies.
struct GroupProduct {
  float* sums;
  int columns;
  const uint32_t* rows;  // this thread's registers of the left side, or null: `a` describes it
  uint64_t a, b;         // descriptors
  bool across;           // columns of b are beside each other, not k
  bool first = false;    // what the sums were does not count
};

// A right side as numbers: [4][16 k][columns / 4], by the threads of a quad.
struct RightSide {
  uint64_t descriptor;
  int columns;
  bool across;
  std::vector<float> numbers;
};

struct Stack;

// What is looked at each time that its turn comes lies in one line of the cache.
struct alignas(64) Fiber {
  Stack* stack = nullptr;
  const unsigned char* stack_memory = nullptr;
  bool done = true;
  bool waited = false, beside = false;  // for the kernel's inputs; or runs beside what makes them
  bool fenced = false;                  // since the last wgmma was committed
  Wait wait = Wait::kNone;
  dim3 thread;
  unsigned shown = 0;                // how often it showed its warp something
  const Barrier* barrier = nullptr;  // waited for
  int32_t parity = 0;
  const int32_t* count = nullptr;  // waited for
  int32_t wanted = 0;
  uint32_t products_landed = 0;
  std::vector<Copy> open_group;             // cp.async since the last commit
  std::vector<CopyGroup> groups;            // committed, oldest first
  std::vector<GroupProduct> open_products;  // since the last wgmma was committed
  std::vector<std::vector<GroupProduct>> products;
};

constexpr size_t kLaneBytes = 64;

// What a thread shows its warp, by turns.
struct Shown {
  unsigned char bytes[2][kLaneBytes];
};

// What a kernel declares by GPU_SHARED.
struct SharedVariable {
  const void* key;
  unsigned char* memory;
  size_t bytes;
};

struct Block {
  std::vector<Fiber> fibers;
  void* main_stack_pointer = nullptr;  // of who launches, while a fiber runs
  int current = 0;
  dim3 grid, size, index;
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0, room = 0;            // the kernel's own, and with its variables
  size_t most_shared = 0;                       // of both, on a device
  std::vector<SharedVariable> variables;        // of the kernel, as far as its blocks came by them
  const std::function<void()>* body = nullptr;  // none: fibers end
  std::vector<Shown> lanes;
  std::vector<std::function<void()>> in_flight;  // bulk copies on their way
  size_t bytes_in_flight = 0;
  std::vector<const Barrier*> unfenced;      // initialised, and not yet seen by bulk copies
  std::string fault;                         // what a thread did that no kernel may; empty: nothing
  std::vector<unsigned char> seen_by_async;  // shared memory as bulk copies and wgmma know it; empty: neither has been there
  std::deque<RightSide> right_sides;         // read there since it changed: many threads multiply by the same
  bool inputs_there = true;                  // the kernels before this one on the stream have run
  bool lets_next_begin = false, waits = false;
  bool lets_next_run_beside = false;  // the next kernel may begin before this one's inputs are there
  Ahead ahead;                        // of the kernel
  int votes = 0;                      // of __syncthreads_count
  SharedRaces* races = nullptr;

  bool holds(const void* p) const { return size_t(static_cast<const unsigned char*>(p) - shared) < room; }
  // Whether it is the device's memory.
  bool is_global(const void* p) const;
};

Block& block();
// Null where none runs on this thread, and while accesses do not count.
Block* running_block();
// Where the block has what it declares under that key.
unsigned char* shared_variable(const void* key, size_t bytes);

// A kernel with its arguments.
struct Launch {
  dim3 grid, size;
  size_t shared_bytes;
  std::function<void()> body;
  bool early;             // its blocks may begin while the kernels before it on the stream run
  unsigned first_blocks;  // that are placed before the others, which may wait for them
  size_t most_shared = size_t(48) << 10;
};

class Begun;
// One block of it, any of them, as far as it comes without what the kernels before write.
std::shared_ptr<Begun> begin(const Launch& launch);
// Whether the next launch may begin too.
bool lets_next_begin(const Begun& begun);
// The kernel for every thread of every block, one of which may have begun, behind these launches; those of the next one are left there.
// Throws std::runtime_error on a divergent barrier, and where no thread of what may begin early waits.
void run(const Launch& launch, Ahead& ahead, Begun* begun = nullptr);
// Nothing that was launched before still runs.
void end_launches(Ahead& ahead);
// Of all streams so far.
uint64_t launches_run();
// Most that bulk copies of one block had on their way, since this was asked last.
size_t most_bytes_in_flight();
void note_bytes_in_flight(const Block& block);
// Before a thread reads or writes the device's memory.
void touch_global(Block& block, const void* p, size_t bytes, bool writes, const void* where);

// To be done in a stream's turn.
struct Work {
  std::function<void()> run;
  std::shared_ptr<const Launch> launch = nullptr;  // instead
  std::shared_ptr<Begun> begun = nullptr;          // of it
};

// What a stream was told to do and has not done. Each time that it has done all of it and was waited for, it decides anew to do what comes
// at once, or not before somebody waits: one of the two shows what reads another stream's work too early, or writes before another stream
// has read. Early launches begin where they wait behind another. Several threads of the host may use it, as they may a stream of CUDA's: its work is
// run by whoever waits, one piece at a time, so a block that began on one thread may end on another.
class Queue {
 public:
  Queue();
  Queue(const Queue&) = delete;
  ~Queue();
  void add(Work work);
  void add(std::function<void()> work) { add(Work{std::move(work)}); }
  int64_t end() const;
  // Throws what the work throws.
  void run_to(int64_t end);
  // Whether it has come there; if not, it goes on by one piece.
  bool run_one(int64_t end);

 private:
  void run_next();
  void begin_early();

  using Turn = std::lock_guard<std::recursive_mutex>;  // a stream may be told to follow itself
  mutable std::recursive_mutex turn_;
  std::deque<Work> waiting_;  // and what runs
  std::atomic<int64_t> done_{0};
  bool at_once_;
  LaunchOverlaps overlaps_;
  Ahead ahead_;
};

// What all streams were told to do and have not done.
int64_t undone();

// Runs it in the stream's turn (null: now), or takes it down while record() runs. Throws std::runtime_error for more shared memory than the
// kernel was allowed.
void launch_or_record(cudaStream_t stream, const Launch& launch, const void* kernel);
// What `body` launches, to be run later.
std::vector<Work> record(const std::function<void()>& body);
// False: the device has less.
bool allow_shared_bytes(const void* kernel, size_t bytes);

// As common/early_launch.h has them.
void let_next_begin();
void wait_for_inputs();
void wait_for_inputs_first();
void begin_beside();
void end_beside();
// As common/arrivals.h has it.
void wait_for_count(const int32_t* count, int32_t wanted);

void wait(Wait kind);
// With that block as the one whose threads run.
void run_within(Block& block, const std::function<void()>& body);
// How many threads of the block say so.
int count_votes(bool own);
// Of an atomic operation: the emulation runs one thread at a time.
void atomic_load(const void* from, void* to, size_t bytes);
void atomic_store(const void* from, void* to, size_t bytes);
template <class T, class Change>
T change(T* p, const Change& to) {
  T old;
  atomic_load(p, &old, sizeof old);
  const T now = to(old);
  atomic_store(&now, p, sizeof now);
  return old;
}
// Half of the time true, in an order that is always the same.
bool toss();

// Not inline: what kernels read of the emulation itself need not call back.
int lane();
Fiber& fiber();
dim3 thread_index();
dim3 block_index();
dim3 block_size();
dim3 grid_size();

// Shows the warp so many bytes, and waits for what its other threads show; then sees what the one at that lane did.
void show(const void* value, size_t bytes);
void see(int lane, void* to, size_t bytes);

// Every lane of the warp puts a value, all wait, then each reads what it wants with read(lane). All must call.
template <class T, class Read>
auto warp_exchange(const T& value, const Read& read) {
  static_assert(sizeof(T) <= kLaneBytes);
  show(&value, sizeof value);
  return read([](int from) {
    T other;
    see(from, &other, sizeof other);
    return other;
  });
}

void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void ldmatrix_x4(uint32_t (&r)[4], const void* row);
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row);
void cp_async_16(void* shared, const void* global, int valid);
void cp_async_commit();
void cp_async_land(int pending);
template <int Pending>
void cp_async_wait() {
  cp_async_land(Pending);
}

}  // namespace tandem::gpu_emulation

#define threadIdx (tandem::gpu_emulation::thread_index())
#define blockIdx (tandem::gpu_emulation::block_index())
#define blockDim (tandem::gpu_emulation::block_size())
#define gridDim (tandem::gpu_emulation::grid_size())

inline void __syncthreads() { tandem::gpu_emulation::wait(tandem::gpu_emulation::Wait::kBlock); }
inline int __syncthreads_count(int own) { return tandem::gpu_emulation::count_votes(own != 0); }
inline int __syncthreads_or(int own) { return __syncthreads_count(own) != 0; }
inline void __syncwarp(unsigned = ~0u) { tandem::gpu_emulation::wait(tandem::gpu_emulation::Wait::kWarp); }
template <class T>
T __shfl_sync(unsigned, T v, int from, int width = 32) {
  const int at = (tandem::gpu_emulation::lane() & -width) | (from & (width - 1));
  return tandem::gpu_emulation::warp_exchange(v, [&](const auto& get) { return get(at); });
}
template <class T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  const int from = tandem::gpu_emulation::lane() ^ mask;
  return tandem::gpu_emulation::warp_exchange(v, [&](const auto& get) { return get(from); });
}
template <class T>
T __shfl_up_sync(unsigned, T v, int delta) {
  const int me = tandem::gpu_emulation::lane(), from = me >= delta ? me - delta : me;
  return tandem::gpu_emulation::warp_exchange(v, [&](const auto& get) { return get(from); });
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  return tandem::gpu_emulation::warp_exchange(vote, [](const auto& get) {
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i) votes |= unsigned(get(i)) << i;
    return votes;
  });
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline void __threadfence() {}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T atomicAdd(T* p, T v) {
  return tandem::gpu_emulation::change(p, [v](T old) { return T(old + v); });
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
using std::isfinite;
using std::isnan;
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
