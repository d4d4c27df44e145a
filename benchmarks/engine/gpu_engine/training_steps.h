// A trainer's work from its beginning to its end.
#pragma once
#include "bench.h"

namespace tandem::benchmarks {

// Every token predicts the next.
inline train::Row row_of(std::vector<int32_t> tokens) {
  train::Row row;
  row.targets.assign(tokens.begin() + 1, tokens.end());
  tokens.pop_back();
  row.tokens = std::move(tokens);
  row.segments.push_back({0, row.size(), -1, 0});
  return row;
}

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
  trainer.backward(std::vector<float>(size_t(row.size()), 1.0f / float(row.size())));
  to_the_end(trainer);
  trainer.optimize({{1e-5, 0.9, 0.99, 1e-8, 0.1}, 0.1});
  to_the_end(trainer);
}

}  // namespace tandem::benchmarks
