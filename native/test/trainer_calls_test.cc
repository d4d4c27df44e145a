// What a trainer is asked for: bad rows, states and steps are refused by name, calls have their order, work that failed half-way ends the
// trainer, and nothing that a row left reaches the next one.
#include <atomic>
#include <fstream>
#include <functional>
#include <limits>

#include <unistd.h>

#include "test.h"
#include "train/cpu_compute.h"
#include "train_support.h"

namespace tandem::test {
namespace {

using ops::Element;
using train::Under;

const train::OptimizerStep kStep = {{0.01, 0.9, 0.99, 1e-8, 0.01}, 1};

struct Fixture {
  Random random{41};
  TinyModel tiny;
  std::shared_ptr<model::Model> model = tiny.load(Element::kF32, 1);
  train::State state = random_state(random, tiny.spec, all_modules(), 2);

  Row row(int64_t prefix = 20) { return Group(random, tiny.spec.vocab_size, prefix, {9, 5}).packed(); }
  std::unique_ptr<Trainer> trainer() const { return std::make_unique<Trainer>(model, train::Options{4096, kRoom, false}, state); }
};

TEST_ONCE(trainer_rows_are_checked) {
  Fixture f;
  f.tiny.spec.max_position = 64;
  f.model = f.tiny.load(Element::kF32, 1);
  const auto trainer = f.trainer();
  auto refuse = [&](const char* text, const std::function<void(Row&)>& spoil) {
    Row row = f.row();
    spoil(row);
    CHECK_ERROR(kRange, text, trainer->forward(row, Under::kCurrent));
  };
  // As many tokens as there are, but elsewhere.
  refuse("without gaps", [](Row& r) { r.segments = {{0, 20, -1, 0}, {21, 14, 0, 20}}; });
  refuse("without gaps", [](Row& r) { r.segments = {{0, 20, -1, 0}, {19, 14, 0, 20}}; });
  refuse("without gaps", [](Row& r) { r.segments = {{1, 34, -1, 0}}; });
  refuse("all tokens", [](Row& r) { r.segments.pop_back(); });
  refuse("count", [](Row& r) { r.segments.back().count += 1; });
  refuse("parent must be", [](Row& r) { r.segments[1].parent = 1; });
  refuse("must not have a parent", [](Row& r) { r.segments[2].parent = 1, r.segments[2].position = 9; });
  refuse("position", [](Row& r) { r.segments[2].position = 19; });
  refuse("targets", [](Row& r) { r.targets.back() = -2; });
  refuse("one entry per token", [](Row& r) { r.targets.push_back(1); });
  // A child's positions begin behind its parent's.
  CHECK_ERROR(kRange, "longer than the model's positions", trainer->forward(f.row(56), Under::kCurrent));
  trainer->forward(f.row(55), Under::kCurrent);
}

TEST_ONCE(trainer_states_are_checked) {
  const Fixture f;
  auto refuse = [&](const char* text, const std::function<void(train::State&)>& spoil) {
    train::State state = f.trainer()->state();
    spoil(state);
    CHECK_ERROR(kRange, text, Trainer(f.model, {4096, kRoom, false}, state));
  };
  refuse("factors must not be empty", [](auto& s) { s.factors.clear(), s.moments.clear(); });
  refuse("moments must be one per factors", [](auto& s) { s.moments.pop_back(); });
  refuse("steps must not be negative", [](auto& s) { s.steps = -1; });
  refuse("the scale must be that of all factors", [](auto& s) { s.factors[3].scale = 1; });
  refuse("layers.0.self_attn.v_proj: the moments have the wrong size", [](auto& s) { s.moments[2].a_m.pop_back(); });
  refuse("layers.0.self_attn.v_proj: the moments have the wrong size", [](auto& s) { s.moments[2].b_v.push_back(0); });
}

TEST_ONCE(trainer_steps_are_checked) {
  const Fixture f;
  const auto trainer = f.trainer();
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  auto refuse = [&](const char* text, const std::function<void(train::OptimizerStep&, double)>& put, const std::vector<double>& bad) {
    for (double value : bad) {
      train::OptimizerStep step = kStep;
      put(step, value);
      CHECK_ERROR(kRange, text, trainer->optimize(step));
    }
  };
  refuse("learningRate", [](auto& s, double v) { s.adamw.learning_rate = v; }, {-1e-9, 1001, nan, inf});
  refuse("beta1", [](auto& s, double v) { s.adamw.beta1 = v; }, {-0.1, 1, nan});
  refuse("beta2", [](auto& s, double v) { s.adamw.beta2 = v; }, {-0.1, 1, nan});
  refuse("eps", [](auto& s, double v) { s.adamw.eps = v; }, {0, -1, 1.1, nan});
  refuse("weightDecay", [](auto& s, double v) { s.adamw.weight_decay = v; }, {-0.1, 1001, nan, inf});
  refuse("maxGradNorm", [](auto& s, double v) { s.max_grad_norm = v; }, {0, -1, nan, inf});
  trainer->optimize(kStep);
}

TEST_ONCE(trainer_calls_have_their_order) {
  Fixture f;
  const auto trainer = f.trainer();
  const Row row = f.row();
  const std::vector<float> weights = weights_of(row, 3);
  auto adapter = std::make_shared<model::Adapter>(f.tiny.load(Element::kF32, 1), f.state.factors);
  CHECK_ERROR(kRange, "of another model", trainer->forward(row, Under::kOther, adapter));
  CHECK_ERROR(kRange, "of another model", trainer->forward(row, Under::kOther));
  trainer->forward(row, Under::kCurrent);
  CHECK_ERROR(kState, "not finished", trainer->forward(row, Under::kCurrent));
  CHECK_ERROR(kState, "not finished", trainer->optimize(kStep));
  run(*trainer);
  CHECK_EQ(trainer->scores().logprobs.size(), size_t(row.size()));
  // Those of a pass are gone when the next one begins.
  trainer->forward(row, Under::kBase);
  CHECK_ERROR(kState, "no forward pass is finished", trainer->scores());
  run(*trainer);
  trainer->scores();
  // The row that was scored under other factors has not taken the place of the one that is kept.
  trainer->backward(weights);
  CHECK_ERROR(kState, "not finished", trainer->backward(weights));
  run(*trainer);
  CHECK_ERROR(kState, "takes each row once", trainer->backward(weights));
  trainer->forward(row, Under::kCurrent);
  run(*trainer);
  for (int i = 0; i < 2; ++i) {
    trainer->optimize(kStep);
    CHECK_ERROR(kState, "no optimizer step is finished", trainer->outcome());
    CHECK_ERROR(kState, "in the middle of a step", trainer->state());
    run(*trainer);
    CHECK(trainer->outcome().applied);
    // The row was forwarded under the factors before.
    CHECK_ERROR(kState, "forwarded under the current factors", trainer->backward(weights));
  }
  CHECK_EQ(trainer->state().steps, int64_t(2));
  const int64_t factors = int64_t(f.state.factors.size());
  CHECK_EQ(trainer->state(factors - 1, 5).factors.size(), size_t(1));
  CHECK(trainer->state(factors, 5).factors.empty());
  for (const auto& part : {std::pair<int64_t, int64_t>(-1, 1), {factors + 1, 1}, {0, -1}}) {
    CHECK_ERROR(kRange, "begins in 0..factors", trainer->state(part.first, part.second));
  }
  // A slice that is interrupted is one unit long.
  const std::atomic<bool> interrupted{true};
  trainer->forward(row, Under::kCurrent);
  CHECK(!trainer->slice(int64_t(1) << 40, &interrupted));
  CHECK(trainer->slice(int64_t(1) << 40));
}

TEST_ONCE(trainer_units_are_as_many_panels_as_fit) {
  ThreadPool pool(2);
  const train::UnitSize unit(pool, 1000);
  for (int64_t panels : {1, 7, 64}) {
    for (int64_t work : {1, 31, 600, 2000, 5000}) {
      int64_t next = 0, most = 0;
      for (ops::PanelRange range : unit.cut(panels, work)) {
        CHECK_EQ(range.first, next);
        most = std::max(most, range.end - range.first);
        next = range.end;
      }
      CHECK_EQ(next, panels);
      CHECK(most == 1 || most * work <= 2000);
      CHECK(most == panels || (most + 1) * work > 1000);
    }
  }
}

// One unit of work goes well, the next does not.
class Failing final : public train::Compute {
 public:
  int64_t row_bytes(const Row&, Under, const model::Adapter*) const override { return 1; }
  train::Steps forward(Row row, Under, std::shared_ptr<const model::Adapter>, train::Scores&) override {
    kept_ = std::move(row);
    return work(fails_forward);
  }
  const Row* kept() const override { return &kept_; }
  train::Steps backward(std::vector<float>) override { return work(fails); }
  train::Steps optimize(train::OptimizerStep, train::StepOutcome&) override { return work(fails); }
  train::State state(int64_t, int64_t) const override { return {}; }
  std::shared_ptr<const model::Adapter> adapter() const override { return nullptr; }

  bool fails_forward = false, fails = true;

 private:
  static train::Steps work(bool fails) {
    co_yield 1;
    if (fails) throw Error(ErrorKind::kState, "no more memory");
  }
  Row kept_;
};

TEST_ONCE(trainer_goes_on_after_a_forward_pass_that_failed_and_after_nothing_else) {
  Fixture f;
  const Row row = f.row();
  const std::vector<float> weights = weights_of(row, 3);
  for (bool optimizes : {false, true}) {
    auto made = std::make_unique<Failing>();
    Failing& compute = *made;
    Trainer trainer(f.model, {4096, kRoom, false}, std::move(made));
    compute.fails_forward = true;
    trainer.forward(row, Under::kCurrent);
    CHECK(!trainer.slice(0));
    CHECK_ERROR(kState, "no more memory", trainer.slice(0));
    CHECK_ERROR(kState, "nothing to do", trainer.slice(0));
    CHECK_ERROR(kState, "no forward pass", trainer.scores());
    compute.fails_forward = false;
    trainer.forward(row, Under::kCurrent);
    run(trainer);
    trainer.scores();
    trainer.state();
    if (optimizes) trainer.optimize(kStep);
    else trainer.backward(weights);
    CHECK_ERROR(kState, "no more memory", run(trainer));
    const char* const broken = "failed half-way";
    CHECK_ERROR(kState, broken, trainer.slice(0));
    CHECK_ERROR(kState, broken, trainer.forward(row, Under::kCurrent));
    CHECK_ERROR(kState, broken, trainer.backward(weights));
    CHECK_ERROR(kState, broken, trainer.optimize(kStep));
    CHECK_ERROR(kState, "middle of a step", trainer.state());
  }
}

TEST_ONCE(trainer_takes_factors_in_any_order) {
  Fixture f;
  const Row row = f.row();
  const std::vector<float> weights = weights_of(row, 5);
  auto gradient_squares = [&] {
    const auto trainer = f.trainer();
    trainer->forward(row, Under::kCurrent);
    run(*trainer);
    trainer->backward(weights);
    run(*trainer);
    trainer->optimize(kStep);
    run(*trainer);
    return trainer->outcome().grad_norm;
  };
  const double ascending = gradient_squares();
  std::reverse(f.state.factors.begin(), f.state.factors.end());
  CHECK_NEAR(gradient_squares() / ascending, 1, 1e-12);
}

// Factors are stepped in blocks by several threads: each number once.
TEST_ONCE(trainer_steps_every_number_of_large_factors_once) {
  Fixture f;
  f.model = f.tiny.load(Element::kF32, 2);
  f.state = random_state(f.random, f.tiny.spec, {model::Module::kDown}, 600, 0.01f);
  const auto trainer = f.trainer();
  const Row row = f.row();
  trainer->forward(row, Under::kCurrent);
  run(*trainer);
  trainer->backward(weights_of(row, 5));
  run(*trainer);
  trainer->optimize({{0.01, 0.5, 0.75, 1e-8, 0}, 1e30});
  run(*trainer);
  for (const train::Moments& m : trainer->state().moments) {
    CHECK(m.a_m.size() > 2 * 16384 && m.b_m.size() > 16384);
    for (auto [first, second] : {std::pair(&m.a_m, &m.a_v), std::pair(&m.b_m, &m.b_v)}) {
      // (g / 2)^2 and g^2 / 4.
      for (size_t i = 0; i < first->size(); ++i) CHECK(std::fabs((*first)[i] * (*first)[i] - (*second)[i]) <= 1e-5f * (*second)[i]);
    }
  }
}

std::vector<float> logprobs_of(Trainer& trainer, const Row& row) {
  trainer.forward(row, Under::kCurrent);
  run(trainer);
  return trainer.scores().logprobs;
}

TEST_ENGINE(trainer_keeps_keys_and_values_as_they_are_beside_an_engine_of_int8_pages) {
  Fixture f;
  const Row row = f.row(50);
  const std::vector<float> plain = logprobs_of(*f.trainer(), row);
  f.tiny.int8_kv = true;
  f.model = f.tiny.load(Element::kF32, 1);
  const std::vector<float> beside = logprobs_of(*f.trainer(), row);
  CHECK(same_bits(plain.data(), beside.data(), plain.size()));
}

// One that needs tokens most, and one that needs pages most: `count` sequences of 120 tokens; as many times six of one token behind one.
std::vector<Row> unlike_rows(Fixture& f, int64_t count) {
  Row tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.segments.push_back({tokens.size(), 120, -1, 0});
    Group::append(tokens, random_tokens(f.random, 120, f.tiny.spec.vocab_size));
  }
  return {tokens, Group(f.random, f.tiny.spec.vocab_size, 1, std::vector<int64_t>(size_t(6 * count), 1)).packed()};
}

int64_t most_of(const train::CpuCompute& compute, const std::vector<Row>& rows) {
  int64_t most = 0;
  for (const Row& row : rows) most = std::max(most, compute.row_bytes(row, Under::kCurrent, nullptr));
  return most;
}

// Memory counts once it is asked for: nothing here is touched.
TEST_ONCE(trainer_holds_no_more_memory_than_it_may_whatever_shapes_follow_one_another) {
  auto held = [] {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * int64_t(sysconf(_SC_PAGESIZE));
  };
  Fixture f;
  f.tiny.spec.max_position = 120;
  f.model = f.tiny.load(Element::kF32, 1);
  const std::vector<Row> rows = unlike_rows(f, 1000);
  const int64_t most = most_of({f.model, {1 << 20, kRoom, false}, f.state}, rows);
  train::Scores scores;
  for (bool both : {false, true}) {
    train::CpuCompute compute(f.model, {1 << 20, both ? 2 * most : most, false}, f.state);
    const int64_t before = held();
    for (int round = 0; round < 3; ++round) {
      for (Under under : {Under::kCurrent, Under::kBase}) {
        for (const Row& row : rows) {
          compute.forward(row, under, nullptr, scores);
          CHECK(held() - before < most * 11 / 10 || both);
        }
      }
    }
    // With room for all of them nothing is given back.
    CHECK(held() - before > most * 12 / 10 || !both);
  }
}

TEST_ENGINE(trainer_computes_the_same_where_rows_take_one_anothers_memory) {
  Fixture f;
  f.tiny.spec.max_position = 120;
  f.model = f.tiny.load(Element::kBf16, 1);
  const std::vector<Row> rows = unlike_rows(f, 3);
  const train::Options roomy{4096, kRoom, false}, tight{4096, most_of({f.model, roomy, f.state}, rows), false};
  Trainer trainer(f.model, tight, f.state), free(f.model, roomy, f.state);
  for (int round = 0; round < 2; ++round) {
    for (const Row& row : rows) {
      std::vector<std::vector<float>> found;
      for (Trainer* t : {&trainer, &free}) {
        t->forward(row, Under::kBase);
        run(*t);
        found.push_back(logprobs_of(*t, row));
        t->backward(weights_of(row, 7));
        run(*t);
        const std::vector<float> gradient = gradients(*t);
        found.back().insert(found.back().end(), gradient.begin(), gradient.end());
      }
      CHECK(same_bits(found[0].data(), found[1].data(), found[0].size()));
    }
  }
}

// Token 101 has an embedding that is not finite: it fills pages, activations and gradients with NaN.
TEST_ENGINE(trainer_leaves_nothing_of_a_broken_row_to_the_next) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    TinyModel wide;
    wide.spec.head_dim = 14, wide.spec.intermediate_size = 90;
    for (const TinyModel& tiny : {TinyModel(), wide, TinyModel::mixture()}) {
      Fixture f;
      f.tiny = tiny;
      f.tiny.broken_tokens = {{101, NAN}};
      f.model = f.tiny.load(element, 1);
      f.state = random_state(f.random, f.tiny.spec, all_modules(), 2);
      auto finite_row = [&](int64_t prefix, int64_t ending) {
        Row row = Group(f.random, 100, prefix, {ending, 5}).packed();
        return row;
      };
      Row broken = finite_row(60, 40);
      broken.tokens[3] = 101;
      const Row row = finite_row(21, 9);
      const std::vector<float> weights = weights_of(row, 5);
      auto gradient_of = [&](Trainer& trainer) {
        std::vector<float> found = logprobs_of(trainer, row);
        trainer.backward(weights);
        run(trainer);
        const std::vector<float> gradient = gradients(trainer);
        found.insert(found.end(), gradient.begin(), gradient.end());
        return found;
      };
      const auto fresh = f.trainer(), used = f.trainer();
      CHECK(std::isnan(logprobs_of(*used, broken).back()));
      used->backward(weights_of(broken, 6));
      run(*used);
      used->optimize(kStep);
      run(*used);
      CHECK(!used->outcome().applied);
      const std::vector<float> wanted = gradient_of(*fresh), found = gradient_of(*used);
      CHECK(same_bits(wanted.data(), found.data(), wanted.size()));
    }
  }
}

}  // namespace
}  // namespace tandem::test
