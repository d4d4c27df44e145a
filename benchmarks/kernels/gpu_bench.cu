// Times the CUDA kernels on a device beside its limits measured in the same run: a large copy, and a large product. Needs no Node. Where the
// machine has cuBLASLt, products of BF16 weights are timed in turn with it, once the outputs have been compared.
// Usage: gpu_bench [FILE.json [variants]]. A line per case, as they come; the file gets all of them. With `variants`: only what has several
// kernels, products of BF16 weights and attention, there and back. TANDEM_CUDA_MATMUL and TANDEM_CUDA_ATTENTION choose them, as for a server.
// With TANDEM_GPU_PROFILE=1 a case runs once for a profiler that waits to be told to begin (ncu --profile-from-start off).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapter_cases.h"
#include "cublaslt_peer.h"
#include "device_noise.h"
#include "expert_cases.h"
#include "profiled.h"
#include "row_cases.h"
#include "sampling_cases.h"
#include "cuda/attention/attention_variants.h"
#include "cuda/common/device_buffer.h"
#include "cuda/common/device_info.h"
#include "cuda/gemm/variants.h"

namespace {

using namespace tandem::cuda;
using tandem::benchmarks::CublasLt;
using tandem::benchmarks::device_noise;
using tandem::benchmarks::noise_at;
using tandem::benchmarks::profiled;

constexpr int kRounds = 7;
constexpr double kRoundSeconds = 0.02;

struct Result {
  std::string name;
  double value, least, most, share;  // share of the limit, 0 where there is none
  const char* unit;
};

struct Timing {
  double median, least, most;  // seconds of one call
};

Timing timing_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

float milliseconds_of(int calls, const std::function<void()>& call) {
  cudaEvent_t begin, end;
  check_call(cudaEventCreate(&begin), "cudaEventCreate");
  check_call(cudaEventCreate(&end), "cudaEventCreate");
  check_call(cudaEventRecord(begin), "cudaEventRecord");
  for (int i = 0; i < calls; ++i) call();
  check_call(cudaEventRecord(end), "cudaEventRecord");
  check_call(cudaEventSynchronize(end), "a kernel");
  float milliseconds = 0;
  check_call(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return milliseconds;
}

// Calls that fill a round.
int calls_of(const std::function<void()>& call) {
  milliseconds_of(3, call);
  const double once = std::max(1e-6, milliseconds_of(3, call) / 3e3);
  return int(std::clamp(kRoundSeconds / once, 3.0, 2000.0));
}

Timing time_of(const std::function<void()>& call) {
  if (profiled(call)) return {1, 1, 1};
  const int calls = calls_of(call);
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) times.push_back(milliseconds_of(calls, call) / 1e3 / calls);
  return timing_of(std::move(times));
}

// Of two that take turns: how many times faster the first is, round by round.
struct InTurn {
  Timing first, second, ratio;
};

InTurn time_in_turn(const std::function<void()>& first, const std::function<void()>& second) {
  if (profiled(first) && profiled(second)) return {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
  const int calls[] = {calls_of(first), calls_of(second)};
  std::vector<double> times[2], ratios;
  for (int i = 0; i < kRounds; ++i) {
    times[0].push_back(milliseconds_of(calls[0], first) / 1e3 / calls[0]);
    times[1].push_back(milliseconds_of(calls[1], second) / 1e3 / calls[1]);
    ratios.push_back(times[1].back() / times[0].back());
  }
  return {timing_of(times[0]), timing_of(times[1]), timing_of(ratios)};
}

class Bench {
 public:
  Bench(MatMulKernel matmul, AttentionKernel attention) : matmul_(matmul), attention_(attention) {
    attempt("cuBLASLt", [&] { peer_ = CublasLt::open(); });
    std::printf("products of BF16 weights: %s; attention: %s; %s\n", variant_of(matmul).name, variant_of(attention).name,
                peer_ ? peer_->name().c_str() : "no cuBLASLt here");
    std::printf("%-44s %12s %12s %12s %8s\n", "case", "median", "least", "most", "limit");
  }

  // Where one case fails the others still run, and the program ends with 1.
  bool good() const { return good_; }

  void run_variants() {
    attempt("copy", [&] { copy_limit(); });
    for (int64_t m : {1, 8, 32}) decode_products(m);
    for (int64_t m : {256, 512, 2048, 8192}) prefill_products(m);
    for (int64_t m : {1424, 2048}) products_back(m);
    attempt("a product back", [&] { product(256, 151936, 4096, 2e-12 * 256 * 151936 * 4096, 0, "TFLOP/s", true); });
    for (auto [sequences, length] : {std::pair<int64_t, int64_t>{32, 2048}, {64, 700}, {1, 512}, {1, 8192}}) {
      attempt("decode attention", [&, sequences = sequences, length = length] {
        decode_attention(std::to_string(length), std::vector<int64_t>(size_t(sequences), length));
      });
    }
    attempt("decode attention", [&] { decode_attention("100 to 2047", mixed_lengths(256)); });
    for (int64_t length : {2048, 8192}) {
      attempt("prefill attention", [&] { prefill_attention(length); });
      attempt("gradient of attention", [&] { attention_gradient(length); });
    }
  }

  void run() {
    run_variants();
    for (const Format& format : kFormats) {
      for (int64_t m : {1, 32, 2048}) attempt("a quantised product", [&] { quantised_product(format, m); });
    }
    for (int64_t count : {1, 64, 256}) attempt("sampling", [&] { sampling(count); });
    attempt("log-probabilities", [&] { log_probabilities(256); });
    for (int64_t count : {1, 64, 8192}) attempt("rows", [&] { rows(count); });
    for (int64_t count : {1, 64, 2048}) attempt("an adapter", [&] { adapter(count); });
    for (int64_t count : {1, 8, 64, 256, 2048}) attempt("experts", [&] { experts(count); });
    attempt("adapters in training", [&] { adapters_in_training(2048); });
    if (matmul_ != MatMulKernel::kWgmma) return;
    for (int64_t count : {1, 64}) attempt("a product with an adapter", [&] { adapted_products(count); });
  }

  void write(const char* path, const std::string& device) const {
    FILE* file = std::fopen(path, "w");
    if (!file) throw tandem::Error(tandem::ErrorKind::kIo, "cannot write the results");
    std::fprintf(file, "{\n  \"device\": \"%s\",\n  \"cases\": [", device.c_str());
    const char* comma = "";
    for (const Result& r : results_) {
      std::fprintf(file, "%s\n    {\"name\": \"%s\", \"median\": %.6g, \"min\": %.6g, \"max\": %.6g, ", comma, r.name.c_str(), r.value,
                   r.least, r.most);
      std::fprintf(file, "\"limit_share\": %.4f, \"unit\": \"%s\"}", r.share, r.unit);
      comma = ",";
    }
    std::fprintf(file, "\n  ]\n}\n");
    std::fclose(file);
  }

 private:
  void attempt(const char* name, const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", name, error.what());
      good_ = false;
    }
  }

  void keep(Result r) {
    const std::string share = r.share > 0 ? std::to_string(int(r.share * 100 + 0.5)) + " %" : "-";
    std::printf("%-44s %12.4g %12.4g %12.4g %8s  %s\n", r.name.c_str(), r.value, r.least, r.most, share.c_str(), r.unit);
    results_.push_back(std::move(r));
  }
  void add(const std::string& name, double amount, const Timing& t, double limit, const char* unit) {
    keep({name, amount / t.median, amount / t.most, amount / t.least, limit > 0 ? amount / t.median / limit : 0, unit});
  }

  void copy_limit() {
    const size_t bytes = size_t(2) << 30;
    DeviceBuffer<unsigned char> from(bytes), to(bytes);
    const Timing t = time_of([&] { cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice); });
    bandwidth_ = 2.0 * double(bytes) / t.median / 1e9;
    add("copy, read and write", 2.0 * double(bytes) / 1e9, t, 0, "GB/s");
  }

  // `amount`: of what the unit counts, per call. Back: the gradient of the inputs.
  void product(int64_t m, int64_t n, int64_t k, double amount, double limit, const char* unit, bool back = false) {
    const int64_t in = back ? n : k, out = back ? k : n;
    const int64_t floats = back ? matmul_transposed_floats(matmul_, m, n, k) : matmul_workspace_floats(m, n, k);
    DeviceBuffer<bf16> x(device_noise(size_t(m * in), 1)), w(device_noise(size_t(n * k), 0.05f));
    DeviceBuffer<float> y(size_t(m * out)), workspace{size_t(floats)};
    const MatMul args{x.data(), in, m, w.data(), n, k, y.data(), out, false, workspace.data(), floats, {}, matmul_};
    const std::string name =
        std::string(back ? "product back" : "product") + " m=" + std::to_string(m) + " n=" + std::to_string(n) + " k=" + std::to_string(k);
    const auto ours = [&] { back ? matmul_transposed(args, nullptr) : matmul(args, nullptr); };
    bool timed = false;
    auto beside_the_peer = [&] {
      DeviceBuffer<float> theirs(y.size());
      CublasLt::Product other(*peer_, x.data(), w.data(), theirs.data(), m, n, k, back);
      ours();
      other.run(nullptr);
      compare(y, theirs, name);
      const InTurn t = time_in_turn(ours, [&] { other.run(nullptr); });
      timed = true;
      add(name, amount, t.first, limit, unit);
      add(name + ", cuBLASLt", amount, t.second, limit, unit);
      keep({name + ", ratio", t.ratio.median, t.ratio.least, t.ratio.most, 0, "x cuBLASLt"});
    };
    if (peer_) attempt("cuBLASLt beside it", beside_the_peer);
    if (!timed) add(name, amount, time_of(ours), limit, unit);
  }

  // Of the first outputs: nearer than a thousandth of the largest, or of 1.
  static void compare(const DeviceBuffer<float>& ours, const DeviceBuffer<float>& theirs, const std::string& name) {
    constexpr size_t kCompared = 4096;
    constexpr float kMost = 1e-3f;
    std::vector<float> a(std::min(kCompared, ours.size())), b(a.size());
    device_copy(a.data(), ours.data(), a.size() * sizeof(float));
    device_copy(b.data(), theirs.data(), b.size() * sizeof(float));
    float largest = 1;
    for (float value : b) largest = std::max(largest, std::fabs(value));
    for (size_t i = 0; i < a.size(); ++i) {
      if (!(std::fabs(a[i] - b[i]) < kMost * largest))
        throw tandem::Error(tandem::ErrorKind::kState, name + ": cuBLASLt computes something else");
    }
  }

  // Weights are read once: the share is of the copy's bandwidth. Matrices beyond the cache, as in a model.
  void decode_products(int64_t m) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{6144, 4096}, {24576, 4096}, {4096, 12288}, {151936, 1024}}) {
      attempt("a product", [&, n = n, k = k] { product(m, n, k, double(n * k * 2) / 1e9, bandwidth_, "GB/s"); });
    }
  }

  struct Format {
    const char* name;
    QuantPanel shape;
  };
  static constexpr Format kFormats[] = {
      {"8 bits", {0, 8, 32, 128, 0, 0, 0}}, {"4 bits", {0, 4, 32, 8, 0, 0, 0}}, {"FP8", {0, 8, 32, 0, 1, 0, 1}}};

  void quantised_product(const Format& format, int64_t m) {
    const int64_t n = 24576, k = 4096;
    const QuantPanel& shape = format.shape;
    const int64_t tiles = k / kQuantTile, panel_bytes = shape.bytes(k);
    std::vector<uint8_t> bytes(size_t(n / kQuantPanel * panel_bytes));
    // Of codes of FP8 none is NaN without the lowest bit.
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = uint8_t(int32_t(noise_at(i % 4093) * 128.0f)) & (shape.floating ? 0xfe : 0xff);
    std::vector<QuantPanel> panels;
    for (int64_t p = 0; p < n / kQuantPanel; ++p) {
      panels.push_back(shape);
      panels.back().first_byte = p * panel_bytes;
      const float output_scale = 0x1p-10f;
      for (int i = 0; i < shape.head_bytes(); i += 4) memcpy(&bytes[size_t(p * panel_bytes + i)], &output_scale, 4);
      for (int64_t t = 0; t < tiles; ++t) {
        const uint16_t scale = 0x1400;  // 2^-10
        uint8_t* tile = &bytes[size_t(p * panel_bytes + shape.head_bytes() + t * shape.tile_bytes())];
        for (int i = 0; i < kQuantPairs * shape.scale_bytes(); i += 2) memcpy(tile + i, &scale, 2);
      }
    }
    const DeviceBuffer<uint8_t> data(bytes);
    const DeviceBuffer<QuantPanel> table(panels);
    DeviceBuffer<bf16> x(device_noise(size_t(m * k), 1));
    DeviceBuffer<float> y(size_t(m * n)), workspace(size_t(matmul_workspace_floats(m, n, k)));
    const QuantWeights w{data.data(), table.data(), shape.tile_bytes(), shape, panel_bytes};
    const MatMul args{x.data(), k, m, nullptr, n, k, y.data(), n, false, workspace.data(), int64_t(workspace.size()), w};
    const Timing t = time_of([&] { matmul(args, nullptr); });
    const std::string name = std::string("product of ") + format.name + " m=" + std::to_string(m) + " n=24576 k=4096";
    if (m > 64) add(name, 2e-12 * double(m) * double(n) * double(k), t, 0, "TFLOP/s");
    else add(name, double(bytes.size()) / 1e9, t, bandwidth_, "GB/s");
  }

  void prefill_products(int64_t m) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{6144, 4096}, {24576, 4096}, {4096, 12288}}) {
      attempt("a product", [&, n = n, k = k] { product(m, n, k, 2e-12 * double(m) * double(n) * double(k), 0, "TFLOP/s"); });
    }
  }

  // Of a chunk of the trainer's rows.
  void products_back(int64_t m) {
    for (auto [n, k] : {std::pair<int64_t, int64_t>{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}}) {
      const double flops = 2e-12 * double(m) * double(n) * double(k);
      attempt("a product back", [&, n = n, k = k] { product(m, n, k, flops, 0, "TFLOP/s", true); });
    }
  }

  struct Cache {
    Cache(int64_t sequences, int64_t length, int64_t kv_heads, int64_t dim)
        : max_pages((length + 15) / 16), pages(max_pages * sequences), keys(device_noise(size_t(pages * kv_heads * 16 * dim), 1)),
          values(device_noise(size_t(pages * kv_heads * 16 * dim), 1)), layer{keys.data(), values.data(), pages, kv_heads, dim} {
      std::vector<int32_t> ids;
      // A stride that visits every page: neighbours in a sequence are not neighbours in memory.
      for (int64_t i = 0; i < pages; ++i) ids.push_back(int32_t(i * 7919 % pages));
      table = DeviceBuffer<int32_t>(ids);
    }
    int64_t max_pages, pages;
    DeviceBuffer<bf16> keys, values;
    DeviceBuffer<int32_t> table;
    KvLayer layer;
  };

  Timing attention(Cache& cache, const std::vector<AttentionTile>& tiles, int64_t rows, int64_t sequences, int64_t length, bool split) {
    DeviceBuffer<bf16> queries(device_noise(size_t(rows * kHeads * kDim), 1)), out(queries.size());
    DeviceBuffer<AttentionTile> device_tiles(tiles);
    const int64_t count = int64_t(tiles.size());
    DeviceBuffer<float> workspace(split ? size_t(attention_workspace_floats(count, kKvHeads, kDim, length)) : 0);
    DeviceBuffer<int32_t> arrivals(size_t(attention_arrivals(count, kKvHeads)));
    PagedAttention args{};
    args.queries = queries.data();
    args.kv = cache.layer;
    args.page_table = cache.table.data();
    args.sequences = sequences;
    args.max_pages = cache.max_pages;
    args.tiles = device_tiles.data();
    args.tile_count = count;
    args.longest = length;
    args.heads = kHeads;
    args.scale = 0.0884f;
    args.out = out.data();
    args.workspace = workspace.data();
    args.workspace_floats = int64_t(workspace.size());
    args.arrivals = arrivals.data();
    args.splits_in_grid = split;
    args.kernel = attention_;
    return time_of([&] { paged_attention(args, nullptr); });
  }

  void decode_attention(const std::string& name, const std::vector<int64_t>& lengths) {
    const int64_t sequences = int64_t(lengths.size()), longest = *std::max_element(lengths.begin(), lengths.end());
    Cache cache(sequences, longest, kKvHeads, kDim);
    std::vector<AttentionTile> tiles;
    int64_t positions = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      tiles.push_back({int32_t(s), 1, int32_t(lengths[size_t(s)] - 1), int32_t(s)});
      positions += lengths[size_t(s)];
    }
    number_items(tiles);
    const double bytes = double(positions * kKvHeads * kDim) * 4;
    const Timing t = attention(cache, tiles, sequences, sequences, longest, true);
    add("decode attention " + std::to_string(sequences) + " x " + name, bytes / 1e9, t, bandwidth_, "GB/s");
  }

  // As where requests of mixed lengths are served together: a mean of 590 positions, few that are long.
  static std::vector<int64_t> mixed_lengths(int64_t sequences) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < sequences; ++i) {
      const double part = double(i * 7919 % sequences + 1) / double(sequences);
      lengths.push_back(100 + int64_t(1947 * part * part * part));
    }
    return lengths;
  }

  void prefill_attention(int64_t length) {
    Cache cache(1, length, kKvHeads, kDim);
    const int64_t step = attention_tile_tokens(kHeads, kKvHeads);
    std::vector<AttentionTile> tiles;
    for (int64_t at = 0; at < length; at += step) tiles.push_back({int32_t(at), int32_t(std::min(step, length - at)), int32_t(at), 0});
    while (tiles.size() % 4 != 0) tiles.push_back({0, 0, 0, 0});
    const Timing t = attention(cache, tiles, length, 1, length, false);
    add("prefill attention " + std::to_string(length), 2e-12 * double(length) * double(length) * double(kHeads * kDim), t, 0, "TFLOP/s");
  }

  // One sequence. Products of each query with the keys up to it: of queries three, of keys four.
  void attention_gradient(int64_t length) {
    const size_t q = size_t(length * kHeads * kDim), kv = size_t(length * kKvHeads * kDim);
    DeviceBuffer<bf16> queries(device_noise(q, 1)), out(device_noise(q, 1)), d_out(device_noise(q, 1));
    DeviceBuffer<bf16> keys(device_noise(kv, 1)), values(device_noise(kv, 1));
    DeviceBuffer<float> deltas(size_t(length * kHeads)), dq(q), dk(kv), dv(kv);
    // Near what scores of noise add up to.
    const DeviceBuffer<float> log_sums(std::vector<float>(deltas.size(), 9.0f));
    std::vector<PackedToken> rows, of_tiles;
    for (int64_t i = 0; i < length; ++i) rows.push_back({int32_t(i), 0, 0, 0});
    for (int64_t i = 0; i < length; i += kBackwardTile) of_tiles.push_back(rows[size_t(i)]);
    const DeviceBuffer<PackedToken> tokens(rows), tiles(of_tiles);
    const AttentionBackward args{queries.data(), keys.data(), values.data(), out.data(), d_out.data(),  log_sums.data(),
                                 deltas.data(),  dq.data(),   dk.data(),     dv.data(),  tokens.data(), tiles.data(),
                                 length,         kHeads,      kKvHeads,      kDim,       0.0884f,       0,
                                 attention_};
    const int64_t count = int64_t(of_tiles.size());
    const double product = 1e-12 * double(length) * double(length) * double(kHeads * kDim);
    attention_deltas(args, nullptr);
    const std::string name = "gradient of attention " + std::to_string(length);
    add(name + ", queries", 3 * product, time_of([&] { attention_backward_queries(args, 0, count, nullptr); }), 0, "TFLOP/s");
    add(name + ", keys", 4 * product, time_of([&] { attention_backward_keys(args, 0, count, nullptr); }), 0, "TFLOP/s");
  }

  // How many batches a microsecond takes.
  void sampling(int64_t count) {
    tandem::benchmarks::time_sampling(count, [&](const std::string& name, double, const std::function<void()>& call) {
      add("sampling " + std::to_string(count) + " rows, " + name, 1e-6, time_of(call), 0, "1/us of a batch");
    });
  }

  // The share is of the bandwidth, logits being read and gradients written once.
  void log_probabilities(int64_t count) {
    tandem::benchmarks::time_log_probabilities(count, [&](const std::string& name, double bytes, const std::function<void()>& call) {
      add(name + ", " + std::to_string(count) + " rows", bytes / 1e9, time_of(call), bandwidth_, "GB/s");
    });
  }

  // Of many rows the share of the bandwidth, of few how many launches fit in a microsecond.
  void rows(int64_t count) {
    auto time = [&](const std::string& name, double bytes, const std::function<void()>& call) {
      const std::string label = name + ", " + std::to_string(count) + " rows";
      if (count < 1024) add(label, 1e-6, time_of(call), 0, "1/us");
      else add(label, bytes / 1e9, time_of(call), bandwidth_, "GB/s");
    };
    tandem::benchmarks::time_norms(count, time);
    tandem::benchmarks::time_activations(count, time);
    tandem::benchmarks::time_rotation(count, time);
  }

  // Of few rows the share is of the bandwidth, the weights of all experts that are used being read once.
  void experts(int64_t count) {
    const tandem::benchmarks::TimeExperts time = [&](const std::string& name, double bytes, double work,
                                                     const std::function<void()>& call) {
      const Timing t = time_of(call);
      if (bytes == 0) keep({name, t.median * 1e6, t.least * 1e6, t.most * 1e6, 0, "us"});
      else if (count < 1024) add(name, bytes / 1e9, t, bandwidth_, "GB/s");
      else add(name, work / 1e12, t, 0, "TFLOP/s");
    };
    tandem::benchmarks::ExpertCases(count, time).time_all(device_info().major == 9);
  }

  // The share is of the bandwidth, rows of x and y being moved once; of what fetches weights for others the time.
  void adapter(int64_t count) { tandem::benchmarks::time_adapter(count, adapter_timer()); }
  void adapted_products(int64_t rows) {
    for (const auto& [k, outs] : products_of_model()) tandem::benchmarks::time_adapted_product(rows, k, outs, adapter_timer());
  }
  void adapters_in_training(int64_t rows) {
    for (const auto& [k, outs] : products_of_model()) tandem::benchmarks::time_adapters_of_product(rows, k, outs, adapter_timer());
  }
  // Inputs, and outputs of each projection.
  static std::vector<std::pair<int64_t, std::vector<int64_t>>> products_of_model() {
    return {{4096, {4096, 1024, 1024}}, {4096, {4096}}, {4096, {12288, 12288}}, {12288, {4096}}};
  }
  tandem::benchmarks::TimeAdapter adapter_timer() {
    return [this](const std::string& name, double bytes, const std::function<void()>& call) {
      const Timing t = time_of(call);
      if (bytes > 0) add(name, bytes / 1e9, t, bandwidth_, "GB/s");
      else keep({name, t.median * 1e6, t.least * 1e6, t.most * 1e6, 0, "us"});
    };
  }

  // Heads of an 8B model.
  static constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
  MatMulKernel matmul_;
  AttentionKernel attention_;
  std::unique_ptr<CublasLt> peer_;
  double bandwidth_ = 0;
  bool good_ = true;
  std::vector<Result> results_;
};

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // one that is ended has said what it measured
  try {
    cudaDeviceProp device;
    check_call(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    std::printf("%s, %d multiprocessors, %.0f GiB\n", device.name, device.multiProcessorCount, double(device.totalGlobalMem) / (1 << 30));
    Bench bench(matmul_kernel(std::getenv("TANDEM_CUDA_MATMUL"), device.major, device.minor),
                attention_kernel(std::getenv("TANDEM_CUDA_ATTENTION"), device.major, device.minor));
    if (argc > 2 && std::string(argv[2]) == "variants") bench.run_variants();
    else bench.run();
    if (argc > 1) bench.write(argv[1], device.name);
    return bench.good() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
}
