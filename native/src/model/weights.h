// The base weights, read once from the files and packed; afterwards no file is open.
//
// Files are read with bounded positional reads rather than mapped: a file that shrinks while mapped would kill the process
// with SIGBUS, and after packing nothing of the original layout is needed.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/spec.h"
#include "model/weight_cache.h"
#include "ops/matmul.h"

namespace tandem::model {

struct Layer {
  std::vector<float> attention_norm, mlp_norm;  // [hidden]
  ops::PackedMatrix qkv;                        // [query + 2 kv, hidden]: q, k, v one below the other
  std::vector<float> qkv_bias;                  // [query + 2 kv] or empty
  std::vector<float> q_norm, k_norm;            // [head_dim] or empty
  ops::PackedMatrix output;                     // [hidden, query]
  std::vector<float> output_bias;               // [hidden] or empty
  // [2 intermediate, hidden]: gate above up. Of a mixture those of all experts, one below the other, each from a panel of its own on
  // (expert_panels); its down too.
  ops::PackedMatrix gate_up;
  std::vector<float> gate_up_bias;  // [2 intermediate] or empty
  ops::PackedMatrix down;           // [hidden, intermediate]
  std::vector<float> down_bias;     // [hidden] or empty
  ops::PackedMatrix router;         // of a mixture [experts, hidden], never quantised; else empty

  bool mixes() const { return router.rows() > 0; }
};

// The panels of one expert's `outputs` outputs.
inline ops::PanelRange expert_panels(const ops::PackedMatrix& w, int64_t expert, int64_t outputs) {
  const int64_t panels = (outputs + w.panel() - 1) / w.panel();
  return {expert * panels, (expert + 1) * panels};
}

// Weights that are quantised while they are loaded.
struct Quantise {
  ops::QuantFormat format;  // kInt8 or kInt4; on a device also kFp8
  // Where they are kept and looked for; none: they are made every time.
  std::optional<CachePlace> cache = {};
};

enum class CacheOutcome { kUnused, kRead, kWritten, kFailed };

struct Weights {
  CacheOutcome cache = CacheOutcome::kUnused;
  std::string cache_error;  // why it could not be written, with kFailed
  std::vector<Layer> layers;
  std::vector<float> final_norm;  // [hidden]
  ops::PackedMatrix embedding;    // [vocab, hidden]; also the head when tied
  ops::PackedMatrix head;         // [vocab, hidden]; empty when tied

  size_t bytes() const;
};

// What rows need at most, over all layers, the feed-forwards of mixtures left out (model/experts.h): floats of what a product makes of
// hidden_size, floats of what others make, elements of what enters one.
struct Widths {
  int64_t residual = 0, wide = 0, activation = 0;
};
Widths widths_of(const Weights& weights);

using Progress = std::function<void(int64_t done, int64_t total)>;

// Checks every tensor's name, shape, dtype and byte range against the spec and the files before anything is read.
// Throws Error(kRange) naming the tensor, or Error(kIo). `progress` is called on the calling thread.
// A matrix whose tensors are all stored in blocks keeps their numbers exactly; beside plain elements blocks are widened.
// With `quantise` every matrix is quantised, the embedding too. A cache that is not as it was written is ignored and written anew.
Weights load(const Spec& spec, const std::vector<std::string>& files, const std::vector<Tensor>& tensors, ops::Element element,
             const std::optional<Quantise>& quantise, const simd::Kernels& kernels, ThreadPool& pool, const Progress& progress);

}  // namespace tandem::model
