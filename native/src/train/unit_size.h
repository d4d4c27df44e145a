// How large a unit of work may be. A function of the sizes and of the number of threads, never of time: a machine's speed decides how long
// a unit takes, not where it ends. And where it ends decides no bit (the operations' contracts).
#pragma once
#include <algorithm>
#include <vector>

#include "model/experts.h"
#include "ops/attention_backward.h"
#include "ops/matmul.h"

namespace tandem::train {

class UnitSize {
 public:
  // Multiply-adds that each thread gets: 1 to 2 ms at the peak of a core with BF16 products, 4 to 5 without.
  static constexpr int64_t kPerThread = int64_t(1) << 28;
  // Rows of a product that take about as long as reading its weights, or as turning them for the way back: fewer count as so many.
  static constexpr int64_t kLeastRows = 32;
  static int64_t counted(int64_t rows) { return std::max(rows, kLeastRows); }

  UnitSize(const ThreadPool& pool, int64_t per_thread) : work_(per_thread * pool.threads()) {}

  int64_t work() const { return work_; }
  // Panels that cost so much each, cut into ranges of at most a unit; at least one panel each.
  std::vector<ops::PanelRange> cut(int64_t panels, int64_t panel_work) const;
  // Rows of a product of that inner size and so many outputs, at least one.
  int64_t rows(int64_t inner, int64_t outputs) const { return std::max<int64_t>(1, work_ / std::max<int64_t>(1, inner * outputs)); }
  // Runs of queries, cut into lists of at most a unit. Cuts fall on whole blocks of the backward kernel, counted from each run's begin, so
  // that they show nowhere.
  template <typename Run>
  struct Part {
    std::vector<Run> runs;
    int64_t work = 0;
  };
  std::vector<Part<ops::AttentionRun>> cut(const ops::AttentionShape& shape, const ops::KvShape& kv,
                                           const std::vector<ops::AttentionRun>& runs) const;
  std::vector<Part<ops::AttentionBackwardRun>> cut(const ops::AttentionShape& shape, const ops::KvShape& kv,
                                                   const std::vector<ops::AttentionBackwardRun>& runs) const;
  // The products of experts, of `panels` panels each that cost so much per row.
  std::vector<Part<model::ExpertRows::Part>> cut(const std::vector<model::ExpertRows::Piece>& pieces, int64_t panels,
                                                 int64_t row_work) const;

 private:
  int64_t work_;
};

}  // namespace tandem::train
