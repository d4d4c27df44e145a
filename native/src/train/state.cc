#include "train/state.h"

#include <string>

#include "base/error.h"
#include "model/forward.h"

namespace tandem::train {
namespace {

void check_moments(const model::Factors& f, const Moments& m) {
  bool fits = m.a_m.size() == f.a.size() && m.a_v.size() == f.a.size() && m.b_m.size() == f.b.size() && m.b_v.size() == f.b.size();
  if (!fits) throw Error(ErrorKind::kRange, label(f) + ": the moments have the wrong size");
}

}  // namespace

std::string label(const model::Factors& f) { return "layers." + std::to_string(f.layer) + "." + model::name_of(f.module); }

void check(const State& state) {
  require(!state.factors.empty(), ErrorKind::kRange, "factors must not be empty");
  require(state.moments.empty() || state.moments.size() == state.factors.size(), ErrorKind::kRange, "moments must be one per factors");
  require(state.steps >= 0, ErrorKind::kRange, "steps must not be negative");
  for (const model::Factors& f : state.factors) {
    if (f.scale != state.scale) throw Error(ErrorKind::kRange, label(f) + ": the scale must be that of all factors");
  }
  for (size_t i = 0; i < state.moments.size(); ++i) check_moments(state.factors[i], state.moments[i]);
}

std::vector<float> turned(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[size_t(c * rows + r)] = values[size_t(r * columns + c)];
  }
  return out;
}

}  // namespace tandem::train
