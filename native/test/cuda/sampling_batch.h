// Rows that the device's sampler is run on, and the CPU's reference distribution: a draw u must fall into its token's interval of the cumulative
// one.
#pragma once
#include <limits>
#include <vector>

#include "cuda/sampling/sample.h"
#include "gpu_support.h"
#include "ops/sampling.h"

namespace tandem::test {

constexpr int64_t kVocab = 700, kSamplable = 690;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline cuda::SampleRow row_of(const ops::SamplingParams& p, double uniform) {
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

inline void check_draws(Sampler& sampler, const ops::SamplingParams& params, const std::vector<double>& wanted, cuda::SampleRow base) {
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

}  // namespace tandem::test
