// Mixtures of experts on a device, served and trained: the CPU's tokens and gradients, and the same bits however work is cut.
#include "mixture_checks.h"
#include "widened.h"

namespace tandem::test {
namespace {

TEST_ENGINE(gpu_mixture_gives_the_tokens_of_the_cpu) {
  check_against_cpu(mixture_for_device(), {device_job(1, 1, 6), device_job(2, 40, 6), device_job(3, 70, 4)});
  TinyModel softmax = mixture_for_device(true);
  softmax.spec.experts = {5, 2, 136, false};
  softmax.spec.intermediate_size = 73;  // which no layer has
  check_against_cpu(softmax, {device_job(4, 20, 5), device_job(5, 3, 5)});
}

TEST_ENGINE(gpu_mixture_same_bits_alone_batched_chunked_and_recorded) {
  // Routers come in parts where there are 512 inputs, and are whole where there are 40.
  for (int64_t hidden : {40, 512}) {
    TinyModel source = mixture_for_device(hidden == 40);
    source.spec.output_bias = false;
    source.spec.hidden_size = hidden;
    auto model = load_on_device(source);
    std::vector<Job> jobs = {device_job(11, 1, 4, 1), device_job(12, 17, 3, 1), device_job(13, 30, 2), device_job(14, 5, 3)};
    jobs[3].adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, 5, 4, all_modules())));
    const std::vector<Job> truth = check_same_bits(model, jobs);
    CHECK(!same_bits(truth[3].output[0].logprob, truth[2].output[0].logprob));
  }
}

TEST_ENGINE(gpu_mixture_same_bits_of_thousands_of_rows) { check_thousands_of_rows(load_on_device(mixture_for_device())); }

// Whole panels, and experts that end within one.
TEST_ENGINE(gpu_mixture_keeps_quantised_weights_and_gives_the_bits_of_what_they_stand_for) {
  using ops::QuantFormat;
  const std::vector<std::pair<int64_t, std::vector<QuantFormat>>> cases = {{32, {QuantFormat::kInt8}},
                                                                           {40, {QuantFormat::kInt4, QuantFormat::kFp8}}};
  for (const auto& [size, formats] : cases) {
    TinyModel source = mixture_for_device();
    source.spec.hidden_size = 64;
    source.spec.experts.size = size;
    Random random(99);
    const train::State state = random_state(random, source.spec, all_modules(), 2);
    const Row row = Group(random, source.spec.vocab_size, 5, {12}).packed();
    const std::vector<float> weights = weights_of(row, 6);
    for (QuantFormat format : formats) {
      std::shared_ptr<device::Model> quantised, widened;
      source.with_files([&](const auto& files, const auto& tensors) {
        quantised = device::load(source.spec, files, tensors, 1, {}, format);
        widened = device::load(source.spec, Widened(files, tensors, format), 1, {});
      });
      CHECK(quantised->weight_bytes() < widened->weight_bytes());
      std::vector<Job> jobs = {device_job(18, 18, 3)}, wanted = jobs;
      Driver seen = device_driver(quantised, device_options()), truth = device_driver(widened, device_options());
      run_together(seen, jobs);
      run_together(truth, wanted);
      check_same_jobs(jobs, wanted);
      auto trainer = quantised->make_trainer(trainer_options(), state), other = widened->make_trainer(trainer_options(), state);
      CHECK(same_bits(gradients_of(*trainer, row, weights), gradients_of(*other, row, weights)));
    }
  }
}

TEST_ENGINE(gpu_mixture_trains_with_the_logprobs_of_the_engine) {
  const TinyModel source = mixture_for_device(true, kWindow);
  check_logprobs(source, load_on_device(source));
  TinyModel parts = mixture_for_device();
  parts.spec.output_bias = false;
  parts.spec.hidden_size = 512;
  check_logprobs(parts, load_on_device(parts));
}

TEST_ENGINE(gpu_mixture_gives_the_gradients_of_the_cpu) {
  const TinyModel one = mixture_for_device(false, kWindow);
  check_gradients_against_cpu(one, load_on_device(one), 92, true);
  TinyModel both = mixture_for_device(true, kWindow);
  both.spec.experts = {9, 2, 24, false};
  check_gradients_against_cpu(both, load_on_device(both), 167, true);
}

TEST_ENGINE(gpu_mixture_gives_the_gradients_of_few_rows_at_a_time) {
  Random random(97);
  TinyModel source = mixture_for_device(false, kWindow);
  source.spec.max_position = 512;
  auto model = load_on_device(source);
  const train::State state = random_state(random, source.spec, all_modules(), 3);
  const Row row = Group(random, source.spec.vocab_size, 70, {50, 40}).packed();
  const std::vector<float> weights = weights_of(row, 6);
  auto few = model->make_trainer({304, kRoom, false, 1}, state), many = model->make_trainer({304, kRoom, false, int64_t(1) << 30}, state);
  const std::vector<float> wanted = gradients_of(*few, row, weights), seen = gradients_of(*many, row, weights);
  CHECK(same_bits(many->scores().logprobs, few->scores().logprobs));
  check_gradients(state, seen, wanted);
}

#ifdef TANDEM_GPU_EMULATION
TEST(gpu_mixture_takes_the_memory_that_it_plans) {
  check_planned_memory(mixture_for_device());
  check_trainer_memory(mixture_for_device());
}
#endif

}  // namespace
}  // namespace tandem::test
