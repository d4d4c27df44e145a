// Sampling against the naive distribution: support, exact draws, frequencies, ties, log-probabilities, uniform numbers.
#include "ops/sampling.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

// One row with its parameters; draws do not change it.
struct LogitRow {
  std::vector<float> logits;
  int64_t samplable;
  ops::SamplingParams params;
  std::vector<int32_t> banned;
  ops::TokenHistory history;
  std::vector<ops::TopEntry> top;  // of the last draw

  explicit LogitRow(std::vector<float> values) : logits(std::move(values)), samplable(int64_t(logits.size())) {}

  ops::SampleInput input(std::vector<float>& copy, uint64_t index) const {
    copy = logits;
    return {copy.data(), int64_t(copy.size()), samplable, &banned, &params, &history, index};
  }
  ops::Sample draw(uint64_t index) {
    static ops::SamplingScratch scratch;
    std::vector<float> copy;
    top.clear();
    return ops::sample(kernels(), input(copy, index), scratch, top);
  }
  std::vector<double> reference() const {
    std::vector<float> copy;
    return ops::distribution_reference(input(copy, 0));
  }
};

// Rows of several tiles: 1024 is a tile of the vocabulary.
LogitRow random_row(Random& random, int64_t vocab, float spread) { return LogitRow(random.normals(size_t(vocab), spread)); }

ops::SamplingParams params(double temperature, double top_p = 1, int64_t top_k = 0, double min_p = 0) {
  ops::SamplingParams p;
  p.temperature = temperature;
  p.top_p = top_p;
  p.top_k = top_k;
  p.min_p = min_p;
  p.seed = 0x1234567890abcdefull;
  return p;
}

std::vector<ops::SamplingParams> many_params() {
  return {params(1),
          params(0.3),
          params(2.5),
          params(1, 0.9),
          params(0.7, 0.5),
          params(1, 1, 1),
          params(1, 1, 5),
          params(2, 1, 40),
          params(1, 1, 0, 0.05),
          params(1.5, 1, 0, 0.3),
          params(1, 0.8, 20),
          params(1.2, 0.95, 7),
          params(1, 0.9, 0, 0.02),
          params(1, 0.7, 30, 0.01),
          params(1, 1, 100000),
          params(1, 1e-6),
          params(1, 1, 0, 1),
          params(0.01),
          params(50),
          params(50, 0.99, 300)};
}

// The draw inverts the distribution over ids ascending, so the token follows from the uniform but near the borders.
void check_draws(LogitRow& row, int draws) {
  std::vector<double> p = row.reference(), sums(p.size());
  std::partial_sum(p.begin(), p.end(), sums.begin());
  int wrong = 0;
  for (int i = 0; i < draws; ++i) {
    int32_t token = row.draw(uint64_t(i)).token;
    CHECK(token >= 0 && token < row.samplable);
    if (token < 0) return;
    CHECK(p[size_t(token)] > 0);
    double u = ops::uniform(row.params.seed, uint64_t(row.params.choice), uint64_t(i));
    double low = token == 0 ? 0 : sums[size_t(token) - 1], high = sums[size_t(token)];
    wrong += u < low - 2e-5 || u > high + 2e-5;
  }
  CHECK_EQ(wrong, 0);
}

TEST(draws_follow_the_reference_distribution) {
  Random random(61);
  for (const ops::SamplingParams& p : many_params()) {
    for (int64_t vocab : {1, 2, 50, 300, 1025, 3000}) {
      LogitRow row = random_row(random, vocab, 2.5f);
      row.params = p;
      row.params.seed = random.bits();
      row.params.choice = random.whole(0, 3);
      check_draws(row, 25);
    }
  }
}

TEST(draws_follow_the_reference_with_ties_bans_and_unused_ids) {
  Random random(62);
  for (const ops::SamplingParams& p : many_params()) {
    for (int64_t vocab : {9, 120, 2100}) {
      LogitRow row = random_row(random, vocab, 1.0f);
      for (float& x : row.logits) x = float(random.whole(-6, 6)) * 0.5f;  // many equal logits
      row.params = p;
      row.samplable = vocab - vocab / 3;
      row.logits[size_t(vocab - 1)] = 30;  // the largest is not samplable
      for (int i = 0; i < vocab / 8; ++i) row.banned.push_back(int32_t(random.whole(0, vocab - 1)));
      row.logits[size_t(random.whole(0, vocab - 2))] = -kInf;
      check_draws(row, 25);
    }
  }
}

TEST(draws_reach_the_whole_support_and_nothing_else) {
  Random random(63);
  for (const ops::SamplingParams& p : many_params()) {
    LogitRow row = random_row(random, 24, 1.0f);
    for (size_t i = 0; i < row.logits.size(); i += 3) row.logits[i] = 1.0f;
    row.params = p;
    row.banned = {3, 7};
    row.samplable = 20;
    std::vector<double> truth = row.reference();
    std::set<int32_t> seen;
    for (uint64_t i = 0; i < 1500; ++i) seen.insert(row.draw(i).token);
    for (int32_t id = 0; id < 24; ++id) {
      if (truth[size_t(id)] == 0) CHECK(!seen.contains(id));
      if (truth[size_t(id)] > 0.01) CHECK(seen.contains(id));
    }
  }
}

// Pearson's statistic of `draws` tokens; about its degrees of freedom when the draws follow the reference.
void check_frequencies(LogitRow& row, int draws, bool by_seed) {
  std::vector<double> truth = row.reference();
  std::vector<int> counts(truth.size(), 0);
  for (int i = 0; i < draws; ++i) {
    if (by_seed) row.params.seed = uint64_t(i);
    ++counts[size_t(row.draw(by_seed ? 0 : uint64_t(i)).token)];
  }
  double statistic = 0, rest = 0, rest_count = 0;
  int cells = 0;
  for (size_t id = 0; id < truth.size(); ++id) {
    double expected = truth[id] * draws;
    if (expected < 8) {
      rest += expected;
      rest_count += counts[id];
      continue;
    }
    statistic += (counts[id] - expected) * (counts[id] - expected) / expected;
    ++cells;
  }
  if (rest > 0) statistic += (rest_count - rest) * (rest_count - rest) / std::max(rest, 1.0);
  CHECK(statistic < cells + 5 * std::sqrt(2.0 * cells) + 5);
  if (statistic >= cells + 5 * std::sqrt(2.0 * cells) + 5) CHECK_NEAR(statistic, cells, 0);
}

TEST_ENGINE(frequencies_fit_the_reference) {
  Random random(64);
  for (const ops::SamplingParams& p :
       {params(1), params(0.6), params(1, 0.9), params(1, 1, 10), params(1.3, 1, 0, 0.05), params(1.1, 0.9, 25, 0.02)}) {
    LogitRow row = random_row(random, 60, 1.2f);
    row.params = p;
    row.banned = {5};
    row.samplable = 55;
    check_frequencies(row, 20000, false);
    check_frequencies(row, 8000, true);
  }
}

TEST(greedy_takes_the_smallest_of_the_best) {
  Random random(65);
  for (int64_t vocab : {1, 5, 40, 1024, 2500}) {
    LogitRow row = random_row(random, vocab, 1.0f);
    for (float& x : row.logits) x = float(random.whole(-3, 3));
    row.params = params(0);
    auto largest = std::max_element(row.logits.begin(), row.logits.end());
    CHECK_EQ(int64_t(row.draw(0).token), int64_t(largest - row.logits.begin()));
    if (vocab < 5) continue;
    row.banned = {int32_t(largest - row.logits.begin())};
    row.samplable = vocab - 2;
    std::vector<double> truth = row.reference();
    CHECK_EQ(int64_t(row.draw(0).token), int64_t(std::max_element(truth.begin(), truth.end()) - truth.begin()));
  }
}

TEST(top_k_keeps_ties_of_its_last_value) {
  LogitRow row({1, 3, 3, 2, 3, 0});
  row.params = params(1, 1, 2);
  std::set<int32_t> seen;
  for (uint64_t i = 0; i < 300; ++i) seen.insert(row.draw(i).token);
  CHECK(seen == (std::set<int32_t>{1, 2, 4}));
}

TEST(top_p_keeps_the_smaller_ids_of_equal_ones) {
  LogitRow row(std::vector<float>(10, 0.5f));
  row.params = params(1, 0.25);
  std::set<int32_t> seen;
  for (uint64_t i = 0; i < 300; ++i) seen.insert(row.draw(i).token);
  CHECK(seen == (std::set<int32_t>{0, 1, 2}));
}

TEST(rows_that_cannot_be_sampled_give_no_token) {
  for (float bad : {NAN, kInf, -NAN}) {
    for (size_t at : {size_t(0), size_t(17), size_t(1500), size_t(1999)}) {
      for (double temperature : {0.0, 1.0}) {
        LogitRow row(std::vector<float>(2000, 0.0f));
        row.logits[at] = bad;
        row.samplable = 1900;  // a broken id counts even where it could not be sampled
        row.params = params(temperature, 0.9, 5);
        row.params.logprobs = 3;
        CHECK_EQ(row.draw(0).token, -1);
      }
    }
  }
  LogitRow nothing(std::vector<float>(40, -kInf));
  nothing.params = params(1);
  CHECK_EQ(nothing.draw(0).token, -1);
  LogitRow banned({1, 2, 3});
  banned.banned = {0, 1};
  banned.samplable = 2;
  for (double temperature : {0.0, 1.0}) {
    banned.params = params(temperature);
    CHECK_EQ(banned.draw(0).token, -1);
  }
}

TEST(impossible_ids_stay_out_at_any_temperature) {
  for (double temperature : {1e-320, 1e-45, 1e-39, 1e-20, 1e-5, 0.01, 100.0, 1e10, 1e38, 1e45, 1e50, 1e300}) {
    for (const ops::SamplingParams& p : {params(1), params(1, 0.9), params(1, 1, 3), params(1, 1, 0, 0.1)}) {
      LogitRow row({-1, -kInf, 2, -kInf, 2, 1.5, -100, -kInf, 0});
      row.params = p;
      row.params.temperature = temperature;
      row.banned = {0};
      row.samplable = 8;
      check_draws(row, 40);
    }
  }
}

double log_total(const std::vector<float>& logits) {
  double max = *std::max_element(logits.begin(), logits.end()), sum = 0;
  for (float x : logits) sum += std::exp(double(x) - max);
  return max + std::log(sum);
}

TEST(logprobs_are_raw_and_ranked) {
  Random random(66);
  for (int64_t vocab : {1, 7, 300, 1024, 2500, 5000}) {
    for (int64_t k : {0, 1, 5, 20}) {
      LogitRow row = random_row(random, vocab, 4.0f);
      for (size_t i = 0; i + 1 < row.logits.size(); i += 5) row.logits[i] = row.logits[i + 1];
      row.params = params(1.7, 0.95);
      row.params.logprobs = k;
      row.banned = {0};
      row.samplable = vocab;
      if (vocab == 1) row.banned.clear();
      double total = log_total(row.logits);
      ops::Sample s = row.draw(uint64_t(k));
      CHECK_NEAR(s.logprob, double(row.logits[size_t(s.token)]) - total, 5e-6);
      float mine = row.logits[size_t(s.token)];
      CHECK_EQ(int64_t(s.rank), 1 + std::count_if(row.logits.begin(), row.logits.end(), [&](float x) { return x > mine; }));
      CHECK_EQ(int64_t(row.top.size()), std::min(k, vocab));
      std::vector<int32_t> order(static_cast<size_t>(vocab));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row.logits[size_t(a)] > row.logits[size_t(b)]; });
      for (size_t i = 0; i < row.top.size(); ++i) {
        CHECK_EQ(row.top[i].id, order[i]);
        CHECK_NEAR(row.top[i].logprob, double(row.logits[size_t(order[i])]) - total, 5e-6);
      }
    }
  }
}

// Of what the draw was made from: ids that could not come have no part in it.
TEST(processed_logprobs_are_those_of_the_ids_that_are_left) {
  for (const ops::SamplingParams& p : {params(1), params(1, 1, 2), params(1, 0.99)}) {
    LogitRow row({2, 1, -kInf, 2, -50});
    row.params = p;
    row.params.allowed = {1, 2, 3};
    row.params.logprobs = 4;
    row.params.mode = ops::LogprobMode::kProcessed;
    const double best = -std::log(1 + std::exp(-1.0));
    for (uint64_t i = 0; i < 20; ++i) {
      const ops::Sample s = row.draw(i);
      CHECK(s.token == 1 || s.token == 3);
      CHECK_EQ(s.rank, s.token == 3 ? 1 : 2);
      CHECK_NEAR(s.logprob, s.token == 3 ? best : best - 1, 1e-6);
      CHECK_EQ(row.top.size(), size_t(2));
      CHECK_EQ(row.top[0].id, 3);
      CHECK_NEAR(row.top[1].logprob, best - 1, 1e-6);
    }
  }
}

TEST(a_bad_word_ends_at_the_first_token_too) {
  LogitRow row({0, 0, 9});
  row.params = params(0);
  row.params.bad_words = {{1, 2}};
  CHECK_EQ(row.draw(0).token, 2);
  row.history.add(1, false);
  CHECK_EQ(row.draw(0).token, 0);
}

TEST(controls_of_a_step_hold_with_none_of_the_sequence) {
  LogitRow row({0, 5, 9, 7});
  row.params = params(0);
  ops::SamplingScratch scratch;
  std::vector<float> copy;
  auto drawn = [&](const ops::StepControls& controls) {
    ops::SampleInput input = row.input(copy, 0);
    input.step = &controls;
    return ops::sample(kernels(), input, scratch, row.top).token;
  };
  CHECK_EQ(drawn({}), 2);
  CHECK_EQ(drawn({{}, {0, 1}}), 1);
  CHECK_EQ(drawn({{{3, 3.0f}}, {}}), 3);
  // Ids beyond those that may be sampled say nothing.
  row.samplable = 3;
  CHECK_EQ(drawn({{}, {1, 3}}), 1);
  CHECK_EQ(drawn({{}, {3}}), -1);
  CHECK(ops::id_bits({0, 31, 32}, 32) == std::vector<uint32_t>{0x80000001u});
  CHECK(ops::id_bits({30, 31}, 31) == std::vector<uint32_t>{0x40000000u});
}

TEST(logprobs_change_no_draw) {
  Random random(67);
  for (const ops::SamplingParams& p : many_params()) {
    LogitRow row = random_row(random, 1500, 2.0f);
    row.params = p;
    row.banned = {4};
    for (uint64_t i = 0; i < 10; ++i) {
      row.params.logprobs = -1;
      int32_t plain = row.draw(i).token;
      CHECK(row.top.empty());
      row.params.logprobs = 4;
      CHECK_EQ(row.draw(i).token, plain);
    }
  }
}

TEST(top_entries_of_rows_with_minus_infinity) {
  for (int64_t k : {1, 2, 5, 30}) {
    std::vector<float> logits(50, -kInf);
    logits[7] = 2;
    logits[31] = 3;
    LogitRow row(logits);
    row.params = params(1);
    row.params.logprobs = k;
    ops::Sample s = row.draw(3);
    CHECK(s.token == 7 || s.token == 31);
    CHECK(!row.top.empty() && int64_t(row.top.size()) <= k);
    CHECK_EQ(row.top[0].id, 31);
    if (row.top.size() > 1) CHECK_EQ(row.top[1].id, 7);
    for (size_t i = 2; i < row.top.size(); ++i) CHECK_EQ(row.top[i].logprob, -kInf);
  }
}

double chi_square(const std::vector<int>& counts, double expected) {
  double sum = 0;
  for (int c : counts) sum += (c - expected) * (c - expected) / expected;
  return sum;
}

TEST(uniform_is_uniform_along_every_argument) {
  auto along = [](int which, uint64_t i) {
    return which == 0   ? ops::uniform(42, 0, i)
           : which == 1 ? ops::uniform(i, 0, 0)
           : which == 2 ? ops::uniform(42, i, 7)
                        : ops::uniform(i << 32, 1, 5);
  };
  for (int which = 0; which < 4; ++which) {
    constexpr int kCount = 64000;
    std::vector<int> bins(64, 0), pairs(256, 0), distant(256, 0);
    double sum = 0, products = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      double u = along(which, i), v = along(which, i + 1), w = along(which, i + 64);
      CHECK(u >= 0 && u < 1);
      ++bins[size_t(u * 64)];
      ++pairs[size_t(u * 16) * 16 + size_t(v * 16)];
      ++distant[size_t(u * 16) * 16 + size_t(w * 16)];
      sum += u;
      products += (u - 0.5) * (v - 0.5);
    }
    CHECK_NEAR(sum / kCount, 0.5, 5 * 0.2887 / std::sqrt(double(kCount)));
    CHECK_NEAR(products / kCount * 12, 0, 5 / std::sqrt(double(kCount)));
    CHECK(chi_square(bins, kCount / 64.0) < 63 + 5 * std::sqrt(126.0));
    CHECK(chi_square(pairs, kCount / 256.0) < 255 + 5 * std::sqrt(510.0));
    CHECK(chi_square(distant, kCount / 256.0) < 255 + 5 * std::sqrt(510.0));
  }
}

TEST(uniform_tells_its_arguments_apart) {
  std::set<double> seen;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    for (uint64_t choice = 0; choice < 12; ++choice) {
      for (uint64_t index = 0; index < 12; ++index) seen.insert(ops::uniform(seed, choice, index));
    }
  }
  CHECK_EQ(seen.size(), size_t(12 * 12 * 12));
  CHECK_EQ(ops::uniform(5, 1, 9), ops::uniform(5, 1, 9));
}

}  // namespace
}  // namespace tandem::test
