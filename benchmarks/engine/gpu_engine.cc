// The engine on a GPU with random weights in the shape of a real model: the same tokens alone and in a batch whose steps are queued, the
// same log-probabilities in the trainer; then decode (with steps queued ahead and in turn: the difference is the gap between two steps),
// prefill, offline throughput and a LoRA step, beside the device's copy bandwidth and the rate of a large BF16 product (cuBLASLt's where the
// machine has it) measured in the same run. Needs no Node and no files.
// Usage: gpu_engine 0.6b|8b[:LAYERS] [FILE.json [bf16|int8|int4|fp8 [PART...]]], PART being some of the name of what is to run, as "decode".
// With TANDEM_GPU_PROFILE=1 nothing is timed: a profiler sees one decode step, one prefill and one LoRA step (kernels/profiled.h).
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "../kernels/cublaslt_peer.h"
#include "../kernels/profiled.h"
#include "cuda/common/device_buffer.h"
#include "cuda/common/device_info.h"
#include "cuda/common/stream.h"
#include "cuda/gemm/matmul.h"
#include "device/device.h"
#include "driver.h"
#include "ops/quantise.h"
#include "tiny_model.h"

namespace {

using namespace tandem;
using test::Driver;
using test::Job;
using test::Random;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Qwen3; of fewer layers where their number follows.
model::Spec shape_of(const std::string& name) {
  model::Spec s;
  const size_t colon = name.find(':');
  const std::string size = name.substr(0, colon);
  const bool large = size == "8b";
  require(large || size == "0.6b", ErrorKind::kRange, "the shape must be 0.6b or 8b");
  s.vocab_size = 151936;
  s.hidden_size = large ? 4096 : 1024;
  s.intermediate_size = large ? 12288 : 3072;
  s.layers = colon != std::string::npos ? std::atoi(name.c_str() + colon + 1) : large ? 36 : 28;
  s.heads = large ? 32 : 16;
  s.kv_heads = 8;
  s.head_dim = 128;
  s.rope.theta = 1e6;
  s.max_position = 40960;
  s.window_layers.assign(size_t(s.layers), 0);
  s.qk_norm = true;
  s.tied_embeddings = !large;
  return s;
}

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Noise of a trained model's size; norms are 1.
class RandomWeights final : public device::WeightSource {
 public:
  explicit RandomWeights(std::optional<ops::QuantFormat> quantise) : quantise_(quantise) {}

  void read(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out) const override {
    uint64_t seed = 14695981039346656037ull;
    for (char c : name) seed = (seed ^ uint64_t(c)) * 1099511628211ull;
    const float scale = name.find("embed_tokens") != std::string::npos ? 0.05f : 1.7f / std::sqrt(float(shape.back()));
    for (int64_t i = 0; i < count; ++i) {
      const float unit = float(int64_t(mix(seed + uint64_t(first + i)) >> 40)) / float(1 << 23) - 1.0f;
      out[i] = shape.size() == 1 ? 1.0f : unit * scale;
    }
  }
  std::vector<ops::QuantPart> quantised(const std::vector<std::pair<std::string, int64_t>>& parts, int64_t columns) const override {
    std::vector<ops::QuantPart> out;
    if (!quantise_) return out;
    for (const auto& part : parts) {
      const int64_t scales = simd::traits_of(*quantise_).scales_of(columns);
      auto rows = [this, part, columns, scales](int64_t first, int64_t count, const ops::QuantRows& to) {
        std::vector<float> row(static_cast<size_t>(columns));
        for (int64_t r = 0; r < count; ++r) {
          read(part.first, {part.second, columns}, (first + r) * columns, columns, row.data());
          ops::quantise_weights(*quantise_, row.data(), columns, to.values + r * columns, to.scales + r * scales);
        }
        return true;
      };
      out.push_back({part.second, *quantise_, rows});
    }
    return out;
  }

 private:
  std::optional<ops::QuantFormat> quantise_;
};

std::optional<ops::QuantFormat> format_of(const std::string& name) {
  if (name == "bf16") return {};
  if (name == "int8") return ops::QuantFormat::kInt8;
  if (name == "fp8") return ops::QuantFormat::kFp8;
  require(name == "int4", ErrorKind::kRange, "weights must be bf16, int8, int4 or fp8");
  return ops::QuantFormat::kInt4;
}

struct Result {
  std::string name;
  double value;
  const char* unit;
};

class Check {
 public:
  Check(const std::string& shape, std::optional<ops::QuantFormat> quantise) : spec_(shape_of(shape)) {
    const auto start = Clock::now();
    model_ = device::load(spec_, RandomWeights(quantise), int(std::max(1u, std::thread::hardware_concurrency())), {});
    add("weights", double(model_->weight_bytes()) / 1e9, "GB");
    add("making and loading weights", seconds_since(start), "s");
  }

  // True: alone, in a batch and in chunks the same tokens and the same bits.
  bool invariant() {
    std::vector<Job> alone = jobs(4, 90, 12);
    engine::Options o = options(8, 512, 1024);
    for (Job& j : alone) {
      Driver driver = driver_of(o);
      driver.start(0, j);
      driver.run();
    }
    std::vector<Job> together = jobs(4, 90, 12);
    Driver driver = driver_of(o);
    driver.set_chunk(33);
    for (size_t i = 0; i < together.size(); ++i) driver.start(int64_t(i), together[i]);
    driver.run_ahead();
    bool same = true;
    for (size_t i = 0; i < alone.size(); ++i) {
      for (size_t k = 0; k < alone[i].output.size(); ++k) {
        const auto &a = alone[i].output[k], &b = together[i].output[k];
        same = same && a.id >= 0 && a.id == b.id && std::memcmp(&a.logprob, &b.logprob, sizeof a.logprob) == 0;
      }
    }
    add("same bits alone and in chunks with others", same ? 1 : 0, "1 = yes");
    return same;
  }

  void decode() {
    if (profile_decode(1) && profile_decode(64)) return;
    const double limit = copy_bandwidth();
    const double in_turn = decode_step(1, false), each = decode_step(1, true);
    const double bandwidth = bytes_per_step() / each / 1e9;
    add("copy, read and write", limit, "GB/s");
    add("decode, one stream, a step in turn", in_turn * 1e6, "us");
    add("decode, one stream, a step queued ahead", each * 1e6, "us");
    add("decode, one stream, gap that queueing closes", (in_turn - each) * 1e6, "us");
    const double many_in_turn = decode_step(64, false), many = decode_step(64, true);
    add("decode, 64 streams, a step in turn", many_in_turn * 1e6, "us");
    add("decode, 64 streams, a step queued ahead", many * 1e6, "us");
    add("decode, 64 streams, gap that queueing closes", (many_in_turn - many) * 1e6, "us");
    add("decode, one stream", 1 / each, "tokens/s");
    add("decode, one stream, weights read", bandwidth, "GB/s");
    add("decode, one stream, of the copy's bandwidth", bandwidth / limit, "");
  }

  void prefill(int64_t tokens) {
    std::vector<Job> all = jobs(5, tokens, 1);
    Driver driver = driver_of(options(1, tokens, tokens + 16));
    size_t next = 0;
    const auto one = [&] {
      driver.start(0, all[next]);
      driver.run();
      driver.stop(0);
      ++next;
    };
    if (benchmarks::profiled(one)) return;
    std::vector<double> times;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto start = Clock::now();
      driver.start(0, all[i]);
      driver.run();
      times.push_back(seconds_since(start));
      driver.stop(0);
    }
    std::sort(times.begin(), times.end());
    const double flops = 2.0 * double(weights_per_token()) * double(tokens);
    const std::string name = "prefill of " + std::to_string(tokens);
    add(name, double(tokens) / times[2], "tokens/s");
    add(name + ", products", flops / times[2] / 1e12, "TFLOP/s");
  }

  // 256 requests at once, input and output 100..1024, temperature 0.6.
  void throughput(double most_seconds) {
    Random random(7);
    std::vector<Job> all;
    engine::Options o = options(256, 8192, 2064);
    o.pages = 0;
    for (int i = 0; i < 256; ++i) {
      all.push_back(jobs(1, random.whole(100, 1024), random.whole(100, 1024))[0]);
      all.back().params.sampling.temperature = 0.6;
      all.back().params.sampling.seed = uint64_t(i);
      all.back().params.sampling.logprobs = -1;
      o.pages += (int64_t(all.back().prompt.size()) + all.back().params.max_tokens + 15) / 16;
    }
    Driver driver = driver_of(o);
    for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
    const auto start = Clock::now();
    auto unfinished = [&] { return std::any_of(all.begin(), all.end(), [](const Job& j) { return !j.finished(); }); };
    while (seconds_since(start) < most_seconds && unfinished()) driver.run_ahead([] {}, 50);
    const double time = seconds_since(start);
    double outputs = 0;
    bool complete = true;
    for (const Job& j : all) outputs += double(j.output.size()), complete = complete && j.finished();
    add(complete ? "offline throughput, 256 requests" : "offline throughput, 256 requests, cut short", outputs / time, "tokens/s");
  }

  // True: the trainer's log-probabilities of sampled tokens are the engine's, bit for bit.
  bool trains_what_it_serves() {
    std::vector<Job> one = jobs(1, 90, 40);
    auto trainer = trainer_of(256, false);
    one[0].adapter = trainer->adapter();
    Driver driver = driver_of(options(1, 512, 1024));
    driver.start(0, one[0]);
    driver.run();
    forward(*trainer, row_of(one[0].tokens()));
    bool same = true;
    for (size_t i = 0; i < one[0].output.size(); ++i) {
      const float served = one[0].output[i].logprob, trained = trainer->scores().logprobs[one[0].prompt.size() - 1 + i];
      same = same && std::memcmp(&served, &trained, sizeof served) == 0;
    }
    add("same log-probabilities in the trainer", same ? 1 : 0, "1 = yes");
    return same;
  }

  // Forward, backward and optimizer step of one row under factors of rank 8 for every projection; the activations again where memory is short.
  void lora_step(int64_t tokens) {
    const double rate = benchmarks::profiling() ? 1 : product_rate();
    const bool recompute = double(trainer_of(tokens, false)->row_bytes(tokens)) > 0.9 * double(cuda::device_free_bytes());
    auto trainer = trainer_of(tokens, recompute);
    const train::Row row = row_of(jobs(1, tokens + 1, 1)[0].prompt);
    const auto step = [&] {
      forward(*trainer, row);
      trainer->backward(std::vector<float>(size_t(tokens), 1.0f / float(tokens)));
      finish(*trainer);
      trainer->optimize({{1e-5, 0.9, 0.99, 1e-8, 0.1}, 0.1});
      finish(*trainer);
    };
    if (benchmarks::profiled(step)) return;
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const auto start = Clock::now();
      step();
      times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    // There and back through the weights and the head.
    const double flops = 4.0 * double(weights_per_token() + spec_.vocab_size * spec_.hidden_size) * double(tokens);
    const std::string name = "LoRA step of " + std::to_string(tokens) + (recompute ? ", activations again" : "");
    add(name, double(tokens) / times[2], "tokens/s");
    add(name + ", products", flops / times[2] / 1e12, "TFLOP/s");
    add(name + ", of the large product's rate", flops / times[2] / rate, "");
  }

  // Runs one part; where it fails the others still run. False: it returned so, or threw.
  static bool part(const char* name, const std::function<bool()>& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", name, error.what());
      return false;
    }
  }

  void report(const char* path, const std::string& shape) const {
    if (!path) return;
    FILE* file = std::fopen(path, "w");
    require(file != nullptr, ErrorKind::kIo, "cannot write the results");
    std::fprintf(file, "{\n  \"device\": \"%s\",\n  \"shape\": \"%s\",\n  \"cases\": [", device::info().message.c_str(), shape.c_str());
    const char* comma = "";
    for (const Result& r : results_) {
      std::fprintf(file, "%s\n    {\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}", comma, r.name.c_str(), r.value, r.unit);
      comma = ",";
    }
    std::fprintf(file, "\n  ]\n}\n");
    std::fclose(file);
  }

 private:
  // False: no profiler is meant to watch.
  bool profile_decode(int64_t streams) {
    if (!benchmarks::profiling()) return false;
    std::vector<Job> all = jobs(int(streams), 128, 300);
    Driver driver = driver_of(options(streams, std::max<int64_t>(512, streams * 128), 1024));
    for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
    for (int i = 0; i < 5; ++i) driver.step();
    return benchmarks::profiled([&] { driver.step(); });
  }

  // Seconds of one step of so many streams, each step handed over when the one before it has ended, or before.
  double decode_step(int64_t streams, bool ahead) {
    constexpr int kWarm = 20, kSteps = 260;
    std::vector<Job> all = jobs(int(streams), 128, 300);
    Driver driver = driver_of(options(streams, std::max<int64_t>(512, streams * 128), 1024));
    for (size_t i = 0; i < all.size(); ++i) driver.start(int64_t(i), all[i]);
    for (int i = 0; i < kWarm; ++i) driver.step();
    const auto start = Clock::now();
    if (ahead) {
      driver.run_ahead([] {}, kSteps);
    } else {
      for (int i = 0; i < kSteps; ++i) driver.step();
    }
    return seconds_since(start) / kSteps;
  }

  // All but the head, which prefill uses for one row.
  int64_t weights_per_token() const {
    const int64_t h = spec_.hidden_size;
    return spec_.layers * (h * (2 * spec_.query_size() + 2 * spec_.kv_size()) + 3 * h * spec_.intermediate_size);
  }

  // Weights that a decode step reads: of an embedding that is not the head a row per token.
  double bytes_per_step() const {
    const int64_t table = spec_.vocab_size * spec_.hidden_size, read = weights_per_token() + table;
    return double(model_->weight_bytes()) * double(read) / double(read + (spec_.tied_embeddings ? 0 : table));
  }

  void add(const std::string& name, double value, const char* unit) {
    results_.push_back({name, value, unit});
    std::printf("%-48s %14.4f  %s\n", name.c_str(), value, unit);
  }

  std::vector<Job> jobs(int count, int64_t prompt, int64_t outputs) {
    std::vector<Job> all;
    for (int i = 0; i < count; ++i) {
      Job j;
      for (int64_t t = 0; t < prompt; ++t) j.prompt.push_back(int32_t(random_.whole(0, spec_.vocab_size - 1)));
      j.params.max_tokens = outputs;
      j.params.sampling.temperature = 0;
      j.params.sampling.logprobs = 0;
      all.push_back(std::move(j));
    }
    return all;
  }

  engine::Options options(int64_t sequences, int64_t batch, int64_t length) const {
    engine::Options o;
    o.max_sequences = sequences;
    o.max_batch_tokens = batch;
    o.max_model_len = length;
    o.pages = sequences * ((length + 15) / 16);
    o.samplable_vocab = spec_.vocab_size;
    o.max_logprobs = 20;
    return o;
  }

  Driver driver_of(const engine::Options& o) const {
    auto make = [&](const engine::Options& checked) { return model_->make_backend(checked, 0); };
    return Driver(std::make_unique<engine::Engine>(model_->facts(), o, make), o);
  }

  std::unique_ptr<train::Trainer> trainer_of(int64_t tokens, bool recompute) const {
    train::State state;
    state.scale = 2.0f;
    state.factors = test::tiny_factors(spec_, 3, 8, test::all_modules());
    for (model::Factors& f : state.factors) {
      f.scale = state.scale;
      for (float& value : f.b) value *= 0.01f;
    }
    return model_->make_trainer({tokens, int64_t(1) << 40, recompute}, state);
  }

  // Every token predicts the next.
  static train::Row row_of(std::vector<int32_t> tokens) {
    train::Row row;
    row.targets.assign(tokens.begin() + 1, tokens.end());
    tokens.pop_back();
    row.tokens = std::move(tokens);
    row.segments.push_back({0, row.size(), -1, 0});
    return row;
  }

  static void finish(train::Trainer& trainer) {
    while (!trainer.slice(1'000'000)) {
    }
  }

  static void forward(train::Trainer& trainer, const train::Row& row) {
    trainer.forward(row, train::Under::kCurrent);
    finish(trainer);
  }

  // Of a large product of noise (zeroes would flatter the clock), by cuBLASLt where it is, else by ours: operations per second.
  double product_rate() {
    constexpr int64_t kSize = 8192, kNoise = 65521;
    std::vector<cuda::bf16> noise;
    for (int64_t i = 0; i < kSize * kSize; ++i) {
      noise.push_back(i < kNoise ? cuda::to_bf16(float(int64_t(mix(uint64_t(i)) >> 40)) / float(1 << 23) - 1.0f)
                                 : noise[size_t(i - kNoise)]);
    }
    const cuda::DeviceBuffer<cuda::bf16> x(noise), w(noise);
    cuda::DeviceBuffer<float> y(noise.size());
    cuda::Stream stream(cuda::Priority::kLow);
    const auto peer = benchmarks::CublasLt::open();
    std::unique_ptr<benchmarks::CublasLt::Product> theirs;
    if (peer) theirs = std::make_unique<benchmarks::CublasLt::Product>(*peer, x.data(), w.data(), y.data(), kSize, kSize, kSize);
    const cuda::MatMul ours{x.data(), kSize, kSize, w.data(), kSize, kSize, y.data(), kSize, false, nullptr, 0};
    std::vector<double> times;
    for (int i = 0; i < 12; ++i) {
      const auto start = Clock::now();
      if (theirs) theirs->run(stream.get());
      else cuda::matmul(ours, stream.get());
      stream.wait();
      times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    const double rate = 2.0 * double(kSize * kSize * kSize) / times[times.size() / 2];
    add(theirs ? "product of 8192 x 8192 x 8192, cuBLASLt" : "product of 8192 x 8192 x 8192, ours", rate / 1e12, "TFLOP/s");
    return rate;
  }

  static double copy_bandwidth() {
    const size_t bytes = size_t(1) << 30;
    cuda::DeviceBuffer<unsigned char> from(bytes), to(bytes);
    cuda::device_copy(to.data(), from.data(), bytes);
    const auto start = Clock::now();
    for (int i = 0; i < 20; ++i) cuda::device_copy(to.data(), from.data(), bytes);
    return 40.0 * double(bytes) / seconds_since(start) / 1e9;
  }

  model::Spec spec_;
  std::shared_ptr<device::Model> model_;
  Random random_{1};
  std::vector<Result> results_;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // one that is ended has said what it measured
  try {
    require(argc > 1, ErrorKind::kRange, "usage: gpu_engine 0.6b|8b [FILE.json [bf16|int8|int4|fp8 [PART...]]]");
    const std::string weights = argc > 3 ? argv[3] : "bf16";
    Check check(argv[1], format_of(weights));
    using Body = std::function<bool()>;
    const auto measured = [](const std::function<void()>& body) -> Body { return [body] { return body(), true; }; };
    const std::pair<const char*, Body> parts[] = {{"same bits", [&] { return check.invariant(); }},
                                                  {"same log-probabilities", [&] { return check.trains_what_it_serves(); }},
                                                  {"decode", measured([&] { check.decode(); })},
                                                  {"prefill of 2048", measured([&] { check.prefill(2048); })},
                                                  {"prefill of 8192", measured([&] { check.prefill(8192); })},
                                                  {"LoRA step", measured([&] { check.lora_step(8192); })},
                                                  {"throughput", measured([&] { check.throughput(90); })}};
    bool good = true;
    const auto wanted = [&](const char* name) {
      return argc <= 4 || std::any_of(argv + 4, argv + argc, [&](const char* some) { return std::strstr(name, some) != nullptr; });
    };
    for (const auto& [name, body] : parts) {
      if (!wanted(name)) continue;
      good = check.part(name, body) && good;
      check.report(argc > 2 ? argv[2] : nullptr, argv[1] + (" " + weights));
    }
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_engine: %s\n", error.what());
    return 1;
  }
}
