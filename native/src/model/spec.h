// A model as facts: dimensions and switches. Read from JSON by TypeScript, checked here again.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/element.h"
#include "ops/rope.h"

namespace tandem::model {

// Feed-forwards that are a mixture: each token goes to `used` of `count` experts of `size` intermediate numbers. count 0: there are none.
struct Experts {
  int64_t count = 0, used = 0, size = 0;
  bool normalise = true;  // the weights of those that are used sum to 1
};

struct Spec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  ops::RopeSpec rope;
  int64_t max_position = 0;
  int64_t sliding_window = 0;          // 0 = none
  std::vector<uint8_t> window_layers;  // one per layer
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool tied_embeddings = false;
  Experts experts;
  std::vector<uint8_t> expert_layers;  // one per layer: 1 where the feed-forward is a mixture; empty: nowhere

  // Outputs of gate and up that a token has in a layer, at most.
  int64_t gate_up_size() const {
    int64_t most = 0;
    for (int64_t layer = 0; layer < layers; ++layer) most = std::max(most, mixes(layer) ? experts.used * experts.size : intermediate_size);
    return 2 * most;
  }
  // Of the feed-forwards that are no mixtures; 0 where all are.
  int64_t dense_size() const {
    for (int64_t layer = 0; layer < layers; ++layer) {
      if (!mixes(layer)) return intermediate_size;
    }
    return 0;
  }
  bool mixes(int64_t layer) const { return !expert_layers.empty() && expert_layers[size_t(layer)] != 0; }
  int64_t query_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
};

// Throws Error(kRange) naming the first field that is impossible.
void check(const Spec& spec);

// The last four are blocks of small numbers (model/blocks.h).
enum class Stored { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4K, kQ6K };

struct Tensor {
  std::string name;
  Stored stored;
  std::vector<int64_t> shape;
  int64_t file;
  int64_t offset;
  // Rows of a head whose two halves lie interleaved in the file (row i of the first, then row i of the second), as llama.cpp stores
  // queries and keys of the llama architecture: the size of a head. Reads give the halves one below the other. 0 = in order.
  int64_t interleaved = 0;
};

}  // namespace tandem::model
