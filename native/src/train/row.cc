#include "train/row.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::train {
namespace {

void check_segment(const Row& row, size_t index, int64_t next, int64_t max_position) {
  const Segment& s = row.segments[index];
  require(s.first == next, ErrorKind::kRange, "segments must cover the tokens in order, without gaps");
  in_range("segments: count", s.count, 1, row.size() - next);
  in_range("segments: parent", s.parent, -1, int64_t(index) - 1);
  int64_t position = 0;
  if (s.parent >= 0) {
    const Segment& parent = row.segments[size_t(s.parent)];
    require(parent.parent < 0, ErrorKind::kRange, "segments: a parent must not have a parent");
    position = parent.count;
  }
  require(s.position == position, ErrorKind::kRange, "segments: the position must be 0, or the parent's count");
  require(s.position + s.count <= max_position, ErrorKind::kRange, "segments: a sequence is longer than the model's positions");
}

}  // namespace

void check(const Row& row, const model::Spec& spec, int64_t max_tokens) {
  in_range("tokens.length", row.size(), 1, max_tokens);
  require(row.targets.size() == row.tokens.size(), ErrorKind::kRange, "targets must have one entry per token");
  require(!row.segments.empty(), ErrorKind::kRange, "segments must not be empty");
  int64_t next = 0;
  for (size_t i = 0; i < row.segments.size(); ++i) {
    check_segment(row, i, next, spec.max_position);
    next += row.segments[i].count;
  }
  require(next == row.size(), ErrorKind::kRange, "segments must cover all tokens");
  for (int32_t id : row.tokens) in_range("tokens", id, 0, spec.vocab_size - 1);
  for (int32_t id : row.targets) in_range("targets", id, -1, spec.vocab_size - 1);
}

RowPages::RowPages(const Row& row) : segments_(row.segments), tables_(row.segments.size()), children_(row.segments.size()) {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& s = segments_[i];
    std::vector<int32_t>& table = tables_[i];
    if (s.parent >= 0) {
      const std::vector<int32_t>& shared = tables_[size_t(s.parent)];
      table.assign(shared.begin(), shared.begin() + s.position / simd::kPage);
      children_[size_t(s.parent)].push_back(i);
    }
    while (int64_t(table.size()) * simd::kPage < s.position + s.count) table.push_back(int32_t(pages_++));
  }
}

size_t RowPages::segment_of(int64_t index) const {
  auto after = std::upper_bound(segments_.begin(), segments_.end(), index, [](int64_t at, const Segment& s) { return at < s.first; });
  return size_t(after - segments_.begin()) - 1;
}

RowPages::Place RowPages::place(int64_t index) const {
  size_t segment = segment_of(index);
  const Segment& s = segments_[segment];
  Place place{s.position + index - s.first, &tables_[segment], {}};
  // Only roots have children; what lies in full pages is shared.
  if (place.position < s.count / simd::kPage * simd::kPage) return place;
  for (size_t child : children_[segment]) place.copies.push_back(&tables_[child]);
  return place;
}

std::vector<ops::AttentionRun> RowPages::runs(int64_t first, int64_t count) const {
  std::vector<ops::AttentionRun> runs;
  for (const ops::AttentionBackwardRun& b : backward_runs(first, count)) runs.push_back(b.run);
  return runs;
}

std::vector<ops::AttentionBackwardRun> RowPages::backward_runs(int64_t first, int64_t count) const {
  std::vector<ops::AttentionBackwardRun> runs;
  for (size_t i = segment_of(first); i < segments_.size() && segments_[i].first < first + count; ++i) {
    const Segment& s = segments_[i];
    int64_t from = std::max(first, s.first), end = std::min(first + count, s.first + s.count);
    int64_t prefix_row = s.parent >= 0 ? segments_[size_t(s.parent)].first : 0;
    runs.push_back({{from - first, s.position + from - s.first, end - from, tables_[i].data()}, s.position, prefix_row, s.first});
  }
  return runs;
}

}  // namespace tandem::train
