#include "parts.h"

namespace tandem::benchmarks {
namespace {

constexpr double kMostSeconds = 60;  // of offline throughput

std::function<bool(Bench&)> measured(std::function<void(Bench&)> body) {
  return [body = std::move(body)](Bench& bench) { return body(bench), true; };
}

}  // namespace

std::vector<Part> all_parts(const Counts& counts) {
  std::vector<Part> parts = {{"same bits", same_bits}, {"same log-probabilities", same_logprobs}, {"decode", measured(decode)}};
  for (int64_t tokens : counts.prefills) {
    parts.push_back({"prefill of " + std::to_string(tokens), measured([tokens](Bench& bench) { prefill(bench, tokens); })});
  }
  parts.push_back({"LoRA step", measured(lora_step)});
  parts.push_back({"adapters", measured(adapters)});
  parts.push_back({"sampling", measured(sampling)});
  parts.push_back({"grammars", measured(grammars)});
  parts.push_back({"publication", measured(publication)});
  parts.push_back({"invariance", measured(invariance)});
  parts.push_back({"throughput", measured([](Bench& bench) { throughput(bench, kMostSeconds); })});
  return parts;
}

}  // namespace tandem::benchmarks
