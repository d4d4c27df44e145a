// The forward pass of one layer over some rows, in four parts: the very operations of serving, in the same order (model/forward.cc), with
// what backward needs written to the tape.
#pragma once
#include "model/experts.h"
#include "model/rows.h"
#include "train/steps.h"
#include "train/tape.h"
#include "train/unit_size.h"

namespace tandem::train {

// Consecutive tokens of a row.
struct Chunk {
  int64_t first, count;
};

using model::for_rows;

// Memory of at most `rows` rows, shared by the passes.
class LayerForward {
 public:
  LayerForward(model::Model& model, const UnitSize& unit, int64_t rows, int64_t positions);

  void embed(Tape& tape, Chunk chunk);
  // A layer over a chunk; chunks ascending within a layer.
  Steps run(Tape& tape, int64_t layer, Chunk chunk);

  // For the backward pass: what entered the products, computed again into rows ld_activation() apart.
  void normalise(const float* rows, int64_t ld, int64_t count, const std::vector<float>& weight, uint8_t* out) const;
  void activate(const uint8_t* gate_up, int64_t count, uint8_t* out) const;
  // One row of `size` outputs of gate and as many of up.
  void activate_row(const uint8_t* gate_up, int64_t size, uint8_t* out) const;
  // Queries of a chunk as attention takes them, from the tape.
  void queries(Tape& tape, int64_t layer, Chunk chunk, uint8_t* out) const;

  // n elements from index `at` on, as floats.
  void read_elements(const uint8_t* from, int64_t at, int64_t n, float* out) const;
  void write_elements(const float* x, int64_t n, uint8_t* out) const;

  // The experts of a chunk's rows; whoever routes rows has it until others are routed.
  model::ExpertRows& experts() { return experts_; }

  const UnitSize& unit() const { return unit_; }
  const ops::RopeTable& rope() const { return rope_; }
  int64_t ld_activation() const { return ld_activation_; }
  size_t element() const { return ops::element_size(model_.element); }

 private:
  // y (+)= x . W with the adapter beside it.
  struct Operands {
    model::Product product;
    const void* x;
    int64_t ldx;
    float* y;
    int64_t ldy;
    bool accumulate;
  };
  Steps product(Tape& tape, int64_t layer, Chunk chunk, Operands o);
  Steps attention_in(Tape& tape, int64_t layer, Chunk chunk);
  Steps attention_out(Tape& tape, int64_t layer, Chunk chunk);
  Steps mlp_in(Tape& tape, int64_t layer, Chunk chunk);
  Steps mlp_out(Tape& tape, int64_t layer, Chunk chunk);
  // Both where the feed-forward is a mixture.
  Steps mixture(Tape& tape, int64_t layer, Chunk chunk);
  // A product of a batch of it.
  Steps multiply(const ops::PackedMatrix& w, int64_t outputs);
  // Keeps a batch's outputs of gate and up.
  void keep_gate_up(Tape& tape, int64_t layer, Chunk chunk);
  void clear_pages(Tape& tape, int64_t layer, Chunk chunk);
  void store_keys(Tape& tape, int64_t layer, Chunk chunk);
  // One head of queries or keys, normed and rotated in place.
  void turn_head(const model::Layer& layer, bool key, int64_t position, float* x) const;

  model::Model& model_;
  UnitSize unit_;
  ops::RopeTable rope_;
  model::ExpertRows experts_;
  int64_t ld_activation_;
  Buffer<float> wide_;
  Buffer<uint8_t> activation_, queries_;
  std::vector<int32_t> all_rows_;
};

// u of tasks over the same rows, cut into units; x as ops::lora_shrink takes it.
Steps shrink(model::Model& model, const UnitSize& unit, std::vector<ops::LoraTask> tasks, const void* x, int64_t ldx);
const ops::PackedMatrix& weights_of(const model::Layer& layer, model::Product which);
ops::AttentionShape attention_shape(const model::Spec& spec, int64_t layer);

}  // namespace tandem::train
