// Models with random weights in the shapes of real ones, and how much of everything is measured on them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/quantise.h"

namespace tandem::benchmarks {

// "0.6b", "8b" or "30b-a3b" (a mixture of experts), Qwen3's; or "tiny" and "tiny-a3b", on which the emulation shows that all of this works. Of
// fewer layers where ":LAYERS" follows.
model::Spec shape_of(const std::string& name);
// Of "bf16", "int8", "int4" or "fp8"; nothing for the first.
std::optional<ops::QuantFormat> format_of(const std::string& name);

struct Counts {
  int64_t streams = 64;
  // Decode steps, either way: not timed, and of one of `rounds` rounds. All of them see as many splits of keys (256 positions) as the first,
  // so none is recorded anew.
  int64_t warm = 12, steps = 20, rounds = 3;
  int64_t prompt = 104, longer_prompt = 280;
  int64_t adapters = 32, least_rank = 8, most_rank = 64;
  std::vector<int64_t> compared = {33, 90, 257, 700};  // lengths of the prompts whose bits are compared
  std::vector<int64_t> prefills = {2048, 8192};
  int64_t requests = 256, shortest = 100, longest = 1024;
  int64_t row = 8192, packed = 2048, profiled_row = 2048;  // of a LoRA step: tokens, and those of each packed sequence
  int64_t product = 8192;                                  // a large one has so many rows, columns and inputs
  size_t copied = size_t(1) << 30;
  size_t beyond_cache = size_t(256) << 20;
};
Counts counts_of(const std::string& shape);

// Noise of a trained model's size; norms are 1.
class RandomWeights final : public device::WeightSource {
 public:
  explicit RandomWeights(std::optional<ops::QuantFormat> quantise) : quantise_(quantise) {}

  void read(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out) const override;
  std::vector<ops::QuantPart> quantised(const std::vector<std::pair<std::string, int64_t>>& parts, int64_t columns) const override;

 private:
  std::optional<ops::QuantFormat> quantise_;
};

}  // namespace tandem::benchmarks
