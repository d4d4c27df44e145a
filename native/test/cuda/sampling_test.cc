// The device's sampler against the CPU's reference distribution: a draw u must fall into its token's interval of the cumulative one.
#include "cuda/sampling/sample.h"

#include <limits>

#include "cuda/loss/log_prob.h"
#include "gpu_support.h"
#include "ops/sampling.h"

namespace tandem::test {
namespace {

constexpr int64_t kVocab = 700, kSamplable = 690;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

cuda::SampleRow row_of(const ops::SamplingParams& p, double uniform) {
  cuda::SampleRow row;
  row.top_p = p.top_p;
  row.uniform = uniform;
  row.scale = p.temperature > 0 ? float(1 / p.temperature) : 0.0f;
  row.min_p = float(p.min_p);
  row.top_k = int32_t(p.top_k);
  return row;
}

struct Sampler {
  explicit Sampler(uint64_t seed, int64_t ids = kVocab)
      : random(seed), vocab(ids), ld(ids), samplable(ids - kVocab + kSamplable), logits(random.normals(size_t(ids), 3)) {
    for (int i = 0; i < 40; ++i) logits[size_t(random.whole(0, ids - 1))] = 5;  // ties
  }

  // One launch with a row per uniform.
  std::vector<cuda::Sampled> run(const std::vector<cuda::SampleRow>& rows) {
    std::vector<float> all;
    for (size_t i = 0; i < rows.size(); ++i) {
      all.insert(all.end(), logits.begin(), logits.end());
      all.resize((i + 1) * size_t(ld), kInfinity);
    }
    DeviceBuffer<float> device(all), work(size_t(cuda::sample_workspace_floats(int64_t(rows.size()), vocab)));
    DeviceBuffer<cuda::SampleRow> params(rows);
    DeviceBuffer<cuda::LogitEdit> edit(edits);
    DeviceBuffer<uint32_t> mask(masks);
    DeviceBuffer<cuda::Sampled> out(rows.size());
    int64_t best_total = 0;
    for (const cuda::SampleRow& row : rows) best_total += row.best;
    DeviceBuffer<cuda::BestEntry> best_entries{size_t(best_total)};
    cuda::SampleBatch batch{};
    batch.logits = device.data();
    batch.ld = ld;
    batch.vocab = vocab;
    batch.rows = int64_t(rows.size());
    batch.samplable = samplable;
    batch.params = params.data();
    batch.edits = edit.data();
    batch.edit_total = int64_t(edits.size());
    batch.masks = mask.data();
    batch.mask_words = (vocab + 31) / 32;
    batch.mask_rows = int64_t(masks.size()) / batch.mask_words;
    batch.work = work.data();
    batch.work_floats = int64_t(work.size());
    batch.best = best_entries.data();
    batch.best_total = best_total;
    batch.out = out.data();
    DeviceBuffer<int32_t> places(std::vector<int32_t>(4, 1000));
    batch.last = places.data();
    batch.last_count = 3;
    cuda::choose_kernels(batch, rows);
    batch.lists = batch.lists && !plain;
    batch.ranks = batch.ranks && !plain;
    cuda::sample(batch, nullptr);
    best = best_entries.download();
    last = places.download();
    return out.download();
  }

  std::vector<double> reference(const ops::SamplingParams& params, const std::vector<float>& row) {
    std::vector<float> copy(row);
    const std::vector<int32_t> none;
    ops::TokenHistory history;
    return ops::distribution_reference({copy.data(), vocab, samplable, &none, &params, &history, 0});
  }

  Random random;
  int64_t vocab, ld, samplable;
  bool plain = false;  // without the kernels that only some rows need
  std::vector<float> logits;
  std::vector<cuda::LogitEdit> edits;
  std::vector<uint32_t> masks;
  // Of the last run.
  std::vector<cuda::BestEntry> best;
  std::vector<int32_t> last;
};

void check_draws(Sampler& sampler, const ops::SamplingParams& params, const std::vector<double>& wanted, cuda::SampleRow base) {
  std::vector<cuda::SampleRow> rows;
  for (int i = 0; i < 25; ++i) {
    rows.push_back(base);
    rows.back().uniform = params.temperature == 0 ? 0.5 : (i + sampler.random.unit()) / 25;
  }
  const std::vector<cuda::Sampled> out = sampler.run(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(out[i].token >= 0 && out[i].token < sampler.samplable);
    if (out[i].token < 0) continue;
    double before = 0;
    for (int32_t id = 0; id < out[i].token; ++id) before += wanted[size_t(id)];
    const double own = wanted[size_t(out[i].token)];
    CHECK(own > 0);
    CHECK(rows[i].uniform > before - 1e-5 && rows[i].uniform < before + own + 1e-5);
  }
}

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
