// A training state as it crosses borders: FP32 masters with the optimizer's moments, in the layout of model::Factors.
#pragma once
#include <string>
#include <vector>

#include "model/adapter.h"

namespace tandem::train {

// a [rank][in], b [out][rank].
struct Moments {
  std::vector<float> a_m, a_v, b_m, b_v;
};

struct State {
  float scale = 1;
  std::vector<model::Factors> factors;
  int64_t steps = 0;
  std::vector<Moments> moments;  // one per factors, or none: fresh
};

// Throws Error(kRange) naming what is wrong. That the factors fit a model is for model::Adapter to say.
void check(const State& state);
// "layers.3.self_attn.q_proj"
std::string label(const model::Factors& factors);

// [rows][columns] to [columns][rows].
std::vector<float> turned(const std::vector<float>& values, int64_t rows, int64_t columns);

}  // namespace tandem::train
