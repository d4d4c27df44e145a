// Memory runs out at every place of a step in turn: the step throws, and the engine either never saw the plan or refuses to go on.
// And what runs for every token, the forward pass and the sampler, asks for none once it has run. A trainer whose forward pass failed goes on.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "driver.h"
#include "test.h"
#include "tiny_model.h"
#include "train_support.h"

namespace {

// Allocations until one fails; negative: none fails.
std::atomic<int64_t> allocations_left{-1};
std::atomic<int64_t> allocations{0};

void* allocate(size_t bytes) {
  allocations.fetch_add(1);
  if (allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0) throw std::bad_alloc();
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes ? bytes : 1); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes ? bytes : 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace tandem::test {
namespace {

engine::Options steady_options() {
  engine::Options o;
  o.max_sequences = 4;
  o.max_batch_tokens = 64;
  o.pages = 16;
  o.max_model_len = 100;
  o.samplable_vocab = 103;
  o.max_logprobs = 4;
  return o;
}

engine::Plan plan_of(int64_t slots) {
  engine::Plan plan;
  for (int64_t s = 0; s < slots; ++s) {
    engine::Open open;
    open.slot = s;
    open.prompt_length = 18;
    open.params.max_tokens = 5;
    open.params.stop_ids = {3, 4};
    open.params.sampling.logprobs = 4;
    open.params.sampling.top_p = 0.9;
    plan.opens.push_back(open);
    plan.pages.push_back({s, 0, 2 * s});
    plan.pages.push_back({s, 1, 2 * s + 1});
    plan.rows.push_back({s, 0, 18, true});
    for (int32_t i = 0; i < 18; ++i) plan.tokens.push_back(i + int32_t(s));
  }
  return plan;
}

// True when the step with the n-th allocation failing went through, so that no later one needs a try.
bool step_with_failure(const std::shared_ptr<model::Model>& model, int64_t n, const engine::StepResult& truth) {
  engine::Engine engine(model, steady_options());
  engine::Plan plan = plan_of(3);
  bool failed = false;
  allocations_left = n;
  try {
    engine.step(plan);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  allocations_left = -1;
  if (!failed) return true;
  try {
    engine::StepResult again = engine.step(plan);
    CHECK_EQ(again.samples.size(), truth.samples.size());
    for (size_t i = 0; i < again.samples.size(); ++i) CHECK_EQ(again.samples[i].token, truth.samples[i].token);
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::kState);
  }
  return false;
}

TEST_ONCE(engine_survives_running_out_of_memory_anywhere_in_a_step) {
  for (int threads : {1, 2}) {
    auto model = (threads == 1 ? TinyModel() : TinyModel::mixture()).load(ops::Element::kBf16, threads);
    engine::Engine calm(model, steady_options());
    engine::StepResult truth = calm.step(plan_of(3));
    int64_t n = 0;
    while (n < 2000 && !step_with_failure(model, n, truth)) ++n;
    CHECK(n > 20);    // the failures reached into the step
    CHECK(n < 2000);  // and came to its end
  }
}

// True when the second of two rows went through a forward pass in which the n-th allocation fails.
bool forward_with_failure(const std::shared_ptr<model::Model>& model, const train::State& state, const Row& first, const Row& second,
                          int64_t n, const std::vector<float>& truth) {
  const std::vector<float> weights = weights_of(first, 4);
  Trainer trainer(model, {4096, kRoom, false}, state);
  trainer.forward(first, train::Under::kCurrent);
  run(trainer);
  bool failed = false;
  allocations_left = n;
  try {
    trainer.forward(second, train::Under::kCurrent);
    run(trainer);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  allocations_left = -1;
  if (!failed) return true;
  try {
    // The first row is kept, or none is.
    trainer.backward(weights);
  } catch (const Error& error) {
    CHECK_EQ(error.kind(), ErrorKind::kState);
    trainer.forward(first, train::Under::kCurrent);
    run(trainer);
    trainer.backward(weights);
  }
  run(trainer);
  const std::vector<float> found = gradients(trainer);
  CHECK(same_bits(found.data(), truth.data(), truth.size()));
  return false;
}

TEST_ONCE(trainer_survives_running_out_of_memory_anywhere_in_a_forward_pass) {
  Random random(17);
  TinyModel tiny = TinyModel::mixture();
  auto model = tiny.load(ops::Element::kF32, 1);
  const train::State state = random_state(random, tiny.spec, all_modules(), 2);
  const Row first = Group(random, 100, 20, {9, 5}).packed(), second = Group(random, 100, 40, {20, 9}).packed();
  Trainer calm(model, {4096, kRoom, false}, state);
  calm.forward(first, train::Under::kCurrent);
  run(calm);
  calm.backward(weights_of(first, 4));
  run(calm);
  const std::vector<float> truth = gradients(calm);
  int64_t n = 0;
  while (n < 100000 && !forward_with_failure(model, state, first, second, n, truth)) n += 1 + n / 4;
  CHECK(n > 50);
  CHECK(n < 100000);
}

// Eight sequences that decode together, two of them under each of two adapters, three on pages that they share.
class Decode {
 public:
  Decode(const std::shared_ptr<model::Model>& model)
      : model_(model), kv_(model->kv_shape(), kSequences * kPages), forward_(*model, 16 * kPages, kSequences * kPrompt, kSequences) {
    for (int64_t i = 0; i < 2; ++i) {
      adapters_.push_back(std::make_shared<model::Adapter>(model, tiny_factors(model->spec, 5 + uint64_t(i), 4, all_modules())));
    }
    for (int64_t s = 0; s < kSequences; ++s) {
      for (int64_t p = 0; p < kPages; ++p) tables_.push_back(int32_t(p < 4 && s > 4 ? 4 * kPages + p : s * kPages + p));
    }
    for (int64_t page = 0; page < kv_.pages(); ++page) kv_.clear(page);
    params_.resize(kSequences);
    params_[1].temperature = 0;
    params_[2].top_p = 0.9;
    params_[3].top_k = 5;
    params_[4].min_p = 0.01;
    params_[5].bias = {{7, 1.5f}};
    for (int64_t s = 2; s < kSequences; ++s) params_[size_t(s)].logprobs = s;
    top_.reserve(kSequences * kSequences);
    // The shared pages are written by one sequence alone.
    for (int64_t s = 0; s < kSequences; ++s) feed(s, s > 4 ? 64 : 0, s > 4 ? kPrompt - 64 : kPrompt);
    forward_.run(batch_, kv_);
    position_ = kPrompt;
  }

  void step() {
    batch_.tokens.clear();
    batch_.runs.clear();
    batch_.adapters.clear();
    batch_.wanted.clear();
    for (int64_t s = 0; s < kSequences; ++s) feed(s, position_, 1);
    forward_.run(batch_, kv_);
    ++position_;
    for (int64_t s = 0; s < kSequences; ++s) hidden_[s] = forward_.hidden(s);
    float* logits = forward_.logits(hidden_, kSequences);
    top_.clear();
    for (int64_t s = 0; s < kSequences; ++s) {
      int64_t vocab = model_->spec.vocab_size;
      ops::SampleInput input{logits + s * forward_.ld_logits(), vocab, vocab, &none_, &params_[size_t(s)], nullptr, uint64_t(position_)};
      CHECK(ops::sample(model_->kernels, input, scratch_, top_).token >= 0);
    }
  }

 private:
  static constexpr int64_t kSequences = 8, kPrompt = 70, kPages = 8;

  void feed(int64_t s, int64_t position, int64_t count) {
    batch_.runs.push_back({int64_t(batch_.tokens.size()), position, count, tables_.data() + s * kPages});
    for (int64_t i = 0; i < count; ++i) batch_.tokens.push_back(int32_t((7 * s + 3 * (position + i)) % 100));
    // Rows of a shared prefix are computed without an adapter.
    batch_.adapters.push_back(s < 4 ? adapters_[size_t(s / 2)].get() : nullptr);
    batch_.wanted.push_back(int32_t(batch_.tokens.size()) - 1);
  }

  std::shared_ptr<model::Model> model_;
  ops::KvPages kv_;
  model::Forward forward_;
  std::vector<std::shared_ptr<model::Adapter>> adapters_;
  std::vector<int32_t> tables_, none_;
  std::vector<ops::SamplingParams> params_;
  model::ForwardBatch batch_;
  const float* hidden_[kSequences];
  ops::SamplingScratch scratch_;
  std::vector<ops::TopEntry> top_;
  int64_t position_ = 0;
};

TEST_ENGINE(a_token_costs_no_allocation_in_the_forward_pass_and_the_sampler) {
  for (ops::Element element : {ops::Element::kF32, ops::Element::kBf16}) {
    for (auto [small, mixes] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      TinyModel tiny = mixes ? TinyModel::mixture() : TinyModel();
      tiny.int8_kv = small;
      if (small) tiny.quantise = model::Quantise{ops::QuantFormat::kInt8};
      // One thread: which of several has run what, and has its memory, is chance.
      Decode decode(tiny.load(element, 1));
      for (int i = 0; i < 2; ++i) decode.step();
      int64_t before = allocations;
      for (int i = 0; i < 40; ++i) decode.step();
      CHECK_EQ(allocations.load() - before, int64_t(0));
    }
  }
}

// Allocations of one decode step of a whole engine with so many sequences, once it has run for a while.
int64_t allocations_of_step(const std::shared_ptr<model::Model>& model, int64_t sequences) {
  engine::Options o = steady_options();
  o.max_sequences = o.pages = sequences;
  o.max_batch_tokens = 8 * sequences;
  engine::Engine engine(model, o);
  engine::Plan first, next;
  for (int64_t s = 0; s < sequences; ++s) {
    engine::Open open;
    open.slot = s;
    open.prompt_length = 2;
    open.params.max_tokens = 14;
    open.params.sampling.seed = uint64_t(s);
    first.opens.push_back(open);
    first.pages.push_back({s, 0, s});
    first.rows.push_back({s, 0, 2, true});
    first.tokens.insert(first.tokens.end(), {int32_t(s), 7});
    next.rows.push_back({s, 2, 1, true});
    next.tokens.push_back(-1);
  }
  engine.step(first);
  int64_t before = 0;
  for (int i = 0; i < 8; ++i) {
    before = allocations;
    engine.step(next);
    for (engine::Row& row : next.rows) ++row.first_position;
  }
  return allocations.load() - before;
}

TEST_ONCE(a_step_of_many_tokens_allocates_no_more_than_one_of_few) {
  auto model = TinyModel().load(ops::Element::kBf16, 1);
  int64_t few = allocations_of_step(model, 2);
  for (int64_t n : {1, 2, 8, 32, 64}) CHECK_EQ(allocations_of_step(model, n), few);
}

}  // namespace
}  // namespace tandem::test
