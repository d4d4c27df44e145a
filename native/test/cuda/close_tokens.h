// Two arithmetics in bf16 compared: the device's engine and the CPU's.
#pragma once
#include "driver.h"
#include "gpu_support.h"

namespace tandem::test {

// Where the CPU's two best tokens are nearer than this, rounding may choose between them.
constexpr float kTie = 0.25f;
// Of a log-probability. Tensor cores round sums of 16 products otherwise than the CPU: on the starter model 0.17 was the most on an H200, with
// the same bits by mma.sync and wgmma; 0.11 by the emulation.
constexpr float kClose = 0.25f;

// The same tokens with numbers that are close. False: they part at some token, where greedy choices may only do so at a tie. What comes
// after that is not compared. Both have asked for at least two alternatives.
inline bool close_tokens(const Job& device, const Job& cpu) {
  for (size_t i = 0; i < std::min(device.output.size(), cpu.output.size()); ++i) {
    const Token &a = device.output[i], &b = cpu.output[i];
    if (a.id != b.id) {
      CHECK(cpu.params.sampling.temperature > 0 || (b.top.size() > 1 && b.top[0].logprob - b.top[1].logprob < kTie));
      return false;
    }
    CHECK_EQ(a.finish, b.finish);
    CHECK_EQ(a.top.size(), b.top.size());
    if (a.id < 0) continue;
    CHECK_NEAR(a.logprob, b.logprob, kClose);
    for (size_t k = 0; k < std::min(a.top.size(), b.top.size()); ++k) CHECK_NEAR(a.top[k].logprob, b.top[k].logprob, kClose);
  }
  CHECK_EQ(device.output.size(), cpu.output.size());
  return true;
}

}  // namespace tandem::test
