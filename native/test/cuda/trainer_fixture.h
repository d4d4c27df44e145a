// What the tests of a trainer on a device share.
#pragma once
#include "cuda/common/device_info.h"
#include "driver.h"
#include "gpu_fixture.h"
#include "gpu_support.h"
#include "train_support.h"

namespace tandem::test {

constexpr int64_t kWindow = 21;

// Chunks of 16 rows, so that rows have several.
inline train::Options trainer_options(bool recompute = false) { return {128, kRoom, recompute, 1}; }

inline std::vector<float> logprobs_of(Trainer& trainer, const Row& row, train::Under under = train::Under::kCurrent,
                                      std::shared_ptr<const model::Adapter> other = nullptr) {
  trainer.forward(row, under, std::move(other));
  run(trainer);
  return trainer.scores().logprobs;
}

inline std::vector<float> gradients_of(Trainer& trainer, const Row& row, const std::vector<float>& weights) {
  logprobs_of(trainer, row);
  trainer.backward(weights);
  run(trainer);
  return gradients(trainer);
}

// A prefix whose last page is not full, endings in it and behind it; chunks and tiles end in the middle of them.
inline Row packed(Random& random, const model::Spec& spec) { return Group(random, spec.vocab_size, 21, {9, 1, 16}).packed(); }

inline void check_logprobs(const TinyModel& source, const std::shared_ptr<device::Model>& model) {
  Random random(94);
  auto trainer = model->make_trainer(trainer_options(), random_state(random, source.spec, all_modules(), 3));
  engine::Options o;
  o.max_sequences = 2;
  o.max_batch_tokens = 24;
  o.pages = 10;
  o.max_model_len = 80;
  o.samplable_vocab = source.spec.vocab_size;
  for (bool current : {true, false}) {
    auto make = [&](const engine::Options& checked) { return model->make_backend(checked, 0); };
    Driver driver(std::make_unique<engine::Engine>(model->facts(), o, make), o, 3);
    Job job;
    job.prompt = random_tokens(random, 25, source.spec.vocab_size);
    job.params.sampling.seed = 11;
    job.params.sampling.logprobs = 0;
    job.params.max_tokens = 6;
    job.adapter = current ? trainer->adapter() : nullptr;
    driver.start(1, job);
    driver.run();
    Row row;
    row.tokens = job.tokens();
    row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
    row.tokens.pop_back();
    row.segments.push_back({0, row.size(), -1, 0});
    const std::vector<float> logprobs = logprobs_of(*trainer, row, current ? train::Under::kCurrent : train::Under::kBase);
    CHECK_EQ(job.output.size(), size_t(6));
    for (size_t i = 0; i < job.output.size(); ++i) CHECK(same_bits(logprobs[job.prompt.size() - 1 + i], job.output[i].logprob));
  }
}

// Of each factor, so that none is hidden behind larger ones.
inline void check_gradients(const train::State& state, const std::vector<float>& seen, const std::vector<float>& wanted) {
  CHECK_EQ(seen.size(), wanted.size());
  size_t at = 0;
  for (const model::Factors& f : state.factors) {
    for (size_t size : {f.a.size(), f.b.size()}) {
      auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + int64_t(at), all.begin() + int64_t(at + size));
      };
      CHECK_NEAR(relative_error(part(seen), part(wanted)), 0, 0.04);
      at += size;
    }
  }
}

inline void check_gradients_against_cpu(const TinyModel& source, const std::shared_ptr<device::Model>& model, uint64_t seed,
                                        bool recompute = false) {
  Random random(seed);
  const train::State state = random_state(random, source.spec, all_modules(), 3);
  const Row row = packed(random, source.spec);
  const std::vector<float> weights = weights_of(row, 6);
  Trainer cpu(source.load(ops::Element::kBf16, 1), {128, kRoom, false}, state);
  const std::vector<float> wanted = gradients_of(cpu, row, weights);
  auto trainer = model->make_trainer(trainer_options(), state);
  const std::vector<float> seen = gradients_of(*trainer, row, weights);
  for (size_t i = 0; i < row.targets.size(); ++i) {
    CHECK_NEAR(trainer->scores().logprobs[i], cpu.scores().logprobs[i], 0.2);
    CHECK_NEAR(trainer->scores().entropies[i], cpu.scores().entropies[i], 0.1);
  }
  check_gradients(state, seen, wanted);
  if (!recompute) return;
  auto again = model->make_trainer(trainer_options(true), state);
  CHECK(same_bits(gradients_of(*again, row, weights), seen));
}

// Under the emulation: a device gives memory in pieces of its own size.
inline void check_trainer_memory(const TinyModel& source) {
  Random random(97);
  auto model = load_on_device(source);
  const size_t before = cuda::device_free_bytes();
  auto trainer = model->make_trainer({32, kRoom, false, 1}, random_state(random, source.spec, {model::Module::kQ}, 3));
  const Row row = Group(random, source.spec.vocab_size, 25, {7}).alone(0);
  gradients_of(*trainer, row, weights_of(row, 6));
  logprobs_of(*trainer, row, train::Under::kBase);
  const int64_t said = trainer->row_bytes(row.size()), taken = int64_t(before - cuda::device_free_bytes());
  // But for a few numbers of each token.
  CHECK(taken > said * 99 / 100 && taken < said * 101 / 100);
}

}  // namespace tandem::test
