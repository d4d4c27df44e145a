// One forward pass over a batch of token rows of different sequences: embedding -> layers; then final norm and logits of the rows
// that are asked for. Shape letter: T = token rows of the batch.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "model/adapter.h"
#include "model/experts.h"
#include "model/weights.h"
#include "ops/attention.h"
#include "ops/kv_pages.h"
#include "ops/rope.h"

namespace tandem::model {

// The loaded model: immutable after construction, shared by engines.
struct Model {
  // The facts alone: the weights are elsewhere.
  Model(const Spec& spec, ops::Element element, int threads);
  Model(const Spec& spec, const std::vector<std::string>& files, const std::vector<Tensor>& tensors, ops::Element element, int threads,
        const Progress& progress, const std::optional<Quantise>& quantise = {}, bool int8_kv = false);

  Spec spec;
  ops::Element element;
  bool int8_kv;  // engines keep keys and values as int8; trainers never do
  const simd::Kernels& kernels;
  ThreadPool pool;
  std::mutex turn;  // held by the engine that uses the pool
  Weights weights;

  const ops::PackedMatrix& head() const { return spec.tied_embeddings ? weights.embedding : weights.head; }
  ops::KvShape kv_shape() const { return {spec.layers, spec.kv_heads, spec.head_dim, element, int8_kv}; }
};

// Token rows, in runs of consecutive positions per sequence. Pages of every position of every run must be assigned.
struct ForwardBatch {
  std::vector<int32_t> tokens;           // T ids in [0, vocab)
  std::vector<ops::AttentionRun> runs;   // cover rows 0..T-1 in order
  std::vector<const Adapter*> adapters;  // one per run, null = the base model; empty = the base model throughout
  std::vector<int32_t> wanted;           // rows whose final hidden state is asked for, ascending; what the others have is not defined
};

// Activations of one engine, allocated once for at most `max_rows` token rows and `max_logit_rows` logit rows at a time.
class Forward {
 public:
  Forward(Model& model, int64_t max_positions, int64_t max_rows, int64_t max_logit_rows);

  // Runs the layers over the batch and writes its keys and values. Afterwards `hidden` and `logits` of wanted rows may be asked for: of the
  // others the last layer only makes keys and values.
  void run(const ForwardBatch& batch, ops::KvPages& kv);
  // The final residual stream of a wanted row of the last run: hidden_size floats, valid until the next run.
  const float* hidden(int64_t row) const { return hidden_.data() + row * hidden_ld_; }
  // Final norm and head over `count` <= max_logit_rows hidden rows: rows of vocab floats, ld_logits() apart. The caller may change them;
  // valid until the next call.
  float* logits(const float* const* hidden_rows, int64_t count);
  int64_t ld_logits() const { return model_.head().rows_padded(); }

 private:
  void group_adapters(const ForwardBatch& batch);
  // Rows of the input of a product.
  struct Inputs {
    const uint8_t* data;
    int64_t ld;
  };
  Inputs activated() const { return {activation_.data(), activation_ld_}; }
  // y (+)= W x, with each row's adapter beside it.
  void product(int64_t index, Product which, Inputs x, int64_t rows, float* y, int64_t ldy, bool accumulate);
  // The weights that are read next.
  const ops::PackedMatrix& after(int64_t index, Product which) const;
  void embed(const std::vector<int32_t>& tokens);
  void normalise(const float* rows, int64_t ld, int64_t count, const std::vector<float>& weight);
  // Norm and rope of the queries and the key that a row has under a KV head; the key and its value become the row's position.
  void rotate_and_store(const Layer& layer, int64_t index, ops::KvPages& kv, int64_t row, int64_t kv_head);
  void rotate_and_store_all(const Layer& layer, int64_t index, ops::KvPages& kv, int64_t rows);
  // Queries, keys and values of the rows, before norms and rope.
  void project(const Layer& layer, int64_t index, int64_t rows);
  // Stores keys and values unless they are stored.
  void attend(const std::vector<ops::AttentionRun>& runs, const Layer& layer, int64_t index, ops::KvPages& kv, int64_t rows, bool stored);
  // Leaves the wanted rows alone, one behind the other, in the residual stream, the queries, the adapters and wanted_runs_.
  void narrow(const ForwardBatch& batch);
  // Puts the residual stream of these back to their places.
  void widen(const std::vector<int32_t>& wanted);
  void feed_forward(const Layer& layer, int64_t index, int64_t rows);
  // silu(gate) * up of normalised rows: stored first, or each panel as soon as it is there.
  Inputs activate_stored(const Layer& layer, int64_t index, int64_t rows);
  Inputs activate_panels(const Layer& layer, int64_t index, int64_t rows);
  // The same where it is a mixture of experts.
  void mix(const Layer& layer, int64_t index, int64_t rows);

  Model& model_;
  ops::RopeTable rope_;
  AdapterBatch adapters_;
  ExpertRows experts_;
  ops::AttentionGroups groups_;                   // of the batch's runs
  bool decodes_ = false;                          // each of them is one query
  std::vector<const ops::AttentionRun*> owners_;  // of its rows
  std::vector<const Adapter*> row_adapters_;
  std::vector<ops::AttentionRun> wanted_runs_;
  int64_t hidden_ld_;           // floats between rows of the residual stream
  int64_t activation_ld_;       // elements between rows of the input of a product
  Buffer<float> hidden_;        // [T][hidden_ld_]
  Buffer<float> wide_;          // [T][max(qkv, gate_up) padded, and a gap]
  Buffer<uint8_t> activation_;  // [T][activation_ld_] elements
  Buffer<uint8_t> queries_;     // [T][heads][dim] elements
  Buffer<float> logits_;        // [max_logit_rows][vocab padded]
};

}  // namespace tandem::model
