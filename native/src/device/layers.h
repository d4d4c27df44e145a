// The layers of a model on the device, with the memory that a pass through one of them needs: what serving and training share, kernel by
// kernel, so that a row's bits are the same in both.
#pragma once
#include <optional>

#include "cuda/common/stream.h"
#include "cuda/elementwise/row_backward.h"
#include "cuda/gemm/matmul_normed.h"
#include "cuda/rope/rope_store.h"
#include "device/batch.h"
#include "device/mixture.h"
#include "device/sizes.h"
#include "device/weights.h"

namespace tandem::device {

// What training keeps of a layer, for the rows of one batch; serving keeps nothing. What is null is not wanted, but for the residual stream.
struct LayerTap {
  bf16* qk;         // [rows][query + kv]: before norm and rotation
  bf16* queries;    // [rows][query]
  float* log_sums;  // [rows][heads]
  bf16* attended;   // [rows][query]
  bf16* gate_up;    // [rows][2 intermediate], of a mixture [rows][used][2 size]
  // [module][rows][most rank of the batch], modules shrunk_ld apart: A x of every projection.
  float* shrunk;
  int64_t shrunk_ld;
  // The residual stream after attention, and after the MLP: the one before is left as it is.
  float *middle, *after;
  // Keys and values that lie in more than one place.
  const cuda::SlotCopy* copies;
  int64_t copy_count;
};

class Layers {
 public:
  Layers(const model::Spec& spec, const Weights& weights, const Sizes& sizes, cuda::Stream& stream);

  // The rows' embeddings.
  void embed(const Batch& batch, float* y);
  // Attention and what is around it, added to the residual stream of the batch's rows, or with a tap to where that wants it; likewise the MLP.
  void attend(const Batch& batch, int64_t layer, const cuda::KvLayer& kv, float* hidden, const LayerTap* tap = nullptr);
  void feed_forward(const Batch& batch, int64_t layer, float* hidden, const LayerTap* tap = nullptr);
  // As attend(), but what attention adds is made for the batch's wanted rows alone, whose residual stream goes to `wanted`, one behind the
  // other; what comes back is the batch of these.
  Batch attend_wanted(const Batch& batch, int64_t layer, const cuda::KvLayer& kv, float* hidden, float* wanted);
  // Serving leaves the parts of a product to what reads it next; after this the residual stream is whole.
  void settle(float* hidden);
  // Rows of the final residual stream to rows of vocab floats.
  void logits(float* rows, int64_t count, float* out);

  // The experts of normed rows, by a layer's router. `whole`: its logits are wanted on the way back.
  void route(const Layer& layer, const int32_t* slots, const bf16* x, int64_t rows, bool whole);
  Mixture& mixture() { return mixture_; }

  const Matrix& head() const { return spec_.tied_embeddings ? weights_.embedding : weights_.head; }
  const float* cosines() const { return cosines_.data(); }
  const float* sines() const { return sines_.data(); }

 private:
  // The rows' queries, keys and values as the product gives them, to be rotated and stored.
  cuda::RopeStore project_rows(const Batch& batch, int64_t layer, const cuda::KvLayer& kv, float* hidden, const LayerTap* tap);
  void store(const cuda::RopeStore& rope, const LayerTap* tap);
  // What the rows attended to, through the output projection to the residual stream.
  void add_attended(const Batch& batch, int64_t layer, const bf16* attended, float* hidden, const LayerTap* tap);
  cuda::PagedAttention attention_of(const Batch& batch, int64_t index, const cuda::KvLayer& kv, const bf16* queries, bf16* out);
  // The tiles whose splits are attended to by themselves; returns how many of them have room at a time.
  int64_t take_splits(const Batch& batch, cuda::PagedAttention& args) const;
  // Rows that attention itself rotates and stores, where it can; else nothing is done.
  bool attend_rotating(const Batch& batch, int64_t index, const cuda::KvLayer& kv, const cuda::RopeStore& rope, bf16* out);
  void run_attention(const Batch& batch, int64_t index, const cuda::KvLayer& kv, const bf16* queries, bf16* out, const LayerTap* tap);
  // A feed-forward that is a mixture of experts, of normed rows.
  void mix(const Batch& batch, const Layer& layer, const float* hidden, const LayerTap* tap, float* out);
  // What parts are left of the residual stream's last product are added to it first.
  void normalise(float* hidden, int64_t rows, const DeviceBuffer<float>& weight);
  // y = W x, or `onto`, where that is not null, and W x; of rows of w.k inputs. Parts that it leaves are in workspace_ until the next product.
  cuda::Parts product(const Matrix& w, const bf16* x, int64_t rows, float* y, const float* onto, bool leave = false);
  // Whether both norms of a layer are made by the products behind them, as of one row.
  bool norms_in_products(const Batch& batch, int64_t index);
  cuda::MatMul normed_product_of(const Matrix& w, bf16* gated);
  // As normalise() and product(), by one launch: row.sums gets what normalise() leaves in `hidden`.
  cuda::Parts normed_product(const Matrix& w, cuda::NormedRow row, bf16* gated);
  cuda::MatMul product_of(const Matrix& w, const bf16* x, int64_t rows, float* y);
  // The activation of gate and up, with what adapters add, where what makes these makes it too: it lies where wide rows do. Else null.
  const bf16* gated_product(const Batch& batch, int64_t layer, const bf16* x);
  // As product(), with what the rows' adapters add: y = `onto` + (W x + B u). With few rows, where parts may be left, that is one part more.
  cuda::Parts project(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x, float* y, const float* onto,
                      bool leave, const LayerTap* tap);
  // Parts of the product with that of the adapters, if there is room for them; nothing is done otherwise.
  std::optional<cuda::Parts> project_beside(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x);
  // A product of few rows that leaves its parts, and what adapters add to it as one more.
  struct Adapted {
    cuda::MatMul product;
    cuda::Parts parts;
    cuda::LoraPart adapters;
  };
  // Nothing: there are too many rows, or there is no room.
  std::optional<Adapted> adapted_product(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x);
  // Whether the product's own launch makes them.
  bool makes_within(const Batch& batch, const cuda::MatMul& product, const cuda::LoraPart& adapters) const;
  // The product, which adapters come right behind.
  void run_product(Adapted& both);
  // What adapters add to that product, to be written to `to`, its rows as wide as w.
  cuda::LoraPart part_of(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x, float* to);
  // The rows' adapters of a product, added to `sums`, or with `onto` to that, into y; rows `ld` apart.
  void adapt(const Batch& batch, int64_t layer, model::Product which, const bf16* x, float* sums, const float* onto, float* y, int64_t ld,
             const LayerTap* tap);
  // The activation of gate and up with their adapters, of many rows, where there is room for A x of both; else nothing is done.
  bool adapted_activation(const Batch& batch, int64_t index, const LayerTap* tap);
  // Of one projection and `rows` rows from `first` on; A x goes to the tape, or to scratch that `before` floats are taken of.
  cuda::Lora adapter_of(const Batch& batch, int64_t layer, model::Module module, const bf16* x, int64_t first, int64_t rows,
                        const LayerTap* tap, int64_t before);
  // Tells what the product behind reads of adapters, if that is not too much.
  void add_next(const Batch& batch, int64_t layer, model::Product which, cuda::LoraPart& part) const;
  const cuda::LoraWeights* adapters_of(const Batch& batch, int64_t layer, model::Module module) const;
  void add_bias(const DeviceBuffer<float>& bias, int64_t rows, float* y);

  const model::Spec& spec_;
  const Weights& weights_;
  Sizes sizes_;
  cuda::Stream& stream_;
  DeviceBuffer<float> cosines_, sines_;  // [positions][head_dim / 2]
  DeviceBuffer<float> wide_;             // [rows][qkv or gate and up]
  DeviceBuffer<bf16> activation_;        // [rows][inputs of the next product]
  DeviceBuffer<bf16> queries_;           // [rows][heads][dim]
  DeviceBuffer<float> workspace_, lora_;
  DeviceBuffer<int32_t> arrived_;   // of adapters beside a product
  DeviceBuffer<int32_t> arrivals_;  // of splits of attention
  // Of one row whose norms products make, the residual stream between both norms of a layer, and whether it is there.
  DeviceBuffer<float> spare_;
  bool in_spare_ = false;
  Mixture mixture_;
  cuda::Parts residual_;  // of the residual stream's last product
};

}  // namespace tandem::device
