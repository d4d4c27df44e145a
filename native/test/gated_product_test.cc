// Products whose outputs are gate and up, handed on and never stored: the bits of stored ones, each output once; and through a model.
#include <optional>

#include "driver.h"
#include "ops/matmul.h"
#include "quant_support.h"
#include "support.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using ops::Element;
using ops::PackedMatrix;
using ops::QuantFormat;

// Numbers of m rows in either width.
struct Given {
  int64_t ld;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  Given(Random& random, int64_t m, int64_t k) : ld(round_up(k, 32)), wide(random.normals(size_t(m * ld))) {
    for (int64_t i = 0; i < m * ld; ++i) {
      if (i % ld >= k) wide[size_t(i)] = 0;
      narrow.push_back(float_to_bf16(wide[size_t(i)]));
    }
  }
  const void* data(Element element) const {
    return element == Element::kF32 ? static_cast<const void*>(wide.data()) : static_cast<const void*>(narrow.data());
  }
};

void check_gated(Random& random, const PackedMatrix& w, Element element, int64_t m, ThreadPool& pool) {
  const Given x(random, m, w.columns());
  const int64_t n = w.rows(), half = n / 2;
  std::vector<float> wanted(size_t(m * n)), seen(size_t(m * n));
  std::vector<int> times(size_t(m * n));
  ops::matmul(kernels(), pool, x.data(element), x.ld, m, w, wanted.data(), n, false);
  auto keep = [&](int64_t row, int64_t rows, const float* gate_up, int64_t ld, int64_t first, int64_t count) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < 2 * count; ++i) {
        const size_t at = size_t((row + r) * n + (i < count ? first + i : half + first + i - count));
        seen[at] = gate_up[r * ld + i];
        ++times[at];
      }
    }
  };
  ops::matmul_gated(kernels(), pool, x.data(element), x.ld, m, w, std::ref(keep));
  CHECK(same_bits(seen.data(), wanted.data(), seen.size()));
  for (int count : times) CHECK_EQ(count, 1);
}

PackedMatrix quantised_weights(Random& random, QuantFormat format, Element element, int64_t n, int64_t k, ThreadPool& pool) {
  const QuantSource source(random, format, n, k);
  return PackedMatrix(element, ops::QuantisedMatrix(kernels().panel, k, {source.part()}, pool));
}

PackedMatrix packed_weights(Random& random, Element element, int64_t n, int64_t k, ThreadPool& pool) {
  const std::vector<float> weights = random.normals(size_t(n * k));
  return PackedMatrix(kernels(), element, n, k, pool, [&](int64_t first, int64_t count, float* out) {
    std::memcpy(out, weights.data() + first * k, size_t(count * k) * sizeof(float));
    return true;
  });
}

TEST(gated_products_have_the_bits_of_stored_ones) {
  Random random(211);
  ThreadPool one(1), three(3);
  for (Element element : {Element::kF32, Element::kBf16}) {
    // Rows around the blocks that a product cuts them in.
    for (int64_t m : {1, 2, 15, 33, 64, 255, 257, 600}) {
      const int64_t n = 2 * kernels().panel * random.whole(1, 3), k = random.whole(1, 90);
      ThreadPool& pool = m % 2 == 0 ? one : three;
      check_gated(random, packed_weights(random, element, n, k, pool), element, m, pool);
      const QuantFormat format = kQuantFormats[size_t(m) % std::size(kQuantFormats)];
      check_gated(random, quantised_weights(random, format, element, n, k, pool), element, m, pool);
    }
    for (QuantFormat format : kQuantFormats)
      check_gated(random, quantised_weights(random, format, element, 2 * kernels().panel, 64, three), element, 40, three);
  }
}

TEST(gated_products_need_halves_of_whole_panels) {
  Random random(212);
  ThreadPool pool(1);
  const int64_t panel = kernels().panel;
  auto keep = [](int64_t, int64_t, float*, int64_t, int64_t, int64_t) {};
  const Given x(random, 2, 8);
  for (int64_t n : {panel, 3 * panel, 4 * panel - 2}) {
    const PackedMatrix w = packed_weights(random, Element::kF32, n, 8, pool);
    CHECK(!ops::has_whole_halves(w));
    CHECK_ERROR(kRange, "whole panels", ops::matmul_gated(kernels(), pool, x.data(Element::kF32), x.ld, 2, w, keep));
  }
  CHECK(ops::has_whole_halves(packed_weights(random, Element::kF32, 4 * panel, 8, pool)));
}

// Long prompts hand their gates on; chunks of seven rows store them.
TEST_ENGINE(prompts_have_the_same_bits_whether_their_gates_are_stored) {
  for (auto format : {std::optional<model::Quantise>(), std::optional(model::Quantise{QuantFormat::kInt8})}) {
    TinyModel tiny;
    tiny.spec.intermediate_size = 128;
    tiny.spec.mlp_bias = false;
    tiny.quantise = format;
    for (Element element : {Element::kF32, Element::kBf16}) {
      auto model = tiny.load(element, 2);
      CHECK(ops::has_whole_halves(model->weights.layers[0].gate_up));
      // Together they are more rows than a product takes at once, those with adapters among others'.
      std::vector<Job> stored = {random_job(1, 190, 4, 0), random_job(2, 170, 4, 0), random_job(3, 185, 4, 0)};
      stored[1].adapter = std::make_shared<model::Adapter>(model, tiny_factors(tiny.spec, 5, 4, all_modules()));
      stored[2].adapter = std::make_shared<model::Adapter>(model, tiny_factors(tiny.spec, 6, 3, {model::Module::kUp}));
      std::vector<Job> alone = stored, together = stored;
      engine::Options options = driven_options();
      options.max_batch_tokens = 600;
      Driver chunked(model, options);
      chunked.set_chunk(7);
      run_together(chunked, stored);
      for (Job& job : alone) {
        Driver driver(model, options);
        driver.start(0, job);
        driver.run();
      }
      check_same_jobs(alone, stored);
      Driver driver(model, options);
      run_together(driver, together);
      check_same_jobs(together, stored);
    }
  }
}

}  // namespace
}  // namespace tandem::test
