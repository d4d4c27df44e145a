// Mixtures of experts: the router's choices, products of several experts side by side, and a feed-forward against the naive truth; the engine's
// and the trainer's promises with them.
#include "model/experts.h"

#include <algorithm>
#include <numeric>

#include "driver.h"
#include "model/forward.h"
#include "ops/expert_routing.h"
#include "ops/quantise.h"
#include "test.h"
#include "train_support.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::Routing;

struct Choice {
  std::vector<int32_t> chosen;
  std::vector<float> weights;
};

Choice route(const Routing& routing, const std::vector<float>& logits) {
  Choice found{std::vector<int32_t>(size_t(routing.used)), std::vector<float>(size_t(routing.used))};
  ops::route(routing, logits.data(), found.chosen.data(), found.weights.data());
  return found;
}

Choice naive(const Routing& routing, const std::vector<float>& logits) {
  Choice wanted{std::vector<int32_t>(size_t(routing.used)), std::vector<float>(size_t(routing.used))};
  ops::route_reference(routing, logits.data(), wanted.chosen.data(), wanted.weights.data());
  return wanted;
}

TEST_ONCE(routes_take_the_largest_logits_in_their_proportions) {
  Random random(71);
  for (int round = 0; round < 200; ++round) {
    const int64_t experts = random.whole(1, 40);
    const Routing routing{experts, random.whole(1, experts), round % 2 == 0};
    std::vector<float> logits = random.normals(size_t(experts), 3);
    // Equal ones, among them at the border.
    if (round % 3 == 0) {
      for (float& logit : logits) logit = std::round(logit);
    }
    Choice found = route(routing, logits), wanted = naive(routing, logits);
    CHECK(found.chosen == wanted.chosen);
    for (size_t i = 0; i < wanted.weights.size(); ++i) CHECK_NEAR(found.weights[i], wanted.weights[i], 1e-6);
  }
}

TEST_ONCE(routes_of_what_is_no_number_are_still_different_experts) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{nan, nan, nan, nan},
                                           {1, nan, 2, 3},
                                           {nan, 1, 2, 3},
                                           {inf, 1, 2, inf},
                                           {-inf, -inf, -inf, -inf},
                                           {nan, -inf, inf, 0}}) {
    for (bool normalise : {true, false}) {
      Choice found = route({4, 3, normalise}, logits);
      for (size_t i = 0; i < 3; ++i)
        CHECK(found.chosen[i] >= 0 && found.chosen[i] < 4 && (i == 0 || found.chosen[i] > found.chosen[i - 1]));
      CHECK(std::any_of(found.weights.begin(), found.weights.end(), [](float weight) { return std::isnan(weight); }));
    }
  }
}

TEST_ONCE(gradients_of_routes_match_finite_differences) {
  Random random(72);
  for (int round = 0; round < 60; ++round) {
    const Routing routing{9, 1 + round % 5, round % 2 == 0};
    std::vector<float> logits = random.normals(9, 1), d_weights = random.normals(size_t(routing.used)), d(9);
    Choice at = route(routing, logits);
    ops::route_backward(routing, logits.data(), at.chosen.data(), at.weights.data(), d_weights.data(), d.data());
    for (size_t e = 0; e < 9; ++e) {
      double sums[2];
      const float step = 1e-3f;
      bool same = true;
      for (int side = 0; side < 2; ++side) {
        std::vector<float> moved = logits;
        moved[e] += side == 0 ? -step : step;
        Choice there = route(routing, moved);
        same = same && there.chosen == at.chosen;
        sums[side] = 0;
        for (size_t i = 0; i < d_weights.size(); ++i) sums[side] += double(there.weights[i]) * double(d_weights[i]);
      }
      if (same) CHECK_NEAR((sums[1] - sums[0]) / (2 * double(step)), d[e], 2e-3);
    }
  }
}

// Products with parts of a matrix side by side have the bits of each by itself.
void check_side_by_side(Element element, std::optional<ops::QuantFormat> format) {
  Random random(73);
  ThreadPool pool(3);
  const int64_t k = 160, n = 11 * kernels().panel, ldx = 192, ldy = 6 * kernels().panel, size = int64_t(ops::element_size(element));
  std::vector<float> weights = random.normals(size_t(n * k));
  auto read = [&](int64_t first, int64_t count, float* out) {
    std::copy_n(weights.data() + first * k, count * k, out);
    return true;
  };
  auto small = [&](int64_t first, int64_t count, const ops::QuantRows& out) {
    const int64_t groups = simd::traits_of(*format).scales_of(k);
    for (int64_t r = 0; r < count; ++r) {
      ops::quantise_weights(*format, weights.data() + (first + r) * k, k, out.values + r * k, out.scales + r * groups);
    }
    return true;
  };
  const ops::PackedMatrix w = format ? ops::PackedMatrix(element, ops::QuantisedMatrix(kernels().panel, k, {{n, *format, small}}, pool))
                                     : ops::PackedMatrix(kernels(), element, n, k, pool, read);
  const std::vector<ops::PanelRange> ranges = {{0, 2}, {2, 7}, {10, 11}, {7, 10}};
  const std::vector<int64_t> counts = {1, 37, 5, 130};
  const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t(0));
  std::vector<float> x = random.normals(size_t(rows * ldx));
  std::vector<uint16_t> rounded;
  for (float value : x) rounded.push_back(float_to_bf16(value));
  const uint8_t* from =
      element == Element::kBf16 ? reinterpret_cast<const uint8_t*>(rounded.data()) : reinterpret_cast<const uint8_t*>(x.data());
  std::vector<float> together(size_t(rows * ldy)), apart(size_t(rows * n));
  std::vector<ops::MatmulJob> jobs;
  for (size_t i = 0, row = 0; i < ranges.size(); row += size_t(counts[i]), ++i) {
    jobs.push_back({from + int64_t(row) * ldx * size, counts[i], ranges[i], together.data() + int64_t(row) * ldy});
  }
  ops::matmul_all(kernels(), pool, jobs, w, ldx, ldy);
  ops::matmul(kernels(), pool, from, ldx, rows, w, apart.data(), n, false);
  for (size_t i = 0, row = 0; i < ranges.size(); row += size_t(counts[i]), ++i) {
    for (int64_t r = int64_t(row); r < int64_t(row) + counts[i]; ++r) {
      const float* wanted = apart.data() + r * n + ranges[i].first * w.panel();
      CHECK(same_bits(together.data() + r * ldy, wanted, size_t((ranges[i].end - ranges[i].first) * w.panel())));
    }
  }
  ops::matmul_all(kernels(), pool, {}, w, ldx, ldy);
}

TEST(products_side_by_side_are_those_of_each_alone) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    for (auto format :
         {std::optional<ops::QuantFormat>(), std::optional(ops::QuantFormat::kInt8), std::optional(ops::QuantFormat::kInt4)}) {
      check_side_by_side(element, format);
    }
  }
}

// The mixture of one row in double, from the packed weights.
std::vector<double> naive_mixture(const model::Model& model, const model::Layer& layer, const float* x) {
  const model::Spec& spec = model.spec;
  const int64_t h = spec.hidden_size, f = spec.experts.size;
  auto times = [](const ops::PackedMatrix& w, int64_t expert, int64_t outputs, const std::vector<double>& in) {
    std::vector<double> out;
    std::vector<float> row(size_t(w.columns()));
    for (int64_t n = 0; n < outputs; ++n) {
      w.copy_row(expert * round_up(outputs, w.panel()) + n, row.data());
      out.push_back(std::inner_product(in.begin(), in.end(), row.begin(), 0.0));
    }
    return out;
  };
  const std::vector<double> in(x, x + h), scores = times(layer.router, 0, spec.experts.count, in);
  Choice choice = naive({spec.experts.count, spec.experts.used, spec.experts.normalise}, {scores.begin(), scores.end()});
  std::vector<double> sum(size_t(h), 0.0);
  for (size_t i = 0; i < choice.chosen.size(); ++i) {
    std::vector<double> gate_up = times(layer.gate_up, choice.chosen[i], 2 * f, in), active;
    for (int64_t j = 0; j < f; ++j) active.push_back(gate_up[size_t(j)] / (1 + std::exp(-gate_up[size_t(j)])) * gate_up[size_t(j + f)]);
    std::vector<double> out = times(layer.down, choice.chosen[i], h, active);
    for (size_t j = 0; j < out.size(); ++j) sum[j] += double(choice.weights[i]) * out[j];
  }
  return sum;
}

TEST_ENGINE(mixtures_are_weighted_sums_of_their_experts_whatever_the_batches) {
  for (bool normalise : {true, false}) {
    TinyModel tiny = TinyModel::mixture();
    tiny.spec.experts.normalise = normalise;
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto model = tiny.load(element, 2);
      const int64_t rows = 45, h = tiny.spec.hidden_size, ldx = 96, ldy = 128, size = int64_t(ops::element_size(element));
      Random random(74);
      std::vector<float> x(size_t(rows * ldx)), start = random.normals(size_t(rows * ldy));
      std::vector<uint16_t> rounded(x.size());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < h; ++i) {
          float& value = x[size_t(r * ldx + i)];
          value = element == Element::kBf16 ? rounded_bf16(random.normal()) : random.normal();
          rounded[size_t(r * ldx + i)] = float_to_bf16(value);
        }
      }
      const uint8_t* from =
          element == Element::kBf16 ? reinterpret_cast<const uint8_t*>(rounded.data()) : reinterpret_cast<const uint8_t*>(x.data());
      const model::Layer& layer = model->weights.layers[0];
      std::vector<float> whole = start;
      model::ExpertRows(*model, rows, 1 << 20).run(layer, from, ldx, rows, whole.data(), ldy);
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> wanted = naive_mixture(*model, layer, x.data() + r * ldx);
        for (int64_t i = 0; i < h; ++i) {
          CHECK_NEAR(whole[size_t(r * ldy + i)] - start[size_t(r * ldy + i)], wanted[size_t(i)], element == Element::kF32 ? 1e-5 : 0.03);
        }
      }
      // Batches that cut experts, and every row alone.
      for (int64_t pairs : {1, 2, 5, 17, 60}) {
        std::vector<float> cut = start;
        model::ExpertRows(*model, rows, pairs).run(layer, from, ldx, rows, cut.data(), ldy);
        CHECK(same_bits(cut.data(), whole.data(), whole.size()));
      }
      model::ExpertRows alone(*model, 1, 1 << 20);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> row(start.begin() + r * ldy, start.begin() + (r + 1) * ldy);
        alone.run(layer, from + r * ldx * size, ldx, 1, row.data(), ldy);
        CHECK(same_bits(row.data(), whole.data() + r * ldy, size_t(ldy)));
      }
    }
  }
}

TEST_ENGINE(sequences_over_experts_do_not_depend_on_the_batch) {
  for (auto format : {std::optional<model::Quantise>(), std::optional(model::Quantise{ops::QuantFormat::kInt8}),
                      std::optional(model::Quantise{ops::QuantFormat::kInt4})}) {
    TinyModel tiny = TinyModel::mixture();
    tiny.quantise = format;
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto one = tiny.load(element, 1), three = tiny.load(element, 3);
      std::vector<Job> jobs = {random_job(1, 1, 9),   random_job(2, 17, 12), random_job(3, 70, 6, 0),
                               random_job(4, 33, 20), random_job(5, 16, 5),  random_job(6, 64, 8)};
      std::vector<Job> together = jobs;
      Driver driver(three, driven_options(), 5);
      driver.set_chunk(7);
      for (size_t i = 0; i < together.size(); ++i) driver.start(int64_t(together.size() - i), together[i]);
      driver.run();
      for (size_t i = 0; i < jobs.size(); ++i) {
        Driver alone(one, driven_options());
        alone.start(0, jobs[i]);
        alone.run();
        check_same(jobs[i], together[i]);
      }
    }
  }
}

TEST_ENGINE(gradients_through_experts_match_finite_differences) {
  for (bool normalise : {true, false}) {
    Random random(78);
    TinyModel tiny = TinyModel::mixture();
    tiny.spec.experts.normalise = normalise;
    auto model = tiny.load(Element::kF32, 1);
    train::State state = random_state(random, tiny.spec, all_modules(), 3);
    Row row = Group(random, tiny.spec.vocab_size, 11, {9, 14}).packed();
    std::vector<float> weights = weights_of(row, 5), grad = row_gradients(model, state, {row}, {weights});
    size_t at = 0;
    for (train::State moved = state; auto& factors : moved.factors) {
      for (std::vector<float>* values : {&factors.a, &factors.b}) {
        double norm = 0, sums[2];
        for (size_t i = 0; i < values->size(); ++i) norm += std::pow(double(grad[at + i]), 2);
        norm = std::sqrt(norm);
        const std::vector<float> old = *values;
        // Small, so that hardly a choice of the router changes on the way.
        const double step = 2e-3;
        for (int side = 0; side < 2; ++side) {
          for (size_t i = 0; i < old.size(); ++i) (*values)[i] = old[i] + float((side == 0 ? -step : step) * double(grad[at + i]) / norm);
          Trainer trainer(model, {4096, kRoom, false}, moved);
          sums[side] = weighted(trainer, row, weights);
        }
        *values = old;
        CHECK_NEAR((sums[1] - sums[0]) / (2 * step) / norm, 1, 0.02);
        at += old.size();
      }
    }
  }
}

TEST_ENGINE(training_over_experts_does_not_depend_on_slices_threads_or_recomputing) {
  Random random(76);
  TinyModel tiny = TinyModel::mixture();
  for (auto format : {std::optional<model::Quantise>(), std::optional(model::Quantise{ops::QuantFormat::kInt8})}) {
    tiny.quantise = format;
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto one = tiny.load(element, 1), three = tiny.load(element, 3);
      train::State state = random_state(random, tiny.spec, all_modules(), 4);
      Row row = Group(random, tiny.spec.vocab_size, 270, {40, 9}).packed();
      std::vector<float> weights = weights_of(row, 6), whole = row_gradients(one, state, {row}, {weights});
      CHECK(std::any_of(whole.begin(), whole.end(), [](float value) { return value != 0; }));
      for (const auto& other : {row_gradients(one, state, {row}, {weights}, false, 0), row_gradients(three, state, {row}, {weights}),
                                row_gradients(three, state, {row}, {weights}, true, 50)}) {
        CHECK(same_bits(other.data(), whole.data(), whole.size()));
      }
      Trainer units(three, {4096, kRoom, false, int64_t(1) << 14}, state);
      units.forward(row, train::Under::kCurrent);
      run(units, 0);
      units.backward(weights);
      run(units, 0);
      CHECK(same_bits(gradients(units).data(), whole.data(), whole.size()));
    }
  }
}

// Every panel of every expert once, in order; as many as a unit may have, or one.
TEST_ONCE(products_of_experts_are_cut_into_units) {
  using train::UnitSize;
  ThreadPool pool(2);
  const int64_t panels = 11, row_work = 100;
  const std::vector<model::ExpertRows::Piece> pieces = {{3, 0, 1}, {4, 1, 70}, {6, 71, 5}, {9, 76, 3}};
  for (int64_t unit : {1, 1000, 5000, 30000, 1 << 20}) {
    int64_t piece = 0, panel = 0;
    for (const auto& part : UnitSize(pool, unit).cut(pieces, panels, row_work)) {
      int64_t work = 0;
      for (const auto& [some, range] : part.runs) {
        CHECK(some.expert == pieces[size_t(piece)].expert && range.first == panel && range.end > panel);
        // An expert of few rows is read all the same.
        work += (range.end - range.first) * std::max(some.count, UnitSize::kLeastRows) * row_work;
        panel = range.end % panels;
        if (panel == 0) ++piece;
      }
      CHECK(part.work == work);
      CHECK(work <= 2 * unit || (part.runs.size() == 1 && part.runs[0].panels.end - part.runs[0].panels.first == 1));
    }
    CHECK(piece == int64_t(pieces.size()) && panel == 0);
  }
}

// Nothing is left out either, and cuts change no bit.
TEST_ENGINE(no_unit_of_training_over_large_experts_is_larger_than_asked_for) {
  Random random(77);
  TinyModel tiny = TinyModel::mixture();
  tiny.spec.hidden_size = 320;
  tiny.spec.experts = {4, 2, 256, true};
  for (auto format : {std::optional<model::Quantise>(), std::optional(model::Quantise{ops::QuantFormat::kInt8})}) {
    tiny.quantise = format;
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto model = tiny.load(element, 2);
      train::State state = random_state(random, tiny.spec, all_modules(), 4);
      Row row = Group(random, tiny.spec.vocab_size, 14, {7, 3}).packed();
      std::vector<float> weights = weights_of(row, 6), whole = row_gradients(model, state, {row}, {weights});
      // What cannot be cut: a panel of outputs of either direction over the rows of one expert, or a block of queries.
      const int64_t panel = model->kernels.panel, outputs = round_up(2 * tiny.spec.experts.size, panel);
      const int64_t block = 4 * 5 * simd::kAttendRows * tiny.spec.kv_heads * row.size() * model->kv_shape().dim();
      const int64_t least = std::max(train::UnitSize::kLeastRows * panel * outputs, block);
      const int64_t products = 2 * row.size() * tiny.spec.experts.used * 3 * tiny.spec.experts.size * tiny.spec.hidden_size;
      for (int64_t unit : {int64_t(1) << 12, int64_t(1) << 20, int64_t(1) << 40}) {
        Trainer trainer(model, {4096, kRoom, false, unit}, state);
        trainer.forward(row, train::Under::kCurrent);
        std::vector<int64_t> forward = run_units(trainer);
        trainer.backward(weights);
        std::vector<int64_t> backward = run_units(trainer);
        for (const auto& units : {forward, backward}) {
          CHECK(*std::max_element(units.begin(), units.end()) <= std::max(2 * unit, least));
          CHECK(std::accumulate(units.begin(), units.end(), int64_t(0)) >= products);
        }
        CHECK(same_bits(gradients(trainer).data(), whole.data(), whole.size()));
      }
    }
  }
}

TEST_ONCE(mixtures_are_checked) {
  auto refuse = [](const char* text, auto change) {
    TinyModel tiny = TinyModel::mixture();
    change(tiny.spec);
    CHECK_ERROR(kRange, text, model::check(tiny.spec));
  };
  refuse("experts.used", [](model::Spec& spec) { spec.experts.used = 8; });
  refuse("experts.used", [](model::Spec& spec) { spec.experts.used = 0; });
  refuse("experts.count", [](model::Spec& spec) { spec.experts.count = 5000; });
  refuse("experts.size", [](model::Spec& spec) { spec.experts.size = 0; });
  refuse("one byte per layer", [](model::Spec& spec) { spec.expert_layers.pop_back(); });
  refuse("must be empty", [](model::Spec& spec) { spec.experts.count = 0; });
  refuse("no bias", [](model::Spec& spec) { spec.mlp_bias = true; });
  TinyModel tiny = TinyModel::mixture();
  auto model = tiny.load(Element::kF32, 1);
  std::vector<model::Factors> factors = tiny_factors(TinyModel().spec, 1, 2, {model::Module::kGate});
  CHECK_ERROR(kRange, "no layers.0.mlp.gate_proj", model::Adapter(model, factors));
}

}  // namespace
}  // namespace tandem::test
