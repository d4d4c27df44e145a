// A trainer's work from its beginning to its end.
#pragma once
#include <algorithm>

#include "bench.h"

namespace tandem::benchmarks {

// Every token predicts the next, sequence by sequence; the last one may be shorter.
inline train::Row packed_row_of(std::vector<int32_t> tokens, int64_t length) {
  train::Row row;
  row.targets.assign(tokens.begin() + 1, tokens.end());
  tokens.pop_back();
  row.tokens = std::move(tokens);
  for (int64_t first = 0; first < row.size(); first += length) {
    const int64_t count = std::min(length, row.size() - first);
    row.segments.push_back({first, count, -1, 0});
    if (first + count < row.size()) row.targets[size_t(first + count - 1)] = -1;  // what follows is another sequence's
  }
  return row;
}

inline train::Row row_of(const std::vector<int32_t>& tokens) { return packed_row_of(tokens, int64_t(tokens.size())); }

inline void to_the_end(train::Trainer& trainer) {
  while (!trainer.slice(1'000'000)) {
  }
}

inline void whole_forward(train::Trainer& trainer, const train::Row& row) {
  trainer.forward(row, train::Under::kCurrent);
  to_the_end(trainer);
}

inline void whole_step(train::Trainer& trainer, const train::Row& row) {
  whole_forward(trainer, row);
  std::vector<float> gradients;
  for (int32_t target : row.targets) gradients.push_back(target < 0 ? 0.0f : 1.0f / float(row.size()));
  trainer.backward(gradients);
  to_the_end(trainer);
  trainer.optimize({{1e-5, 0.9, 0.99, 1e-8, 0.1}, 0.1});
  to_the_end(trainer);
}

}  // namespace tandem::benchmarks
