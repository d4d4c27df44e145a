// What the device's sampler says of the tokens that it drew or was given: log-probabilities, ranks, alternatives, places.
#include "cuda/loss/log_prob.h"
#include "sampling_batch.h"

namespace tandem::test {
namespace {

TEST(gpu_sampling_ranks_tokens_that_are_not_listed) {
  Sampler sampler(43, 9001);
  std::vector<cuda::SampleRow> rows(20, row_of({}, 0));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].uniform = 0.05 * double(i);
    rows[i].scale = 0.1f;
    rows[i].best = int32_t(i % 3);
    rows[i].first_best = int32_t(i);
  }
  const std::vector<cuda::Sampled> out = sampler.run(rows);
  for (const cuda::Sampled& seen : out) {
    int rank = 1;
    for (float l : sampler.logits) rank += l > sampler.logits[size_t(seen.token)];
    CHECK_EQ(seen.rank, rank);
  }
}

// What the trainer computes of a token is what the sampler reports.
TEST(gpu_sampling_reports_the_log_probabilities_of_training) {
  for (int64_t ids : {int64_t(700), int64_t(9001), int64_t(8192)}) {
    Sampler sampler(44, ids);
    std::vector<cuda::SampleRow> rows(8);
    std::vector<int32_t> targets;
    for (cuda::SampleRow& row : rows) targets.push_back(row.given = int32_t(sampler.random.whole(0, ids - 1)));
    const std::vector<cuda::Sampled> out = sampler.run(rows);
    for (int64_t ld : {ids, (ids + 7) / 8 * 8}) {
      std::vector<float> all;
      for (size_t i = 0; i < rows.size(); ++i) {
        all.insert(all.end(), sampler.logits.begin(), sampler.logits.end());
        all.resize((i + 1) * size_t(ld));
      }
      DeviceBuffer<float> logits(all), scores(rows.size()), entropies(rows.size());
      DeviceBuffer<float> work(size_t(cuda::log_prob_workspace_floats(int64_t(rows.size()), ids)));
      DeviceBuffer<int32_t> device_targets(targets);
      cuda::log_prob({logits.data(), ld, int64_t(rows.size()), ids, device_targets.data(), scores.data(), entropies.data(), nullptr, 0,
                      work.data(), int64_t(work.size())},
                     nullptr);
      const std::vector<float> seen = scores.download();
      for (size_t i = 0; i < rows.size(); ++i) CHECK(std::memcmp(&seen[i], &out[i].logprob, sizeof(float)) == 0);
    }
  }
}

TEST(gpu_sampling_leaves_tokens_at_their_places) {
  Sampler sampler(13);
  std::vector<cuda::SampleRow> rows(4, row_of({}, 0.3));
  rows[1].place = 2;
  rows[2].place = 0;
  rows[3].place = 3;  // there is none
  const std::vector<cuda::Sampled> out = sampler.run(rows);
  CHECK(sampler.last == std::vector<int32_t>({out[2].token, 1000, out[1].token, 1000}));
}

TEST(gpu_sampling_applies_edits_and_masks) {
  Sampler sampler(12);
  sampler.edits = {{0, 99, 1, 0}, {3, 2, 1, 0}, {12, 0, 1.7f, 0.5f}, {17, -kInfinity, 1, 0}, {601, 1, 0.5f, -7}};
  sampler.logits[12] = 12, sampler.logits[601] = -2;
  sampler.masks.assign(size_t((kVocab + 31) / 32) * 2, 0x5a5af00fu);
  ops::SamplingParams params;
  params.top_p = 0.95;
  cuda::SampleRow row = row_of(params, 0);
  row.first_edit = 1;
  row.edit_count = 4;
  row.mask = 1;
  std::vector<float> changed(sampler.logits);
  for (size_t i = 1; i < sampler.edits.size(); ++i) {
    const cuda::LogitEdit& e = sampler.edits[i];
    float& l = changed[size_t(e.id)];
    l += e.bias;
    l = (l > 0 ? l / e.repetition : l * e.repetition) - e.penalty;
  }
  for (int64_t id = 0; id < kVocab; ++id) {
    if ((0x5a5af00fu >> (id % 32) & 1u) == 0) changed[size_t(id)] = -kInfinity;
  }
  check_draws(sampler, params, sampler.reference(params, changed), row);
}

TEST(gpu_sampling_reports_the_raw_logprob_and_rank) {
  Sampler sampler(13);
  sampler.edits = {{4, 30, 1, 0}};
  cuda::SampleRow row = row_of({}, 0.5);
  row.logprob_of = cuda::LogprobOf::kRaw;
  row.edit_count = 1;
  const cuda::Sampled out = sampler.run({row})[0];
  CHECK_EQ(out.token, 4);
  double sum = 0;
  int rank = 1;
  for (float l : sampler.logits) sum += std::exp(double(l)), rank += l > sampler.logits[4];
  CHECK_NEAR(out.logprob, sampler.logits[4] - std::log(sum), 1e-5);
  CHECK_EQ(out.rank, rank);
}

// `values` of the ids that count, as log-probabilities with that total.
void check_best(const cuda::Sampled& seen, const std::vector<cuda::BestEntry>& best, const std::vector<float>& values, float scale,
                int32_t k) {
  std::vector<int32_t> order;
  double sum = 0;
  float largest = -kInfinity;
  for (float v : values) largest = std::max(largest, v);
  for (size_t id = 0; id < values.size(); ++id) {
    if (values[id] == -kInfinity) continue;
    order.push_back(int32_t(id));
    sum += std::exp((double(values[id]) - largest) * scale);
  }
  auto logprob = [&](int32_t id) { return (values[size_t(id)] - largest) * scale - std::log(sum); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[size_t(a)] > values[size_t(b)]; });
  order.resize(std::min(order.size(), size_t(k)));
  std::sort(order.begin(), order.end());
  CHECK_EQ(size_t(seen.best_count), order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    CHECK_EQ(best[i].id, order[i]);
    CHECK_EQ(best[i].value, values[size_t(order[i])]);
    CHECK_NEAR(best[i].logprob, logprob(order[i]), 1e-4);
  }
  CHECK_NEAR(seen.logprob, logprob(seen.token), 1e-4);
}

TEST(gpu_sampling_lists_the_best_alternatives) {
  Sampler sampler(21);
  sampler.logits[650] = sampler.logits[3] = -kInfinity;
  for (int32_t k : {1, 3, 20, 41, 300, 697, 698, int32_t(kVocab)}) {
    for (float scale : {1.0f, 1.6f}) {
      cuda::SampleRow row = row_of({}, 0.3);
      row.logprob_of = scale == 1 ? cuda::LogprobOf::kRaw : cuda::LogprobOf::kScaled;
      row.scale = scale;
      row.best = k;
      const cuda::Sampled seen = sampler.run({row})[0];
      check_best(seen, sampler.best, sampler.logits, scale, k);
    }
  }
  // A place outside the table is not written to.
  cuda::SampleRow stray = row_of({}, 0.3);
  stray.best = 4;
  stray.first_best = 1;
  CHECK_EQ(sampler.run({stray})[0].best_count, 0);
}

TEST(gpu_sampling_lists_what_the_draw_was_made_from) {
  Sampler sampler(22);
  cuda::SampleRow row = row_of({}, 0.3);
  row.scale = 1.25f;
  row.top_k = 60;
  row.logprob_of = cuda::LogprobOf::kProcessed;
  row.best = 100;
  const cuda::Sampled seen = sampler.run({row})[0];
  std::vector<float> kept(sampler.logits.begin(), sampler.logits.begin() + kSamplable), order = kept;
  std::sort(order.rbegin(), order.rend());
  for (float& v : kept) {
    if (v < order[59]) v = -kInfinity;
  }
  check_best(seen, sampler.best, kept, 1.25f, 100);
  row.scale = 0;
  row.top_k = 0;
  kept.assign(sampler.logits.begin(), sampler.logits.begin() + kSamplable);
  check_best(sampler.run({row})[0], sampler.best, kept, 1, 100);
}

TEST(gpu_sampling_scores_a_given_token) {
  Sampler sampler(23);
  cuda::SampleRow row;
  row.given = 695;  // beyond the ids that are sampled
  row.best = 5;
  const cuda::Sampled seen = sampler.run({row})[0];
  CHECK_EQ(seen.token, 695);
  int rank = 1;
  for (float l : sampler.logits) rank += l > sampler.logits[695];
  CHECK_EQ(seen.rank, rank);
  check_best(seen, sampler.best, sampler.logits, 1, 5);
  row.logprob_of = cuda::LogprobOf::kScaled;
  row.scale = 1.6f;
  check_best(sampler.run({row})[0], sampler.best, sampler.logits, 1.6f, 5);
}

TEST(gpu_sampling_ends_a_row_that_cannot_go_on) {
  Sampler sampler(14);
  sampler.masks.assign(size_t((kVocab + 31) / 32), 0);
  cuda::SampleRow row = row_of({}, 0.5);
  row.mask = 0;
  CHECK_EQ(sampler.run({row})[0].token, cuda::kForbidden);
  for (float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Sampler spoiled(15);
    spoiled.logits[699] = bad;
    CHECK_EQ(spoiled.run({row_of({}, 0.5)})[0].token, cuda::kNotFinite);
  }
  // An index that points nowhere is not followed.
  cuda::SampleRow stray = row_of({}, 0.5);
  stray.mask = 7, stray.first_edit = 1 << 20, stray.edit_count = 3;
  CHECK_EQ(sampler.run({stray})[0].token, sampler.run({row_of({}, 0.5)})[0].token);
  stray.given = 1 << 28;
  CHECK_EQ(sampler.run({stray})[0].token, cuda::kForbidden);
}

}  // namespace
}  // namespace tandem::test
