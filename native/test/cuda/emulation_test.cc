// What the emulation shows of faults that a device shows only sometimes: launches that begin early, blocks that wait for others, shared memory,
// descriptors of bulk copies.
#ifdef TANDEM_GPU_EMULATION
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "cuda/common/arrivals.h"
#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/common/stream.h"
#include "cuda/common/tensor_map.h"
#include "gpu_support.h"
#include "race_probe.h"

namespace tandem::test {
namespace {

__global__ void write_one(int* x) {
  cuda::wait_for_inputs();
  *x = 1;
}
__global__ void write_one_behind_inputs(int* x) {
  cuda::wait_for_inputs_first();
  *x = 1;
}
__global__ void copy_patiently(const int* x, int* to) {
  cuda::wait_for_inputs();
  *to = *x;
}
__global__ void copy_hastily(const int* x, int* to) {
  const int seen = *x;
  cuda::wait_for_inputs();
  *to = seen;
}
__global__ void copy_beside(const int* x, int* to) {
  cuda::begin_beside();
  *to = *x;
  cuda::end_beside();
}
__global__ void copy_carelessly(const int* x, int* to) { *to = *x; }

// How often `to` gets what was there before the kernels that make it, of 16 streams that do their work late or at once by turns.
template <class Launches>
int stale_reads(const Launches& launches) {
  int stale = 0;
  for (int i = 0; i < 16; ++i) {
    int x = 0, to = -1;
    cuda::Stream stream;
    launches(stream.get(), &x, &to);
    stream.wait();
    CHECK(to == 0 || to == 1);
    stale += to == 0;
  }
  return stale;
}

TEST(emulated_launches_begin_before_their_inputs_are_there) {
  const dim3 one(1);
  const int patient = stale_reads([&](cudaStream_t stream, int* x, int* to) {
    GPU_LAUNCH_EARLY(write_one, one, one, 0, stream, x);
    GPU_LAUNCH_EARLY(copy_patiently, one, one, 0, stream, x, to);
  });
  CHECK_EQ(patient, 0);
  const int hasty = stale_reads([&](cudaStream_t stream, int* x, int* to) {
    GPU_LAUNCH_EARLY(write_one, one, one, 0, stream, x);
    GPU_LAUNCH_EARLY(copy_hastily, one, one, 0, stream, x, to);
  });
  CHECK(hasty > 0);
}

TEST(emulated_launches_run_beside_the_one_before) {
  const dim3 one(1);
  int unused = 0, *const elsewhere = &unused;
  // What it runs beside has its inputs, or may still wait for them.
  const int behind_inputs = stale_reads([&](cudaStream_t stream, int* x, int* to) {
    GPU_LAUNCH_EARLY(write_one, one, one, 0, stream, x);
    GPU_LAUNCH_EARLY(write_one_behind_inputs, one, one, 0, stream, elsewhere);
    GPU_LAUNCH_EARLY(copy_beside, one, one, 0, stream, x, to);
  });
  CHECK_EQ(behind_inputs, 0);
  const int before_inputs = stale_reads([&](cudaStream_t stream, int* x, int* to) {
    GPU_LAUNCH_EARLY(write_one, one, one, 0, stream, x);
    GPU_LAUNCH_EARLY(write_one, one, one, 0, stream, elsewhere);
    GPU_LAUNCH_EARLY(copy_beside, one, one, 0, stream, x, to);
  });
  CHECK(before_inputs > 0);
}

// Some threads wait for the inputs, others for those.
__global__ void add_one(int* x) {
  if (threadIdx.x < 32) cuda::wait_for_inputs();
  __syncthreads();
  cuda::wait_for_inputs();
  x[threadIdx.x] += 1;
}
constexpr int kAdding = 64;
void launch_add_one(cudaStream_t stream, int* x) { GPU_LAUNCH_EARLY(add_one, dim3(1), dim3(kAdding), 0, stream, x); }

TEST(emulated_blocks_that_began_early_go_on_in_another_thread) {
  for (int i = 0; i < 16; ++i) {
    std::vector<int> x(kAdding);
    cuda::Stream stream;
    cuda::Event event;
    for (int k = 0; k < 4; ++k) launch_add_one(stream.get(), x.data());
    event.record(stream);
    event.passed();  // runs the first, with the beginning of those behind it
    std::thread([&] { stream.wait(); }).join();
    CHECK(x == std::vector<int>(kAdding, 4));
    stream.wait();
  }
}

TEST(emulated_streams_are_of_all_threads) {
  constexpr int kLaunches = 400;
  std::vector<int> x(kAdding);
  cuda::Stream stream, beside;
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) stream.wait();
  });
  for (int k = 0; k < kLaunches; ++k) {
    cuda::Event sent, event;
    beside.clear(x.data() + kAdding - 1, 0);
    sent.record(beside);
    stream.follow(sent);
    launch_add_one(stream.get(), x.data());
    event.record(stream);
    while (k % 4 == 0 && !event.passed()) {
    }
  }
  stream.wait();
  over = true;
  other.join();
  CHECK(x == std::vector<int>(kAdding, kLaunches));
}

// The fault that this is.
template <class Run>
std::string fault_of(const Run& run) {
  try {
    run();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(emulated_early_launches_must_wait) {
  int numbers[2] = {}, *const x = numbers, *const to = numbers + 1;
  const std::string said = fault_of([&] { GPU_LAUNCH_EARLY(copy_carelessly, dim3(1), dim3(1), 0, cudaStream_t{}, x, to); });
  CHECK(said.find("never waits") != std::string::npos);
}

// What the first block makes, for the others.
__global__ void pass_on(int* number, int* count, int* to) {
  cuda::wait_for_inputs();
  if (blockIdx.x > 0) cuda::wait_for_count(count, 1);
  if (blockIdx.x == 0) *number = 7;
  to[blockIdx.x] = *number;
  if (blockIdx.x == 0) cuda::count_arrival(count);
}
__global__ void take_hastily(int* number, int* count, int* to) {
  cuda::wait_for_inputs();
  if (blockIdx.x == 0) *number = 7;
  to[blockIdx.x] = *number;
  if (blockIdx.x > 0) cuda::wait_for_count(count, 1);
  if (blockIdx.x == 0) cuda::count_arrival(count);
}
// How many blocks had nothing from the first one.
template <class Kernel>
int64_t left_without(Kernel* kernel, unsigned first) {
  int number = 0, count = 0, to[9] = {}, *const places[] = {&number, &count, to};
  GPU_LAUNCH_EARLY_FIRST(first, kernel, dim3(9), dim3(1), 0, cudaStream_t{}, places[0], places[1], places[2]);
  return std::count(to, to + 9, 0);
}

TEST(emulated_blocks_may_begin_before_those_they_wait_for) {
  CHECK_EQ(left_without(&pass_on, 1), int64_t(0));
  CHECK_EQ(left_without(&take_hastily, 1), int64_t(1));
  std::string said;
  for (int i = 0; i < 8; ++i) said += fault_of([] { left_without(&pass_on, 0); });
  CHECK(said.find("waits for others that do not come before it") != std::string::npos);
}

// Whether a process that does it is ended by it.
template <class Body>
bool ends(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    body();
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status != 0;
}

TEST(emulated_memory_ends_where_its_buffers_end) {
  DeviceBuffer<int> four(size_t(4)), three(size_t(3));
  volatile int *const whole = four.data(), *const odd = three.data();
  CHECK(!ends([&] { whole[3] = odd[2]; }));
  CHECK(ends([&] { odd[0] = whole[4]; }));
  CHECK(ends([&] { whole[0] = odd[4]; }));
  CHECK(ends([&] { whole[0] = whole[-1024]; }));
  // Where nothing ends, what is read is no number and points nowhere; and what was written is seen when the buffer is given back.
  CHECK_EQ(odd[3], 0x7fff7fff);
  for (int at : {-1, 3}) {
    CHECK(ends([&] {
      const DeviceBuffer<int> own(std::move(three));
      odd[at] = 0;
    }));
  }
}

TEST(emulated_kernels_order_what_they_do_to_the_same_memory) {
  const std::string kept = fault_of([] { run_without(LeftOut::kNothing); });
  CHECK_EQ(kept, std::string());
  for (const LeftOut what :
       {LeftOut::kBarrier, LeftOut::kBarrierBeforeReuse, LeftOut::kWarpMeeting, LeftOut::kWarpMemoryOrder, LeftOut::kMeetingBeforeArrival,
        LeftOut::kWaitForCopy, LeftOut::kWaitForBulkCopy, LeftOut::kReadersOfBulkCopy}) {
    CHECK(fault_of([&] { run_without(what); }).find("a race at byte") != std::string::npos);
  }
  CHECK(fault_of([] { run_without(LeftOut::kFences); }).find("wrote without a fence") != std::string::npos);
  for (const LeftOut what : {LeftOut::kWaitForInputs, LeftOut::kWaitForReaders}) {
    CHECK(fault_of([&] { run_without(what); }).find("has not waited") != std::string::npos);
  }
}

__global__ void read_shared(float* out, int* bits) {
  GPU_SHARED(number, float);
  GPU_SHARED(word, int);
  *out = number;
  *bits = word;
  number = 1;
}
TEST(emulated_shared_variables_begin_as_nan_in_every_block) {
  float out = 0;
  int bits = 0;
  float* const to = &out;
  int* const bits_to = &bits;
  GPU_LAUNCH(read_shared, dim3(2), dim3(1), 0, cudaStream_t{}, to, bits_to);
  CHECK(std::isnan(out));
  CHECK_EQ(bits, -1);
}

TEST(emulated_shared_memory_is_asked_for) {
  int numbers[2] = {}, *const x = numbers, *const to = numbers + 1;
  constexpr size_t kMany = 100 << 10;
  auto launch = [&] { GPU_LAUNCH(copy_patiently, dim3(1), dim3(1), kMany, cudaStream_t{}, x, to); };
  CHECK(fault_of(launch).find("more shared memory") != std::string::npos);
  cuda::allow_shared_bytes(&copy_patiently, kMany, "copy");
  CHECK_EQ(fault_of(launch), std::string());
  CHECK_ERROR(kUnsupported, "too little shared memory", cuda::allow_shared_bytes(&copy_patiently, size_t(228) << 10, "copy"));
}

__global__ void share_with_a_variable(int* out) {
  GPU_SHARED_BYTES(shared);
  GPU_SHARED(number, int);
  shared[0] = 3;
  number = 4;
  *out = shared[0] + number;
}
TEST(emulated_shared_memory_is_asked_for_with_what_a_kernel_declares) {
  int seen = 0, *const to = &seen;
  // Its variables take as much as what is asked for is aligned to.
  constexpr size_t kAll = 48 << 10, kRest = kAll - 1024;
  auto launch = [&](size_t bytes) { GPU_LAUNCH(share_with_a_variable, dim3(1), dim3(1), bytes, cudaStream_t{}, to); };
  CHECK_EQ(fault_of([&] { launch(kRest); }), std::string());
  CHECK_EQ(seen, 7);
  CHECK(fault_of([&] { launch(kRest + 4); }).find("more shared memory with its variables") != std::string::npos);
  cuda::allow_shared_bytes(&share_with_a_variable, kAll + 4, "share");
  CHECK_EQ(fault_of([&] { launch(kAll + 4); }), std::string());
}

TEST(emulated_threads_keep_to_the_shared_memory_that_was_asked_for) {
  for (int at : {3, -3}) CHECK_EQ(fault_of([&] { read_at(at); }), std::string());
  for (int at : {4, 2000, -4}) CHECK(fault_of([&] { read_at(at); }).find("none that was asked for") != std::string::npos);
}

TEST(emulated_bulk_copies_have_the_limits_of_the_driver) {
  alignas(16) const bf16 data[512] = {};
  const char* refused = "cuTensorMapEncodeTiled";
  cuda::tensor_map(data, 8, 64, 64, 8);
  CHECK_ERROR(kState, refused, cuda::tensor_map(data + 1, 7, 64, 64, 8));
  CHECK_ERROR(kState, refused, cuda::tensor_map(data, 8, 60, 60, 8));
  CHECK_ERROR(kState, refused, cuda::tensor_map(data, 0, 64, 64, 8));
  CHECK_ERROR(kState, refused, cuda::tensor_map(data, 8, 64, 64, 264));
  CHECK_ERROR(kState, refused, cuda::panels_map(data, 8, 63, 64, 8, 1, 1));
}

}  // namespace
}  // namespace tandem::test
#endif
