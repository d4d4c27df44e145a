// Which tokens the device's sampler draws.
#include "sampling_batch.h"

namespace tandem::test {
namespace {

std::vector<ops::SamplingParams> filter_cases() {
  std::vector<ops::SamplingParams> cases(10);
  cases[1].temperature = 0.6;
  cases[2].top_k = 20;
  cases[3].top_p = 0.8;
  cases[4].min_p = 0.07;
  cases[5].temperature = 1.7, cases[5].top_k = 50, cases[5].top_p = 0.9, cases[5].min_p = 0.02;
  cases[6].top_k = 1;
  cases[7].temperature = 0;
  cases[8].temperature = 0.3, cases[8].top_k = 400, cases[8].top_p = 0.99;
  cases[9].top_p = 0.97, cases[9].min_p = 0.001;
  return cases;
}

TEST(gpu_sampling_draws_from_the_reference_distribution) {
  Sampler sampler(11);
  for (int64_t samplable : {kSamplable, kVocab}) {
    sampler.samplable = samplable;
    for (const ops::SamplingParams& params : filter_cases()) {
      check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
    }
  }
}

// Rows of several slices, at addresses of vectors and not.
TEST_ENGINE(gpu_sampling_draws_from_rows_of_several_slices) {
  const int64_t ids = 2 * 4096 + 901;
  Sampler sampler(31, ids);
  for (int64_t ld : {ids, ids + 3}) {
    sampler.ld = ld;
    for (int64_t samplable : {int64_t(8000), ids}) {
      sampler.samplable = samplable;
      for (const ops::SamplingParams& params : filter_cases()) {
        check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
      }
    }
  }
}

bool same(const cuda::Sampled& a, const cuda::Sampled& b) { return std::memcmp(&a, &b, sizeof a) == 0; }
bool same(const std::vector<cuda::BestEntry>& a, const std::vector<cuda::BestEntry>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
}

cuda::SampleRow any_row(Random& random, int64_t masks, int64_t edits) {
  cuda::SampleRow row;
  row.uniform = random.unit();
  const float scales[] = {0, 0.5f, 1, 1.6f, 30};
  row.scale = scales[random.whole(0, 4)];
  if (random.whole(0, 1)) row.top_k = int32_t(std::min<int64_t>(random.whole(1, 60) * random.whole(1, 60), 9000));
  if (random.whole(0, 1)) row.top_p = 1 - 0.9 * random.unit() * random.unit() * random.unit();
  if (random.whole(0, 3) == 0) row.min_p = float(0.1 * random.unit() * random.unit());
  if (random.whole(0, 3) == 0) row.mask = int32_t(random.whole(0, masks - 1));
  if (random.whole(0, 3) == 0) row.edit_count = int32_t(random.whole(1, edits));
  if (random.whole(0, 5) == 0) row.given = int32_t(random.whole(0, 4000));
  row.logprob_of = cuda::LogprobOf(random.whole(row.given >= 0 ? 1 : 0, row.given >= 0 ? 2 : 3));
  if (random.whole(0, 1)) row.best = int32_t(random.whole(1, 50) * random.whole(1, 50));
  return row;
}

// The kernels that only some rows need change no bit, nor does what else is in the batch.
void check_all_ways(Sampler& sampler, int64_t count) {
  sampler.masks.assign(size_t((sampler.vocab + 31) / 32) * 2, 0x5a5af00fu);
  for (size_t i = 0; i < sampler.masks.size() / 2; ++i) sampler.masks[i] = i == 5 ? ~0u : 0;
  for (int32_t i = 0; i < 300; ++i) sampler.edits.push_back({i * 16, i % 7 - 3.0f, i % 3 ? 1.0f : 1.2f, 0.25f * float(i % 2)});
  std::vector<cuda::SampleRow> rows;
  int32_t best = 0;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(any_row(sampler.random, 2, 300));
    rows.back().first_best = best;
    best += rows.back().best;
  }
  const std::vector<cuda::Sampled> together = sampler.run(rows);
  const std::vector<cuda::BestEntry> entries = sampler.best;
  for (size_t i = 0; i < rows.size(); ++i) {
    const cuda::SampleRow& row = rows[i];
    const size_t kept = size_t(together[i].best_count);
    std::vector<cuda::BestEntry> own(entries.begin() + row.first_best, entries.begin() + row.first_best + row.best);
    own.resize(kept);
    for (bool plain : {false, true}) {
      sampler.plain = plain;
      cuda::SampleRow alone = row;
      alone.first_best = 0;
      const cuda::Sampled seen = sampler.run({alone})[0];
      CHECK(same(seen, together[i]));
      sampler.best.resize(std::min(kept, sampler.best.size()));
      CHECK(same(sampler.best, own));
    }
  }
  sampler.plain = false;
}

TEST(gpu_sampling_is_the_same_alone_and_without_lists) {
  Sampler sampler(41, 9001);
  check_all_ways(sampler, 40);
}

// A changed row's values are kept where ranks among them are asked for; otherwise those that are listed, or drawn from, are found again.
TEST(gpu_sampling_draws_the_same_whether_changed_values_are_kept) {
  Sampler sampler(43, 9001);
  for (size_t i = 0; i < size_t((sampler.vocab + 31) / 32); ++i) sampler.masks.push_back(i % 3 == 0 ? 0x80f05a01u : 0);
  // Many of each warp's part of a slice, the largest ones too.
  for (int32_t i = 0; i < 2000; ++i) sampler.edits.push_back({i * 7 % 9001, i % 5 * 0.3f, 1.1f, 0.1f});
  std::vector<cuda::SampleRow> rows;
  for (int i = 0; i < 60; ++i) {
    cuda::SampleRow row;
    row.mask = i % 3 == 0 ? -1 : 0;
    row.edit_count = i % 3 == 1 ? 0 : 2000;
    row.uniform = i / 60.0;
    row.scale = 0.3f;
    if (i % 4 == 1) row.top_k = 1 + 10 * i;
    if (i % 4 == 2) row.top_p = 0.8;
    if (i % 4 == 3) row.top_p = 0.9, row.min_p = 0.01f;
    for (auto of : {cuda::LogprobOf::kProcessed, cuda::LogprobOf::kNone}) row.logprob_of = of, rows.push_back(row);
  }
  for (bool plain : {false, true}) {
    sampler.plain = plain;
    const std::vector<cuda::Sampled> drawn = sampler.run(rows);
    for (size_t i = 0; i < rows.size(); i += 2) {
      const int32_t token = drawn[i].token;
      CHECK(token >= 0 && token == drawn[i + 1].token);
      if (token >= 0 && rows[i].mask >= 0) CHECK(sampler.masks[size_t(token) / 32] >> (token % 32) & 1);
    }
  }
}

// top_p so near to one that it is a share of more than rounding leaves of the masses.
TEST(gpu_sampling_takes_all_where_top_p_is_a_share_of_more) {
  Sampler sampler(49, 9001);
  ops::SamplingParams params;
  params.top_p = std::nextafter(1.0, 0.0);
  for (bool plain : {false, true}) {
    sampler.plain = plain;
    check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
  }
}

// So many candidates that they are narrowed down before they are sorted, or that there is no room for them; and so many equal ones.
TEST_ENGINE(gpu_sampling_goes_through_rows_with_many_candidates) {
  const int64_t ids = 5 * 4096 - 77;
  for (float spread : {1.5f, 0.33f, 0.2f, 0.0f}) {
    Sampler sampler(42, ids);
    for (float& logit : sampler.logits) logit *= spread;
    for (double top_p : {0.27, 0.6, 0.97, 1.0}) {
      ops::SamplingParams params;
      params.top_p = top_p;
      params.top_k = top_p == 1 ? 5000 : 0;
      check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
    }
    check_all_ways(sampler, 12);
  }
}

// As many equal ids as are sorted, and one more.
TEST(gpu_sampling_sorts_as_many_candidates_as_there_is_room_for) {
  Sampler sampler(46, 9001);
  ops::SamplingParams params;
  params.top_p = 0.9;
  for (size_t count : {2048, 2049}) {
    sampler.logits.assign(sampler.logits.size(), -kInfinity);
    for (size_t i = 0; i < count; ++i) sampler.logits[4 * i] = 1;
    check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
  }
}

// As many ids as top_k, in as many warps' parts of two slices, of which only the first has one that is larger than the cutoff.
TEST(gpu_sampling_draws_candidates_as_large_as_the_cutoff) {
  Sampler sampler(48, 9001);
  sampler.logits.assign(sampler.logits.size(), -1.0f);
  for (size_t i = 0; i < 10; ++i) sampler.logits[900 * i + 5] = i == 0 ? 2.0f : 1.0f;
  ops::SamplingParams params;
  params.top_k = 10;
  check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
}

// More ids than are sorted, of two values a bit apart, behind some that are far above both. The first value ends with top_k.
TEST(gpu_sampling_tells_crowded_candidates_apart) {
  Sampler sampler(47, 9001);
  for (size_t id = 0; id < sampler.logits.size(); ++id)
    sampler.logits[id] = id < 200 ? 5.5f : id < 3200 ? 5.0f : std::nextafter(5.0f, 0.0f);
  sampler.plain = true;
  ops::SamplingParams some, share;
  some.top_k = 3200;
  share.top_p = 0.6;
  for (const ops::SamplingParams& params : {some, share}) {
    check_draws(sampler, params, sampler.reference(params, sampler.logits), row_of(params, 0));
  }
}

// Ids beside each other and their masses alike: what is wanted is reached by exactly two of them.
TEST(gpu_sampling_leaves_no_more_than_was_asked_for) {
  Sampler sampler(48);
  sampler.logits.assign(size_t(kVocab), -kInfinity);
  for (size_t id : {3, 4, 5, 6}) sampler.logits[id] = 1;
  for (bool plain : {false, true}) {
    sampler.plain = plain;
    cuda::SampleRow row = row_of({}, 0.999);
    row.logprob_of = cuda::LogprobOf::kProcessed;
    row.best = 6;
    row.top_p = 0.5;
    const cuda::Sampled half = sampler.run({row})[0];
    CHECK_EQ(half.token, 4);
    CHECK_EQ(half.best_count, 2);
    // Fewer than top_k.
    sampler.logits[6] = -1;
    row.top_p = 1;
    row.top_k = 50;
    const cuda::Sampled all = sampler.run({row})[0];
    CHECK_EQ(all.token, 6);
    CHECK_EQ(all.best_count, 4);
    sampler.logits[6] = 1;
  }
}

// The last id that is sampled, in the last place but one of a slice.
TEST(gpu_sampling_ends_with_the_last_id_that_is_sampled) {
  Sampler sampler(49, 4785);
  sampler.samplable = 4095;
  sampler.logits[4094] = 40;
  sampler.logits[4095] = 50;
  for (float top_p : {1.0f, 0.9f}) {
    cuda::SampleRow row = row_of({}, 0.5);
    row.top_p = top_p;
    CHECK_EQ(sampler.run({row})[0].token, 4094);
  }
}

// A lane has the first slice and the last one.
TEST(gpu_sampling_takes_the_first_of_equal_ids) {
  Sampler sampler(50, 33 * 4096);
  sampler.logits[7] = sampler.logits[32 * 4096 + 9] = 30;
  ops::SamplingParams greedy;
  greedy.temperature = 0;
  CHECK_EQ(sampler.run({row_of(greedy, 0.5)})[0].token, 7);
}

}  // namespace
}  // namespace tandem::test
