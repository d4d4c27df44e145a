#include "engine/cpu_backend.h"

#include <algorithm>
#include <atomic>

namespace tandem::engine {
namespace {

// Rows whose logits are computed in one product; bounds the memory of the logits.
constexpr int64_t kLogitRows = 64;
// Even a lone sequence may have scored and proposed tokens.
constexpr int64_t kLeastLogitRows = 16;

}  // namespace

CpuBackend::CpuBackend(std::shared_ptr<model::Model> model, const Options& options)
    : model_(std::move(model)),
      logit_rows_(std::min({std::max(options.max_sequences, kLeastLogitRows), options.max_batch_tokens, kLogitRows})),
      kv_(model_->kv_shape(), options.pages), forward_(*model_, options.max_model_len, options.max_batch_tokens, logit_rows_),
      scratch_(size_t(model_->pool.threads())) {}

void CpuBackend::forward(const model::ForwardBatch& batch) {
  clear_new_pages(batch);
  forward_.run(batch, kv_);
}

// Pages whose first position is written now; the rest of such a page is masked, but must be finite.
void CpuBackend::clear_new_pages(const model::ForwardBatch& batch) {
  std::vector<int32_t> fresh;
  for (const ops::AttentionRun& run : batch.runs) {
    int64_t begin = (run.first_position + simd::kPage - 1) / simd::kPage, end = (run.first_position + run.count - 1) / simd::kPage;
    for (int64_t i = begin; i <= end; ++i) fresh.push_back(run.pages[i]);
  }
  model_->pool.run(int64_t(fresh.size()), [&](int64_t i) { kv_.clear(fresh[size_t(i)]); });
}

void CpuBackend::copy_hidden(int64_t row, float* out) {
  const float* hidden = forward_.hidden(row);
  std::copy(hidden, hidden + model_->spec.hidden_size, out);
}

template <typename Query, typename Follows, typename Body>
void CpuBackend::for_each(const std::vector<Query>& queries, const Follows& follows, const Body& answer) {
  int64_t total = int64_t(queries.size());
  for (int64_t first = 0; first < total; first += logit_rows_) {
    int64_t count = std::min(logit_rows_, total - first);
    std::vector<const float*> rows;
    rows.reserve(size_t(count));
    for (int64_t i = 0; i < count; ++i) {
      const HiddenRow& hidden = queries[size_t(first + i)].hidden;
      rows.push_back(hidden.copy ? hidden.copy : forward_.hidden(hidden.row));
    }
    float* logits = forward_.logits(rows.data(), count);
    // One index per thread, so that each has scratch memory of its own; rows are claimed inside, each with those that follow it.
    std::atomic<int64_t> next{0};
    auto continues = [&](int64_t i) { return i > 0 && i < count && follows(size_t(first + i)); };
    model_->pool.run(model_->pool.threads(), [&](int64_t thread) {
      for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
        for (int64_t row = i; !continues(i) && (row == i || continues(row)); ++row) {
          answer(size_t(first + row), logits + row * forward_.ld_logits(), scratch_[size_t(thread)]);
        }
      }
    });
  }
}

void CpuBackend::sample(const std::vector<SampleQuery>& queries) {
  auto follows = [&](size_t i) { return queries[i].follows; };
  for_each(queries, follows, [&](size_t i, float* logits, ops::SamplingScratch& scratch) {
    ops::SampleInput input{};
    if (!queries[i].begin(input)) return;
    input.logits = logits;
    Answer answer;
    answer.sample = ops::sample(model_->kernels, input, scratch, answer.top);
    queries[i].take(std::move(answer));
  });
}

std::vector<Answer> CpuBackend::score(const std::vector<ScoreQuery>& queries) {
  std::vector<Answer> answers(queries.size());
  auto alone = [](size_t) { return false; };
  for_each(queries, alone, [&](size_t i, float* logits, ops::SamplingScratch& scratch) {
    const ScoreQuery& query = queries[i];
    answers[i].sample =
        ops::score(model_->kernels, logits, model_->spec.vocab_size, query.token, query.best, query.scale, scratch, answers[i].top);
  });
  return answers;
}

}  // namespace tandem::engine
