#include <numeric>

#include "grammar/grammar.h"
#include "grammar/shared_masks.h"
#include "parts.h"
#include "steps.h"

namespace tandem::benchmarks {
namespace {

// JSON that goes on longer than any measurement.
constexpr char kSchema[] = "{\"type\":\"array\",\"items\":{},\"minItems\":2000}";
constexpr int64_t kAllowed = 1000;

// As many tokens as the model has, of lengths like a tokenizer's: one that ends, the bytes of printable ASCII, then words and numbers.
std::shared_ptr<const grammar::SharedMasks> vocabulary_of(int64_t size) {
  constexpr char kMarks[] = "\",:[]{}.-_";
  Random random(5);
  std::vector<std::string> tokens = {""};
  for (char byte = ' '; byte <= '~'; ++byte) tokens.push_back(std::string(1, byte));
  while (int64_t(tokens.size()) < size) {
    const int64_t kind = random.whole(0, 9), length = random.whole(2, 9);
    std::string word = kind < 4 ? " " : "";
    for (int64_t i = 0; i < length; ++i) word += kind == 9 ? char('0' + random.whole(0, 9)) : char('a' + random.whole(0, 25));
    if (kind == 8) word += kMarks[random.whole(0, int64_t(sizeof kMarks) - 2)];
    tokens.push_back(std::move(word));
  }
  tokens.resize(size_t(size));
  return std::make_shared<const grammar::SharedMasks>(
      std::make_shared<const grammar::Vocabulary>(std::move(tokens), std::vector<int32_t>{}));
}

}  // namespace

void grammars(Bench& bench) {
  const int64_t streams = bench.counts().streams, vocab = bench.spec().vocab_size;
  grammar::Budget budget({.seconds = 60});
  const auto program = engine::make_program(grammar::compile_json_schema(kSchema, {}, budget), vocabulary_of(vocab), budget);
  const Change constrained = [&](size_t i, Job& job) {
    job.program = program;
    job.params.sampling.temperature = 1;
    job.params.sampling.seed = i;
  };
  // Without the host's part: a mask per row that is known before the step.
  const Change masked = [&](size_t i, Job& job) {
    job.params.sampling.allowed.resize(size_t(std::min(kAllowed, vocab / 2)));
    std::iota(job.params.sampling.allowed.begin(), job.params.sampling.allowed.end(), int32_t(i));
  };
  const Change drawn = [](size_t i, Job& job) {
    job.params.sampling.temperature = 1;
    job.params.sampling.seed = i;
  };
  if (profiled_step(bench, streams, constrained)) return;
  const StepTimes free = time_steps(bench, streams, drawn), greedy = time_greedy(bench, streams);
  const StepTimes with = time_steps(bench, streams, constrained);
  const StepTimes known = time_steps(bench, streams, masked);
  const std::string name = "grammars, " + streams_of(streams) + ", ";
  bench.add_time(name + "none, a step in turn", free.in_turn);
  bench.add_time(name + "one per row, a step that waits for the host", with.in_turn);
  bench.add_cost(name + "one per row, cost over a step in turn", with.in_turn, free.in_turn);
  bench.add_time(name + "one per row, a step whose layers are queued ahead", with.ahead);
  bench.add_cost(name + "one per row, cost over a step queued ahead", with.ahead, free.ahead);
  bench.add_time(name + "masks known before (the device's part), a step queued ahead", known.ahead);
  bench.add_cost(name + "masks known before (the device's part), cost", known.ahead, greedy.ahead);
}

}  // namespace tandem::benchmarks
