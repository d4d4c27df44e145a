// Models whose weights were quantised while they were loaded: the engine's and the trainer's promises hold, and what they compute is close to
// the same model in FP32 with the dequantised weights.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "dequantised.h"
#include "driver.h"
#include "temp_folder.h"
#include "test.h"
#include "tiny_model.h"
#include "train_support.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::QuantFormat;
using train::Row;
using train::Trainer;

constexpr QuantFormat kFormats[] = {QuantFormat::kInt8, QuantFormat::kInt4};

TinyModel quantised(QuantFormat format) {
  TinyModel tiny;
  tiny.quantise = model::Quantise{format};
  return tiny;
}

const engine::Options kOptions = {8, 256, 64, 200, 100, 5};

TEST(quantised_models_of_floating_numbers_are_for_devices) {
  CHECK_ERROR(kUnsupported, "fp8 weights need a GPU", quantised(QuantFormat::kFp8).load(Element::kBf16, 1));
}

TEST_ENGINE(quantised_sequences_do_not_depend_on_the_batch) {
  for (QuantFormat format : kFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto one = quantised(format).load(element, 1), three = quantised(format).load(element, 3);
      std::vector<Job> jobs = {random_job(1, 1, 9),  random_job(2, 17, 12), random_job(3, 70, 6), random_job(4, 33, 20),
                               random_job(5, 16, 5), random_job(6, 64, 8),  random_job(7, 5, 9)};
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

struct Pass {
  std::vector<float> logprobs, gradients;
};

// Log-probabilities of a row, and the gradients of their weighted sum as the moments of one step.
Pass pass(const std::shared_ptr<model::Model>& model, const train::State& state, const Row& row, const std::vector<float>& weights,
          int64_t micros = 1 << 30) {
  Trainer trainer(model, {4096, kRoom, false}, state);
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

TEST_ENGINE(quantised_models_are_close_to_their_dequantised_weights) {
  Random random(61);
  for (QuantFormat format : kFormats) {
    TinyModel tiny = quantised(format);
    auto truth = dequantised({}, format).load(Element::kF32, 2);
    train::State state = random_state(random, tiny.spec);
    Row row = random_row(random, tiny.spec.vocab_size, 150);
    std::vector<float> weights = random.normals(150);
    Pass wanted = pass(truth, state, row, weights);
    for (Element element : {Element::kF32, Element::kBf16}) {
      Pass got = pass(tiny.load(element, 2), state, row, weights);
      double logprobs = relative_error(got.logprobs, wanted.logprobs), gradients = relative_error(got.gradients, wanted.gradients);
      CHECK(logprobs < 0.01);
      CHECK(gradients < 0.04);
    }
    if (format == QuantFormat::kInt8) continue;
    // The comparison sees other weights: those before their quantisation to 4 bits.
    Pass other = pass(TinyModel().load(Element::kF32, 2), state, row, weights);
    CHECK(relative_error(other.logprobs, wanted.logprobs) > 0.05);
    CHECK(relative_error(other.gradients, wanted.gradients) > 0.2);
  }
}

TEST_ENGINE(quantised_training_depends_on_rows_and_factors_alone) {
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

TEST_ENGINE(quantised_trainer_logprobs_have_the_bits_of_the_engine) {
  Random random(63);
  for (QuantFormat format : kFormats) {
    for (Element element : {Element::kF32, Element::kBf16}) {
      TinyModel tiny = quantised(format);
      auto model = tiny.load(element, 2);
      Trainer trainer(model, {4096, kRoom, false}, random_state(random, tiny.spec));
      Job sampled = random_job(8, 45, 60);
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

// The bytes of all panels.
std::string panels_of(const model::Model& model) {
  std::string all;
  auto add = [&](const ops::PackedMatrix& matrix) {
    const ops::QuantisedMatrix& q = *matrix.quantised();
    all.append(reinterpret_cast<const char*>(q.panel_data(0)), q.bytes());
  };
  add(model.weights.embedding);
  if (!model.spec.tied_embeddings) add(model.weights.head);
  for (const model::Layer& layer : model.weights.layers) {
    for (const ops::PackedMatrix* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) add(*matrix);
  }
  return all;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

using model::CacheOutcome;

TEST(cached_weights_are_those_that_were_made) {
  for (QuantFormat format : kFormats) {
    for (bool tied : {false, true}) {
      TempFolder folder;
      TinyModel tiny = tied ? TinyModel::mixture() : TinyModel();
      tiny.quantise = model::Quantise{format};
      tiny.spec.tied_embeddings = tied;
      auto plain = tiny.load(Element::kF32, 2);
      CHECK(plain->weights.cache == CacheOutcome::kUnused);
      tiny.quantise->cache = model::CachePlace{folder.path("cache"), "a key"};
      for (CacheOutcome outcome : {CacheOutcome::kWritten, CacheOutcome::kRead, CacheOutcome::kRead}) {
        auto model = tiny.load(Element::kF32, 3);
        CHECK(model->weights.cache == outcome);
        CHECK(panels_of(*model) == panels_of(*plain));
      }
      // Of another key, another format and another shape.
      TinyModel other = tiny;
      other.quantise->cache->key = "a kez";
      CHECK(other.load(Element::kF32, 1)->weights.cache == CacheOutcome::kWritten);
      other.quantise->format = format == QuantFormat::kInt8 ? QuantFormat::kInt4 : QuantFormat::kInt8;
      CHECK(other.load(Element::kF32, 1)->weights.cache == CacheOutcome::kWritten);
      other.spec.intermediate_size += 8;
      CHECK(other.load(Element::kF32, 1)->weights.cache == CacheOutcome::kWritten);
      CHECK(tiny.load(Element::kF32, 1)->weights.cache == CacheOutcome::kWritten);
    }
  }
}

TEST_ONCE(damaged_caches_are_made_anew) {
  Random random(64);
  TempFolder folder;
  TinyModel tiny = quantised(QuantFormat::kInt4);
  tiny.quantise->cache = model::CachePlace{folder.path("cache"), "key"};
  std::string wanted = panels_of(*tiny.load(Element::kF32, 1)), whole = read_file(folder.path("cache"));
  for (int round = 0; round < 60; ++round) {
    std::string damaged = whole;
    size_t at = size_t(random.whole(0, int64_t(whole.size()) - 1));
    if (round % 3 == 0) damaged.resize(at);
    if (round % 3 == 1) damaged[at] = char(damaged[at] ^ (1 << random.whole(0, 7)));
    if (round % 3 == 2) damaged += std::string(size_t(random.whole(1, 200)), char(random.whole(0, 255)));
    folder.write("cache", damaged.data(), damaged.size());
    auto model = tiny.load(Element::kF32, 2);
    CHECK(model->weights.cache == CacheOutcome::kWritten);
    CHECK(panels_of(*model) == wanted);
    CHECK(read_file(folder.path("cache")) == whole);
  }
}

std::vector<std::string> files_in(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(""))) names.push_back(entry.path().filename());
  return names;
}

TEST_ONCE(caches_written_at_the_same_time_do_not_mix) {
  TempFolder folder;
  TinyModel tiny = quantised(QuantFormat::kInt8);
  auto model = tiny.load(Element::kF32, 1);
  model::CachePlace place{folder.path("cache"), "key"};
  const ops::QuantisedMatrix *embedding = model->weights.embedding.quantised(), *down = model->weights.layers[0].down.quantised();
  std::atomic<int> failed{0};
  auto write_many = [&] {
    for (int i = 0; i < 50; ++i) failed += model::write_cache(place, {embedding, down}).has_value();
  };
  std::thread first(write_many), second(write_many);
  first.join();
  second.join();
  CHECK(failed == 0);
  CHECK(files_in(folder) == std::vector<std::string>{"cache"});
  model::CacheReader reader(place, model->pool);
  for (const ops::QuantisedMatrix* matrix : {embedding, down}) {
    auto found = reader.next(matrix->panel(), matrix->rows(), matrix->columns(), QuantFormat::kInt8);
    CHECK(found && std::equal(found->panel_data(0), found->panel_data(0) + found->bytes(), matrix->panel_data(0)));
  }
  CHECK(reader.finished());
}

// Matrices that have the same number of bytes are not taken for one another.
TEST_ONCE(a_cache_is_read_as_what_was_written_and_nothing_else) {
  TempFolder folder;
  auto model = quantised(QuantFormat::kInt8).load(Element::kF32, 1);
  model::CachePlace place{folder.path("cache"), "key"};
  const ops::QuantisedMatrix& matrix = *model->weights.embedding.quantised();
  const int64_t panel = matrix.panel(), rows = matrix.rows(), columns = matrix.columns();
  CHECK(!model::write_cache(place, {&matrix}));
  const int before = dup(0);
  close(before);
  auto read = [&](int64_t panel_size, int64_t row_count, int64_t column_count, QuantFormat format) {
    model::CacheReader reader(place, model->pool);
    return reader.next(panel_size, row_count, column_count, format).has_value();
  };
  CHECK(read(panel, rows, columns, QuantFormat::kInt8));
  CHECK(!read(panel / 2, rows, columns, QuantFormat::kInt8));
  CHECK(!read(panel, rows + 1, columns, QuantFormat::kInt8));
  CHECK(!read(panel, rows, columns + 1, QuantFormat::kInt8));
  CHECK(!read(panel, rows, columns, QuantFormat::kInt4));
  const int after = dup(0);
  close(after);
  CHECK_EQ(after, before);
}

// A file that shrinks while it is loaded: what it lacks is no zero.
TEST_ONCE(weights_that_cannot_be_read_are_an_error) {
  // After so many matrices; then a matrix is read, or what stands between two.
  for (auto [matrices, failure] : {std::pair(1, "could not read the weights"), std::pair(2, "could not read model.norm.weight")}) {
    const char* what = failure;
    for (bool quantises : {false, true}) {
      const TinyModel tiny = quantises ? quantised(QuantFormat::kInt8) : TinyModel();
      tiny.with_files([&, left = matrices](const auto& files, const auto& tensors) mutable {
        auto shrink = [&](int64_t, int64_t) {
          if (--left == 0) std::filesystem::resize_file(files[0], 0);
        };
        CHECK_ERROR(kIo, what, model::Model(tiny.spec, files, tensors, Element::kF32, 2, shrink, tiny.quantise));
      });
    }
  }
}

TEST_ONCE(a_disk_that_fills_up_leaves_nothing_behind) {
  TempFolder folder;
  TinyModel tiny = quantised(QuantFormat::kInt8);
  auto model = tiny.load(Element::kF32, 1);
  // A file may not grow beyond a kibibyte; the signal that tells it is ignored.
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small{1024, before.rlim_max};
  CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
  auto error = model::write_cache({folder.path("cache"), "key"}, {model->weights.embedding.quantised()});
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(error && error->find("File too large") != std::string::npos);
  CHECK(files_in(folder).empty());
}

TEST_ONCE(a_cache_that_cannot_be_written_is_a_note) {
  TempFolder folder;
  TinyModel tiny = quantised(QuantFormat::kInt8);
  tiny.quantise->cache = model::CachePlace{folder.path("missing/cache"), "key"};
  auto model = tiny.load(Element::kF32, 1);
  CHECK(model->weights.cache == CacheOutcome::kFailed);
  CHECK(model->weights.cache_error.find("No such file") != std::string::npos);
  // A folder in its place: nothing half-written stays.
  std::filesystem::create_directory(folder.path("cache"));
  tiny.quantise->cache->path = folder.path("cache");
  CHECK(tiny.load(Element::kF32, 1)->weights.cache == CacheOutcome::kFailed);
  CHECK(files_in(folder) == std::vector<std::string>{"cache"});
}

}  // namespace
}  // namespace tandem::test
