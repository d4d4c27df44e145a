// The trainer on a device: log-probabilities are those of its engine bit for bit, gradients and losses those of the CPU's trainer within
// what bf16 rounds, and nothing depends on slices or on what is kept.
#include <limits>

#include "trainer_fixture.h"
#include "widened.h"

namespace tandem::test {
namespace {

using ops::Element;

// One optimizer step per round on the row's weighted log-probabilities; the sum before each.
std::vector<double> learn(Trainer& trainer, const Row& row, const std::vector<float>& weights, int rounds) {
  std::vector<double> sums;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<float> logprobs = logprobs_of(trainer, row);
    double sum = 0;
    std::vector<float> rising;
    for (size_t i = 0; i < weights.size(); ++i) {
      sum += double(weights[i]) * double(logprobs[i]);
      rising.push_back(-weights[i]);
    }
    sums.push_back(sum);
    trainer.backward(rising);
    run(trainer);
    trainer.optimize({{0.01, 0.9, 0.99, 1e-8, 0.1}, 1.0});
    run(trainer);
  }
  return sums;
}

TEST_ENGINE(gpu_trainer_logprobs_have_the_bits_of_the_engine) {
  const TinyModel source = tiny_for_device(kWindow);
  check_logprobs(source, load_on_device(source));
}

// Serving leaves products in parts, of which the adapters' is one; the trainer adds up each product first.
TEST_ENGINE(gpu_trainer_logprobs_have_the_bits_of_the_engine_where_products_come_in_parts) {
  TinyModel source = tiny_for_device();
  source.spec.output_bias = source.spec.mlp_bias = false;
  source.spec.hidden_size = source.spec.intermediate_size = 512;
  check_logprobs(source, load_on_device(source));
}

// Of many rows at a time other kernels add the adapters, with the same bits; so they have where layers are computed again.
TEST_ENGINE(gpu_trainer_gives_the_same_of_many_rows_at_a_time) {
  Random random(97);
  TinyModel source = tiny_for_device(kWindow);
  source.spec.mlp_bias = false;
  source.spec.max_position = 512;
  auto model = load_on_device(source);
  const train::State state = random_state(random, source.spec, all_modules(), 3);
  const Row row = Group(random, source.spec.vocab_size, 150, {90, 60}).packed();
  const std::vector<float> weights = weights_of(row, 6);
  auto few = model->make_trainer({304, kRoom, false, 1}, state);
  const std::vector<float> wanted = gradients_of(*few, row, weights), logprobs = few->scores().logprobs;
  std::vector<float> kept;
  for (bool recompute : {false, true}) {
    auto many = model->make_trainer({304, kRoom, recompute, int64_t(1) << 30}, state);
    const std::vector<float> seen = gradients_of(*many, row, weights);
    CHECK(same_bits(many->scores().logprobs, logprobs));
    check_gradients(state, seen, wanted);
    CHECK(kept.empty() || same_bits(seen, kept));
    kept = seen;
  }
}

TEST_ENGINE(hopper_trainer_logprobs_have_the_bits_of_the_engine) {
  if (!on_hopper()) return;
  const TinyModel source = tiny_for_device(kWindow);
  check_logprobs(source, load_with_wgmma(source, {"TANDEM_CUDA_MATMUL", "TANDEM_CUDA_ATTENTION"}));
}

TEST_ENGINE(gpu_trainer_gives_the_gradients_of_the_cpu) {
  const TinyModel source = tiny_for_device(kWindow);
  check_gradients_against_cpu(source, load_on_device(source), 92, true);
}

TEST_ENGINE(hopper_trainer_gives_the_gradients_of_the_cpu) {
  if (!on_hopper()) return;
  const TinyModel source = tiny_for_device(kWindow);
  check_gradients_against_cpu(source, load_with_wgmma(source, {"TANDEM_CUDA_MATMUL", "TANDEM_CUDA_ATTENTION"}), 92, true);
}

TEST_ENGINE(gpu_trainer_gives_the_gradients_of_the_cpu_for_other_families) {
  TinyModel llama = tiny_for_device(kWindow);
  llama.spec.qkv_bias = llama.spec.output_bias = llama.spec.mlp_bias = llama.spec.qk_norm = false;
  llama.spec.window_layers = {0, 0};
  llama.spec.sliding_window = 0;
  llama.spec.tied_embeddings = true;
  llama.spec.heads = 3;
  llama.spec.kv_heads = 1;
  check_gradients_against_cpu(llama, load_on_device(llama), 95);
}

TEST_ENGINE(gpu_trainer_shares_a_prefix_without_a_change) {
  Random random(93);
  const TinyModel source = tiny_for_device(kWindow);
  auto model = load_on_device(source);
  const train::State state = random_state(random, source.spec, all_modules(), 2);
  for (int64_t prefix : {16, 21}) {
    const Group group(random, source.spec.vocab_size, prefix, {12, 1});
    auto trainer = model->make_trainer(trainer_options(), state);
    const Row packed = group.packed();
    const std::vector<float> logprobs = logprobs_of(*trainer, packed);
    for (size_t i = 0; i < group.endings.size(); ++i) {
      const train::Segment& s = packed.segments[i + 1];
      const std::vector<float> alone = logprobs_of(*trainer, group.alone(i));
      CHECK(same_bits(alone.data() + prefix, logprobs.data() + s.first, size_t(s.count)));
    }
  }
}

TEST_ENGINE(gpu_trainer_learns_as_the_cpu_does) {
  Random random(97);
  TinyModel source = tiny_for_device(kWindow);
  source.spec.layers = 1;
  source.spec.window_layers = {0};
  const train::State state = random_state(random, source.spec, {model::Module::kQ, model::Module::kDown}, 3, 0.0f);
  const Row row = Group(random, source.spec.vocab_size, 3, {10}).packed();
  std::vector<float> weights;
  for (int32_t target : row.targets) weights.push_back(target < 0 ? 0.0f : 1.0f / 10);
  auto model = load_on_device(source);
  auto trainer = model->make_trainer(trainer_options(), state);
  Trainer cpu(source.load(Element::kBf16, 1), {128, kRoom, false}, state);
  const std::vector<double> seen = learn(*trainer, row, weights, 10), wanted = learn(cpu, row, weights, 10);
  for (size_t i = 0; i < seen.size(); ++i) CHECK_NEAR(seen[i], wanted[i], 0.05);
  CHECK(seen.back() > seen.front() + 0.5);
  CHECK_EQ(trainer->state().steps, int64_t(10));
  // What is published: its log-probabilities under an adapter made from the state are those of the trainer.
  const train::State learned = trainer->state();
  auto published = model->place(model::Adapter(model->facts(), learned.factors));
  const std::vector<float> current = logprobs_of(*trainer, row);
  CHECK(same_bits(logprobs_of(*trainer, row, train::Under::kOther, published), current));
  const auto copy = trainer->adapter();
  CHECK(copy->bytes() > 0);
  CHECK(same_bits(logprobs_of(*trainer, row, train::Under::kOther, copy), current));
  // A trainer that begins with that state goes on with the same bits.
  auto next = model->make_trainer(trainer_options(), learned);
  CHECK(learn(*next, row, weights, 2) == learn(*trainer, row, weights, 2));
  CHECK(next->state().moments[1].b_v == trainer->state().moments[1].b_v);
  // Steps after it change nothing of what was published.
  CHECK(same_bits(logprobs_of(*trainer, row, train::Under::kOther, copy), current));
}

TEST_ENGINE(gpu_trainer_skips_a_step_that_is_not_finite) {
  Random random(98);
  const TinyModel source = tiny_for_device(kWindow);
  const train::State state = random_state(random, source.spec, {model::Module::kV}, 2);
  auto trainer = load_on_device(source)->make_trainer(trainer_options(), state);
  const Row row = Group(random, source.spec.vocab_size, 3, {4}).packed();
  std::vector<float> weights = weights_of(row, 6);
  logprobs_of(*trainer, row);
  weights[4] = std::numeric_limits<float>::infinity();
  trainer->backward(weights);
  run(*trainer);
  trainer->optimize({{0.01, 0.9, 0.99, 1e-8, 0.1}, 1.0});
  run(*trainer);
  CHECK(!trainer->outcome().applied && std::isnan(trainer->outcome().grad_norm));
  CHECK(trainer->state().factors[0].a == state.factors[0].a && trainer->state().steps == 0);
  // The gradients are gone: the next step is an ordinary one.
  weights[4] = 1;
  logprobs_of(*trainer, row);
  trainer->backward(weights);
  run(*trainer);
  trainer->optimize({{0.01, 0.9, 0.99, 1e-8, 0.1}, 1.0});
  run(*trainer);
  CHECK(trainer->outcome().applied && std::isfinite(trainer->outcome().grad_norm));
}

TEST_ENGINE(gpu_trainer_takes_quantised_weights_for_what_they_stand_for) {
  Random random(99);
  const TinyModel source = tiny_for_device(kWindow);
  const train::State state = random_state(random, source.spec, all_modules(), 2);
  const Row row = Group(random, source.spec.vocab_size, 5, {12}).packed();
  const std::vector<float> weights = weights_of(row, 6);
  for (ops::QuantFormat format : {ops::QuantFormat::kInt4, ops::QuantFormat::kFp8}) {
    std::shared_ptr<device::Model> quantised, widened;
    source.with_files([&](const auto& files, const auto& tensors) {
      quantised = device::load(source.spec, files, tensors, 1, {}, format);
      widened = device::load(source.spec, Widened(files, tensors, format), 1, {});
    });
    auto seen = quantised->make_trainer(trainer_options(), state), wanted = widened->make_trainer(trainer_options(), state);
    CHECK(same_bits(gradients_of(*seen, row, weights), gradients_of(*wanted, row, weights)));
  }
}

// A device gives memory in pieces of its own size.
#ifdef TANDEM_GPU_EMULATION
TEST(gpu_trainer_takes_the_memory_that_it_says) { check_trainer_memory(tiny_for_device(kWindow)); }

TEST(gpu_trainer_holds_no_more_memory_than_it_may_whatever_shapes_follow_one_another) {
  Random random(98);
  const TinyModel source = tiny_for_device(kWindow);
  auto model = load_on_device(source);
  const train::State state = random_state(random, source.spec, {model::Module::kQ}, 3);
  const int64_t vocab = source.spec.vocab_size;
  // Tokens most, and pages most.
  const Row tokens = Group(random, vocab, 90, {7}).alone(0), pages = Group(random, vocab, 1, std::vector<int64_t>(30, 1)).packed();
  const train::Options roomy{100, kRoom, false, 1};
  const int64_t most = model->make_trainer(roomy, state)->row_bytes(tokens.size());
  auto tight = model->make_trainer({100, most, false, 1}, state), free = model->make_trainer(roomy, state);
  for (const Row& row : {tokens, pages, tokens}) {
    CHECK(same_bits(logprobs_of(*tight, row), logprobs_of(*free, row)));
  }
  for (Trainer* trainer : {tight.get(), free.get()}) gradients_of(*trainer, tokens, weights_of(tokens, 6));
  const size_t both = cuda::device_free_bytes();
  free.reset();
  const size_t one = cuda::device_free_bytes();
  tight.reset();
  CHECK(int64_t(cuda::device_free_bytes() - one) <= most);
  CHECK(int64_t(one - both) > most);
}
#endif

TEST(gpu_trainer_refuses_what_does_not_fit) {
  Random random(96);
  const TinyModel source = tiny_for_device(kWindow);
  auto model = load_on_device(source);
  train::State state = random_state(random, source.spec, {model::Module::kQ}, 2);
  CHECK_ERROR(kRange, "--training-memory", model->make_trainer({128, 1 << 16, false, 1}, state));
  const int64_t needed = model->make_trainer(trainer_options(), state)->row_bytes(128);
  CHECK(model->make_trainer(trainer_options(true), state)->row_bytes(128) < needed);
  auto trainer = model->make_trainer({128, needed, false, 1}, state);
  const Row row = Group(random, source.spec.vocab_size, 100, {28}).alone(0);
  trainer->forward(row, train::Under::kCurrent);
  auto less = model->make_trainer({128, needed - 4096, false, 1}, state);
  CHECK_ERROR(kRange, "a packed row of 128 tokens needs", less->forward(row, train::Under::kCurrent));
  state.factors[0].a.pop_back();
  CHECK_ERROR(kRange, "layers.0.self_attn.q_proj", model->make_trainer(trainer_options(), state));
}

// Who gives training a share of the time counts what a slice took.
#ifdef TANDEM_GPU_EMULATION
TEST_ENGINE(gpu_trainer_leaves_nothing_on_the_device_behind_a_slice) {
  Random random(101);
  const TinyModel source = tiny_for_device(kWindow);
  auto model = load_on_device(source);
  const Row row = packed(random, source.spec);
  for (bool recompute : {false, true}) {
    auto trainer = model->make_trainer(trainer_options(recompute), random_state(random, source.spec, all_modules(), 3));
    auto check_slices = [&] {
      while (!trainer->slice(0)) CHECK_EQ(gpu_emulation::undone(), int64_t(0));
      CHECK_EQ(gpu_emulation::undone(), int64_t(0));
    };
    // A stream that was waited for decides anew to do its work at once or late.
    for (int i = 0; i < 4; ++i) {
      trainer->forward(row, train::Under::kCurrent);
      check_slices();
    }
    trainer->backward(weights_of(row, 6));
    check_slices();
    trainer->optimize({{0.01, 0.9, 0.99, 1e-8, 0.1}, 1.0});
    check_slices();
  }
}
#endif

}  // namespace
}  // namespace tandem::test
