// The engine on a device: the tokens of the CPU's engine, and the same bits however its work is cut.
#include "engine/engine.h"

#include "cuda/common/device_info.h"
#include "cuda/gemm/matmul.h"
#include "engine_fixture.h"
#include "grammar/regex.h"
#include "widened.h"

namespace tandem::test {
namespace {

using engine::Finish;
using ops::Element;

TEST_ENGINE(gpu_engine_gives_the_greedy_tokens_of_the_cpu) {
  check_against_cpu(tiny_for_device(), {device_job(1, 1, 6), device_job(2, 40, 6), device_job(3, 70, 4)});
}

TEST_ENGINE(gpu_engine_runs_every_family) {
  // Without the switches of Qwen and with a tied head, as Llama.
  TinyModel llama = tiny_for_device();
  llama.spec.qkv_bias = llama.spec.output_bias = llama.spec.mlp_bias = llama.spec.qk_norm = false;
  llama.spec.window_layers = {0, 0};
  llama.spec.sliding_window = 0;
  llama.spec.tied_embeddings = true;
  llama.spec.heads = 3;
  llama.spec.kv_heads = 1;
  check_against_cpu(llama, {device_job(5, 20, 4)});
  TinyModel mistral = llama;
  mistral.spec.tied_embeddings = false;
  mistral.spec.window_layers = {1, 1};
  mistral.spec.sliding_window = 9;
  mistral.spec.head_dim = 64;
  check_against_cpu(mistral, {device_job(6, 20, 4)});
}

TEST_ENGINE(gpu_engine_same_bits_alone_batched_chunked_and_on_any_pages) {
  auto model = load_on_device(tiny_for_device());
  const std::vector<Job> jobs = {device_job(11, 1, 5, 1), device_job(12, 17, 4, 1), device_job(13, 40, 3)};
  std::vector<Job> truth = jobs;
  for (Job& j : truth) {
    Driver alone = device_driver(model, device_options());
    alone.start(0, j);
    alone.run();
  }
  struct Setting {
    int64_t chunk;
    uint64_t page_seed;
  };
  for (const Setting& s : {Setting{1 << 30, 3}, Setting{7, 0}, Setting{16, 5}}) {
    std::vector<Job> all = jobs;
    Driver together = device_driver(model, device_options(), s.page_seed);
    together.set_chunk(s.chunk);
    run_together(together, all);
    check_same_jobs(all, truth);
  }
}

// Every product of a layer comes in parts. Where a batch holds an adapter they are added at once, else by what reads the product.
TEST_ENGINE(gpu_engine_same_bits_where_products_come_in_parts) {
  TinyModel source = tiny_for_device();
  source.spec.output_bias = source.spec.mlp_bias = false;
  source.spec.hidden_size = source.spec.intermediate_size = 512;
  source.spec.heads = 16;
  source.spec.kv_heads = 4;
  for (int64_t n : {int64_t(512), source.spec.query_size() + 2 * source.spec.kv_size()}) CHECK(cuda::matmul_splits(n, 512) > 1);
  auto model = load_on_device(source);
  std::vector<Job> jobs = {device_job(11, 6, 3), device_job(12, 3, 4), device_job(13, 1, 4)};
  check_against_cpu(source, {jobs[1]});
  std::vector<Job> alone = jobs;
  for (Job& j : alone) {
    Driver driver = device_driver(model, device_options());
    driver.start(0, j);
    driver.run();
  }
  const auto factors = tiny_factors(source.spec, 5, 4, all_modules());
  jobs.push_back(device_job(14, 2, 3));
  jobs.back().adapter = model->place(model::Adapter(model->facts(), factors));
  Driver together = device_driver(model, device_options());
  run_together(together, jobs);
  check_same_jobs(alone, jobs);
  // An adapter of any one projection tells.
  for (model::Module module : all_modules()) {
    Job adapted = device_job(12, 3, 1);
    adapted.adapter = model->place(model::Adapter(model->facts(), tiny_factors(source.spec, 5, 4, {module})));
    Driver driver = device_driver(model, device_options());
    driver.start(0, adapted);
    driver.run();
    CHECK(!same_bits(adapted.output[0].logprob, alone[1].output[0].logprob));
  }
}

TEST_ENGINE(gpu_engine_same_bits_after_preemption_on_used_pages) {
  auto model = load_on_device(tiny_for_device());
  std::vector<Job> truth = {device_job(12, 17, 6, 1)}, again = truth;
  Driver first = device_driver(model, device_options());
  run_together(first, truth);
  engine::Options few = device_options();
  few.pages = 7;
  Driver driver = device_driver(model, few);
  Job other = device_job(30, 100, 1);
  driver.start(0, other);
  driver.run();
  driver.stop(0);
  driver.start(1, again[0]);
  for (int i = 0; i < 3; ++i) driver.step();
  driver.stop(1);
  driver.start(0, again[0]);
  driver.run();
  check_same_jobs(again, truth);
}

TEST_ENGINE(gpu_engine_same_bits_when_steps_are_recorded) {
  auto model = load_on_device(tiny_for_device());
  std::vector<Job> recorded = {device_job(12, 17, 6, 1), device_job(13, 3, 8), device_job(14, 5, 5)}, launched = recorded;
  Driver with = device_driver(model, device_options());
  run_together(with, recorded);
  setenv("TANDEM_CUDA_GRAPHS", "0", 1);
  Driver without = device_driver(model, device_options());
  unsetenv("TANDEM_CUDA_GRAPHS");
  run_together(without, launched);
  check_same_jobs(recorded, launched);
}

// What was recorded with some adapters runs again with others of the same padded sizes.
TEST_ENGINE(gpu_engine_same_bits_when_steps_with_adapters_are_recorded) {
  const TinyModel source = tiny_for_device();
  auto model = load_on_device(source);
  std::vector<Job> recorded = {device_job(12, 7, 6, 1), device_job(13, 3, 3), device_job(14, 5, 5), device_job(19, 4, 4)};
  std::vector<std::shared_ptr<const model::Adapter>> adapters;
  for (int64_t rank : {3, 20, 17}) {
    adapters.push_back(model->place(model::Adapter(model->facts(), tiny_factors(source.spec, uint64_t(rank), rank, all_modules()))));
  }
  recorded[0].adapter = adapters[0];
  recorded[1].adapter = adapters[1];
  recorded[3].adapter = adapters[2];
  std::vector<Job> launched = recorded;
  // The last comes when the second has gone.
  auto run = [](Driver driver, std::vector<Job>& jobs) {
    for (size_t i = 0; i < 3; ++i) driver.start(int64_t(i), jobs[i]);
    while (!jobs[1].finished()) driver.step();
    driver.stop(1);
    driver.start(1, jobs[3]);
    driver.run();
  };
  run(device_driver(model, device_options()), recorded);
  setenv("TANDEM_CUDA_GRAPHS", "0", 1);
  Driver without = device_driver(model, device_options());
  unsetenv("TANDEM_CUDA_GRAPHS");
  run(std::move(without), launched);
  check_same_jobs(recorded, launched);
}

TEST_ENGINE(gpu_engine_same_bits_with_proposed_tokens) {
  auto model = load_on_device(tiny_for_device());
  std::vector<Job> truth = {device_job(15, 9, 8, 1), device_job(16, 20, 8)};
  truth[0].params.sampling.repetition_penalty = 1.4;
  Driver single = device_driver(model, device_options());
  int steps = 0, fewer = 0;
  std::vector<Job> proposed = truth;
  for (size_t i = 0; i < truth.size(); ++i) single.start(int64_t(i), truth[i]);
  while (single.step()) ++steps;
  // Of every three that are proposed the third is wrong.
  auto propose = [&](const Job& job) {
    const Job& known = job.prompt == truth[0].prompt ? truth[0] : truth[1];
    std::vector<int32_t> next;
    for (size_t i = job.output.size(); i < std::min(job.output.size() + 3, known.output.size()); ++i) next.push_back(known.output[i].id);
    if (next.size() == 3) next[2] = (next[2] + 1) % 100;
    return next;
  };
  Driver driver = device_driver(model, device_options());
  driver.set_propose(propose);
  for (size_t i = 0; i < proposed.size(); ++i) driver.start(int64_t(i), proposed[i]);
  while (driver.step()) ++fewer;
  check_same_jobs(proposed, truth);
  CHECK(fewer < steps);
}

// What a grammar forces is fed, not sampled; its numbers are those that sampling gives.
TEST_ENGINE(gpu_engine_scores_forced_tokens_as_sampled_ones) {
  auto model = load_on_device(tiny_for_device());
  Job truth = device_job(17, 5, 5, 0.5);
  truth.params.sampling.mode = ops::LogprobMode::kTemperature;
  Driver sampled = device_driver(model, device_options());
  sampled.start(0, truth);
  sampled.run();
  Driver forced = device_driver(model, device_options());
  engine::Plan plan;
  engine::Open open{};
  open.prompt_length = int64_t(truth.prompt.size());
  open.params = truth.params;
  plan.opens = {open};
  plan.pages = {{0, 0, 3}};
  plan.rows = {{0, 0, 5, 1}};
  plan.tokens = truth.prompt;
  CHECK_EQ(forced.engine().step(plan).samples[0].token, truth.output[0].id);
  plan = {};
  plan.rows = {{0, 5, 4, 1, 3}};
  for (size_t i = 0; i < 4; ++i) plan.tokens.push_back(truth.output[i].id);
  const engine::StepResult result = forced.engine().step(plan);
  CHECK_EQ(result.fed.size(), size_t(3));
  for (size_t i = 0; i < result.fed.size(); ++i) {
    const Token& wanted = truth.output[i + 1];
    const engine::Scored& seen = result.fed[i];
    CHECK(same_bits(seen.logprob, wanted.logprob));
    CHECK_EQ(seen.rank, wanted.rank);
    CHECK_EQ(size_t(seen.top_count), wanted.top.size());
    for (size_t k = 0; k < wanted.top.size(); ++k) CHECK_EQ(result.top[size_t(seen.top_offset) + k].id, wanted.top[k].id);
  }
  CHECK_EQ(result.samples[0].token, truth.output[4].id);
}

TEST_ENGINE(gpu_engine_samples_with_every_control) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 6; ++i) jobs.push_back(device_job(40 + i, 12, 8, 0.7));
  ops::SamplingParams* p = &jobs[0].params.sampling;
  p->frequency_penalty = 0.9, p->presence_penalty = 0.5, p->repetition_penalty = 1.3;
  jobs[1].params.sampling.bias = {{5, 6.0f}, {7, -100.0f}, {9, 5.5f}};
  jobs[1].params.sampling.bad_words = {{5, 5}, {9}};
  jobs[2].params.sampling.allowed = {2, 3, 50, 64, 99};
  jobs[2].params.sampling.mode = ops::LogprobMode::kProcessed;
  jobs[3].params.sampling.top_k = 5, jobs[3].params.sampling.top_p = 0.8, jobs[3].params.sampling.min_p = 0.05;
  jobs[3].params.sampling.mode = ops::LogprobMode::kTemperature;
  jobs[4].params.stop_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  jobs[4].params.min_tokens = 7;
  jobs[5].params.sampling.logprobs = 103;
  check_against_cpu(tiny_for_device(), jobs);
}

// Token 0 ends a text; then printable ASCII.
std::shared_ptr<const engine::Program> digits_program() {
  std::vector<std::string> tokens = {""};
  for (char byte = ' '; byte <= '~'; ++byte) tokens.push_back(std::string(1, byte));
  while (tokens.size() < 100) tokens.push_back("77");
  auto masks = std::make_shared<const grammar::SharedMasks>(std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>{}));
  grammar::Budget budget;
  return engine::make_program(grammar::compile_whole_regex("[0-9]*x[a-c]{2}", budget), masks, budget);
}

TEST_ENGINE(gpu_engine_follows_grammars) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back(device_job(90 + i, 5, 5 + int64_t(i), 1));
    jobs[i].program = digits_program();
    jobs[i].params.stop_ids = {0};
  }
  jobs[3].params.sampling.temperature = 0;
  check_against_cpu(tiny_for_device(), jobs);
}

TEST_ENGINE(gpu_engine_ends_only_the_sequence_that_is_broken) {
  TinyModel source = tiny_for_device();
  source.broken_tokens = {{101, INFINITY}};
  auto model = load_on_device(source);
  std::vector<Job> truth = {device_job(51, 20, 4)}, all = {truth[0], device_job(52, 30, 4)};
  Driver alone = device_driver(model, device_options());
  run_together(alone, truth);
  all[1].prompt[25] = 101;
  Driver driver = device_driver(model, device_options());
  run_together(driver, all);
  check_same_jobs({all[0]}, truth);
  CHECK_EQ(all[1].output.size(), size_t(1));
  CHECK_EQ(all[1].output[0].finish, Finish::kNotFinite);
  // Its pages, full of NaN, go to another.
  driver.stop(0);
  driver.stop(1);
  std::vector<Job> again = {device_job(51, 20, 4)};
  driver.start(2, again[0]);
  driver.run();
  check_same_jobs(again, truth);
  // Nothing may be sampled: another end.
  Job forbidden = device_job(53, 4, 3);
  for (int32_t id = 0; id < 100; ++id) forbidden.params.stop_ids.push_back(id);
  forbidden.params.min_tokens = 2;
  driver.start(3, forbidden);
  driver.run();
  CHECK_EQ(forbidden.output.back().finish, Finish::kNoToken);
}

TEST_ENGINE(gpu_engine_serves_adapters) {
  TinyModel source = tiny_for_device();
  auto model = load_on_device(source);
  auto cpu_model = source.load(Element::kBf16, 1);
  const auto small = tiny_factors(source.spec, 61, 3, all_modules()),
             large = tiny_factors(source.spec, 62, 20, {model::Module::kQ, model::Module::kDown});
  const auto identity = tiny_factors(source.spec, 63, 4, all_modules(), true);
  std::vector<Job> jobs = {device_job(71, 9, 4), device_job(71, 9, 4), device_job(71, 9, 4), device_job(71, 9, 4)}, wanted = jobs;
  jobs[1].adapter = model->place(model::Adapter(model->facts(), small));
  jobs[2].adapter = model->place(model::Adapter(model->facts(), large));
  jobs[3].adapter = model->place(model::Adapter(model->facts(), identity));
  wanted[1].adapter = std::make_shared<model::Adapter>(cpu_model, small);
  wanted[2].adapter = std::make_shared<model::Adapter>(cpu_model, large);
  Driver device = device_driver(model, device_options()), cpu(cpu_model, device_options());
  run_together(device, jobs);
  run_together(cpu, wanted);
  for (size_t i = 0; i < 3; ++i) CHECK(close_tokens(jobs[i], wanted[i]));
  CHECK(!same_bits({jobs[1].output[0].logprob}, {jobs[0].output[0].logprob}));
  check_same_jobs({jobs[3]}, {jobs[0]});
}

// The log-probabilities of a prompt, in one piece and in chunks.
std::vector<engine::Scored> scores(engine::Engine& engine, const std::vector<int32_t>& prompt, int64_t chunk,
                                   std::vector<ops::TopEntry>& top) {
  std::vector<engine::Scored> all;
  for (int64_t first = 0; first < int64_t(prompt.size()); first += chunk) {
    const int64_t count = std::min(chunk, int64_t(prompt.size()) - first);
    engine::Plan plan;
    if (first == 0) {
      engine::Open open{};
      open.prompt_length = int64_t(prompt.size());
      open.prompt_logprobs = 2;
      plan.opens.push_back(open);
      for (int64_t p = 0; p * 16 < int64_t(prompt.size()); ++p) plan.pages.push_back({0, p, p});
    }
    plan.rows.push_back({0, first, count, false});
    plan.tokens.assign(prompt.begin() + first, prompt.begin() + first + count);
    engine::StepResult result = engine.step(plan);
    all.insert(all.end(), result.fed.begin(), result.fed.end());
    top.insert(top.end(), result.top.begin(), result.top.end());
  }
  return all;
}

TEST_ENGINE(gpu_engine_scores_prompts_and_moves_pages) {
  auto model = load_on_device(tiny_for_device());
  const std::vector<int32_t> prompt = device_job(80, 24, 1).prompt;
  Driver whole = device_driver(model, device_options()), pieces = device_driver(model, device_options());
  std::vector<ops::TopEntry> top, top_pieces, top_cpu;
  const auto truth = scores(whole.engine(), prompt, 24, top), cut = scores(pieces.engine(), prompt, 5, top_pieces);
  Driver cpu(tiny_for_device().load(Element::kBf16, 1), device_options());
  const auto wanted = scores(cpu.engine(), prompt, 24, top_cpu);
  CHECK_EQ(truth.size(), prompt.size() - 1);
  CHECK_EQ(cut.size(), truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    CHECK(same_bits({truth[i].logprob}, {cut[i].logprob}));
    CHECK_NEAR(truth[i].logprob, wanted[i].logprob, 0.2);
    CHECK_EQ(truth[i].rank, cut[i].rank);
    CHECK_EQ(top[2 * i].id, top_cpu[2 * i].id);
  }
  const std::vector<uint8_t> page = whole.engine().read_pages({0});
  CHECK(page == pieces.engine().read_pages({0}));
  pieces.engine().write_pages({7}, page);
  CHECK(page == pieces.engine().read_pages({7}));
}

TEST_ENGINE(gpu_engine_same_bits_where_sequences_begin_with_the_same_pages) {
  TinyModel source = tiny_for_device();
  source.spec.max_position = 600;
  auto model = load_on_device(source);
  engine::Options o = device_options();
  o.max_model_len = 600;
  o.pages = 80;
  Random random(31);
  std::vector<int32_t> shared;
  for (int32_t p = 0; p < 32; ++p) shared.push_back(p);
  // The log-probabilities of four tokens each; the first row of a slot is as long as its number, plus one.
  auto run = [&](const std::vector<int64_t>& slots, const std::vector<uint8_t>& bytes) {
    Driver driver = device_driver(model, o);
    driver.engine().write_pages(shared, bytes);
    engine::Plan plan;
    for (int64_t slot : slots) {
      engine::Open open{};
      open.slot = slot;
      open.prompt_length = 513 + slot;
      open.cached.assign(512, 7);
      open.params = device_job(1, 1, 5).params;
      plan.opens.push_back(open);
      for (int64_t p = 0; p < 33; ++p) plan.pages.push_back({slot, p, p < 32 ? p : 40 + slot});
      plan.rows.push_back({slot, 512, 1 + slot, 1});
      for (int64_t i = 0; i <= slot; ++i) plan.tokens.push_back(int32_t(10 * slot + i + 1));
    }
    std::map<int32_t, std::vector<float>> seen;
    for (int64_t step = 0; step < 4; ++step) {
      for (const engine::Sampled& s : driver.engine().step(plan).samples) seen[s.slot].push_back(s.logprob);
      plan = {};
      for (int64_t slot : slots) plan.rows.push_back({slot, 513 + slot + step, 1, 1});
      plan.tokens.assign(slots.size(), -1);
    }
    return seen;
  };
  std::vector<uint8_t> bytes;
  const size_t page_bytes = device_driver(model, o).engine().page_bytes();
  for (const bf16 x : bf16s(random, 32 * page_bytes / 2, 0.5f)) {
    bytes.push_back(uint8_t(x.bits & 255));
    bytes.push_back(uint8_t(x.bits >> 8));
  }
  const auto together = run({0, 1, 2}, bytes);
  for (int32_t slot : {0, 1, 2}) CHECK(same_bits(run({slot}, bytes).at(slot), together.at(slot)));
}

TEST(gpu_engine_plans_its_memory_before_it_takes_any) {
  auto model = load_on_device(tiny_for_device());
  engine::Options o = device_options();
  o.pages = 1;
  const int64_t most = model->most_pages(o, 1000);
  CHECK(most > 1000);
  size_t sum = 0;
  o.pages = most;
  for (const device::MemoryPart& part : model->memory_plan(o, 1000)) sum += part.bytes;
  // The weights are there already; nearly all of what is free beside them is planned for, and no more.
  const size_t free = cuda::device_free_bytes();
  CHECK(sum - model->weight_bytes() <= free && sum - model->weight_bytes() > free / 10 * 9);
  o.pages = most + 1000;
  CHECK_ERROR(kState, "MiB", model->make_backend(o, 1000));
  o.pages = most / 2;
  CHECK_ERROR(kState, "--training-memory", model->make_backend(o, free));
}

// A device gives memory in pieces of its own size.
#ifdef TANDEM_GPU_EMULATION
TEST(gpu_engine_says_that_weights_do_not_fit) {
  const cuda::DeviceBuffer<uint8_t> taken(cuda::device_free_bytes() - (size_t(1) << 16));
  CHECK_ERROR(kState, "weights do not fit", load_on_device(tiny_for_device()));
}

TEST(gpu_engine_takes_the_memory_that_it_plans) {
  auto model = load_on_device(tiny_for_device());
  engine::Options o = device_options();
  for (int64_t longest : {int64_t(112), int64_t(512)}) {
    o.max_model_len = longest;
    size_t planned = 0;
    for (const device::MemoryPart& part : model->memory_plan(o, 0)) planned += part.bytes;
    const size_t before = cuda::device_free_bytes();
    const Driver driver = device_driver(model, o);
    CHECK_EQ(before - cuda::device_free_bytes(), planned - model->weight_bytes());
  }
}
#endif

TEST_ENGINE(gpu_engine_keeps_quantised_weights_and_gives_the_bits_of_what_they_stand_for) {
  TinyModel source = tiny_for_device();
  source.spec.tied_embeddings = true;
  source.spec.hidden_size = 64;  // inputs are padded to so many
  for (ops::QuantFormat format : {ops::QuantFormat::kInt8, ops::QuantFormat::kInt4, ops::QuantFormat::kFp8}) {
    std::shared_ptr<device::Model> quantised, widened;
    source.with_files([&](const auto& files, const auto& tensors) {
      quantised = device::load(source.spec, files, tensors, 1, {}, format);
      widened = device::load(source.spec, Widened(files, tensors, format), 1, {});
    });
    CHECK(quantised->weight_bytes() < widened->weight_bytes());
    std::vector<Job> jobs = {device_job(18, 18, 3)}, wanted = jobs, on_cpu = jobs;
    Driver seen = device_driver(quantised, device_options()), truth = device_driver(widened, device_options());
    Driver cpu(dequantised(source, format).load(Element::kBf16, 1), device_options());
    run_together(seen, jobs);
    run_together(truth, wanted);
    run_together(cpu, on_cpu);
    check_same_jobs(jobs, wanted);
    CHECK(close_tokens(jobs[0], on_cpu[0]));
  }
}

TEST(gpu_engine_refuses_shapes_without_kernels) {
  TinyModel source = tiny_for_device();
  source.spec.head_dim = 10;
  CHECK_ERROR(kUnsupported, "10 dimensions", load_on_device(source));
  source = tiny_for_device();
  source.spec.intermediate_size = 73;
  CHECK_ERROR(kUnsupported, "multiples of 8", load_on_device(source));
  source = TinyModel::mixture();
  source.spec.head_dim = 32;
  CHECK_ERROR(kUnsupported, "multiples of 8", load_on_device(source));
}

}  // namespace
}  // namespace tandem::test
