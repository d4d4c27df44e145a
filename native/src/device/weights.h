// The base weights on the device: bf16, row-major, or quantised in panels; the projections that share an input one below the other.
#pragma once
#include "cuda/attention/paged_attention.h"
#include "cuda/common/device_buffer.h"
#include "cuda/experts/expert_variants.h"
#include "cuda/gemm/matmul.h"
#include "cuda/lora/lora_variants.h"
#include "device/device.h"

namespace tandem::device {

using cuda::bf16;
using cuda::DeviceBuffer;

struct Matrix {
  int64_t n = 0, k = 0;
  DeviceBuffer<bf16> data = {};  // [n][k]; empty where the numbers are there
  DeviceBuffer<uint8_t> numbers = {};
  DeviceBuffer<cuda::QuantPanel> panels = {};
  int64_t most_tile_bytes = 0;
  cuda::QuantPanel alike = {};  // as of cuda::QuantWeights
  int64_t alike_bytes = 0;

  cuda::QuantWeights quantised() const { return {numbers.data(), panels.data(), most_tile_bytes, alike, alike_bytes}; }
  size_t bytes() const { return data.size() * sizeof(bf16) + numbers.size(); }
};

// The numbers that the CPU has, in the kernels' order (quant_panels.h). Throws Error(kIo) when a part cannot be read.
Matrix quantised_matrix(const std::vector<ops::QuantPart>& parts, int64_t columns, ThreadPool& pool);

struct Layer {
  DeviceBuffer<float> attention_norm, mlp_norm;  // [hidden]
  Matrix qkv;                                    // [query + 2 kv, hidden]
  DeviceBuffer<float> qkv_bias;                  // these biases and norms may be empty
  DeviceBuffer<float> q_norm, k_norm;            // [head_dim]
  Matrix output;                                 // [hidden, query]
  DeviceBuffer<float> output_bias;
  // [2 intermediate, hidden]: gate above up. Of a mixture those of all experts, one below the other (quantised: each from a panel of its own on),
  // an expert's gate and up row by row by turns. Its down likewise.
  Matrix gate_up;
  DeviceBuffer<float> gate_up_bias;
  Matrix down;  // [hidden, intermediate]
  DeviceBuffer<float> down_bias;
  Matrix router;  // of a mixture [experts, hidden], never quantised; else empty
};

// Which kernels compute what has several: the same in all that runs on these weights, because bits may depend on them (not on those of
// adapters, nor on what follows those of experts).
struct Kernels {
  cuda::MatMulKernel matmul = {};  // of products of bf16 weights
  cuda::AttentionKernel attention = {};
  cuda::AdapterKernel adapters = {};
  cuda::ExpertKernel experts = {};  // of bf16 weights
  bool fused = false;               // of few rows: norms within products, and rotation within attention
  int under_way = 0;                // bytes of weights (cuda::MatMul)
};

struct Weights {
  std::vector<Layer> layers;
  DeviceBuffer<float> final_norm;
  Matrix embedding;  // [vocab, hidden]; also the head when tied
  Matrix head;       // empty when tied
  Kernels kernels;

  size_t bytes() const;
};

// Checks every tensor before the first is read.
Weights load_weights(const model::Spec& spec, const WeightSource& source, ThreadPool& pool, const model::Progress& progress);

}  // namespace tandem::device
