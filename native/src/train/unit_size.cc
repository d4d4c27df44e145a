#include "train/unit_size.h"

namespace tandem::train {
namespace {

// Multiply-adds of attention count this often: small products and exponentials run at a quarter of a large product's speed.
constexpr int64_t kAttentionCost = 4;

const ops::AttentionRun& run_of(const ops::AttentionRun& run) { return run; }
const ops::AttentionRun& run_of(const ops::AttentionBackwardRun& run) { return run.run; }
ops::AttentionRun& run_of(ops::AttentionRun& run) { return run; }
ops::AttentionRun& run_of(ops::AttentionBackwardRun& run) { return run.run; }

// `products` of every query with every key that it sees.
template <typename Run>
std::vector<UnitSize::Part<Run>> cut_runs(int64_t limit, int64_t products, const ops::AttentionShape& shape, const ops::KvShape& kv,
                                          const std::vector<Run>& runs) {
  int64_t block = std::max<int64_t>(1, simd::kAttendRows * kv.kv_heads / shape.heads);
  int64_t key_work = kAttentionCost * products * shape.heads * kv.dim();
  std::vector<UnitSize::Part<Run>> parts(1);
  for (const Run& whole : runs) {
    const ops::AttentionRun& run = run_of(whole);
    bool open = false;  // the last run of the last part is a piece of this one
    for (int64_t done = 0, count; done < run.count; done += count) {
      count = std::min(block, run.count - done);
      int64_t keys = run.first_position + done + count, seen = shape.window > 0 ? std::min(keys, shape.window + count) : keys;
      int64_t work = key_work * count * seen;
      if (parts.back().work > 0 && parts.back().work + work > limit) {
        parts.emplace_back();
        open = false;
      }
      if (!open) {
        parts.back().runs.push_back(whole);
        ops::AttentionRun& piece = run_of(parts.back().runs.back());
        piece.first_row += done;
        piece.first_position += done;
        piece.count = 0;
        open = true;
      }
      run_of(parts.back().runs.back()).count += count;
      parts.back().work += work;
    }
  }
  return parts;
}

}  // namespace

std::vector<ops::PanelRange> UnitSize::cut(int64_t panels, int64_t panel_work) const {
  // Ranges of nearly one size: no short one at the end.
  int64_t most = std::max<int64_t>(1, work_ / std::max<int64_t>(1, panel_work)), count = (panels + most - 1) / most;
  std::vector<ops::PanelRange> ranges;
  for (int64_t i = 0; i < count; ++i) ranges.push_back({i * panels / count, (i + 1) * panels / count});
  return ranges;
}

std::vector<UnitSize::Part<ops::AttentionRun>> UnitSize::cut(const ops::AttentionShape& shape, const ops::KvShape& kv,
                                                             const std::vector<ops::AttentionRun>& runs) const {
  return cut_runs(work_, 2, shape, kv, runs);
}

std::vector<UnitSize::Part<ops::AttentionBackwardRun>> UnitSize::cut(const ops::AttentionShape& shape, const ops::KvShape& kv,
                                                                     const std::vector<ops::AttentionBackwardRun>& runs) const {
  return cut_runs(work_, 5, shape, kv, runs);
}

std::vector<UnitSize::Part<model::ExpertRows::Part>> UnitSize::cut(const std::vector<model::ExpertRows::Piece>& pieces, int64_t panels,
                                                                   int64_t row_work) const {
  std::vector<Part<model::ExpertRows::Part>> parts(1);
  for (const model::ExpertRows::Piece& piece : pieces) {
    const int64_t panel_work = counted(piece.count) * row_work;
    for (const ops::PanelRange range : cut(panels, panel_work)) {
      const int64_t work = (range.end - range.first) * panel_work;
      if (parts.back().work > 0 && parts.back().work + work > work_) parts.emplace_back();
      parts.back().runs.push_back({piece, range});
      parts.back().work += work;
    }
  }
  return parts;
}

}  // namespace tandem::train
