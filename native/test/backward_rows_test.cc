// Row-wise gradients, the scores of targets and AdamW, each against its naive truth.
#include <algorithm>

#include "base/buffer.h"
#include "ops/adamw.h"
#include "ops/log_softmax.h"
#include "ops/rope.h"
#include "ops/sampling.h"
#include "simd/backward_kernels.h"
#include "support.h"
#include "test.h"

namespace tandem::test {
namespace {

const simd::BackwardKernels& backward() {
  static const simd::BackwardKernels& selected = simd::backward_kernels_for(simd::selected_isa());
  return selected;
}

const std::vector<int64_t> kSizes = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257};

TEST(rms_norm_backward_matches_reference) {
  Random random(71);
  for (int64_t n : kSizes) {
    std::vector<float> x = random.normals(size_t(n)), w = random.normals(size_t(n)), d = random.normals(size_t(n)),
                       dx = random.normals(size_t(n)), start = dx;
    backward().rms_norm_backward(x.data(), w.data(), d.data(), n, 1e-5f, dx.data());
    double square = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) square += double(x[size_t(i)]) * x[size_t(i)];
    for (int64_t i = 0; i < n; ++i) dot += double(w[size_t(i)]) * d[size_t(i)] * x[size_t(i)];
    double r = 1 / std::sqrt(square / double(n) + 1e-5);
    for (size_t i = 0; i < size_t(n); ++i) {
      double truth = start[i] + r * w[i] * d[i] - x[i] * r * r * r / double(n) * dot;
      CHECK_NEAR(dx[i], truth, 2e-5 * (1 + std::fabs(truth)));
    }
  }
}

double silu(double g) { return g / (1 + std::exp(-g)); }

TEST(silu_mul_backward_matches_finite_differences) {
  Random random(72);
  for (int64_t n : kSizes) {
    std::vector<float> gate = random.normals(size_t(n), 3), up = random.normals(size_t(n)), d = random.normals(size_t(n)), dg = d, du = d;
    if (n > 3) gate[0] = 100, gate[1] = -100, gate[2] = 0;
    backward().silu_mul_backward_f32(gate.data(), up.data(), d.data(), n, dg.data(), du.data());
    std::vector<uint16_t> narrow_gate, narrow_up, bg(gate.size()), bu(gate.size());
    for (float& x : gate) narrow_gate.push_back(float_to_bf16(x));
    for (float& x : up) narrow_up.push_back(float_to_bf16(x));
    backward().silu_mul_backward_bf16(narrow_gate.data(), narrow_up.data(), d.data(), n, bg.data(), bu.data());
    for (size_t i = 0; i < size_t(n); ++i) {
      double slope = (silu(gate[i] + 1e-5) - silu(gate[i] - 1e-5)) / 2e-5;
      CHECK_NEAR(dg[i], d[i] * up[i] * slope, 1e-5);
      CHECK_NEAR(du[i], d[i] * silu(gate[i]), 1e-5 * (1 + std::fabs(gate[i])));
      CHECK_NEAR(bf16_to_float(bg[i]), dg[i], 0.02 * (1 + std::fabs(double(d[i] * up[i]))));
      CHECK_NEAR(bf16_to_float(bu[i]), du[i], 0.02 * (1 + std::fabs(double(du[i]))));
    }
  }
}

TEST(rope_backward_is_the_transpose) {
  Random random(73);
  for (ops::RopeScaling scaling : {ops::RopeScaling::kLlama3, ops::RopeScaling::kYarn}) {
    ops::RopeSpec spec;
    spec.scaling = scaling;
    spec.factor = 4;
    spec.attention_factor = 1.5;
    ops::RopeTable table(spec, 50, 20);
    for (int64_t position : {0, 1, 49}) {
      std::vector<float> x = random.normals(20), d = random.normals(20), y = x, dx = d;
      table.rotate(y.data(), position);
      table.rotate_back(dx.data(), position);
      double left = 0, right = 0;
      for (size_t i = 0; i < 20; ++i) left += double(y[i]) * d[i], right += double(x[i]) * dx[i];
      CHECK_NEAR(left, right, 1e-5);
    }
  }
}

TEST(transposes_move_every_element) {
  Random random(74);
  for (int64_t k : {16, 32, 48, 64}) {
    for (int64_t n : {16, 48, 128}) {
      std::vector<float> x = random.normals(size_t(k * n)), y(x.size());
      backward().transpose_floats(x.data(), n, k, n, y.data(), k);
      std::vector<uint16_t> pairs, turned(x.size());
      for (int64_t i = 0; i < k * n; ++i) pairs.push_back(uint16_t(random.bits()));
      backward().transpose_pairs(pairs.data(), 2 * n, k, n, turned.data(), 2 * k);
      for (int64_t r = 0; r < k; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          CHECK_EQ(y[size_t(c * k + r)], x[size_t(r * n + c)]);
          CHECK_EQ(turned[size_t(c / 2 * 2 * k + 2 * r + c % 2)], pairs[size_t(r / 2 * 2 * n + 2 * c + r % 2)]);
        }
      }
    }
  }
}

TEST(widening_gives_the_stored_value) {
  Random random(75);
  for (int64_t n : kSizes) {
    std::vector<uint16_t> x;
    for (int64_t i = 0; i < n; ++i) x.push_back(float_to_bf16(random.normal()));
    std::vector<float> out(size_t(n) + 1, 7.0f);
    backward().widen(x.data(), n, out.data());
    for (size_t i = 0; i < size_t(n); ++i) CHECK_EQ(out[i], bf16_to_float(x[i]));
    CHECK_EQ(out[size_t(n)], 7.0f);
  }
}

ops::Sample sampled(std::vector<float> logits, int32_t target) {
  ops::SamplingScratch scratch;
  std::vector<ops::TopEntry> top;
  return ops::score(kernels(), logits.data(), int64_t(logits.size()), target, 0, 1.0f, scratch, top);
}

TEST(scores_of_targets_match_reference_and_have_the_bits_of_sampling) {
  Random random(76);
  for (int64_t n : {1, 2, 17, 103, 1024, 1025, 5000}) {
    for (float spread : {0.1f, 3.0f, 30.0f}) {
      std::vector<float> logits = random.normals(size_t(n), spread), copy = logits, terms = logits;
      int32_t target = int32_t(random.whole(0, n - 1));
      ops::SoftmaxScratch scratch;
      ops::TokenScore s = ops::score_target(kernels(), ops::Element::kF32, terms.data(), n, target, terms.data(), scratch);
      std::vector<double> p;
      ops::TokenScore truth = ops::score_target_reference(logits.data(), n, target, p);
      CHECK(same_bits(s.logprob, sampled(logits, target).logprob));
      CHECK_NEAR(s.logprob, truth.logprob, 1e-5 * (1 + std::fabs(double(truth.logprob))));
      CHECK_NEAR(s.entropy, truth.entropy, 2e-5);
      CHECK_NEAR(s.others, truth.others, 1e-6);
      std::vector<uint16_t> narrow(static_cast<size_t>(n));
      ops::TokenScore b = ops::score_target(kernels(), ops::Element::kBf16, copy.data(), n, target, narrow.data(), scratch);
      CHECK(same_bits(b.logprob, s.logprob));
      for (size_t i = 0; i < size_t(n); ++i) {
        double wanted = int32_t(i) == target ? 0 : p[i];
        CHECK_NEAR(terms[i] * s.scale, wanted, 1e-6);
        CHECK_NEAR(bf16_to_float(narrow[i]) * b.scale, wanted, 0.004 * wanted + 1e-6);
      }
    }
  }
}

TEST(scores_of_broken_rows_are_nan_and_leave_no_gradient) {
  for (float broken : {NAN, INFINITY}) {
    std::vector<float> logits = {1, 2, broken, 3}, terms = logits;
    ops::SoftmaxScratch scratch;
    ops::TokenScore s = ops::score_target(kernels(), ops::Element::kF32, logits.data(), 4, 1, terms.data(), scratch);
    CHECK(std::isnan(s.logprob));
    CHECK(std::all_of(terms.begin(), terms.end(), [](float t) { return t == 0; }));
  }
  // -inf is a probability of 0, not a fault.
  std::vector<float> logits = {1, -INFINITY, 2}, terms = logits;
  ops::SoftmaxScratch scratch;
  ops::TokenScore s = ops::score_target(kernels(), ops::Element::kF32, logits.data(), 3, 0, terms.data(), scratch);
  CHECK_NEAR(s.logprob, -1.3132617, 1e-6);
  CHECK_NEAR(s.entropy, 0.5822, 1e-3);
}

TEST(adamw_matches_reference) {
  Random random(77);
  ops::AdamW options{0.01, 0.9, 0.99, 1e-8, 0.1};
  int64_t n = 101;
  std::vector<float> value = random.normals(size_t(n)), m(value.size()), v(value.size());
  std::vector<double> value_truth(value.begin(), value.end()), m_truth(value.size()), v_truth(value.size());
  for (int64_t step = 1; step <= 20; ++step) {
    std::vector<float> grad = random.normals(size_t(n));
    ops::adamw(options, step, 0.25f, n, grad.data(), value.data(), m.data(), v.data());
    ops::adamw_reference(options, step, 0.25, n, grad.data(), value_truth.data(), m_truth.data(), v_truth.data());
  }
  for (size_t i = 0; i < size_t(n); ++i) CHECK_NEAR(value[i], value_truth[i], 1e-5);
  CHECK_NEAR(ops::sum_of_squares(std::vector<float>{3, 4, 12}.data(), 3), 169, 0);
  CHECK(!std::isfinite(ops::sum_of_squares(std::vector<float>{3, NAN}.data(), 2)));
}

}  // namespace
}  // namespace tandem::test
