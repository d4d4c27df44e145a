// All sizes of an engine's device memory, known before any of it is taken: nothing is allocated in a step.
#pragma once
#include "cuda/lora/lora.h"
#include "device/device.h"

namespace tandem::device {

// Steps whose inputs or results are held at the same time: one runs, and one is queued behind it.
inline constexpr size_t kLanes = 2;

// Counters of adapters beside a product.
inline constexpr int64_t kLoraArrivals = cuda::LoraPart::kArrivals;

// Outputs and inputs of a layer's products, those of experts left out: of every kind of layer that there is.
std::vector<std::pair<int64_t, int64_t>> product_shapes(const model::Spec& spec);

struct Sizes {
  Sizes(const model::Spec& spec, const engine::Options& options);

  int64_t layers, rows, sequences, positions, pages, vocab;
  int64_t hidden, wide, activation, queries;  // columns of the activations
  int64_t kv_layer_elements;                  // keys or values of one layer
  int64_t page_bytes;                         // of all layers
  int64_t decode_rows;                        // of the largest decode batch, padded
  int64_t logit_rows;                         // sampled at once
  int64_t mask_words;                         // of one row
  int64_t edits, best;                        // of the rows sampled at once
  int64_t workspace_floats;                   // of products and of attention, one after the other
  int64_t lora_floats;                        // of A x
  int64_t rope_floats;                        // of the cosines and sines of all positions
  int64_t arrivals;                           // of attention: attention_arrivals()
  int64_t mixed_rows;                         // that go through a mixture of experts together; 0 where there is none
  size_t mixture_bytes;
  size_t forward_input_bytes, sample_input_bytes;  // of one step; a second one is prepared while it runs

  std::vector<MemoryPart> parts() const;
  // Everything but the KV pages.
  size_t fixed_bytes() const;
  // What a pass through a layer needs beside the residual stream.
  size_t layer_bytes() const;
};

}  // namespace tandem::device
