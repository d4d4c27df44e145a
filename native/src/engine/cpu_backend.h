// The back-end of an engine whose weights the CPU holds.
#pragma once
#include <memory>

#include "engine/backend.h"
#include "ops/kv_pages.h"

namespace tandem::engine {

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<model::Model> model, const Options& options);

  size_t page_bytes() const override { return kv_.shape().page_bytes(); }
  void read_page(int32_t page, uint8_t* out) override { kv_.copy_out(page, out); }
  void write_page(int32_t page, const uint8_t* bytes) override { kv_.copy_in(page, bytes); }
  void forward(const model::ForwardBatch& batch) override;
  void copy_hidden(int64_t row, float* out) override;
  void sample(const std::vector<SampleQuery>& queries) override;
  std::vector<Answer> score(const std::vector<ScoreQuery>& queries) override;
  void leave(ThreadPool::Aside call, void* context) override { model_->pool.leave(call, context); }
  void settle() override { model_->pool.settle(); }

 private:
  void clear_new_pages(const model::ForwardBatch& batch);
  // Calls answer(query index, logits, thread scratch) for all, the logits computed in bounded pieces. A query for which follows(index)
  // comes after the one before it, on the same thread or in a later piece.
  template <typename Query, typename Follows, typename Body>
  void for_each(const std::vector<Query>& queries, const Follows& follows, const Body& answer);

  std::shared_ptr<model::Model> model_;
  int64_t logit_rows_;
  ops::KvPages kv_;
  model::Forward forward_;
  std::vector<ops::SamplingScratch> scratch_;
};

}  // namespace tandem::engine
