// What tests of trainers share: random states and packed rows, running work to its end, gradients and how far they are apart.
#pragma once

#include "support.h"
#include "tiny_model.h"
#include "train/trainer.h"

namespace tandem::test {

using train::Row;
using train::Trainer;

inline train::State random_state(Random& random, const model::Spec& spec, const std::vector<model::Module>& modules, int64_t rank,
                                 float b_scale = 0.3f) {
  train::State state;
  state.scale = 2;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    for (model::Module module : modules) {
      if (!model::has(spec, layer, module)) continue;
      ops::LoraShape s = model::shape_of(spec, module);
      // Ranks differ: each projection has its own.
      int64_t r = rank + int64_t(module) % 3;
      state.factors.push_back({layer, module, r, state.scale, random.normals(size_t(r * s.in), 1 / std::sqrt(float(s.in))),
                               random.normals(size_t(s.out * r), b_scale / std::sqrt(float(r)))});
    }
  }
  return state;
}

inline std::vector<int32_t> random_tokens(Random& random, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(int32_t(random.whole(0, vocab - 1)));
  return tokens;
}

// A prefix and its continuations: as one row that shares the prefix, and as one row of whole sequences each.
struct Group {
  std::vector<int32_t> prefix;
  std::vector<std::vector<int32_t>> endings;

  Group(Random& random, int64_t vocab, int64_t length, const std::vector<int64_t>& counts) : prefix(random_tokens(random, length, vocab)) {
    for (int64_t count : counts) endings.push_back(random_tokens(random, count, vocab));
  }
  // Each ending predicts its next tokens; the last one a token of its own.
  Row packed() const {
    Row row;
    row.tokens = prefix;
    row.targets.assign(prefix.size(), -1);
    row.segments.push_back({0, int64_t(prefix.size()), -1, 0});
    for (const auto& ending : endings) {
      row.segments.push_back({row.size(), int64_t(ending.size()), 0, int64_t(prefix.size())});
      append(row, ending);
    }
    return row;
  }
  Row alone(size_t index) const {
    Row row;
    row.tokens = prefix;
    row.targets.assign(prefix.size(), -1);
    append(row, endings[index]);
    row.segments.push_back({0, row.size(), -1, 0});
    return row;
  }
  static void append(Row& row, const std::vector<int32_t>& ending) {
    row.tokens.insert(row.tokens.end(), ending.begin(), ending.end());
    row.targets.insert(row.targets.end(), ending.begin() + 1, ending.end());
    row.targets.push_back(ending.front());
  }
};

constexpr int64_t kRoom = int64_t(1) << 30;

inline void run(Trainer& trainer, int64_t micros = 1 << 30) {
  while (!trainer.slice(micros)) {
  }
}

// One unit per slice; the multiply-adds of each.
inline std::vector<int64_t> run_units(Trainer& trainer) {
  std::vector<int64_t> units;
  for (bool done = false; !done;) {
    done = trainer.slice(0);
    units.push_back(trainer.unit_work());
  }
  return units;
}

inline std::vector<float> weights_of(const Row& row, uint64_t seed) {
  Random random(seed);
  std::vector<float> out;
  for (int32_t target : row.targets) out.push_back(target < 0 ? 0.0f : random.normal());
  return out;
}

// All gradients, as the moment m that one optimizer step without decay leaves from fresh moments.
inline std::vector<float> gradients(Trainer& trainer) {
  trainer.optimize({{0, 0.0, 0.5, 1, 0}, 1e30});
  run(trainer);
  std::vector<float> all;
  for (const train::Moments& m : trainer.state().moments) {
    all.insert(all.end(), m.a_m.begin(), m.a_m.end());
    all.insert(all.end(), m.b_m.begin(), m.b_m.end());
  }
  return all;
}

inline double relative_error(const std::vector<float>& got, const std::vector<float>& wanted) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double(got[i]) - double(wanted[i]), 2);
    size += std::pow(double(wanted[i]), 2);
  }
  return std::sqrt(difference / size);
}

inline double weighted(Trainer& trainer, const Row& row, const std::vector<float>& weights) {
  trainer.forward(row, train::Under::kCurrent);
  run(trainer);
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += double(weights[i]) * double(trainer.scores().logprobs[i]);
  return sum;
}

inline std::vector<float> row_gradients(const std::shared_ptr<model::Model>& model, const train::State& state, const std::vector<Row>& rows,
                                        const std::vector<std::vector<float>>& weights, bool recompute = false, int64_t micros = 1 << 30) {
  Trainer trainer(model, {4096, kRoom, recompute}, state);
  for (size_t i = 0; i < rows.size(); ++i) {
    trainer.forward(rows[i], train::Under::kCurrent);
    run(trainer, micros);
    trainer.backward(weights[i]);
    run(trainer, micros);
  }
  return gradients(trainer);
}

}  // namespace tandem::test
