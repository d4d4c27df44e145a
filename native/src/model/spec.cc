#include "model/spec.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace tandem::model {
namespace {

void finite_positive(const char* field, double value) {
  if (!std::isfinite(value) || value <= 0) throw Error(ErrorKind::kRange, std::string(field) + " must be positive and finite");
}

void check_yarn(const ops::RopeSpec& rope) {
  if (rope.theta <= 1) throw Error(ErrorKind::kRange, "ropeTheta must be greater than 1 with yarn");
  finite_positive("ropeScaling.betaFast", rope.beta_fast);
  finite_positive("ropeScaling.betaSlow", rope.beta_slow);
  finite_positive("ropeScaling.attentionFactor", rope.attention_factor);
  in_range("ropeScaling.originalMaxPosition", rope.original_max_position, 1, 1 << 24);
}

void check_experts(const Spec& spec) {
  const Experts& experts = spec.experts;
  if (experts.count == 0) {
    require(spec.expert_layers.empty(), ErrorKind::kRange, "expertLayers must be empty where there are no experts");
    return;
  }
  in_range("experts.count", experts.count, 1, 4096);
  in_range("experts.used", experts.used, 1, std::min<int64_t>(experts.count, 256));
  in_range("experts.size", experts.size, 1, 1 << 19);
  if (int64_t(spec.expert_layers.size()) != spec.layers) throw Error(ErrorKind::kRange, "expertLayers must have one byte per layer");
  if (spec.mlp_bias) throw Error(ErrorKind::kRange, "experts have no bias");
}

}  // namespace

void check(const Spec& spec) {
  in_range("vocabSize", spec.vocab_size, 1, 1 << 24);
  in_range("hiddenSize", spec.hidden_size, 1, 1 << 17);
  in_range("intermediateSize", spec.intermediate_size, 1, 1 << 19);
  in_range("layers", spec.layers, 1, 1024);
  in_range("heads", spec.heads, 1, 1024);
  in_range("kvHeads", spec.kv_heads, 1, spec.heads);
  in_range("headDim", spec.head_dim, 2, 1024);
  in_range("maxPosition", spec.max_position, 1, 1 << 24);
  in_range("slidingWindow", spec.sliding_window, 0, 1 << 24);
  if (spec.heads % spec.kv_heads != 0) throw Error(ErrorKind::kRange, "heads must be a multiple of kvHeads");
  if (spec.heads / spec.kv_heads > 32) throw Error(ErrorKind::kRange, "at most 32 heads may share one KV head");
  if (spec.head_dim % 2 != 0) throw Error(ErrorKind::kRange, "headDim must be even");
  if (int64_t(spec.window_layers.size()) != spec.layers) throw Error(ErrorKind::kRange, "windowLayers must have one byte per layer");
  check_experts(spec);
  finite_positive("rmsNormEps", spec.rms_norm_eps);
  finite_positive("ropeTheta", spec.rope.theta);
  finite_positive("ropeScaling.factor", spec.rope.factor);
  if (spec.rope.scaling == ops::RopeScaling::kLlama3) {
    finite_positive("ropeScaling.lowFreqFactor", spec.rope.low_freq_factor);
    finite_positive("ropeScaling.highFreqFactor", spec.rope.high_freq_factor);
    in_range("ropeScaling.originalMaxPosition", spec.rope.original_max_position, 1, 1 << 24);
    if (spec.rope.low_freq_factor == spec.rope.high_freq_factor) {
      throw Error(ErrorKind::kRange, "ropeScaling.lowFreqFactor and highFreqFactor must differ");
    }
  }
  if (spec.rope.scaling == ops::RopeScaling::kYarn) check_yarn(spec.rope);
  if (spec.rope.scaling == ops::RopeScaling::kFactors) {
    if (int64_t(spec.rope.factors.size()) != spec.head_dim / 2) {
      throw Error(ErrorKind::kRange, "ropeScaling.factors must have one number per pair of a head");
    }
    for (float factor : spec.rope.factors) finite_positive("ropeScaling.factors", factor);
  }
}

}  // namespace tandem::model
