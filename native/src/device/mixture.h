// The feed-forward of rows that go to some of many experts each, on the device (model/experts.h is the CPU's).
#pragma once
#include "cuda/common/stream.h"
#include "cuda/experts/experts.h"
#include "device/weights.h"

namespace tandem::device {

class Mixture {
 public:
  // Of at most so many rows at a time; 0: the model has none. `kernel`: of bf16 weights.
  Mixture(const model::Spec& spec, cuda::ExpertKernel kernel, int64_t most_rows, cuda::Stream& stream);
  static size_t bytes(const model::Spec& spec, int64_t most_rows);

  int64_t most_rows() const { return most_rows_; }
  // Where the router's logits are to be: rows of one float per expert.
  float* logits() { return logits_.data(); }
  // The experts of so many rows, by their logits, or by parts of them. `slots`: as of cuda::RouteExperts.
  void route(const int32_t* slots, int64_t rows, const cuda::Parts& parts);
  // y[r] = onto[r] + what the routed rows' experts give for x. `kept`: as of cuda::ExpertsMatMul.
  void run(const Layer& layer, const bf16* x, const float* onto, float* y, bf16* kept);

  // The way back of what is routed. d_out: of the mixture's rows; gate_up: what run() kept. d_gate_up (per pair) may be where d_out is. dx is
  // written, without what comes through the router, and d of the weights, per pair.
  void back(const Layer& layer, const bf16* d_out, const bf16* gate_up, bf16* d_gate_up, float* d_weights, float* dx);
  // Through the router: rows of d of its logits, ld elements apart.
  void back_router(const float* d_weights, bf16* d_logits, int64_t ld);

  int64_t pairs() const { return rows_ * spec_.experts.used; }

 private:
  // One for all of a layer's experts.
  cuda::ExpertKernel kernel_of(const Layer& layer) const;
  // Of rows of x, or of pairs.
  enum class Input { kRows, kPairs };
  // Per pair with its expert's [n][k], to wide_; `back`: transposed.
  cuda::ExpertsMatMul product_of(const Layer& layer, const Matrix& w, int64_t n, int64_t k, const bf16* x, Input input, bool back = false);
  void combine(const float* weights, const float* onto, float* y);

  const model::Spec& spec_;
  cuda::ExpertKernel kernel_;
  cuda::Stream& stream_;
  int64_t most_rows_, rows_ = 0;  // those that are routed
  DeviceBuffer<float> logits_;    // [rows][experts]
  DeviceBuffer<int32_t> chosen_, order_;
  DeviceBuffer<float> weights_;
  DeviceBuffer<cuda::ExpertTile> tiles_;
  DeviceBuffer<float> wide_;   // [pairs][hidden, or on the way back size]; behind so many sizes also sorted rows
  DeviceBuffer<bf16> active_;  // [pairs][size]
};

}  // namespace tandem::device
