// Engines of a small model on the device, and jobs for them.
#pragma once
#include "close_tokens.h"
#include "driver.h"
#include "gpu_fixture.h"

namespace tandem::test {

inline engine::Options device_options() {
  engine::Options o;
  o.max_sequences = 6;
  o.max_batch_tokens = 128;
  o.pages = 40;
  o.max_model_len = 112;
  o.samplable_vocab = 100;
  o.max_logprobs = 103;
  return o;
}

inline Driver device_driver(const std::shared_ptr<device::Model>& model, const engine::Options& o, uint64_t page_seed = 0) {
  auto make = [&](const engine::Options& checked) { return model->make_backend(checked, 0); };
  return Driver(std::make_unique<engine::Engine>(model->facts(), o, make), o, page_seed);
}

inline Job device_job(uint64_t seed, int64_t prompt_length, int64_t outputs, double temperature = 0) {
  return random_job(seed, prompt_length, outputs, temperature);
}

// The jobs on both. A draw may fall on the other side of a boundary; the emulation's arithmetic is always the same, and is known not to.
inline void check_against_cpu(const TinyModel& source, std::vector<Job> jobs) {
  std::vector<Job> wanted = jobs;
  Driver device = device_driver(load_on_device(source), device_options()), cpu(source.load(ops::Element::kBf16, 1), device_options());
  run_together(device, jobs);
  run_together(cpu, wanted);
  size_t same = 0;
  for (size_t i = 0; i < jobs.size(); ++i) same += close_tokens(jobs[i], wanted[i]);
#ifdef TANDEM_GPU_EMULATION
  CHECK_EQ(same, jobs.size());
#else
  CHECK(2 * same >= jobs.size());
#endif
}

}  // namespace tandem::test
