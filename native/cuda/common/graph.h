// What a stream was told to do, recorded to be done again with one call: a decode step is hundreds of small launches.
#pragma once
#include <functional>
#include <vector>

#include "cuda/common/stream.h"

namespace tandem::cuda {

#ifdef TANDEM_GPU_EMULATION
class Graph {
 public:
  void record(Stream&, const std::function<void()>& body) { launches_ = gpu_emulation::record(body); }
  bool recorded() const { return !launches_.empty(); }
  void launch(Stream& stream) {
    for (const gpu_emulation::Work& launch : launches_) static_cast<gpu_emulation::Queue*>(stream.get())->add(launch);
  }

 private:
  std::vector<gpu_emulation::Work> launches_;
};
#else
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (graph_) cudaGraphExecDestroy(graph_);
  }

  // Takes down what `body` launches on the stream, arguments included, without running it. Copies of the host's memory and new kernels
  // do not belong in there: what is recorded must have run before.
  void record(Stream& stream, const std::function<void()>& body) {
    check_call(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t captured = nullptr;
    try {
      body();
    } catch (...) {
      (void)worked(cudaStreamEndCapture(stream.get(), &captured));
      if (captured) cudaGraphDestroy(captured);
      throw;
    }
    check_call(cudaStreamEndCapture(stream.get(), &captured), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&graph_, captured, 0);
    cudaGraphDestroy(captured);
    check_call(error, "cudaGraphInstantiate");
  }
  bool recorded() const { return graph_ != nullptr; }
  void launch(Stream& stream) { check_call(cudaGraphLaunch(graph_, stream.get()), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};
#endif

}  // namespace tandem::cuda
