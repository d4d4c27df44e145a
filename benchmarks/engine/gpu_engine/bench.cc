#include "bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "cuda/attention/attention_variants.h"
#include "cuda/common/device_info.h"
#include "cuda/experts/expert_variants.h"
#include "cuda/gemm/variants.h"
#include "cuda/lora/lora_variants.h"

namespace tandem::benchmarks {

Timing timing_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

Bench::Bench(const std::string& shape, const std::string& weights, bool prints)
    : shape_(shape), weights_(weights), prints_(prints), spec_(shape_of(shape)), counts_(counts_of(shape)),
      quantised_(format_of(weights).has_value()) {
  const auto start = Clock::now();
  model_ = device::load(spec_, RandomWeights(format_of(weights)), int(std::max(1u, std::thread::hardware_concurrency())), {});
  add("weights", double(model_->weight_bytes()) / 1e9, "GB");
  add("making and loading weights", seconds_since(start), "s");
}

void Bench::add(const std::string& name, const Timing& value, const char* unit) {
  results_.push_back({name, value, unit});
  if (!prints_) return;
  std::printf("%-76s %14.4f  %s", name.c_str(), value.median, unit);
  if (value.least != value.most) std::printf("  (%.4g to %.4g)", value.least, value.most);
  std::printf("\n");
}

void Bench::add_rate(const std::string& name, double amount, const Timing& seconds, const char* unit) {
  add(name, Timing{amount / seconds.median, amount / seconds.most, amount / seconds.least}, unit);
}

void Bench::add_time(const std::string& name, const Timing& seconds) {
  add(name, Timing{seconds.median * 1e6, seconds.least * 1e6, seconds.most * 1e6}, "us");
}

void Bench::add_cost(const std::string& name, const Timing& with, const Timing& without) {
  add(name, (with.median / without.median - 1) * 100, "% of a step");
}

void Bench::write(const char* path) const {
  FILE* file = std::fopen(path, "w");
  require(file != nullptr, ErrorKind::kIo, "cannot write the results");
  const cuda::DeviceInfo device = cuda::device_info();
  const auto setting = [](const char* name) { return std::getenv(name) ? std::getenv(name) : ""; };
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  std::fprintf(file, "{\n  \"device\": \"%s\",\n  \"date\": \"%s\",\n  \"shape\": \"%s %s\",\n", device.message.c_str(), date,
               shape_.c_str(), weights_.c_str());
  std::fprintf(file,
               "  \"matmul\": \"%s\",\n  \"attention\": \"%s\",\n  \"adapters\": \"%s\",\n  \"experts\": \"%s\",\n "
               " \"early_launch\": \"%s\",\n  \"cases\": [",
               cuda::variant_of(cuda::matmul_kernel(std::getenv("TANDEM_CUDA_MATMUL"), device.major, device.minor)).name,
               cuda::variant_of(cuda::attention_kernel(std::getenv("TANDEM_CUDA_ATTENTION"), device.major, device.minor)).name,
               cuda::variant_of(cuda::adapter_kernel(std::getenv("TANDEM_CUDA_ADAPTERS"), device.major, device.minor)).name,
               cuda::variant_of(cuda::expert_kernel(std::getenv("TANDEM_CUDA_EXPERTS"), device.major, device.minor)).name,
               setting("TANDEM_CUDA_EARLY_LAUNCH"));
  const char* comma = "";
  for (const Result& r : results_) {
    std::fprintf(file, "%s\n    {\"name\": \"%s\", \"median\": %.6g, \"min\": %.6g, \"max\": %.6g, \"unit\": \"%s\"}", comma,
                 r.name.c_str(), r.value.median, r.value.least, r.value.most, r.unit);
    comma = ",";
  }
  std::fprintf(file, "\n  ]\n}\n");
  std::fclose(file);
}

std::vector<Job> Bench::jobs(int64_t count, int64_t prompt, int64_t outputs) {
  std::vector<Job> all;
  for (int64_t i = 0; i < count; ++i) {
    Job j;
    for (int64_t t = 0; t < prompt; ++t) j.prompt.push_back(int32_t(random_.whole(0, spec_.vocab_size - 1)));
    j.params.max_tokens = outputs;
    j.params.sampling.temperature = 0;
    all.push_back(std::move(j));
  }
  return all;
}

engine::Options Bench::options(int64_t sequences, int64_t batch, int64_t length) const {
  engine::Options o;
  o.max_sequences = sequences;
  o.max_batch_tokens = batch;
  o.max_model_len = length;
  o.pages = sequences * ((length + simd::kPage - 1) / simd::kPage);
  o.samplable_vocab = spec_.vocab_size;
  o.max_logprobs = 20;
  return o;
}

std::unique_ptr<engine::Engine> Bench::engine_of(const engine::Options& options) const {
  auto make = [&](const engine::Options& checked) { return model_->make_backend(checked, 0); };
  return std::make_unique<engine::Engine>(model_->facts(), options, make);
}

std::unique_ptr<train::Trainer> Bench::trainer_of(int64_t tokens, bool recompute) const {
  train::State state;
  state.scale = 2.0f;
  state.factors = test::tiny_factors(spec_, 3, 8, test::all_modules());
  for (model::Factors& f : state.factors) {
    f.scale = state.scale;
    for (float& value : f.b) value *= 0.01f;
  }
  return model_->make_trainer({tokens, int64_t(1) << 40, recompute}, state);
}

double Bench::weights_of(double experts) const {
  const int64_t h = spec_.hidden_size, f = spec_.experts.size;
  const double mlp = spec_.experts.count == 0 ? double(3 * h * spec_.intermediate_size)
                                              : double(h) * (double(spec_.experts.count) + experts * double(3 * f));
  return double(spec_.layers) * (double(h * (2 * spec_.query_size() + 2 * spec_.kv_size())) + mlp);
}

double Bench::bytes_per_step(int64_t streams) const {
  const double table = double(spec_.vocab_size * spec_.hidden_size), count = double(spec_.experts.count);
  const double used = count == 0 ? 0 : count * (1 - std::pow(1 - double(spec_.experts.used) / count, double(streams)));
  const double all = weights_of(count) + table + (spec_.tied_embeddings ? 0 : table);
  return double(model_->weight_bytes()) * (weights_of(used) + table) / all;
}

}  // namespace tandem::benchmarks
