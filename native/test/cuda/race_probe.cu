#include "race_probe.h"

#ifdef TANDEM_GPU_EMULATION
#include "cuda/common/early_launch.h"
#include "cuda/common/hopper.h"
#include "cuda/common/stream.h"
#include "cuda/common/tensor_map.h"

namespace tandem::test {
namespace {

using namespace cuda;

__global__ void trade(LeftOut without, int* out) {
  GPU_SHARED(numbers, int[2 * kWarp]);
  const int own = int(threadIdx.x);
  numbers[own] = own;
  if (without != LeftOut::kBarrier) __syncthreads();
  int sum = numbers[2 * kWarp - 1 - own];
  if (without != LeftOut::kBarrierBeforeReuse) __syncthreads();
  numbers[own] = sum;
  if (without == LeftOut::kWarpMemoryOrder) sum = __shfl_sync(kAllLanes, sum, 0);
  else if (without != LeftOut::kWarpMeeting) __syncwarp();
  out[own] = sum + numbers[own ^ 1];
}

// From one warp to the other.
__global__ void hand_over(LeftOut without, int* out) {
  GPU_SHARED_BYTES(shared);
  Barrier* const ready = reinterpret_cast<Barrier*>(shared);
  int* const numbers = reinterpret_cast<int*>(shared + 64);
  if (threadIdx.x == 0) barrier_init(ready, 1);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    numbers[threadIdx.x] = int(threadIdx.x);
    if (without != LeftOut::kMeetingBeforeArrival) __syncwarp();
    if (threadIdx.x == 0) barrier_arrive(ready);
  } else {
    barrier_wait(ready, 0);
    out[threadIdx.x] = numbers[threadIdx.x - kWarp];
  }
}

__global__ void copy_own(LeftOut without, const int* from, int* out) {
  GPU_SHARED(numbers, int[2 * kWarp][4]);
  cp_async_16(numbers[threadIdx.x], from, 16);
  cp_async_commit();
  if (without != LeftOut::kWaitForCopy) cp_async_wait<0>();
  out[threadIdx.x] = numbers[threadIdx.x][0];
  cp_async_wait<0>();
}

__global__ void multiply_zeros(LeftOut without, float* out) {
  constexpr int kBytes = 8 << 10, kThreads = 4 * kWarp;
  GPU_SHARED_BYTES(shared);
  for (int i = int(threadIdx.x); i < 2 * kBytes / int(sizeof(uint4)); i += kThreads)
    reinterpret_cast<uint4*>(shared)[i] = uint4{0, 0, 0, 0};
  if (without != LeftOut::kFences || threadIdx.x == 0) shared_writes_fence();
  __syncthreads();
  float sums[4] = {};
  wgmma_fence();
  wgmma<8>(sums, tile_descriptor(shared, 0), tile_descriptor(shared + kBytes, 0));
  wgmma_commit();
  wgmma_wait<0>(sums);
  out[threadIdx.x] = sums[0];
}

__global__ void add_one(const int* from, int* to) {
  wait_for_inputs();
  *to = *from + 1;
}
__global__ void add_one_hastily(LeftOut without, const int* from, int* to) {
  int seen = 0;
  if (without == LeftOut::kWaitForInputs) seen = *from;
  if (without == LeftOut::kWaitForReaders) *to = 0;
  wait_for_inputs();
  *to = seen + *from;
}

// Two boxes to the same place, from a thread to another warp.
__global__ void bring_boxes(LeftOut without, const TensorMap map, int* out) {
  constexpr int kBytes = 1 << 10;
  GPU_SHARED_BYTES(shared);
  Barrier *const full = reinterpret_cast<Barrier*>(shared + kBytes), *const empty = full + 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) barrier_init(full + i, 1);
    barrier_init_fence();
  }
  __syncthreads();
  for (int box = 0; box < 2; ++box) {
    if (threadIdx.x == 0) {
      if (box > 0 && without != LeftOut::kReadersOfBulkCopy) barrier_wait(empty, 0);
      barrier_expect(full + box, kBytes);
      bulk_load(shared, &map, full + box, 0, 0);
    }
    if (threadIdx.x < kWarp) continue;
    if (without != LeftOut::kWaitForBulkCopy) barrier_wait(full + box, 0);
    out[threadIdx.x] = reinterpret_cast<const int*>(shared)[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == kWarp && box == 0) barrier_arrive(empty);
  }
}

__global__ void read_shared_at(int at, int* out) {
  GPU_SHARED_BYTES(asked);
  GPU_SHARED(own, int[4]);
  int* const given = reinterpret_cast<int*>(asked);
  for (int i = 0; i < 4; ++i) given[i] = own[i] = i;
  const int* const from = at < 0 ? own : given;
  *out = from[at < 0 ? -at : at];
}

}  // namespace

void read_at(int at) {
  int read = 0, *const to = &read;
  Stream stream;
  GPU_LAUNCH(read_shared_at, dim3(1), dim3(1), 4 * sizeof(int), stream.get(), at, to);
  stream.wait();
}

void run_without(LeftOut what) {
  const dim3 one(1), warps(2 * kWarp);
  // Early launches are looked at where they have not begun before.
  for (int i = 0; i < 8; ++i) {
    alignas(8) int first = 0;
    alignas(8) int second = 0;
    alignas(16) const int given[8 * kWarp] = {};
    int left[4 * kWarp];
    float products[4 * kWarp];
    int *const x = &first, *const y = &second, *const out = left;
    const int* const numbers = given;
    float* const sums = products;
    Stream stream;
    GPU_LAUNCH(trade, one, warps, 0, stream.get(), what, out);
    GPU_LAUNCH(hand_over, one, warps, 1024, stream.get(), what, out);
    GPU_LAUNCH(copy_own, one, warps, 0, stream.get(), what, numbers, out);
    GPU_LAUNCH(multiply_zeros, one, dim3(4 * kWarp), 16 << 10, stream.get(), what, sums);
    GPU_LAUNCH_EARLY(add_one, one, one, 0, stream.get(), x, y);
    GPU_LAUNCH_EARLY(add_one_hastily, one, one, 0, stream.get(), what, y, what == LeftOut::kWaitForReaders ? x : out);
    const TensorMap map = tensor_map(reinterpret_cast<const bf16*>(given), 8, 64, 64, 8);
    GPU_LAUNCH(bring_boxes, one, warps, 2 << 10, stream.get(), what, map, out);
    stream.wait();
  }
}

}  // namespace tandem::test
#endif
