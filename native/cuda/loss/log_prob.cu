#include "cuda/loss/log_prob.h"

#include "cuda/common/early_launch.h"
#include "cuda/common/launch.h"
#include "cuda/loss/slices.h"

namespace tandem::cuda {
namespace {

struct LogProbSlice {
  float largest, sum;
  float weighted;  // sum of e^d d, where d is a value's distance from the largest
};

struct alignas(8) FourGradients {
  bf16 at[4];
};

__device__ bool scored(const LogProb& a, int64_t row) { return a.targets[row] >= 0 && a.targets[row] < a.vocab; }

__device__ LogProbSlice* slices_at(const LogProb& a, int64_t row) {
  return reinterpret_cast<LogProbSlice*>(a.work) + row * slices_of(a.vocab);
}

// A block per slice and row.
__global__ void __launch_bounds__(kSliceThreads, 4) log_prob_slices_kernel(LogProb a) {
  wait_for_inputs();
  const int slice = int(blockIdx.x);
  const int64_t row = blockIdx.y;
  if (!scored(a, row)) return;
  float v[kSliceValues];
  load_slice(a.logits + row * a.ld, int(a.vocab), slice, v);
  const float largest = block_max(largest_of(v)), reference = slice_reference(largest);
  const float sum = block_sum(slice_sum(v, largest, 1.0f));
  float weighted = 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; ++i) {
    const float d = v[i] - reference, p = expf(d);
    weighted = fmaf(p, p > 0 ? d : 0.0f, weighted);
  }
  weighted = block_sum(weighted);
  if (threadIdx.x == 0) slices_at(a, row)[slice] = {largest, sum, weighted};
}

// In nats; each warp by itself. With distances from the row's largest it is log_sum - (sum of e^d d) / (sum of e^d).
__device__ float entropy_of(const LogProbSlice* slices, int count, const Normaliser& n) {
  float sum = 0, weighted = 0;
  for (int s = int(threadIdx.x) % kWarp; s < count; s += kWarp) {
    const LogProbSlice& slice = slices[s];
    const float d = slice.largest - n.largest, factor = expf(d);
    sum += slice.sum * factor;
    weighted += factor > 0 ? factor * fmaf(slice.sum, d, slice.weighted) : 0.0f;
  }
  return n.log_sum - warp_sum(weighted) / warp_sum(sum);
}

__device__ void write_gradients(const LogProb& a, int64_t row, const Normaliser& n, bool finite) {
  const int slice = int(blockIdx.x), target = a.targets[row];
  float v[kSliceValues];
  load_slice(a.logits + row * a.ld, int(a.vocab), slice, v);
  bf16* gradients = a.gradients + row * a.ld_gradients;
  const bool aligned = reinterpret_cast<uintptr_t>(gradients) % 8 == 0;
  GPU_UNROLL
  for (int i = 0; i < kSliceValues; i += 4) {
    const int first = slice_id(slice, i);
    FourGradients four;
    GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float p = finite && first + e < a.vocab ? expf(n(v[i + e])) : 0.0f, hot = finite && first + e == target ? 1.0f : 0.0f;
      four.at[e] = to_bf16(hot - p);
    }
    if (aligned && first + 4 <= a.ld_gradients) {
      *reinterpret_cast<FourGradients*>(gradients + first) = four;
      continue;
    }
    GPU_UNROLL
    for (int e = 0; e < 4; ++e) {
      if (first + e < a.ld_gradients) gradients[first + e] = four.at[e];
    }
  }
}

// A block per slice and row, or, without gradients, per row.
__global__ void __launch_bounds__(kSliceThreads, 4) log_prob_kernel(LogProb a) {
  wait_for_inputs();
  // The rows that were read last come first: the cache may still have them.
  const int64_t row = int64_t(gridDim.y) - 1 - int64_t(blockIdx.y);
  const bool counts = scored(a, row);
  const int slices = slices_of(a.vocab);
  Normaliser n{0, 1, 0};
  if (counts) n = combine(slices_at(a, row), slices, 1.0f);
  const bool finite = counts && n.finite();
  if (blockIdx.x == 0 && threadIdx.x < kWarp) {
    const float entropy = finite ? entropy_of(slices_at(a, row), slices, n) : counts ? NAN : 0.0f;
    if (threadIdx.x == 0) {
      a.log_probs[row] = finite ? n(a.logits[row * a.ld + a.targets[row]]) : counts ? NAN : 0.0f;
      a.entropies[row] = entropy;
    }
  }
  if (a.gradients != nullptr) write_gradients(a, row, n, finite);
}

}  // namespace

int64_t log_prob_workspace_floats(int64_t rows, int64_t vocab) {
  return rows * slices_of(vocab) * int64_t(sizeof(LogProbSlice) / sizeof(float));
}

void log_prob(const LogProb& a, cudaStream_t stream) {
  const char* name = "log_prob";
  check_argument(a.rows >= 0 && a.rows < 1 << 16, name, "rows");
  check_argument(a.vocab >= 1 && a.vocab <= a.ld && a.vocab < 1 << 30, name, "vocab");
  check_argument(a.gradients == nullptr || (a.ld_gradients >= a.vocab && a.ld_gradients < 1 << 30), name, "ld_gradients");
  check_argument(a.work_floats >= log_prob_workspace_floats(a.rows, a.vocab), name, "work_floats");
  if (a.rows == 0) return;
  const dim3 slices(unsigned(slices_of(a.vocab)), unsigned(a.rows));
  GPU_LAUNCH_EARLY(log_prob_slices_kernel, slices, dim3(kSliceThreads), 0, stream, a);
  check_launch(name);
  const dim3 grid(a.gradients != nullptr ? unsigned(slices_of(a.ld_gradients)) : 1u, unsigned(a.rows));
  GPU_LAUNCH_EARLY(log_prob_kernel, grid, dim3(kSliceThreads), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
