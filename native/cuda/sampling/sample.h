// From rows of logits to tokens, on the device. Order of operations as native/src/ops/sampling.h: raw log-probability from the untouched
// logits over the whole vocabulary; then the mask and the edits (bias, then penalties); then the largest for greedy rows, or
// temperature, min_p, top_k, top_p and the draw.
//
// No sort: thresholds are found digit by digit over order-preserving keys, probabilities are added as 64-bit integers. Integer sums have no
// order, so a row's token does not depend on timing, on the device or on its batch.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

// What changes one id's logit: l += bias; l = l > 0 ? l / repetition : l * repetition; l -= penalty. Ids of a row are distinct.
struct LogitEdit {
  int32_t id;
  float bias;        // -infinity forbids
  float repetition;  // 1 = off
  float penalty;     // frequency * count + presence
};

struct SampleRow {
  double top_p;       // (0, 1]; 1 = off
  double uniform;     // [0, 1): the draw of (seed, choice, output index)
  float temperature;  // 0 = greedy
  float min_p;        // [0, 1]
  int32_t top_k;      // 0 = off; ties at the k-th value are kept
  int32_t first_edit, edit_count;
  int32_t mask;  // row of the masks, -1 = none
};

struct Sampled {
  int32_t token;  // -1: a logit was NaN or +infinity, or nothing may be sampled
  float logprob;  // raw, natural log; NaN with token -1
  int32_t rank;   // 1 + ids with a larger raw logit; 0 with token -1
};

struct SampleBatch {
  const float* logits;  // rows, ld floats apart; not changed
  int64_t ld, rows;
  int64_t vocab;            // ids of the raw log-probability
  int64_t samplable;        // ids >= this are never sampled; <= vocab
  const SampleRow* params;  // rows
  const LogitEdit* edits;
  int64_t edit_total;
  const uint32_t* masks;  // bit id % 32 of word id / 32: may be sampled; rows of mask_words
  int64_t mask_rows, mask_words;
  float* work;  // rows * vocab floats
  int64_t work_floats;
  Sampled* out;  // rows
};

// Throws Error(kRange) naming the argument. An edit or mask index outside its table is left out on the device, never followed.
void sample(const SampleBatch& args, cudaStream_t stream);

}  // namespace tandem::cuda
