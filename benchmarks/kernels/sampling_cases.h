// Sampling and log-probabilities with a vocabulary of Qwen3's size.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cuda/common/device_buffer.h"
#include "cuda/loss/log_prob.h"
#include "cuda/sampling/sample.h"
#include "device_noise.h"
#include "row_cases.h"

namespace tandem::benchmarks {

constexpr int64_t kSampleVocab = 151936;
constexpr int kSampleEdits = 500, kSampleBest = 20;  // of a sampled row with all controls

// Rows as they are asked for by `kind`, and what they refer to.
inline cuda::SampleRow sample_row(const std::string& kind, int64_t index) {
  cuda::SampleRow row;
  row.uniform = 0.5;
  // Of evenly spread logits top_p leaves a thousand ids, or, of a flat row, seventeen thousand.
  row.scale = kind == "greedy" ? 0.0f : kind == "top_p" ? 20.0f : 1.25f;
  row.logprob_of = kind == "all controls" ? cuda::LogprobOf::kRaw : cuda::LogprobOf::kNone;
  if (kind != "greedy" && kind != "temperature") row.top_p = 0.9;
  if (kind == "top_k and top_p" || kind == "all controls") row.top_k = 50;
  if (kind != "all controls") return row;
  row.min_p = 0.01f;
  row.first_edit = int32_t(index * kSampleEdits);
  row.edit_count = kSampleEdits;
  row.mask = int32_t(index);
  row.first_best = int32_t(index * kSampleBest);
  row.best = kSampleBest;
  return row;
}

inline void time_sampling(int64_t count, const TimeRows& time) {
  const int64_t vocab = kSampleVocab, words = (vocab + 31) / 32;
  std::vector<float> values;
  for (int64_t i = 0; i < count * vocab; ++i) values.push_back(8.0f * noise_at(uint64_t(i)));
  DeviceBuffer<float> logits(values), work(size_t(cuda::sample_workspace_floats(count, vocab)));
  std::vector<cuda::LogitEdit> edits;
  for (int64_t i = 0; i < count * kSampleEdits; ++i) edits.push_back({int32_t(i % kSampleEdits * 293), 0, 1.1f, 0.5f});
  DeviceBuffer<cuda::LogitEdit> device_edits(edits);
  DeviceBuffer<uint32_t> masks(std::vector<uint32_t>(size_t(count * words), 0x7fffffffu));
  DeviceBuffer<cuda::BestEntry> best(size_t(count * kSampleBest));
  DeviceBuffer<cuda::Sampled> out{size_t(count)};
  for (const char* kind : {"greedy", "temperature", "top_k and top_p", "top_p", "top_p of a flat row", "all controls"}) {
    std::vector<cuda::SampleRow> all;
    for (int64_t i = 0; i < count; ++i) all.push_back(sample_row(kind, i));
    DeviceBuffer<cuda::SampleRow> params(all);
    cuda::SampleBatch batch{};
    batch.logits = logits.data();
    batch.ld = batch.vocab = batch.samplable = vocab;
    batch.rows = count;
    batch.params = params.data();
    batch.edits = device_edits.data();
    batch.edit_total = int64_t(edits.size());
    batch.masks = masks.data();
    batch.mask_rows = count;
    batch.mask_words = words;
    batch.work = work.data();
    batch.work_floats = int64_t(work.size());
    batch.best = best.data();
    batch.best_total = int64_t(best.size());
    batch.out = out.data();
    choose_kernels(batch, all);
    time(kind, 4 * double(count * vocab), [&] { cuda::sample(batch, nullptr); });
  }
}

inline void time_log_probabilities(int64_t count, const TimeRows& time) {
  const int64_t vocab = kSampleVocab;
  DeviceBuffer<float> logits(size_t(count * vocab)), scores{size_t(count)}, entropies{size_t(count)};
  DeviceBuffer<float> work(size_t(cuda::log_prob_workspace_floats(count, vocab)));
  DeviceBuffer<bf16> gradients(size_t(count * vocab));
  DeviceBuffer<int32_t> targets{size_t(count)};
  const cuda::LogProb args{
      logits.data(),       vocab, count, vocab, targets.data(), scores.data(), entropies.data(), gradients.data(), vocab, work.data(),
      int64_t(work.size())};
  time("log-probabilities and gradients", 6 * double(count * vocab), [&] { cuda::log_prob(args, nullptr); });
}

}  // namespace tandem::benchmarks
