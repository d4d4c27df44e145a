#include "device/train_head.h"

#include <algorithm>

#include "cuda/elementwise/elementwise.h"
#include "cuda/gemm/matmul.h"
#include "cuda/loss/log_prob.h"

namespace tandem::device {
namespace {

int64_t terms_of(const model::Spec& spec) { return (spec.vocab_size + 7) / 8 * 8; }

int64_t term_floats(const model::Spec& spec, int64_t logit_rows, const Kernels& kernels) {
  return cuda::matmul_transposed_floats(kernels.matmul, logit_rows, spec.vocab_size, spec.hidden_size);
}

}  // namespace

TrainHead::TrainHead(const model::Spec& spec, const Weights& weights, Layers& layers, int64_t logit_rows, cuda::Stream& stream)
    : spec_(spec), weights_(weights), layers_(layers), logit_rows_(logit_rows), stream_(stream), ld_terms_(terms_of(spec)),
      picked_(size_t(logit_rows * spec.hidden_size)), logits_(size_t(logit_rows * spec.vocab_size)), terms_(size_t(logit_rows * ld_terms_)),
      workspace_(size_t(term_floats(spec, logit_rows, weights.kernels))),
      sums_(size_t(cuda::log_prob_workspace_floats(logit_rows, spec.vocab_size))) {}

int64_t TrainHead::bytes(const model::Spec& spec, int64_t logit_rows, const Kernels& kernels) {
  const int64_t f = sizeof(float), e = sizeof(bf16);
  return logit_rows * ((spec.hidden_size + spec.vocab_size) * f + terms_of(spec) * e) +
         (term_floats(spec, logit_rows, kernels) + cuda::log_prob_workspace_floats(logit_rows, spec.vocab_size)) * f;
}

train::Steps TrainHead::score(TrainTape& tape, train::Scores& scores) {
  const int64_t total = int64_t(tape.targets.size());
  at_least(logprobs_, total);
  at_least(entropies_, total);
  for (int64_t first = 0; first < total; first += logit_rows_) {
    const int64_t count = std::min(logit_rows_, total - first);
    score_rows(tape, first, count);
    stream_.wait();
    co_yield count* spec_.vocab_size* spec_.hidden_size;
  }
  read_scores(tape, scores);
}

void TrainHead::score_rows(TrainTape& tape, int64_t first, int64_t count) {
  const int64_t h = spec_.hidden_size, v = spec_.vocab_size;
  const bool directions = tape.keep() != train::Keep::kNothing;
  cuda::gather_rows({tape.input(spec_.layers), h, tape.size(), tape.target_rows.data() + first, picked_.data(), h, count, h},
                    stream_.get());
  layers_.logits(picked_.data(), count, logits_.data());
  cuda::log_prob({logits_.data(), v, count, v, tape.target_ids.data() + first, logprobs_.data() + first, entropies_.data() + first,
                  directions ? terms_.data() : nullptr, ld_terms_, sums_.data(), int64_t(sums_.size())},
                 stream_.get());
  if (!directions) return;
  const Matrix& w = layers_.head();
  cuda::matmul_transposed({terms_.data(), ld_terms_, count, w.data.data(), w.n, w.k, tape.directions.data() + first * h, h, false,
                           workspace_.data(), int64_t(workspace_.size()), w.quantised(), weights_.kernels.matmul},
                          stream_.get());
}

void TrainHead::read_scores(const TrainTape& tape, train::Scores& scores) const {
  scores.logprobs.assign(size_t(tape.size()), 0.0f);
  scores.entropies.assign(size_t(tape.size()), 0.0f);
  const size_t total = tape.targets.size();
  if (total == 0) return;
  std::vector<float> logprobs(total), entropies(total);
  cuda::device_copy(logprobs.data(), logprobs_.data(), total * sizeof(float));
  cuda::device_copy(entropies.data(), entropies_.data(), total * sizeof(float));
  for (size_t i = 0; i < total; ++i) {
    scores.logprobs[size_t(tape.targets[i])] = logprobs[i];
    scores.entropies[size_t(tape.targets[i])] = entropies[i];
  }
}

void TrainHead::backward(TrainTape& tape, const std::vector<float>& gradients, float* out) {
  const int64_t h = spec_.hidden_size;
  std::vector<float> factors;
  for (int32_t index : tape.targets) factors.push_back(gradients[size_t(index)]);
  put(factors_, factors);
  stream_.clear(out, size_t(tape.size() * h) * sizeof(float));
  cuda::RmsNormBackward args{};
  args.x = tape.input(spec_.layers);
  args.ldx = args.ldd = args.lddx = args.width = h;
  args.weight = weights_.final_norm.data();
  args.d = tape.directions.data();
  args.dx = out;
  args.rows = int64_t(factors.size());
  args.eps = float(spec_.rms_norm_eps);
  args.at = tape.target_rows.data();
  args.factors = factors_.data();
  cuda::rms_norm_backward(args, stream_.get());
}

}  // namespace tandem::device
