// Low-rank adapters: the products against the naive truth, every row alone bitwise equal to the same row in any group, and sequences with
// adapters of mixed ranks in one batch bitwise equal to each alone.
#include "ops/lora.h"

#include <algorithm>
#include <numeric>

#include "driver.h"
#include "ops/quantise.h"
#include "temp_folder.h"
#include "test.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using model::Adapter;
using model::Module;
using ops::Element;
using ops::LoraFactors;
using ops::LoraShape;
using ops::LoraTask;

struct Projection {
  LoraShape shape;
  Element element;
  std::vector<float> a, b;
  LoraFactors factors;

  Projection(Random& random, Element e, const LoraShape& s)
      : shape(s), element(e), a(random.normals(size_t(s.rank * s.in))), b(random.normals(size_t(s.out * s.rank))),
        factors(kernels(), e, s, 0.5f, a.data(), b.data()) {}
};

struct AdapterRows {
  int64_t ldx;
  std::vector<float> x;
  std::vector<uint16_t> bf16;

  AdapterRows(Random& random, Element element, int64_t in, int64_t count) : ldx(round_up(in, 32)), x(random.normals(size_t(count * ldx))) {
    for (int64_t i = 0; i < count; ++i) std::fill_n(x.begin() + i * ldx + in, ldx - in, 0.0f);
    if (element == Element::kF32) return;
    for (float& value : x) {
      value = rounded_bf16(value);
      bf16.push_back(float_to_bf16(value));
    }
  }
  const void* data() const { return bf16.empty() ? static_cast<const void*>(x.data()) : static_cast<const void*>(bf16.data()); }
};

// y of the given rows after their adapter; y starts as `start`.
std::vector<float> apply(const Projection& c, const AdapterRows& x, const std::vector<int32_t>& rows, std::vector<float> y, int64_t ldy,
                         int threads) {
  ThreadPool pool(threads);
  std::vector<float> u(rows.size() * size_t(c.factors.rank_padded()), NAN);
  std::vector<LoraTask> tasks{{&c.factors, rows.data(), int64_t(rows.size()), u.data(), c.factors.rank_padded()}};
  ops::lora_shrink(kernels(), pool, tasks, x.data(), x.ldx);
  for (int64_t panel = 0; panel < ldy / kernels().panel; ++panel) ops::lora_expand_panel(kernels(), tasks, panel, y.data(), ldy);
  return y;
}

void check_case(Random& random, Element element, const LoraShape& shape, int64_t batch) {
  Projection c(random, element, shape);
  AdapterRows x(random, element, shape.in, batch);
  int64_t ldy = round_up(shape.first_out + shape.out + random.whole(0, 40), kernels().panel);
  std::vector<float> start = random.normals(size_t(batch * ldy)), truth = start;
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < batch; ++i) {
    if (random.whole(0, 3) > 0) rows.push_back(int32_t(i));
  }
  std::vector<float> y = apply(c, x, rows, start, ldy, 2);
  ops::lora_reference({&c.factors, rows.data(), int64_t(rows.size()), nullptr, 0}, x.x.data(), x.ldx, truth.data(), ldy);
  double tolerance = 2e-6 * std::sqrt(double(shape.in * shape.rank)) * 8 + 1e-5;
  for (size_t i = 0; i < y.size(); ++i) CHECK_NEAR(y[i], truth[i], tolerance);
  // Columns of other projections and rows without the adapter keep their bits; every row alone gets the same.
  std::vector<float> alone = start;
  for (int32_t row : rows) alone = apply(c, x, {row}, std::move(alone), ldy, 1);
  CHECK(same_bits(alone.data(), y.data(), y.size()));
  for (int64_t i = 0; i < batch; ++i) {
    bool used = std::find(rows.begin(), rows.end(), int32_t(i)) != rows.end();
    for (int64_t n = 0; n < ldy; ++n) {
      bool own = used && n >= shape.first_out && n < shape.first_out + shape.out;
      if (!own) CHECK(same_bits(y[size_t(i * ldy + n)], start[size_t(i * ldy + n)]));
    }
  }
}

TEST(lora_matches_reference_and_rows_stand_alone) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    Random random(element == Element::kF32 ? 31 : 32);
    for (int64_t rank : {1, 2, 3, 7, 8, 16, 33, 64, 100}) {
      check_case(random, element, {rank, random.whole(1, 200), random.whole(1, 150), random.whole(0, 90)}, random.whole(1, 40));
    }
    for (int64_t batch : {1, 2, 3, 4, 5, 31, 33, 70}) check_case(random, element, {8, 96, 130, 64}, batch);
  }
}

// A product of many rows is made in blocks of them; what the factors add comes once.
TEST(factors_are_added_once_to_products_of_many_rows) {
  Random random(34);
  ThreadPool pool(2);
  const int64_t m = 600, k = 64, n = 70;
  for (Element element : {Element::kF32, Element::kBf16}) {
    const std::vector<float> weights = random.normals(size_t(n * k), 0.1f);
    auto read = [&](int64_t first, int64_t count, float* out) {
      std::copy_n(weights.begin() + first * k, count * k, out);
      return true;
    };
    auto quantise = [&](int64_t first, int64_t count, const ops::QuantRows& out) {
      for (int64_t r = 0; r < count; ++r)
        ops::quantise_weights(ops::QuantFormat::kInt8, &weights[size_t((first + r) * k)], k, out.values + r * k, out.scales + r * (k / 32));
      return true;
    };
    std::vector<ops::PackedMatrix> matrices;
    matrices.emplace_back(kernels(), element, n, k, pool, read);
    matrices.emplace_back(element, ops::QuantisedMatrix(kernels().panel, k, {{n, ops::QuantFormat::kInt8, quantise}}, pool));
    Projection c(random, element, {4, k, n, 0});
    AdapterRows x(random, element, k, m);
    std::vector<int32_t> rows(static_cast<size_t>(m));
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> u(size_t(m * c.factors.rank_padded()));
    const std::vector<LoraTask> tasks{{&c.factors, rows.data(), m, u.data(), c.factors.rank_padded()}};
    for (const ops::PackedMatrix& w : matrices) {
      const int64_t ldy = w.rows_padded();
      std::vector<float> base(size_t(m * ldy)), found(base.size());
      ops::matmul(kernels(), pool, x.data(), x.ldx, m, w, base.data(), ldy, false);
      ops::lora_matmul(kernels(), pool, tasks, x.data(), x.ldx, m, w, found.data(), ldy, false);
      const std::vector<float> wanted = apply(c, x, rows, base, ldy, 1);
      CHECK(same_bits(found.data(), wanted.data(), wanted.size()));
    }
  }
}

TEST(lora_factors_come_back_rounded) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    Random random(33);
    Projection c(random, element, {5, 37, 91, 29});
    std::vector<float> a(c.a.size()), b(c.b.size());
    c.factors.copy_a(a.data());
    c.factors.copy_b(b.data());
    for (size_t i = 0; i < a.size(); ++i) CHECK_EQ(a[i], element == Element::kF32 ? c.a[i] : rounded_bf16(c.a[i]));
    for (size_t i = 0; i < b.size(); ++i) CHECK_EQ(b[i], element == Element::kF32 ? c.b[i] : rounded_bf16(c.b[i]));
  }
}

TEST(lora_factors_refuse_what_is_not_finite) {
  float one[64] = {};
  auto make = [&](const LoraShape& shape, float scale) { return LoraFactors(kernels(), Element::kBf16, shape, scale, one, one); };
  CHECK_ERROR(kRange, "rank", make({0, 4, 4, 0}, 1));
  CHECK_ERROR(kRange, "rank", make({1025, 4, 4, 0}, 1));
  CHECK_ERROR(kRange, "scale", make({2, 4, 4, 0}, INFINITY));
  CHECK_ERROR(kRange, "scale", make({2, 4, 4, 0}, NAN));
  std::vector<float> fine(16), wrong(16);
  for (float bad : {NAN, INFINITY, -INFINITY, 3.4e38f}) {
    wrong[7] = bad;
    CHECK_ERROR(kRange, "lora_A", LoraFactors(kernels(), Element::kBf16, {2, 8, 8, 0}, 1, wrong.data(), fine.data()));
    CHECK_ERROR(kRange, "lora_B", LoraFactors(kernels(), Element::kBf16, {2, 8, 8, 0}, 1, fine.data(), wrong.data()));
  }
}

// ---------------------------------------------------------------- sequences

engine::Options adapted_options() {
  engine::Options o;
  o.max_sequences = 13;
  o.max_batch_tokens = 256;
  o.pages = 96;
  o.max_model_len = 200;
  o.samplable_vocab = 100;
  o.max_logprobs = 5;
  return o;
}

Job job(uint64_t seed, std::shared_ptr<const Adapter> adapter) {
  Random random(seed);
  Job j;
  for (int64_t i = random.whole(1, 60); i > 0; --i) j.prompt.push_back(int32_t(random.whole(1, 99)));
  j.params.sampling.temperature = 1;
  j.params.sampling.seed = seed;
  j.params.sampling.logprobs = 3;
  j.params.max_tokens = 8;
  j.adapter = std::move(adapter);
  return j;
}

bool same_output(const Job& a, const Job& b) {
  bool same = a.output.size() == b.output.size();
  for (size_t i = 0; same && i < a.output.size(); ++i) {
    same = a.output[i].id == b.output[i].id && same_bits(a.output[i].logprob, b.output[i].logprob);
  }
  return same;
}

void run_together(const std::shared_ptr<model::Model>& model, std::vector<Job>& jobs, int64_t chunk) {
  Driver driver(model, adapted_options());
  driver.set_chunk(chunk);
  for (size_t i = 0; i < jobs.size(); ++i) driver.start(int64_t(jobs.size() - i), jobs[i]);
  driver.run();
}

// Adapters of mixed ranks and targets, two sequences without any, and two that share one.
std::vector<Job> mixed_jobs(const std::shared_ptr<model::Model>& model) {
  const model::Spec& spec = model->spec;
  std::vector<Job> jobs{job(1, nullptr)};
  uint64_t seed = 2;
  for (int64_t rank : {8, 8, 8, 8, 16, 16, 32, 64}) {
    jobs.push_back(job(seed, std::make_shared<Adapter>(model, tiny_factors(spec, seed, rank, all_modules()))));
    ++seed;
  }
  jobs.push_back(job(20, std::make_shared<Adapter>(model, tiny_factors(spec, 20, 3, {Module::kQ, Module::kV, Module::kDown}))));
  jobs.push_back(job(21, jobs[3].adapter));
  jobs.push_back(job(22, nullptr));
  return jobs;
}

TEST_ENGINE(sequences_with_adapters_do_not_depend_on_their_batch) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    auto one = TinyModel().load(element, 1);
    std::vector<Job> wanted = mixed_jobs(one);
    for (Job& j : wanted) {
      std::vector<Job> alone{j};
      run_together(one, alone, 1 << 30);
      j.output = alone[0].output;
    }
    CHECK(!same_output(wanted[3], wanted[10]));
    for (int threads : {1, 3}) {
      auto model = TinyModel().load(element, threads);
      for (int64_t chunk : {int64_t(1) << 30, int64_t(7)}) {
        std::vector<Job> jobs = mixed_jobs(model);
        run_together(model, jobs, chunk);
        for (size_t i = 0; i < jobs.size(); ++i) CHECK(same_output(jobs[i], wanted[i]));
      }
    }
  }
}

TEST_ENGINE(an_identity_adapter_changes_nothing_and_another_does) {
  for (Element element : {Element::kF32, Element::kBf16}) {
    auto model = TinyModel().load(element, 2);
    auto identity = std::make_shared<Adapter>(model, tiny_factors(model->spec, 5, 8, all_modules(), true));
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      std::vector<Job> base{job(seed, nullptr)}, same{job(seed, identity)};
      run_together(model, base, 1 << 30);
      run_together(model, same, 1 << 30);
      CHECK(same_output(base[0], same[0]));
    }
    // Every projection reaches the logits.
    for (Module module : all_modules()) {
      std::vector<Job> base{job(3, nullptr)}, changed{job(3, std::make_shared<Adapter>(model, tiny_factors(model->spec, 6, 4, {module})))};
      run_together(model, base, 1 << 30);
      run_together(model, changed, 1 << 30);
      CHECK(!same_output(base[0], changed[0]));
    }
  }
}

// W + scale B A in the weights themselves gives nearly the same hidden state.
TEST_ENGINE(an_adapter_acts_like_merged_weights) {
  TinyModel tiny;
  auto model = tiny.load(Element::kF32, 1);
  std::vector<model::Factors> factors = tiny_factors(tiny.spec, 7, 6, all_modules());
  auto adapter = std::make_shared<Adapter>(model, factors);
  tiny.edit = [&](const std::string& name, std::vector<float>& values) {
    for (const model::Factors& f : factors) {
      if (name != "model.layers." + std::to_string(f.layer) + "." + model::name_of(f.module) + ".weight") continue;
      ops::LoraShape s = model::shape_of(tiny.spec, f.module);
      for (int64_t n = 0; n < s.out; ++n) {
        for (int64_t k = 0; k < s.in; ++k) {
          double sum = 0;
          for (int64_t r = 0; r < f.rank; ++r) sum += double(f.b[size_t(n * f.rank + r)]) * double(f.a[size_t(r * s.in + k)]);
          values[size_t(n * s.in + k)] += float(double(f.scale) * sum);
        }
      }
    }
  };
  auto merged = tiny.load(Element::kF32, 1);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<Job> a{job(seed, adapter)}, b{job(seed, nullptr)};
    run_together(model, a, 1 << 30);
    run_together(merged, b, 1 << 30);
    CHECK_EQ(a[0].output.size(), b[0].output.size());
    for (size_t i = 0; i < std::min(a[0].output.size(), b[0].output.size()); ++i) {
      CHECK_EQ(a[0].output[i].id, b[0].output[i].id);
      CHECK_NEAR(a[0].output[i].logprob, b[0].output[i].logprob, 2e-4);
    }
  }
}

TEST(adapters_are_checked_against_the_model) {
  auto model = TinyModel().load(Element::kF32, 1), other = TinyModel().load(Element::kF32, 1);
  auto factors = tiny_factors(model->spec, 8, 4, {Module::kUp});
  auto with = [&](auto change) {
    auto copy = factors;
    change(copy);
    return Adapter(model, copy);
  };
  CHECK_ERROR(kRange, "the model has no layers.3.mlp.up_proj", with([](auto& f) { f[0].layer = 3; }));
  CHECK_ERROR(kRange, "no layers.-1", with([](auto& f) { f[0].layer = -1; }));
  CHECK_ERROR(kRange, "layers.1.mlp.up_proj: lora_A has the wrong size", with([](auto& f) { f[1].a.pop_back(); }));
  CHECK_ERROR(kRange, "layers.1.mlp.up_proj: lora_A has the wrong size", with([](auto& f) { f[1].a.push_back(0); }));
  CHECK_ERROR(kRange, "layers.1.mlp.up_proj: lora_B has the wrong size", with([](auto& f) { f[1].b.pop_back(); }));
  CHECK_ERROR(kRange, "layers.1.mlp.up_proj: lora_B has the wrong size", with([](auto& f) { f[1].b.push_back(0); }));
  CHECK_ERROR(kRange, "layers.0.mlp.up_proj comes twice", with([](auto& f) { f[1].layer = 0; }));
  CHECK_ERROR(kRange, "layers.2.mlp.up_proj: lora_B holds", with([](auto& f) { f[2].b[3] = NAN; }));
  CHECK_ERROR(kRange, "rank must be", with([](auto& f) { f[0].rank = 1000000; }));
  engine::Engine engine(other, adapted_options());
  engine::Plan plan;
  engine::Open open;
  open.slot = 0;
  open.prompt_length = 1;
  open.adapter = std::make_shared<Adapter>(model, factors);
  plan.opens.push_back(open);
  CHECK_ERROR(kRange, "not of this model", engine.step(plan));
}

TEST(adapters_come_from_files) {
  auto model = TinyModel().load(Element::kBf16, 1);
  auto factors = tiny_factors(model->spec, 9, 5, {Module::kK, Module::kDown});
  TensorList list;
  std::vector<float> values;
  std::vector<model::StoredFactors> stored;
  for (const model::Factors& f : factors) {
    ops::LoraShape s = model::shape_of(model->spec, f.module);
    std::string name = std::to_string(list.tensors.size());
    list.add("a" + name, {f.rank, s.in});
    list.add("b" + name, {s.out, f.rank});
    values.insert(values.end(), f.a.begin(), f.a.end());
    values.insert(values.end(), f.b.begin(), f.b.end());
    stored.push_back({f.layer, f.module, f.rank, f.scale, "a" + name, "b" + name});
  }
  TempFolder folder;
  std::string file = folder.write("adapter", values.data(), values.size() * sizeof(float));
  Adapter in_memory(model, factors), from_file(model, {file}, list.tensors, stored);
  CHECK_EQ(from_file.bytes(), in_memory.bytes());
  for (const model::Factors& f : factors) {
    const ops::LoraFactors &x = in_memory.factors(f.layer, f.module), &y = from_file.factors(f.layer, f.module);
    std::vector<float> xa(f.a.size()), ya(f.a.size()), xb(f.b.size()), yb(f.b.size());
    x.copy_a(xa.data()), y.copy_a(ya.data()), x.copy_b(xb.data()), y.copy_b(yb.data());
    CHECK(same_bits(xa.data(), ya.data(), xa.size()) && same_bits(xb.data(), yb.data(), xb.size()));
  }
  auto short_a = stored;
  short_a[0].rank = 4;
  CHECK_ERROR(kRange, "wrong shape", Adapter(model, {file}, list.tensors, short_a));
  short_a[0].rank = int64_t(1) << 40;
  CHECK_ERROR(kRange, "rank must be", Adapter(model, {file}, list.tensors, short_a));
}

}  // namespace
}  // namespace tandem::test
