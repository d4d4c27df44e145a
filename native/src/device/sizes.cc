#include "device/sizes.h"

#include <algorithm>

#include "cuda/attention/paged_attention.h"
#include "cuda/common/stream.h"
#include "cuda/gemm/matmul.h"
#include "cuda/sampling/sample.h"
#include "device/batch.h"
#include "device/mixture.h"

namespace tandem::device {
namespace {

constexpr int64_t kLogitRows = 256;
// Enough for a long history in every row; more rows are sampled in pieces.
constexpr int64_t kEdits = int64_t(1) << 18;
constexpr int64_t kBest = int64_t(1) << 16;
// Longer contexts of many sequences are attended to in pieces.
constexpr int64_t kAttentionFloats = int64_t(32) << 20;
constexpr int64_t kLoraFloats = int64_t(4) << 20;
// Of a mixture: with more, each expert has enough rows to be bound by its products.
constexpr int64_t kMixedRows = 2048;
// So many rows have room for the part of their adapters beside those of a product.
constexpr int64_t kPartRows = 64;

int64_t product_workspace(const model::Spec& s, int64_t rows, int64_t logit_rows) {
  const int64_t h = s.hidden_size;
  int64_t most = cuda::matmul_most_workspace_floats(logit_rows, s.vocab_size, h);
  for (auto [n, k] : product_shapes(s)) {
    const int64_t with_adapters = (cuda::matmul_splits(n, k) + 1) * n * std::min(rows, kPartRows);
    most = std::max({most, cuda::matmul_most_workspace_floats(rows, n, k), with_adapters});
  }
  return most;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> product_shapes(const model::Spec& s) {
  const int64_t h = s.hidden_size, q = s.query_size(), f = s.dense_size();
  std::vector<std::pair<int64_t, int64_t>> shapes = {{q + 2 * s.kv_size(), h}, {h, q}};
  if (f > 0) shapes.insert(shapes.end(), {{2 * f, h}, {h, f}});
  if (s.experts.count > 0) shapes.push_back({s.experts.count, h});
  return shapes;
}

Sizes::Sizes(const model::Spec& s, const engine::Options& o)
    : layers(s.layers), rows(o.max_batch_tokens), sequences(o.max_sequences), positions(o.max_model_len), pages(o.pages),
      vocab(s.vocab_size), hidden(s.hidden_size), wide(std::max({s.query_size() + 2 * s.kv_size(), 2 * s.dense_size(), s.hidden_size})),
      activation(std::max({s.hidden_size, s.query_size(), s.dense_size()})), queries(s.query_size()),
      kv_layer_elements(o.pages * cuda::kPagePositions * s.kv_size()),
      page_bytes(s.layers * 2 * cuda::kPagePositions * s.kv_size() * int64_t(sizeof(cuda::bf16))),
      decode_rows(std::min(rows, 2 * sequences)), logit_rows(std::min({o.max_sequences, o.max_batch_tokens, kLogitRows})),
      mask_words((s.vocab_size + 31) / 32), edits(std::max(s.vocab_size, kEdits)), best(std::max(s.vocab_size, kBest)),
      lora_floats(kLoraFloats), rope_floats(o.max_model_len * s.head_dim), mixed_rows(s.experts.count > 0 ? std::min(rows, kMixedRows) : 0),
      mixture_bytes(Mixture::bytes(s, mixed_rows)) {
  // Decode batches are padded to twice as many positions at most.
  const int64_t padded = std::max(2 * positions, kPositionStep);
  const int64_t one = cuda::attention_workspace_floats(1, s.kv_heads, s.head_dim, padded);
  const int64_t tile_tokens = cuda::attention_tile_tokens(s.heads, s.kv_heads);
  // At worst every sequence ends in a tile that is not full, and in a group of four that is not.
  const int64_t tiles = (rows + tile_tokens - 1) / tile_tokens + 4 * std::min(rows, sequences);
  arrivals = cuda::attention_arrivals(tiles, s.kv_heads);
  workspace_floats = std::max({product_workspace(s, rows, logit_rows), one, std::min(kAttentionFloats, tiles * one)});
  using cuda::Inputs;
  const int64_t table = std::max(sequences, decode_rows) * ((padded + cuda::kPagePositions - 1) / cuda::kPagePositions);
  const int64_t most = std::min(rows, 2 * sequences);
  // As many adapters as sequences, padded.
  forward_input_bytes = batch_bytes({rows, tiles, most, table, 2 * std::min(rows, sequences)}, layers);
  sample_input_bytes = Inputs::bytes_of<cuda::SampleRow>(logit_rows) + Inputs::bytes_of<cuda::LogitEdit>(edits) +
                       Inputs::bytes_of<uint32_t>(logit_rows * mask_words) + Inputs::bytes_of<int32_t>(logit_rows);
}

std::vector<MemoryPart> Sizes::parts() const {
  const size_t f = sizeof(float);
  const size_t activations = size_t(rows) * size_t(hidden) * f + layer_bytes() + kLanes * forward_input_bytes;
  const size_t sampling = size_t(logit_rows) * (size_t(hidden + vocab) * f + sizeof(cuda::Sampled)) +
                          size_t(cuda::sample_workspace_floats(logit_rows, vocab)) * f + size_t(best) * sizeof(cuda::BestEntry) +
                          kLanes * sample_input_bytes + cuda::Inputs::bytes_of<int32_t>(logit_rows) + size_t(sequences) * sizeof(int32_t);
  return {{"KV pages", size_t(pages) * size_t(page_bytes)}, {"activations", activations}, {"logits and sampling", sampling}};
}

size_t Sizes::layer_bytes() const {
  const size_t f = sizeof(float), b = sizeof(cuda::bf16);
  return size_t(rows) * (size_t(wide) * f + size_t(queries) * b) + size_t(std::max(rows, logit_rows)) * size_t(activation) * b +
         size_t(workspace_floats + lora_floats + rope_floats + hidden) * f + size_t(kLoraArrivals + arrivals) * sizeof(int32_t) +
         mixture_bytes;
}

size_t Sizes::fixed_bytes() const {
  size_t bytes = 0;
  for (const MemoryPart& part : parts()) bytes += part.bytes;
  return bytes - size_t(pages) * size_t(page_bytes);
}

}  // namespace tandem::device
