// The trainer: log-probabilities are those of the engine bit for bit, gradients those of finite differences, and nothing depends on slices,
// threads, packing or on what is kept.
#include "train/trainer.h"

#include <algorithm>

#include "driver.h"
#include "test.h"
#include "train_support.h"

namespace tandem::test {
namespace {

using ops::Element;

// Multiply-adds of the products with the weights of the layers and of the head, and their sizes.
struct Products {
  int64_t layers = 0, head = 0;
  int64_t least = 0;  // what cannot be cut: a panel of outputs of either direction, or one block of queries

  Products(const model::Model& model, int64_t rows, int64_t targets) {
    for (const model::Layer& layer : model.weights.layers) {
      for (const ops::PackedMatrix* w : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
        layers += rows * w->rows_padded() * w->columns_padded();
        // The adapter's product beside it is of a small rank.
        least = std::max(least, rows * w->panel() * std::max(w->rows_padded(), w->columns_padded()) * 5 / 4);
      }
    }
    int64_t block = simd::kAttendRows * model.spec.kv_heads / model.spec.heads;
    least = std::max(least, 4 * 5 * block * rows * model.spec.heads * model.kv_shape().dim());
    head = targets * model.head().rows_padded() * model.head().columns_padded();
  }
};

TEST_ENGINE(trainer_gradients_match_finite_differences) {
  Random random(91);
  TinyModel tiny;
  auto model = tiny.load(Element::kF32, 1);
  train::State state = random_state(random, tiny.spec, all_modules(), 3);
  Row row = Group(random, tiny.spec.vocab_size, 21, {9, 17, 30}).packed();
  std::vector<float> weights = weights_of(row, 5), grad = row_gradients(model, state, {row}, {weights});
  size_t at = 0;
  for (size_t f = 0; f < state.factors.size(); ++f) {
    for (bool b : {false, true}) {
      // Along the gradient itself, where the difference is largest beside the rounding of the sums.
      std::vector<float>& values = b ? state.factors[f].b : state.factors[f].a;
      double norm = 0;
      for (size_t i = 0; i < values.size(); ++i) norm += std::pow(double(grad[at + i]), 2);
      norm = std::sqrt(norm);
      std::vector<float> old = values;
      double sums[2], step = 0.01;
      for (int side = 0; side < 2; ++side) {
        for (size_t i = 0; i < values.size(); ++i) values[i] = old[i] + float((side == 0 ? -step : step) * grad[at + i] / norm);
        Trainer moved(model, {4096, kRoom, false}, state);
        sums[side] = weighted(moved, row, weights);
      }
      values = old;
      double slope = (sums[1] - sums[0]) / (2 * step);
      CHECK_NEAR(slope / norm, 1, 0.01);
      at += values.size();
    }
  }
}

TEST_ENGINE(trainer_gradients_do_not_depend_on_slices_threads_or_recomputing) {
  Random random(92);
  TinyModel tiny;
  for (Element element : {Element::kF32, Element::kBf16}) {
    auto one = tiny.load(element, 1), three = tiny.load(element, 3);
    train::State state = random_state(random, tiny.spec, all_modules(), 4);
    Row row = Group(random, tiny.spec.vocab_size, 300, {40, 9}).packed();
    std::vector<float> weights = weights_of(row, 6), whole = row_gradients(one, state, {row}, {weights});
    for (const auto& other : {row_gradients(one, state, {row}, {weights}, false, 0), row_gradients(three, state, {row}, {weights}),
                              row_gradients(one, state, {row}, {weights}, true), row_gradients(three, state, {row}, {weights}, true, 50)}) {
      CHECK(same_bits(other.data(), whole.data(), whole.size()));
    }
  }
}

// Of the shapes alone: no unit is larger than asked for, nothing is left out, and cuts change no bit.
void check_units(const std::shared_ptr<model::Model>& model, const train::State& state, const Row& row, const Products& products) {
  const int threads = model->pool.threads();
  std::vector<float> weights = weights_of(row, 6), whole = row_gradients(model, state, {row}, {weights});
  for (int64_t unit : {int64_t(1) << 16, int64_t(1) << 18, int64_t(1) << 40}) {
    Trainer trainer(model, {4096, kRoom, false, unit}, state);
    trainer.forward(row, train::Under::kCurrent);
    std::vector<int64_t> forward = run_units(trainer);
    trainer.backward(weights);
    std::vector<int64_t> backward = run_units(trainer);
    int64_t limit = std::max(unit * threads, products.least), sums[2] = {0, 0};
    for (const auto* units : {&forward, &backward}) {
      for (int64_t work : *units) {
        CHECK(work <= limit);
        sums[units == &forward ? 0 : 1] += work;
      }
    }
    // What is beside the products (attention, factors, softmax) counts too, and is a small part of real shapes only.
    CHECK(sums[0] >= products.layers + 2 * products.head);
    CHECK(sums[1] >= products.layers - products.layers / model->spec.layers);
    if (unit < int64_t(1) << 20) CHECK(int64_t(forward.size()) >= (products.layers + 2 * products.head) / limit);
    CHECK(same_bits(gradients(trainer).data(), whole.data(), whole.size()));
  }
}

TEST_ENGINE(trainer_cuts_work_into_bounded_units) {
  Random random(95);
  TinyModel tiny;
  for (Element element : {Element::kF32, Element::kBf16}) {
    for (int threads : {1, 3}) {
      auto model = tiny.load(element, threads);
      train::State state = random_state(random, tiny.spec, all_modules(), 4);
      Row row = Group(random, tiny.spec.vocab_size, 200, {30, 9}).packed();
      check_units(model, state, row, Products(*model, row.size(), 39));
      // Few rows go through the same weights.
      const int64_t counted = train::UnitSize::kLeastRows;
      check_units(model, state, Group(random, tiny.spec.vocab_size, 1, {2}).packed(), Products(*model, counted, counted));
    }
  }
}

TEST_ENGINE(trainer_shares_a_prefix_without_a_change) {
  Random random(93);
  TinyModel tiny;
  for (int64_t prefix : {1, 15, 16, 37, 100}) {
    Group group(random, tiny.spec.vocab_size, prefix, {20, 1, 33});
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto model = tiny.load(element, 2);
      train::State state = random_state(random, tiny.spec, all_modules(), 2);
      Row packed = group.packed();
      std::vector<Row> rows;
      std::vector<float> weights = weights_of(packed, 7);
      std::vector<std::vector<float>> parts;
      Trainer trainer(model, {4096, kRoom, false}, state);
      trainer.forward(packed, train::Under::kCurrent);
      run(trainer);
      std::vector<float> logprobs = trainer.scores().logprobs;
      for (size_t i = 0; i < group.endings.size(); ++i) {
        rows.push_back(group.alone(i));
        const train::Segment& s = packed.segments[i + 1];
        std::vector<float> part(size_t(prefix), 0.0f);
        part.insert(part.end(), weights.begin() + s.first, weights.begin() + s.first + s.count);
        parts.push_back(part);
        trainer.forward(rows.back(), train::Under::kCurrent);
        run(trainer);
        CHECK(same_bits(trainer.scores().logprobs.data() + prefix, logprobs.data() + s.first, size_t(s.count)));
      }
      std::vector<float> shared = row_gradients(model, state, {packed}, {weights}), apart = row_gradients(model, state, rows, parts);
      CHECK_NEAR(relative_error(shared, apart), 0, element == Element::kF32 ? 1e-5 : 0.02);
    }
  }
}

TEST_ENGINE(trainer_refuses_a_row_that_needs_too_much_memory) {
  Random random(96);
  TinyModel tiny;
  auto model = tiny.load(Element::kBf16, 1);
  train::State state = random_state(random, tiny.spec, all_modules(), 2);
  Row row = Group(random, tiny.spec.vocab_size, 50, {40, 40}).packed();
  int64_t needed = Trainer(model, {4096, kRoom, false}, state).row_bytes(row.size());
  CHECK(Trainer(model, {4096, kRoom, true}, state).row_bytes(row.size()) < needed);
  for (int64_t room : {needed / 2, 2 * needed}) {
    Trainer trainer(model, {4096, room, false}, state);
    if (room < needed) {
      CHECK_ERROR(kRange, "a packed row of 130 tokens needs", trainer.forward(row, train::Under::kCurrent));
      // Nothing is lost by it.
      trainer.forward(Group(random, tiny.spec.vocab_size, 5, {4}).packed(), train::Under::kCurrent);
    } else {
      trainer.forward(row, train::Under::kCurrent);
    }
    run(trainer);
  }
}

// The sampled tokens of an engine with their raw log-probabilities, under an adapter or none.
Job sampled(const std::shared_ptr<model::Model>& model, std::shared_ptr<const model::Adapter> adapter, const std::vector<int32_t>& prompt) {
  Driver driver(model, {4, 64, 100, 400, model->spec.vocab_size, 0}, 3);
  driver.set_chunk(7);
  Job job;
  job.prompt = prompt;
  job.params.sampling.seed = 11;
  job.params.sampling.logprobs = 0;
  job.params.max_tokens = 60;
  job.adapter = std::move(adapter);
  driver.start(1, job);
  driver.run();
  return job;
}

// Each of its tokens as the target of those before it.
Row row_of(const Job& job) {
  Row row;
  row.tokens = job.tokens();
  row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
  row.tokens.pop_back();
  row.segments.push_back({0, row.size(), -1, 0});
  return row;
}

TEST_ENGINE(trainer_logprobs_have_the_bits_of_the_engine) {
  Random random(94);
  for (auto [element, mixes] : {std::pair{Element::kF32, false}, {Element::kF32, true}, {Element::kBf16, false}, {Element::kBf16, true}}) {
    auto model = (mixes ? TinyModel::mixture() : TinyModel()).load(element, 2);
    Trainer trainer(model, {4096, kRoom, false}, random_state(random, model->spec, all_modules(), 3));
    for (bool current : {true, false}) {
      Job job = sampled(model, current ? trainer.adapter() : nullptr, random_tokens(random, 45, model->spec.vocab_size));
      Row row = row_of(job);
      trainer.forward(row, current ? train::Under::kCurrent : train::Under::kBase);
      run(trainer, 100);
      size_t first = job.prompt.size() - 1;
      for (size_t i = 0; i < job.output.size(); ++i) CHECK(same_bits(trainer.scores().logprobs[first + i], job.output[i].logprob));
    }
  }
}

}  // namespace
}  // namespace tandem::test
