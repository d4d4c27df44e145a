#include "cuda/loss/log_prob.h"

#include "cuda/common/launch.h"
#include "cuda/loss/normaliser.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = kVocabThreads;

// One block per row.
__global__ void __launch_bounds__(kThreads) log_prob_kernel(LogProb a) {
  const int64_t row = blockIdx.x;
  const float* logits = a.logits + row * a.ld;
  const int32_t target = a.targets[row];
  const bool scored = target >= 0 && target < a.vocab;
  Normaliser n{0, 1, 0};
  const bool finite = scored && normalise(logits, a.vocab, 1.0f, n);
  float weighted = 0;
  for (int64_t i = threadIdx.x; finite && i < a.vocab; i += kThreads) {
    const float log_p = n(logits[i]), p = expf(log_p);
    weighted = fmaf(p, p > 0 ? log_p : 0.0f, weighted);
  }
  const float entropy = -block_sum(weighted);
  if (threadIdx.x == 0) {
    a.log_probs[row] = finite ? n(logits[target]) : scored ? NAN : 0.0f;
    a.entropies[row] = finite ? entropy : scored ? NAN : 0.0f;
  }
  if (a.gradients == nullptr) return;
  bf16* gradients = a.gradients + row * a.ld_gradients;
  for (int64_t i = threadIdx.x; i < a.ld_gradients; i += kThreads) {
    const float p = finite && i < a.vocab ? expf(n(logits[i])) : 0.0f, hot = finite && i == target ? 1.0f : 0.0f;
    gradients[i] = to_bf16(hot - p);
  }
}

}  // namespace

void log_prob(const LogProb& a, cudaStream_t stream) {
  const char* name = "log_prob";
  check_argument(a.rows >= 0 && a.rows < 1 << 30, name, "rows");
  check_argument(a.vocab >= 1 && a.vocab <= a.ld && a.vocab < 1 << 30, name, "vocab");
  check_argument(a.gradients == nullptr || a.ld_gradients >= a.vocab, name, "ld_gradients");
  if (a.rows == 0) return;
  GPU_LAUNCH(log_prob_kernel, dim3(unsigned(a.rows)), dim3(kThreads), 0, stream, a);
  check_launch(name);
}

}  // namespace tandem::cuda
