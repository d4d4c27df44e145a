// The engine with Hopper's kernels: the same bits however its work is cut, near those of the CPU.
#include "cuda/common/device_info.h"
#include "cuda/gemm/matmul.h"
#include "engine_fixture.h"
#include "engine/engine.h"

namespace tandem::test {
namespace {

using ops::Element;

// Decode, prefill and chunks of it have different numbers of tokens, and so different blocks of Hopper's kernels.
void check_with_wgmma(const TinyModel& source, const std::vector<const char*>& settings, int64_t chunk = 13) {
  if (!on_hopper()) return;
  auto model = load_with_wgmma(source, settings);
  const std::vector<Job> jobs = {device_job(11, 1, 3), device_job(12, 70, 2), device_job(13, 20, 3)};
  std::vector<Job> alone = jobs, together = jobs, on_cpu = jobs;
  for (Job& j : alone) {
    Driver driver = device_driver(model, device_options());
    driver.start(0, j);
    driver.run();
  }
  Driver driver = device_driver(model, device_options()), cpu(TinyModel(source).load(Element::kBf16, 1), device_options());
  driver.set_chunk(chunk);
  run_together(driver, together);
  run_together(cpu, on_cpu);
  check_same_jobs(alone, together);
  for (size_t i = 0; i < jobs.size(); ++i) close_tokens(alone[i], on_cpu[i]);
}

TEST_ENGINE(hopper_engine_gives_the_same_bits) { check_with_wgmma(tiny_for_device(), {"TANDEM_CUDA_MATMUL"}); }

TEST_ENGINE(hopper_engine_attends_with_the_same_bits) { check_with_wgmma(tiny_for_device(), {"TANDEM_CUDA_ATTENTION"}); }

TEST_ENGINE(gpu_engine_says_what_fused_launches_need) {
  const TinyModel source = tiny_for_device();
  const SettingTo matmul("TANDEM_CUDA_MATMUL", "mma"), attention("TANDEM_CUDA_ATTENTION", "mma");
  {
    const SettingTo fused("TANDEM_CUDA_FUSED", "yes");
    CHECK_ERROR(kRange, "TANDEM_CUDA_FUSED must be 0 or 1", load_on_device(source));
  }
  const SettingTo fused("TANDEM_CUDA_FUSED", "1");
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_FUSED=1 needs TANDEM_CUDA_MATMUL=wgmma or TANDEM_CUDA_ATTENTION=wgmma", load_on_device(source));
}

// Norms and rotation are what products and attention may make themselves.
TinyModel tiny_for_fused() {
  TinyModel source = tiny_for_device();
  source.spec.output_bias = source.spec.mlp_bias = false;
  source.spec.hidden_size = 256;
  source.spec.intermediate_size = 512;
  source.spec.heads = 512 / source.spec.head_dim;
  source.spec.kv_heads = source.spec.heads / 2;
  return source;
}

const std::vector<const char*> kBoth = {"TANDEM_CUDA_MATMUL", "TANDEM_CUDA_ATTENTION"};

TEST_ENGINE(hopper_engine_gives_the_same_bits_by_fewer_launches) {
  const SettingTo fused("TANDEM_CUDA_FUSED", "1");
  check_with_wgmma(tiny_for_fused(), kBoth);
}

// The product of q, k and v leaves parts while others still read those of the product before.
TEST_ENGINE(hopper_engine_keeps_parts_that_are_read) {
  if (!on_hopper()) return;
  TinyModel source = tiny_for_fused();
  source.spec.hidden_size = 512;
  source.spec.intermediate_size = 3072;
  CHECK(cuda::matmul_splits(source.spec.query_size() + 2 * source.spec.kv_size(), 512) > 1 && cuda::matmul_splits(6144, 512) == 1);
  std::vector<Job> jobs(2, device_job(11, 1, 3));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SettingTo fused("TANDEM_CUDA_FUSED", i == 0 ? "0" : "1");
    Driver driver = device_driver(load_with_wgmma(source, kBoth), device_options());
    driver.start(0, jobs[i]);
    driver.run();
  }
  check_same(jobs[0], jobs[1]);
}

// With an adapter there are parts, and behind so many tokens several splits, whose states go beside them.
TEST_ENGINE(hopper_engine_keeps_parts_beside_states_of_splits) {
  if (!on_hopper()) return;
  TinyModel source = tiny_for_device();
  source.spec.max_position = 512;
  engine::Options options = device_options();
  options.max_model_len = 300;
  std::vector<Job> jobs(2, device_job(11, 258, 3));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SettingTo fused("TANDEM_CUDA_FUSED", i == 0 ? "0" : "1");
    auto model = load_with_wgmma(source, kBoth);
    jobs[i].adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, 5, 4, all_modules())));
    Driver driver = device_driver(model, options);
    driver.start(0, jobs[i]);
    driver.run();
  }
  check_same(jobs[0], jobs[1]);
}

// Tiles of so many heads have one token each, and a sequence may have several of them.
TEST_ENGINE(hopper_engine_rotates_no_tokens_that_see_each_other) {
  TinyModel source = tiny_for_device();
  source.spec.heads = 16;
  source.spec.kv_heads = 1;
  const SettingTo fused("TANDEM_CUDA_FUSED", "1");
  for (int64_t chunk : {2, 3}) check_with_wgmma(source, kBoth, chunk);
}

#ifdef TANDEM_GPU_EMULATION
uint64_t launches_of(const TinyModel& source, const char* fused) {
  const SettingTo setting("TANDEM_CUDA_FUSED", fused);
  auto model = load_with_wgmma(source, kBoth);
  Job job = device_job(12, 20, 4);
  Driver driver = device_driver(model, device_options());
  const uint64_t before = gpu_emulation::launches_run();
  driver.start(0, job);
  driver.run();
  return gpu_emulation::launches_run() - before;
}

// A layer of each step behind the prompt has both norms and the rotation less.
TEST_ENGINE(hopper_engine_fuses_what_it_is_asked_to) {
  const TinyModel source = tiny_for_fused();
  CHECK(cuda::matmul_splits(256, 512) > 1 && cuda::matmul_splits(1024, 256) == 1);
  CHECK_EQ(launches_of(source, "0") - launches_of(source, "1"), uint64_t(3 * 3 * source.spec.layers));
}
#endif

}  // namespace
}  // namespace tandem::test
