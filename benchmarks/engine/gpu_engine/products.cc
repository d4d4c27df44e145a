#include <cstdlib>

#include "../../kernels/cublaslt_peer.h"
#include "../../kernels/profiled.h"
#include "cuda/common/device_info.h"
#include "cuda/common/graph.h"
#include "cuda/common/stream.h"
#include "cuda/gemm/variants.h"
#include "parts.h"

namespace tandem::benchmarks {
namespace {

cuda::MatMulKernel chosen_kernel() {
  const cuda::DeviceInfo device = cuda::device_info();
  return cuda::matmul_kernel(std::getenv("TANDEM_CUDA_MATMUL"), device.major, device.minor);
}

// Products of one size with weights of their own each, by our kernel and by cuBLASLt where it is.
class Products {
 public:
  Products(CublasLt* peer, int64_t m, int64_t n, int64_t k, int64_t copies)
      : m_(m), n_(n), k_(k), copies_(copies), x_(device_noise(size_t(m * k), 1)), w_(device_noise(size_t(copies * n * k), 0.05f)),
        y_(size_t(m * n)), workspace_(size_t(cuda::matmul_workspace_floats(m, n, k))), kernel_(chosen_kernel()) {
    for (int64_t i = 0; peer && i < copies; ++i) {
      theirs_.push_back(std::make_unique<CublasLt::Product>(*peer, x_.data(), w_.data() + i * n * k, y_.data(), m, n, k));
    }
  }

  void run(int64_t copy, cudaStream_t stream) {
    const int64_t floats = int64_t(workspace_.size());
    cuda::matmul({x_.data(), k_, m_, w_.data() + copy * n_ * k_, n_, k_, y_.data(), n_, false, workspace_.data(), floats, {}, kernel_},
                 stream);
  }
  void run_theirs(int64_t copy, cudaStream_t stream) { theirs_[size_t(copy)]->run(stream); }

 private:
  int64_t m_, n_, k_, copies_;
  cuda::DeviceBuffer<cuda::bf16> x_, w_;
  cuda::DeviceBuffer<float> y_, workspace_;
  cuda::MatMulKernel kernel_;
  std::vector<std::unique_ptr<CublasLt::Product>> theirs_;
};

// Seconds of what `launch` puts on a stream; recorded, so that the host takes no part in it.
Timing time_of(const std::function<void(cudaStream_t)>& launch, int times) {
  cuda::Stream stream;
  launch(stream.get());
  stream.wait();
  cuda::Graph graph;
  graph.record(stream, [&] { launch(stream.get()); });
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const auto start = Clock::now();
    graph.launch(stream);
    stream.wait();
    seconds.push_back(seconds_since(start));
  }
  return timing_of(seconds);
}

}  // namespace

double Bench::product_rate() {
  if (product_rate_ > 0) return product_rate_;
  const int64_t size = counts_.product;
  const auto peer = CublasLt::open();
  Products product(peer.get(), size, size, size, 1);
  const auto launch = [&](cudaStream_t stream) { peer ? product.run_theirs(0, stream) : product.run(0, stream); };
  const Timing time = time_of(launch, 12);
  const double work = 2.0 * double(size * size * size);
  product_rate_ = work / time.median;
  const std::string by = std::to_string(size);
  add_rate("product of " + by + " x " + by + " x " + by + (peer ? ", cuBLASLt" : ", ours"), work / 1e12, time, "TFLOP/s");
  return product_rate_;
}

double Bench::copy_rate() {
  if (copy_rate_ > 0) return copy_rate_;
  constexpr int kTimes = 20;
  cuda::DeviceBuffer<unsigned char> from(counts_.copied), to(counts_.copied);
  cuda::device_copy(to.data(), from.data(), counts_.copied);
  const auto start = Clock::now();
  for (int i = 0; i < kTimes; ++i) cuda::device_copy(to.data(), from.data(), counts_.copied);
  copy_rate_ = 2.0 * kTimes * double(counts_.copied) / seconds_since(start);
  add("copy, read and write", copy_rate_ / 1e9, "GB/s");
  return copy_rate_;
}

void invariance(Bench& bench) {
  if (profiling() || bench.quantised()) return;
  const model::Spec& s = bench.spec();
  const int64_t h = s.hidden_size, q = s.query_size(), f = s.dense_size();
  const double bytes = 2 * bench.weights_per_token() / double(s.layers);
  // Layers enough that none finds its weights in the cache.
  const int64_t copies = std::clamp<int64_t>(int64_t(double(bench.counts().beyond_cache) / bytes) + 1, 1, s.layers);
  const auto peer = CublasLt::open();
  for (int64_t m : {int64_t(1), bench.counts().streams, bench.counts().prefills.front()}) {
    std::vector<std::unique_ptr<Products>> layer;
    for (auto [n, k] : {std::pair{q + 2 * s.kv_size(), h}, {h, q}, {2 * f, h}, {h, f}}) {
      if (n == 0 || k == 0) continue;  // of experts
      layer.push_back(std::make_unique<Products>(peer.get(), m, n, k, copies));
    }
    const auto each = [&](void (Products::*run)(int64_t, cudaStream_t)) {
      const auto launch = [&, run](cudaStream_t stream) {
        for (int64_t copy = 0; copy < copies; ++copy) {
          for (const auto& product : layer) ((*product).*run)(copy, stream);
        }
      };
      const Timing all = time_of(launch, 9);
      const double count = double(copies);
      return Timing{all.median / count, all.least / count, all.most / count};
    };
    const std::string name = "invariance, a layer's products of " + std::to_string(m) + (m == 1 ? " token" : " tokens");
    const Timing ours = each(&Products::run);
    bench.add_time(name + ", ours", ours);
    if (!peer) continue;
    const Timing theirs = each(&Products::run_theirs);
    bench.add_time(name + ", cuBLASLt", theirs);
    bench.add(name + ", cost", (ours.median / theirs.median - 1) * 100, "% of cuBLASLt's time");
  }
}

}  // namespace tandem::benchmarks
