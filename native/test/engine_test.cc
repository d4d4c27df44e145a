// The engine's promise: a sequence's tokens and log-probabilities do not depend on chunks, batch mates, pages, threads or preemption.
#include "engine/engine.h"

#include <set>
#include <thread>

#include "driver.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using engine::Finish;
using ops::Element;

// What the model computes with, and what it keeps keys and values as.
struct Format {
  Element element;
  bool int8_kv = false;

  TinyModel tiny() const {
    TinyModel model;
    model.int8_kv = int8_kv;
    return model;
  }
  std::shared_ptr<model::Model> load(int threads) const { return tiny().load(element, threads); }
};
constexpr Format kFormats[] = {{Element::kF32}, {Element::kBf16}, {Element::kF32, true}, {Element::kBf16, true}};

std::vector<Job> jobs() {
  return {random_job(1, 1, 9),   random_job(2, 17, 12), random_job(3, 70, 6, 0),
          random_job(4, 33, 20), random_job(5, 16, 5),  random_job(6, 64, 8)};
}

// Each job in an engine of its own, its prompt in one piece.
std::vector<Job> alone(const std::shared_ptr<model::Model>& model, std::vector<Job> all) {
  for (Job& j : all) {
    Driver driver(model, driven_options());
    driver.start(0, j);
    driver.run();
  }
  return all;
}

struct Setting {
  int64_t chunk = 1 << 30;
  uint64_t page_seed = 0;
  bool explicit_tokens = false;
};

// All jobs in one engine, in slots in reverse order.
std::vector<Job> together(const std::shared_ptr<model::Model>& model, std::vector<Job> all, const Setting& setting) {
  Driver driver(model, driven_options(), setting.page_seed);
  driver.set_chunk(setting.chunk);
  driver.set_explicit_tokens(setting.explicit_tokens);
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(all.size() - i), all[i]);
  driver.run();
  return all;
}

void check_all_same(const std::vector<Job>& a, const std::vector<Job>& b) {
  for (size_t i = 0; i < a.size(); ++i) check_same(a[i], b[i]);
}

TEST_ENGINE(engine_uses_the_forced_kernels) {
  auto model = TinyModel().load(Element::kF32, 1);
  CHECK_EQ(model->kernels.isa, simd::selected_isa());
  CHECK_EQ(model->pool.threads(), 1);
}

TEST_ENGINE(engine_same_bits_alone_batched_chunked_and_on_any_pages) {
  for (Format format : kFormats) {
    auto model = format.load(1);
    std::vector<Job> truth = alone(model, jobs());
    for (const Job& j : truth) CHECK(j.finished() && j.output.back().finish == Finish::kLength);
    for (const Setting& s : {Setting{}, Setting{1}, Setting{3}, Setting{16, 7}, Setting{17, 8, true}, Setting{50, 9}}) {
      check_all_same(together(model, jobs(), s), truth);
    }
  }
}

TEST_ENGINE(engine_same_bits_with_any_number_of_threads) {
  for (Format format : kFormats) {
    std::vector<Job> truth = together(format.load(1), jobs(), {});
    check_all_same(together(format.load(3), jobs(), {20}), truth);
  }
}

TEST_ENGINE(engine_same_bits_after_preemption) {
  for (Format format : kFormats) {
    auto model = format.load(2);
    std::vector<Job> truth = alone(model, jobs()), all = jobs();
    Driver driver(model, driven_options(), 5);
    driver.set_chunk(23);
    for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
    for (int step = 0; driver.step(); ++step) {
      size_t victim = size_t(step) % all.size();
      if (step % 2 != 0 || step > 12 || all[victim].finished()) continue;
      driver.stop(int64_t(victim));
      driver.start(int64_t(victim), all[victim]);
    }
    check_all_same(all, truth);
  }
}

TEST_ENGINE(engine_same_bits_when_slots_and_pages_are_used_again) {
  auto model = TinyModel().load(Element::kBf16, 1);
  std::vector<Job> truth = alone(model, jobs());
  engine::Options small = driven_options();
  small.pages = 7;  // the longest job alone needs 5
  Driver driver(model, small);
  for (int round = 0; round < 3; ++round) {
    std::vector<Job> all = jobs();
    for (Job& j : all) {
      driver.start(round, j);
      driver.run();
      driver.stop(round);
    }
    check_all_same(all, truth);
  }
}

TEST_ENGINE(engine_logits_come_in_pieces_for_large_batches) {
  auto model = TinyModel().load(Element::kF32, 2);
  engine::Options many = driven_options();
  many.max_sequences = 150;  // more rows than one piece of logits
  many.pages = 300;
  std::vector<Job> all;
  for (uint64_t i = 0; i < 150; ++i) all.push_back(random_job(100 + i, 1, 2));
  std::vector<Job> truth = alone(model, all);
  Driver driver(model, many);
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
  driver.run();
  check_all_same(all, truth);
}

TEST_ENGINE(engines_of_one_model_step_at_the_same_time) {
  auto model = TinyModel().load(Element::kF32, 2);
  std::vector<Job> truth = together(model, jobs(), {});
  std::vector<std::vector<Job>> results(3);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = together(model, jobs(), {16}); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) check_all_same(result, truth);
}

TEST_ENGINE(engine_finishes_for_the_stated_reason) {
  auto model = TinyModel().load(Element::kF32, 1);
  Job straight = random_job(4, 33, 20);
  Driver driver(model, driven_options());
  driver.start(0, straight);
  driver.run();
  // A stop token ends it where it comes, and not before the minimum of tokens.
  Job stopped = random_job(4, 33, 20);
  stopped.params.stop_ids = {straight.output[6].id};
  driver.start(1, stopped);
  driver.run();
  size_t first = 0;
  while (straight.output[first].id != straight.output[6].id) ++first;
  CHECK_EQ(stopped.output.size(), first + 1);
  CHECK_EQ(stopped.output.back().finish, Finish::kStopToken);
  Job later = stopped;
  later.output.clear();
  later.params.min_tokens = int64_t(first) + 2;
  driver.start(2, later);
  driver.run();
  for (size_t i = 0; i <= first; ++i) CHECK(later.output[i].id != straight.output[6].id);
  // The longest context ends it at exactly that many tokens.
  Job long_job = random_job(9, 190, 100, 0);
  long_job.params.max_tokens = 200;
  driver.start(3, long_job);
  driver.run();
  CHECK_EQ(int64_t(long_job.tokens().size()), driven_options().max_model_len);
  CHECK_EQ(long_job.output.back().finish, Finish::kLength);
}

TEST_ENGINE(engine_samples_no_id_beyond_the_tokenizer) {
  auto model = TinyModel().load(Element::kF32, 1);
  engine::Options few = driven_options();
  few.samplable_vocab = 20;
  Driver driver(model, few);
  std::set<int32_t> seen;
  for (uint64_t i = 0; i < 8; ++i) {
    Job j = random_job(i, 5, 30, i == 0 ? 0 : 5);
    driver.start(0, j);
    driver.run();
    driver.stop(0);
    for (const Token& t : j.output) seen.insert(t.id);
  }
  CHECK(*seen.begin() >= 0 && *seen.rbegin() < 20);
  CHECK(seen.size() > 10);
}

// Token 101 has an embedding that is not finite. Jobs never sample it, only a prompt holds it.
void check_broken_mate(float value, Format format, TinyModel tiny) {
  tiny.int8_kv = format.int8_kv;
  tiny.broken_tokens = {{101, value}};
  auto model = tiny.load(format.element, 2);
  std::vector<Job> truth = alone(model, jobs()), all = jobs();
  Driver driver(model, driven_options());
  driver.set_chunk(20);
  Job broken = random_job(77, 45, 10);
  broken.prompt[30] = 101;
  for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
  driver.start(7, broken);
  driver.run();
  check_all_same(all, truth);
  CHECK_EQ(broken.output.size(), size_t(1));
  CHECK_EQ(broken.output[0].finish, Finish::kNotFinite);
  CHECK_EQ(broken.output[0].id, -1);
  // Its pages, full of NaN, go to others.
  for (int64_t slot = 0; slot < 8; ++slot) {
    if (slot != 6) driver.stop(slot);
  }
  std::vector<Job> again = jobs();
  // First to the one of which a page holds a single position.
  for (size_t i = 0; i < again.size(); ++i) driver.start(int64_t(i), again[i]);
  driver.run();
  check_all_same(again, truth);
}

TEST_ENGINE(engine_keeps_a_broken_sequence_to_itself) {
  for (float value : {INFINITY, NAN}) {
    for (Format format : kFormats) check_broken_mate(value, format, TinyModel());
    // Rows of attention's outputs end where those of the feed-forward layer go on.
    TinyModel wide;
    wide.spec.head_dim = 14, wide.spec.intermediate_size = 90;
    check_broken_mate(value, {Element::kF32}, wide);
    // Its router has no numbers to choose by.
    for (Format format : kFormats) check_broken_mate(value, format, TinyModel::mixture());
  }
}

TEST_ENGINE(engine_over_int8_keys_and_values_is_close_to_one_that_keeps_them) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    Format kept{element}, quantised{element, true};
    auto whole = kept.load(1), small = quantised.load(1);
    CHECK(small->kv_shape().page_bytes() < whole->kv_shape().page_bytes());
    Job wanted = random_job(9, 150, 1), found = wanted;
    for (auto [model, j] : {std::pair{whole, &wanted}, std::pair{small, &found}}) {
      Driver driver(model, driven_options());
      driver.start(0, *j);
      driver.run();
    }
    float difference = 0;
    for (const ops::TopEntry& entry : wanted.output[0].top) {
      for (const ops::TopEntry& other : found.output[0].top) {
        if (other.id == entry.id) difference = std::max(difference, std::fabs(other.logprob - entry.logprob));
      }
    }
    // Another result, but nearly the same.
    CHECK(difference > 0 && difference < 0.1f);
  }
}

TEST_ENGINE(engine_needs_every_feature_of_the_model) {
  // Removing a feature changes the result: the invariance above is not that of a model which ignores its input.
  Job truth = random_job(3, 70, 6, 0);
  Driver reference(TinyModel().load(Element::kF32, 1), driven_options());
  reference.start(0, truth);
  reference.run();
  std::vector<TinyModel> changed(3);
  changed[0].spec.sliding_window = 0;
  changed[1].spec.rope.scaling = ops::RopeScaling::kNone;
  changed[2].spec.rope.theta = 1e9;
  for (const TinyModel& tiny : changed) {
    Job other = random_job(3, 70, 6, 0);
    Driver driver(tiny.load(Element::kF32, 1), driven_options());
    driver.start(0, other);
    driver.run();
    CHECK(!same_bits(other.output[0].logprob, truth.output[0].logprob));
  }
}

TEST_ENGINE(engine_options_are_checked) {
  auto model = TinyModel().load(Element::kF32, 1);
  auto refuse = [&](const char* text, auto change) {
    engine::Options o = driven_options();
    change(o);
    CHECK_ERROR(kRange, text, engine::Engine(model, o));
  };
  for (int64_t bad : {int64_t(0), int64_t(-1), int64_t(1) << 40, INT64_MAX, INT64_MIN}) {
    refuse("maxSequences", [&](auto& o) { o.max_sequences = bad; });
    refuse("maxBatchTokens", [&](auto& o) { o.max_batch_tokens = bad; });
    refuse("pages", [&](auto& o) { o.pages = bad; });
    refuse("maxModelLen", [&](auto& o) { o.max_model_len = bad; });
    refuse("samplableVocab", [&](auto& o) { o.samplable_vocab = bad; });
    if (bad != 0) refuse("maxLogprobs", [&](auto& o) { o.max_logprobs = bad; });
  }
}

}  // namespace
}  // namespace tandem::test
