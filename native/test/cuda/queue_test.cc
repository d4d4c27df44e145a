// Steps that are queued on the device while the one before runs: the bits of steps run one after the other. Under the emulation streams do
// their work as late as they may, or at once: inputs sent too late, or over those of the running step, give other bits.
#include "engine/engine.h"

#include "cuda/common/gpu.h"
#include "engine_fixture.h"
#include "grammar/regex.h"

namespace tandem::test {
namespace {

using engine::Finish;

// Some end where the host cannot know it beforehand.
std::vector<Job> jobs_that_stop(const std::shared_ptr<device::Model>& model) {
  std::vector<Job> jobs = {device_job(11, 1, 9, 1), device_job(12, 17, 12, 1), device_job(13, 40, 7), device_job(14, 5, 10, 0.7)};
  std::vector<Job> longer = jobs;
  Driver driver = device_driver(model, device_options());
  run_together(driver, longer);
  jobs[1].params.stop_ids = {longer[1].output[4].id};
  jobs[3].params.stop_ids = {longer[3].output[6].id};
  return jobs;
}

std::vector<Job> in_turn(const std::shared_ptr<device::Model>& model, std::vector<Job> jobs) {
  Driver driver = device_driver(model, device_options());
  run_together(driver, jobs);
  return jobs;
}

TEST_ENGINE(gpu_engine_same_bits_when_steps_are_queued) {
  auto model = load_on_device(tiny_for_device());
  const std::vector<Job> jobs = jobs_that_stop(model), truth = in_turn(model, jobs);
  CHECK_EQ(truth[1].output.back().finish, Finish::kStopToken);
  for (int64_t chunk : {int64_t(1) << 30, int64_t(7)}) {
    std::vector<Job> queued = jobs;
    Driver driver = device_driver(model, device_options(), 3);
    driver.set_chunk(chunk);
    for (size_t i = 0; i < queued.size(); ++i) driver.start(int64_t(i), queued[i]);
    CHECK(driver.run_ahead() > 5);
    check_same_jobs(queued, truth);
  }
}

// Slots and pages change hands while a queued step still feeds what has ended; nobody else holds an adapter then.
TEST_ENGINE(gpu_engine_same_bits_on_pages_that_a_queued_step_still_writes) {
  const TinyModel source = tiny_for_device();
  auto model = load_on_device(source);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 7; ++i) jobs.push_back(device_job(60 + i, int64_t(13 + 3 * i), 14, i % 2 ? 1 : 0));
  auto with_adapters = [&](std::vector<Job> all) {
    for (size_t i = 0; i < all.size(); i += 2) {
      const auto factors = tiny_factors(source.spec, i + 1, int64_t(3 + 5 * i), all_modules());
      all[i].adapter = model->place(model::Adapter(model->facts(), factors));
    }
    return all;
  };
  auto one_by_one = [&](std::vector<Job> all) {
    for (Job& job : all) {
      Driver alone = device_driver(model, device_options());
      alone.start(0, job);
      alone.run();
    }
    return all;
  };
  const std::vector<Job> longer = one_by_one(with_adapters(jobs));
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].params.stop_ids = {longer[i].output[2 + i].id};
  const std::vector<Job> truth = one_by_one(with_adapters(jobs));
  std::vector<Job> queued = with_adapters(jobs);
  engine::Options few = device_options();
  few.max_sequences = 2;
  few.pages = 7;
  Driver driver = device_driver(model, few);
  std::vector<size_t> running = {0, 1};
  size_t next = 2;
  for (size_t slot : running) driver.start(int64_t(slot), queued[slot]);
  const int64_t behind = driver.run_ahead([&] {
    for (size_t slot = 0; slot < running.size(); ++slot) {
      Job& job = queued[running[slot]];
      if (!job.finished() || next == queued.size()) continue;
      driver.stop(int64_t(slot));
      job.adapter = nullptr;
      running[slot] = next++;
      driver.start(int64_t(slot), queued[running[slot]]);
    }
  });
  CHECK(behind > 10);
  check_same_jobs(queued, truth);
}

// Nothing waits for a step that draws nothing; whoever frees an adapter's memory cannot know that it is read.
TEST(gpu_engine_keeps_the_adapters_of_a_step_that_may_still_run) {
  const TinyModel source = tiny_for_device();
  auto model = load_on_device(source);
  for (bool queued : {false, true}) {
    Driver driver = device_driver(model, device_options());
    engine::Open open{};
    open.prompt_length = 16;
    open.params = device_job(33, 16, 4).params;
    open.adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, 1, 4, all_modules())));
    const std::weak_ptr<const model::Adapter> adapter = open.adapter;
    engine::Plan plan;
    plan.opens = {open};
    plan.pages = {{0, 0, 3}};
    plan.rows = {{0, 0, 8, 0}};
    plan.tokens.assign(8, 5);
    driver.engine().step(plan);
    open.adapter = nullptr;
    plan.opens.clear();
    engine::Plan end;
    end.closes = {0};
    driver.engine().step(end);
    CHECK(!adapter.expired());
    plan.opens = {open};
    if (queued) CHECK(driver.engine().queue(plan));
    else driver.engine().step(plan);
    CHECK(adapter.expired());
    if (queued) driver.engine().finish();
  }
}

std::shared_ptr<const engine::Program> letters_program(const char* regex = "[a-z]*") {
  std::vector<std::string> tokens = {""};
  for (char byte = ' '; byte <= '~'; ++byte) tokens.push_back(std::string(1, byte));
  while (tokens.size() < 100) tokens.push_back("ab");
  auto masks = std::make_shared<const grammar::SharedMasks>(std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>{}));
  grammar::Budget budget;
  return engine::make_program(grammar::compile_whole_regex(regex, budget), masks, budget);
}

// Grammars that end somewhere, and one that refuses a third of its letters as there is no room for what would have to follow: these are drawn
// again, and the step behind them had been fed the first. Penalties of single tokens, and words that may not come.
std::vector<Job> jobs_with_late_draws() {
  std::vector<Job> jobs = {device_job(21, 6, 12, 1), device_job(22, 9, 12, 1), device_job(23, 4, 12, 1), device_job(24, 20, 14),
                           device_job(25, 18, 10, 1.5)};
  jobs[0].params.sampling.repetition_penalty = 1.5;
  jobs[0].params.sampling.frequency_penalty = 0.5;
  jobs[1].program = letters_program("([a-r]|[s-z]{30})*");
  jobs[2].program = letters_program("[a-z]{2,7}");
  for (int32_t first = 0; first < 50; ++first) jobs[4].params.sampling.bad_words.push_back({first, 99 - first});
  return jobs;
}

TEST_ENGINE(gpu_engine_same_bits_when_draws_wait_for_results) {
  auto model = load_on_device(tiny_for_device());
  const std::vector<Job> jobs = jobs_with_late_draws(), truth = in_turn(model, jobs);
  CHECK_EQ(truth[2].output.back().finish, Finish::kComplete);
  for (int64_t chunk : {int64_t(1) << 30, int64_t(5)}) {
    std::vector<Job> queued = jobs;
    Driver driver = device_driver(model, device_options(), 4);
    driver.set_chunk(chunk);
    for (size_t i = 0; i < queued.size(); ++i) driver.start(int64_t(i), queued[i]);
    CHECK(driver.run_ahead() > 8);
    check_same_jobs(queued, truth);
  }
}

// No step before the last piece of its prompt waits for results.
TEST_ENGINE(gpu_engine_penalises_a_prompt_that_came_in_pieces) {
  auto model = load_on_device(tiny_for_device());
  std::vector<Job> jobs = {device_job(26, 23, 8, 1), device_job(27, 3, 12)};
  jobs[0].params.sampling.repetition_penalty = 3;
  const std::vector<Job> truth = in_turn(model, jobs);
  for (size_t count : {1, 2}) {
    std::vector<Job> queued(jobs.begin(), jobs.begin() + long(count));
    Driver driver = device_driver(model, device_options(), 4);
    driver.set_chunk(5);
    for (size_t i = 0; i < count; ++i) driver.start(int64_t(i), queued[i]);
    CHECK(driver.run_ahead() > 4);
    check_same_jobs(queued, std::vector<Job>(truth.begin(), truth.begin() + long(count)));
  }
}

// Any controls beside each other.
Job random_mixture_job(const TinyModel& source, const std::shared_ptr<device::Model>& model, uint64_t seed) {
  Random random(seed);
  const auto now_and_then = [&] { return random.whole(0, 3) == 0; };
  Job job = device_job(seed, random.whole(1, 60), random.whole(1, 9), now_and_then() ? 0 : 1);
  ops::SamplingParams& p = job.params.sampling;
  if (now_and_then()) p.repetition_penalty = 4;
  if (now_and_then()) p.presence_penalty = 0.7;
  if (now_and_then()) p.top_k = random.whole(1, 30);
  if (now_and_then()) p.bias = {{int32_t(random.whole(1, 99)), 4.0f}};
  if (now_and_then()) p.bad_words = {{job.prompt.back(), int32_t(random.whole(1, 99))}, {int32_t(random.whole(1, 99))}};
  if (now_and_then()) job.params.stop_ids = {int32_t(random.whole(1, 99)), int32_t(random.whole(1, 99))};
  if (now_and_then()) job.params.min_tokens = job.params.max_tokens;
  if (now_and_then()) job.program = letters_program("([a-r]|[s-z]{30})*");
  if (now_and_then()) {
    job.adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, seed, random.whole(1, 9), all_modules())));
  }
  return job;
}

TEST_ENGINE(gpu_engine_same_bits_of_random_mixtures) {
  const TinyModel source = tiny_for_device();
  auto model = load_on_device(source);
  for (uint64_t round = 0; round < 3; ++round) {
    std::vector<Job> jobs, truth;
    for (uint64_t i = 0; i < 8; ++i) jobs.push_back(random_mixture_job(source, model, 500 + 10 * round + i));
    truth = jobs;
    for (Job& job : truth) {
      Driver alone = device_driver(model, device_options());
      alone.start(0, job);
      alone.run();
    }
    Driver driver = device_driver(model, device_options(), 5 + round);
    driver.set_chunk(int64_t(4 + 3 * round));
    size_t next = 0;
    std::vector<size_t> running;
    for (; next <= round; ++next) driver.start(int64_t(next), jobs[next]), running.push_back(next);
    driver.run_ahead([&] {
      for (size_t slot = 0; slot < running.size(); ++slot) {
        if (!jobs[running[slot]].finished() || next == jobs.size()) continue;
        driver.stop(int64_t(slot));
        running[slot] = next++;
        driver.start(int64_t(slot), jobs[running[slot]]);
      }
    });
    check_same_jobs(jobs, truth);
  }
}

// The layers that were fed a token that was not taken are repeated, those that are recorded and those that are not.
TEST_ENGINE(gpu_engine_feeds_the_token_that_was_drawn_again) {
  auto model = load_on_device(tiny_for_device());
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 5; ++i) {
    jobs.push_back(device_job(70 + i, int64_t(3 + 4 * i), 9, 1));
    if (i < 3) jobs[i].program = letters_program("([a-r]|[s-z]{30})*");
  }
  std::vector<Job> truth = jobs;
  for (Job& job : truth) {
    Driver alone = device_driver(model, device_options());
    alone.start(0, job);
    alone.run();
  }
  for (int i = 0; i < 4; ++i) {
    std::vector<Job> queued = jobs;
    Driver driver = device_driver(model, device_options());
    for (size_t slot = 0; slot < queued.size(); ++slot) driver.start(int64_t(slot), queued[slot]);
    CHECK_EQ(driver.run_ahead(), int64_t(8));
    check_same_jobs(queued, truth);
  }
}

TEST_ENGINE(gpu_engine_takes_turns_where_results_decide) {
  auto model = load_on_device(tiny_for_device());
  std::vector<Job> jobs = {device_job(21, 6, 4, 1), device_job(22, 9, 5, 1), device_job(23, 4, 12, 1), device_job(24, 20, 14)};
  const std::vector<Job> truth = in_turn(model, jobs);
  std::vector<Job> queued = jobs;
  Driver driver = device_driver(model, device_options());
  driver.set_propose([&](const Job& job) {
    const bool proposes = job.prompt == jobs[3].prompt && job.output.size() % 4 == 3 && job.output.size() < 8;
    return proposes ? std::vector<int32_t>{truth[3].output[job.output.size()].id, 5} : std::vector<int32_t>();
  });
  for (size_t i = 0; i < queued.size(); ++i) driver.start(int64_t(i), queued[i]);
  // Once the proposals are over.
  CHECK(driver.run_ahead() > 1);
  check_same_jobs(queued, truth);
}

TEST_ENGINE(gpu_engine_ends_what_is_broken_behind_queued_steps) {
  TinyModel source = tiny_for_device();
  source.broken_tokens = {{101, INFINITY}};
  auto model = load_on_device(source);
  std::vector<Job> jobs = {device_job(51, 20, 6), device_job(52, 30, 6)};
  jobs[1].prompt[25] = 101;
  const std::vector<Job> truth = in_turn(model, jobs);
  Driver driver = device_driver(model, device_options());
  for (size_t i = 0; i < jobs.size(); ++i) driver.start(int64_t(i), jobs[i]);
  CHECK(driver.run_ahead() > 2);
  check_same_jobs(jobs, truth);
  CHECK_EQ(jobs[1].output.size(), size_t(1));
  CHECK_EQ(jobs[1].output[0].finish, Finish::kNotFinite);
}

TEST_ENGINE(gpu_engine_copies_pages_when_queued_steps_have_run) {
  auto model = load_on_device(tiny_for_device());
  const Job job = device_job(31, 16, 4);
  engine::Plan plan;
  engine::Open open{};
  open.prompt_length = 16;
  open.params = job.params;
  plan.opens = {open};
  plan.pages = {{0, 0, 3}};
  plan.rows = {{0, 0, 16, 1}};
  plan.tokens = job.prompt;
  Driver stepped = device_driver(model, device_options());
  stepped.engine().step(plan);
  const std::vector<uint8_t> wanted = stepped.engine().read_pages({3});
  // A stream does its work late or at once, by turns.
  for (int i = 0; i < 4; ++i) {
    Driver queued = device_driver(model, device_options());
    CHECK(queued.engine().queue(plan));
    CHECK(queued.engine().read_pages({3}) == wanted);
    queued.engine().finish();
  }
}

// Rows of a prompt, the first of them at `first`; the last row draws or none does.
engine::Plan rows_of(const Job& job, int64_t first, int64_t count, bool draws) {
  engine::Plan plan;
  if (first == 0) {
    engine::Open open{};
    open.prompt_length = int64_t(job.prompt.size());
    open.params = job.params;
    plan.opens = {open};
    plan.pages = {{0, 0, 3}, {0, 1, 5}};
  }
  plan.rows = {{0, first, count, draws ? 1 : 0}};
  plan.tokens.assign(job.prompt.begin() + first, job.prompt.begin() + first + count);
  return plan;
}

// Nothing waits for steps that draw nothing: their inputs stay where they were sent until they have run, whether those that come two steps
// later are queued or not.
TEST_ENGINE(gpu_engine_same_bits_behind_steps_that_draw_nothing) {
  auto model = load_on_device(tiny_for_device());
  const Job job = device_job(32, 32, 4);
  Driver whole = device_driver(model, device_options());
  const engine::StepResult truth = whole.engine().step(rows_of(job, 0, 32, true));
  for (int i = 0; i < 16; ++i) {
    Driver driver = device_driver(model, device_options());
    engine::Engine& engine = driver.engine();
    const bool queued = i % 2 == 1;
    for (int64_t first = 0; first < (queued ? 16 : 24); first += 8) engine.step(rows_of(job, first, 8, false));
    engine::Plan last = rows_of(job, 24, 8, true);
    engine::StepResult seen;
    if (queued) {
      CHECK(engine.queue(rows_of(job, 16, 8, false)));
      last.ahead = true;
      CHECK(engine.queue(last));
      engine.finish();
      seen = engine.finish();
    } else {
      seen = engine.step(last);
    }
    CHECK_EQ(seen.samples[0].token, truth.samples[0].token);
    CHECK(same_bits(seen.samples[0].logprob, truth.samples[0].logprob));
    CHECK(engine.read_pages({3, 5}) == whole.engine().read_pages({3, 5}));
  }
}

TEST_ENGINE(gpu_engine_writes_pages_when_steps_that_draw_nothing_have_run) {
  auto model = load_on_device(tiny_for_device());
  const Job job = device_job(31, 32, 4);
  for (int i = 0; i < 4; ++i) {
    Driver driver = device_driver(model, device_options());
    const std::vector<uint8_t> page(driver.engine().page_bytes(), 17);
    driver.engine().step(rows_of(job, 0, 16, false));
    driver.engine().write_pages({3}, page);
    CHECK(driver.engine().read_pages({3}) == page);
  }
}

// What is left then is the draw.
#ifdef TANDEM_GPU_EMULATION
TEST_ENGINE(gpu_engine_nearly_done_has_its_layers_behind_it) {
  auto model = load_on_device(tiny_for_device());
  int late = 0;
  for (int i = 0; i < 8; ++i) {
    Driver driver = device_driver(model, device_options());
    CHECK(driver.engine().queue(rows_of(device_job(34, 32, 4), 0, 32, true)));
    const int64_t all = gpu_emulation::undone();
    driver.engine().wait_nearly();
    const int64_t left = gpu_emulation::undone();
    late += all > 0;
    // A stream that does its work at once has done it.
    CHECK(all == 0 || (left > 0 && left < all / 2));
    driver.engine().finish();
  }
  CHECK(late > 0);
}
#endif

}  // namespace
}  // namespace tandem::test
