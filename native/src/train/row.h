// One packed row: token sequences beside each other, some of which share a prefix, and the pages that their keys lie in.
#pragma once
#include <cstdint>
#include <vector>

#include "model/spec.h"
#include "ops/attention_backward.h"

namespace tandem::train {

// `count` tokens from index `first` on, at positions `position`.. of their sequence. A child sees all of its parent and then itself.
struct Segment {
  int64_t first, count;
  int64_t parent;  // index of an earlier segment that has no parent itself, or -1
  int64_t position;
};

struct Row {
  std::vector<int32_t> tokens;
  std::vector<Segment> segments;
  std::vector<int32_t> targets;  // per token the id whose log-probability is asked for, or -1

  int64_t size() const { return int64_t(tokens.size()); }
};

// Throws Error(kRange) naming what is wrong: sizes, ids outside the vocabulary, segments that do not cover the tokens in order, a parent
// that is not a root before its child, a position that does not follow.
void check(const Row& row, const model::Spec& spec, int64_t max_tokens);

// Where the positions of every segment lie: full pages of a shared prefix once, its last, partial page once per child and once for itself.
class RowPages {
 public:
  RowPages() = default;
  explicit RowPages(const Row& row);

  int64_t pages() const { return pages_; }
  // The page tables under which token `index` is stored: its own segment's, then those of children that hold a copy of its page.
  struct Place {
    int64_t position;
    const std::vector<int32_t>* table;
    std::vector<const std::vector<int32_t>*> copies;
  };
  Place place(int64_t index) const;
  // The parts of segments among the tokens first .. first + count - 1; rows count from `first`.
  std::vector<ops::AttentionRun> runs(int64_t first, int64_t count) const;
  std::vector<ops::AttentionBackwardRun> backward_runs(int64_t first, int64_t count) const;

 private:
  size_t segment_of(int64_t index) const;
  std::vector<Segment> segments_;
  std::vector<std::vector<int32_t>> tables_;  // one per segment
  std::vector<std::vector<size_t>> children_;
  int64_t pages_ = 0;
};

}  // namespace tandem::train
