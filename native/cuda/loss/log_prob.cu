#include "cuda/loss/log_prob.h"

#include "cuda/common/launch.h"
#include "cuda/common/reduce.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 512;

struct Normaliser {
  float largest, sum;  // of exp(l - largest)
};

__device__ Normaliser normalise(const float* logits, int64_t vocab) {
  float largest = -INFINITY;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) largest = fmaxf(largest, logits[i]);
  largest = block_max(largest);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < vocab; i += kThreads) sum += expf(logits[i] - largest);
  return {largest, block_sum(sum)};
}

__device__ __forceinline__ bool is_target(int32_t id, int64_t vocab) { return id >= 0 && id < vocab; }

// One block per row.
__global__ void __launch_bounds__(kThreads) log_prob_kernel(LogProb a) {
  const float* logits = a.logits + int64_t(blockIdx.x) * a.ld;
  const int32_t target = a.targets[blockIdx.x];
  const bool scored = is_target(target, a.vocab);
  float log_prob = 0, entropy = 0;
  if (scored) {
    const Normaliser n = normalise(logits, a.vocab);
    const float log_sum = logf(n.sum);
    float weighted = 0;
    for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads) {
      const float l = logits[i] - n.largest, p = expf(l) / n.sum;
      weighted = fmaf(p, p > 0 ? l - log_sum : 0.0f, weighted);
    }
    log_prob = logits[target] - n.largest - log_sum;
    entropy = -block_sum(weighted);
  }
  if (threadIdx.x != 0) return;
  a.log_probs[blockIdx.x] = log_prob;
  a.entropies[blockIdx.x] = entropy;
}

__global__ void __launch_bounds__(kThreads) log_prob_backward_kernel(LogProbBackward a) {
  float* logits = a.logits + int64_t(blockIdx.x) * a.ld;
  const int32_t target = a.targets[blockIdx.x];
  const bool scored = is_target(target, a.vocab);
  const float gradient = scored ? a.gradients[blockIdx.x] : 0.0f;
  const Normaliser n = scored ? normalise(logits, a.vocab) : Normaliser{0, 1};
  for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads) {
    const float hot = i == target ? 1.0f : 0.0f;
    logits[i] = scored ? gradient * (hot - expf(logits[i] - n.largest) / n.sum) : 0.0f;
  }
}

template <class Args>
void check(const Args& a, const char* name) {
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.vocab >= 1 && a.vocab <= a.ld && a.vocab < 1 << 30, name, "vocab");
}

}  // namespace

void log_prob(const LogProb& a, cudaStream_t stream) {
  check(a, "log_prob");
  if (a.rows == 0) return;
  GPU_LAUNCH(log_prob_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("log_prob");
}

void log_prob_backward(const LogProbBackward& a, cudaStream_t stream) {
  check(a, "log_prob_backward");
  if (a.rows == 0) return;
  GPU_LAUNCH(log_prob_backward_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch("log_prob_backward");
}

}  // namespace tandem::cuda
