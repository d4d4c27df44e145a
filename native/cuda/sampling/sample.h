// From rows of logits to tokens, on the device. Order of operations as native/src/ops/sampling.h: raw log-probabilities from the untouched
// logits over the whole vocabulary; then the mask and the edits (bias, then penalties); then the largest for greedy rows, or
// temperature, min_p, top_k, top_p and the draw.
//
// No sort: thresholds are found digit by digit over order-preserving keys, probabilities are added as 64-bit integers. Integer sums have no
// order, so a row's token does not depend on timing, on the device or on its batch.
//
// A row is cut in slices, by its vocabulary alone, of which each has a block: one kernel measures them, one ends the rows. Where a row is
// filtered or has alternatives, one between them lists the few ids that these can be; one after them counts what ranks need. A row with too
// many candidates is gone through by one block.
#pragma once
#include <vector>

#include "cuda/common/gpu.h"

namespace tandem::cuda {

// What changes one id's logit: l += bias; l = l > 0 ? l / repetition : l * repetition; l -= penalty. Ids of a row are distinct.
struct LogitEdit {
  int32_t id;
  float bias;        // -infinity forbids
  float repetition;  // 1 = off
  float penalty;     // frequency * count + presence
};

// What the log-probabilities of a row are of.
enum class LogprobOf : int32_t {
  kNone,       // not asked for: 0, and rank 0
  kRaw,        // the untouched logits
  kScaled,     // these times `scale`
  kProcessed,  // what the draw was made from
};

struct SampleRow {
  double top_p = 1;    // (0, 1]; 1 = off
  double uniform = 0;  // [0, 1): the draw of (seed, choice, output index)
  float scale = 0;     // 1 / temperature; 0 = greedy
  float min_p = 0;     // [0, 1]
  int32_t top_k = 0;   // 0 = off; ties at the k-th value are kept
  int32_t first_edit = 0, edit_count = 0;
  int32_t mask = -1;                       // row of the masks, -1 = none
  int32_t given = -1;                      // an id: it is scored, nothing is drawn. -1: a draw
  LogprobOf logprob_of = LogprobOf::kRaw;  // of a given id kRaw or kScaled
  int32_t first_best = 0, best = 0;        // where in SampleBatch::best its `best` alternatives go
  int32_t place = -1;                      // where in SampleBatch::last its token goes, -1 = nowhere
};

constexpr int32_t kNotFinite = -1;  // a logit was NaN or +infinity, or an edit made one so
constexpr int32_t kForbidden = -2;  // nothing may be sampled

struct Sampled {
  int32_t token;       // or one of the above
  float logprob;       // natural log; NaN without a token
  int32_t rank;        // 1 + ids with a larger value; 0 without a token
  int32_t best_count;  // alternatives written, by ascending id: fewer than asked for where fewer are above -infinity
};

struct BestEntry {
  int32_t id;
  float value;  // what they are ordered by: the logit
  float logprob;
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
  float* work;  // sample_workspace_floats(), at 16 bytes
  int64_t work_floats;
  BestEntry* best;
  int64_t best_total;
  Sampled* out;   // rows
  int32_t* last;  // tokens, for what comes next on the device
  int64_t last_count;
  // Whether kernels run that only some rows need: choose_kernels() knows. They change no result; without them such rows take long.
  bool lists, ranks;
};

int64_t sample_workspace_floats(int64_t rows, int64_t vocab);
// For rows as they are in batch.params.
void choose_kernels(SampleBatch& batch, const std::vector<SampleRow>& rows);

// Throws Error(kRange) naming the argument. An edit, a mask or a place outside its table is left out on the device, never followed.
void sample(const SampleBatch& args, cudaStream_t stream);

}  // namespace tandem::cuda
