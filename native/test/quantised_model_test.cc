// Models whose weights were quantised while they were loaded: the engine's and the trainer's promises hold, and what they compute is close to
// the same model in FP32 with the dequantised weights.
#include <algorithm>

#include "driver.h"
#include "ops/quantise.h"
#include "test.h"
#include "tiny_model.h"
#include "train/trainer.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::QuantFormat;
using train::Row;
using train::Trainer;

constexpr QuantFormat kFormats[] = {QuantFormat::kInt8, QuantFormat::kInt4};

TinyModel quantised(QuantFormat format) {
  TinyModel tiny;
  tiny.quantise = format;
  return tiny;
}

// Groups of a row of weights, as quantise_weights makes them.
void dequantise_row(QuantFormat format, float* row, int64_t k) {
  std::vector<uint8_t> values(static_cast<size_t>(k));
  std::vector<float> scales(size_t((k + 31) / 32));
  ops::quantise_weights(format, row, k, values.data(), scales.data());
  for (int64_t i = 0; i < k; ++i) row[i] = scales[size_t(i / 32)] * float(int(values[size_t(i)]) - simd::traits_of(format).offset);
}

// The same weights as floats.
TinyModel dequantised(QuantFormat format) {
  TinyModel tiny;
  model::Spec spec = tiny.spec;
  tiny.edit = [format, spec](const std::string& name, std::vector<float>& values) {
    for (const model::Tensor& tensor : tensors_of(spec).tensors) {
      if (tensor.name != name || tensor.shape.size() != 2) continue;
      for (int64_t row = 0; row < tensor.shape[0]; ++row) dequantise_row(format, values.data() + row * tensor.shape[1], tensor.shape[1]);
    }
  };
  return tiny;
}

Job job(uint64_t seed, int64_t prompt_length, int64_t outputs) {
  Random random(seed);
  Job j;
  for (int64_t i = 0; i < prompt_length; ++i) j.prompt.push_back(int32_t(random.whole(1, 99)));
  j.params.sampling.temperature = 1;
  j.params.sampling.seed = seed;
  j.params.sampling.logprobs = 3;
  j.params.max_tokens = outputs;
  return j;
}

const engine::Options kOptions = {8, 256, 64, 200, 100, 5};

TEST(quantised_sequences_do_not_depend_on_the_batch) {
  for (QuantFormat format : kFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto one = quantised(format).load(element, 1), three = quantised(format).load(element, 3);
      std::vector<Job> jobs = {job(1, 1, 9), job(2, 17, 12), job(3, 70, 6), job(4, 33, 20), job(5, 16, 5), job(6, 64, 8), job(7, 5, 9)};
      std::vector<Job> together = jobs;
      Driver driver(three, kOptions, 5);
      driver.set_chunk(7);
      for (size_t i = 0; i < together.size(); ++i) driver.start(int64_t(together.size() - i), together[i]);
      driver.run();
      for (size_t i = 0; i < jobs.size(); ++i) {
        Driver alone(one, kOptions);
        alone.start(0, jobs[i]);
        alone.run();
        CHECK(jobs[i].tokens() == together[i].tokens());
        for (size_t t = 0; t < std::min(jobs[i].output.size(), together[i].output.size()); ++t) {
          CHECK(same_bits(jobs[i].output[t].logprob, together[i].output[t].logprob));
        }
      }
    }
  }
}

Row random_row(Random& random, int64_t vocab, int64_t count) {
  Row row;
  for (int64_t i = 0; i < count; ++i) row.tokens.push_back(int32_t(random.whole(0, vocab - 1)));
  row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
  row.targets.push_back(row.tokens.front());
  row.segments.push_back({0, count, -1, 0});
  return row;
}

train::State random_state(Random& random, const model::Spec& spec) {
  train::State state;
  state.scale = 2;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    for (model::Module module : all_modules()) {
      ops::LoraShape s = model::shape_of(spec, module);
      state.factors.push_back({layer, module, 3, state.scale, random.normals(size_t(3 * s.in), 1 / std::sqrt(float(s.in))),
                               random.normals(size_t(s.out * 3), 0.1f)});
    }
  }
  return state;
}

void run(Trainer& trainer, int64_t micros = 1 << 30) {
  while (!trainer.slice(micros)) {
  }
}

struct Pass {
  std::vector<float> logprobs, gradients;
};

// Log-probabilities of a row, and the gradients of their weighted sum as the moments of one step.
Pass pass(const std::shared_ptr<model::Model>& model, const train::State& state, const Row& row, const std::vector<float>& weights,
          int64_t micros = 1 << 30) {
  Trainer trainer(model, {4096, false}, state);
  trainer.forward(row, train::Under::kCurrent);
  run(trainer, micros);
  Pass result{trainer.scores().logprobs, {}};
  trainer.backward(weights);
  run(trainer, micros);
  trainer.optimize({{0, 0.0, 0.5, 1, 0}, 1e30});
  run(trainer, micros);
  for (const train::Moments& m : trainer.state().moments) {
    result.gradients.insert(result.gradients.end(), m.a_m.begin(), m.a_m.end());
    result.gradients.insert(result.gradients.end(), m.b_m.begin(), m.b_m.end());
  }
  return result;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& wanted) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double(got[i]) - double(wanted[i]), 2);
    size += std::pow(double(wanted[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST(quantised_models_are_close_to_their_dequantised_weights) {
  Random random(61);
  for (QuantFormat format : kFormats) {
    TinyModel tiny = quantised(format);
    auto truth = dequantised(format).load(Element::kF32, 2);
    train::State state = random_state(random, tiny.spec);
    Row row = random_row(random, tiny.spec.vocab_size, 150);
    std::vector<float> weights = random.normals(150);
    Pass wanted = pass(truth, state, row, weights);
    for (Element element : {Element::kF32, Element::kBf16}) {
      Pass got = pass(tiny.load(element, 2), state, row, weights);
      double logprobs = relative_error(got.logprobs, wanted.logprobs), gradients = relative_error(got.gradients, wanted.gradients);
      if (std::getenv("SHOW")) std::printf("%d %d logprobs %.4f gradients %.4f\n", int(format), int(element), logprobs, gradients);
      CHECK(logprobs < 0.01);
      CHECK(gradients < 0.05);
    }
    // The comparison sees quantisation itself.
    Pass other = pass(TinyModel().load(Element::kF32, 2), state, row, weights);
    if (std::getenv("SHOW"))
      std::printf("unquantised %.4f %.4f\n", relative_error(other.logprobs, wanted.logprobs),
                  relative_error(other.gradients, wanted.gradients));
  }
}

TEST(quantised_training_depends_on_rows_and_factors_alone) {
  Random random(62);
  for (QuantFormat format : kFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      TinyModel tiny = quantised(format);
      train::State state = random_state(random, tiny.spec);
      Row row = random_row(random, tiny.spec.vocab_size, 300);
      std::vector<float> weights = random.normals(300);
      Pass whole = pass(tiny.load(element, 1), state, row, weights), cut = pass(tiny.load(element, 3), state, row, weights, 0);
      CHECK(same_bits(cut.logprobs.data(), whole.logprobs.data(), whole.logprobs.size()));
      CHECK(same_bits(cut.gradients.data(), whole.gradients.data(), whole.gradients.size()));
    }
  }
}

TEST(quantised_trainer_logprobs_have_the_bits_of_the_engine) {
  Random random(63);
  for (QuantFormat format : kFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      TinyModel tiny = quantised(format);
      auto model = tiny.load(element, 2);
      Trainer trainer(model, {4096, false}, random_state(random, tiny.spec));
      Job sampled = job(8, 45, 60);
      sampled.adapter = trainer.adapter();
      Driver driver(model, {4, 64, 100, 400, tiny.spec.vocab_size, 5}, 3);
      driver.set_chunk(7);
      driver.start(1, sampled);
      driver.run();
      Row row;
      row.tokens = sampled.tokens();
      row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
      row.tokens.pop_back();
      row.segments.push_back({0, row.size(), -1, 0});
      trainer.forward(row, train::Under::kCurrent);
      run(trainer, 100);
      for (size_t i = 0; i < sampled.output.size(); ++i) {
        CHECK(same_bits(trainer.scores().logprobs[sampled.prompt.size() - 1 + i], sampled.output[i].logprob));
      }
    }
  }
}

TEST(quantised_weights_that_are_not_finite_stay_so) {
  for (QuantFormat format : kFormats) {
    std::vector<float> row(64, 0.5f), scales(2);
    std::vector<uint8_t> values(64);
    row[40] = NAN;
    ops::quantise_weights(format, row.data(), 64, values.data(), scales.data());
    CHECK(std::isfinite(scales[0]));
    CHECK(std::isnan(scales[1]));
  }
}

}  // namespace
}  // namespace tandem::test
