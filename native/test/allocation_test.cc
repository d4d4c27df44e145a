// Memory runs out at every place of a step in turn: the step throws, and the engine either never saw the plan or refuses to go on.
#include <atomic>
#include <cstdlib>
#include <new>

#include "driver.h"
#include "test.h"
#include "tiny_model.h"

namespace {

// Allocations until one fails; negative: none fails.
std::atomic<int64_t> allocations_left{-1};

void* allocate(size_t bytes) {
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

engine::Options options() {
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
  engine::Engine engine(model, options());
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
    auto model = TinyModel().load(ops::Element::kBf16, threads);
    engine::Engine calm(model, options());
    engine::StepResult truth = calm.step(plan_of(3));
    int64_t n = 0;
    while (n < 2000 && !step_with_failure(model, n, truth)) ++n;
    CHECK(n > 20);    // the failures reached into the step
    CHECK(n < 2000);  // and came to its end
  }
}

}  // namespace
}  // namespace tandem::test
