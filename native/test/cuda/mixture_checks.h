// The small mixture of experts on which the device's engine and its trainer are tested, and what has to hold by every kernel.
#pragma once
#include "engine_fixture.h"
#include "trainer_fixture.h"

namespace tandem::test {

// Its first feed-forward is a mixture, or both are.
inline TinyModel mixture_for_device(bool all = false, int64_t window = 40) {
  TinyModel model = tiny_for_device(window);
  model.spec.mlp_bias = false;
  model.spec.experts = {7, 3, 40, true};
  model.spec.expert_layers = {1, uint8_t(all)};
  return model;
}

// Alone without graphs as together with them, whole and in chunks. Returns the jobs with their outputs.
inline std::vector<Job> check_same_bits(const std::shared_ptr<device::Model>& model, const std::vector<Job>& jobs) {
  std::vector<Job> truth = jobs;
  const SettingTo graphs("TANDEM_CUDA_GRAPHS", "0");
  for (Job& j : truth) {
    Driver alone = device_driver(model, device_options());
    alone.start(0, j);
    alone.run();
  }
  for (int64_t chunk : {1 << 30, 7}) {
    const SettingTo recorded("TANDEM_CUDA_GRAPHS", "1");
    std::vector<Job> all = jobs;
    Driver together = device_driver(model, device_options(), 3);
    together.set_chunk(chunk);
    run_together(together, all);
    check_same_jobs(all, truth);
  }
  return truth;
}

// More rows than go through a mixture together.
inline void check_thousands_of_rows(const std::shared_ptr<device::Model>& model) {
  engine::Options o = device_options();
  o.max_sequences = 42;
  o.max_batch_tokens = 2200;
  o.pages = 42 * 4;
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 42; ++i) jobs.push_back(device_job(100 + i, 50, 1));
  std::vector<Job> alone = {jobs[0], jobs[41]};
  Driver together = device_driver(model, o);
  run_together(together, jobs);
  for (Job& job : alone) {
    Driver driver = device_driver(model, device_options());
    driver.start(0, job);
    driver.run();
  }
  check_same_jobs({jobs[0], jobs[41]}, alone);
}

// Under the emulation: a device gives memory in pieces of its own size.
inline void check_planned_memory(const TinyModel& source) {
  auto model = load_on_device(source);
  size_t planned = 0;
  for (const device::MemoryPart& part : model->memory_plan(device_options(), 0)) planned += part.bytes;
  const size_t before = cuda::device_free_bytes();
  const Driver driver = device_driver(model, device_options());
  CHECK_EQ(before - cuda::device_free_bytes(), planned - model->weight_bytes());
}

}  // namespace tandem::test
