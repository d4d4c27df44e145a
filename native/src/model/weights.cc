#include "model/weights.h"

#include <algorithm>

#include "base/error.h"
#include "model/quant_parts.h"

namespace tandem::model {
namespace {

class Loader {
 public:
  Loader(const Spec& spec, const TensorFiles& files, ops::Element element, const std::optional<Quantise>& quantise,
         const simd::Kernels& kernels, ThreadPool& pool, const Progress& progress)
      : spec_(spec), files_(files), element_(element), quantise_(quantise), kernels_(kernels), pool_(pool), progress_(progress) {}

  Weights load() {
    dry_ = true;
    read_all();
    dry_ = false;
    if (!quantise_ || !quantise_->cache) return read_all();
    if (std::optional<Weights> cached = read_cached()) return std::move(*cached);
    Weights weights = read_all();
    std::optional<std::string> error = write_cache(*quantise_->cache, matrices_of(weights));
    weights.cache = error ? CacheOutcome::kFailed : CacheOutcome::kWritten;
    if (error) weights.cache_error = *error;
    return weights;
  }

 private:
  // One part of a matrix whose rows come from several tensors.
  struct Part {
    std::string name;
    int64_t rows;
  };

  // What the cache holds, if all of it is right.
  std::optional<Weights> read_cached() {
    cached_.emplace(*quantise_->cache, pool_);
    std::optional<Weights> weights = read_all();
    weights->cache = CacheOutcome::kRead;
    if (!cached_->finished()) weights.reset();
    cached_.reset();
    done_ = 0;
    return weights;
  }

  // In the order of read_all.
  static std::vector<const ops::QuantisedMatrix*> matrices_of(const Weights& weights) {
    std::vector<const ops::QuantisedMatrix*> all{weights.embedding.quantised()};
    if (weights.head.quantised()) all.push_back(weights.head.quantised());
    for (const Layer& layer : weights.layers) {
      for (const ops::PackedMatrix* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) all.push_back(matrix->quantised());
    }
    return all;
  }

  // Reads everything; in a dry run it only checks that each tensor is there with its shape.
  Weights read_all() {
    Weights weights;
    int64_t h = spec_.hidden_size, v = spec_.vocab_size;
    weights.embedding = matrix({{"model.embed_tokens.weight", v}}, h);
    if (!spec_.tied_embeddings) weights.head = matrix({{"lm_head.weight", v}}, h);
    weights.final_norm = vector("model.norm.weight", h);
    for (int64_t i = 0; i < spec_.layers; ++i) weights.layers.push_back(layer("model.layers." + std::to_string(i) + "."));
    return weights;
  }

  Layer layer(const std::string& prefix) {
    int64_t h = spec_.hidden_size, q = spec_.query_size(), kv = spec_.kv_size(), f = spec_.intermediate_size;
    std::string a = prefix + "self_attn.", m = prefix + "mlp.";
    Layer layer;
    layer.attention_norm = vector(prefix + "input_layernorm.weight", h);
    layer.mlp_norm = vector(prefix + "post_attention_layernorm.weight", h);
    layer.qkv = matrix({{a + "q_proj.weight", q}, {a + "k_proj.weight", kv}, {a + "v_proj.weight", kv}}, h);
    if (spec_.qkv_bias) layer.qkv_bias = vectors({{a + "q_proj.bias", q}, {a + "k_proj.bias", kv}, {a + "v_proj.bias", kv}});
    if (spec_.qk_norm) {
      layer.q_norm = vector(a + "q_norm.weight", spec_.head_dim);
      layer.k_norm = vector(a + "k_norm.weight", spec_.head_dim);
    }
    layer.output = matrix({{a + "o_proj.weight", h}}, q);
    if (spec_.output_bias) layer.output_bias = vector(a + "o_proj.bias", h);
    layer.gate_up = matrix({{m + "gate_proj.weight", f}, {m + "up_proj.weight", f}}, h);
    layer.down = matrix({{m + "down_proj.weight", h}}, f);
    if (spec_.mlp_bias) {
      layer.gate_up_bias = vectors({{m + "gate_proj.bias", f}, {m + "up_proj.bias", f}});
      layer.down_bias = vector(m + "down_proj.bias", h);
    }
    return layer;
  }

  std::vector<float> vector(const std::string& name, int64_t n) const { return vectors({{name, n}}); }

  std::vector<float> vectors(const std::vector<Part>& parts) const {
    std::vector<float> out;
    for (const Part& part : parts) {
      const Tensor& tensor = files_.find(part.name, {part.rows});
      if (dry_) continue;
      size_t start = out.size();
      out.resize(start + size_t(part.rows));
      if (!files_.read(tensor, 0, part.rows, out.data() + start)) throw Error(ErrorKind::kIo, "could not read " + part.name);
    }
    return out;
  }

  ops::PackedMatrix matrix(const std::vector<Part>& parts, int64_t columns) {
    std::vector<const Tensor*> tensors;
    int64_t rows = 0;
    for (const Part& part : parts) {
      tensors.push_back(&files_.find(part.name, {part.rows, columns}));
      rows += part.rows;
    }
    const std::vector<ops::QuantPart> quantised = quant_parts(files_, tensors, quantise_ ? std::optional(quantise_->format) : std::nullopt);
    if (dry_) {
      total_ += quantised.empty() ? rows * columns * int64_t(ops::element_size(element_)) : packed_bytes(quantised, columns);
      return {};
    }
    ops::PackedMatrix packed = cached_ ? from_cache(rows, columns)
                               : quantised.empty()
                                   ? elements(parts, tensors, rows, columns)
                                   : ops::PackedMatrix(element_, ops::QuantisedMatrix(kernels_.panel, columns, quantised, pool_));
    done_ += int64_t(packed.bytes());
    if (progress_) progress_(std::min(done_, total_), total_);
    return packed;
  }

  ops::PackedMatrix elements(const std::vector<Part>& parts, const std::vector<const Tensor*>& tensors, int64_t rows, int64_t columns) {
    auto read_rows = [&](int64_t first, int64_t count, float* out) {
      int64_t part_first = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        int64_t from = std::max(first, part_first), to = std::min(first + count, part_first + parts[i].rows);
        if (from < to && !files_.read(*tensors[i], (from - part_first) * columns, (to - from) * columns, out + (from - first) * columns)) {
          return false;
        }
        part_first += parts[i].rows;
      }
      return true;
    };
    return ops::PackedMatrix(kernels_, element_, rows, columns, pool_, read_rows);
  }

  ops::PackedMatrix from_cache(int64_t rows, int64_t columns) {
    std::optional<ops::QuantisedMatrix> matrix = cached_->next(kernels_.panel, rows, columns, quantise_->format);
    return matrix ? ops::PackedMatrix(element_, std::move(*matrix)) : ops::PackedMatrix();
  }

  // About what will be packed; padding is left out, so it is only for showing progress.
  static int64_t packed_bytes(const std::vector<ops::QuantPart>& parts, int64_t columns) {
    int64_t bytes = 0;
    for (const ops::QuantPart& part : parts) bytes += simd::traits_of(part.format).panel_bytes(1, part.rows * columns);
    return bytes;
  }

  const Spec& spec_;
  const TensorFiles& files_;
  ops::Element element_;
  const std::optional<Quantise>& quantise_;
  std::optional<CacheReader> cached_;
  const simd::Kernels& kernels_;
  ThreadPool& pool_;
  const Progress& progress_;
  int64_t total_ = 0;
  int64_t done_ = 0;
  bool dry_ = false;
};

}  // namespace

size_t Weights::bytes() const {
  size_t total = embedding.bytes() + head.bytes();
  for (const Layer& layer : layers) total += layer.qkv.bytes() + layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
  return total;
}

Weights load(const Spec& spec, const std::vector<std::string>& files, const std::vector<Tensor>& tensors, ops::Element element,
             const std::optional<Quantise>& quantise, const simd::Kernels& kernels, ThreadPool& pool, const Progress& progress) {
  check(spec);
  if (quantise && simd::traits_of(quantise->format).floating) throw Error(ErrorKind::kUnsupported, "fp8 weights need a GPU");
  TensorFiles open_files(files, tensors);
  return Loader(spec, open_files, element, quantise, kernels, pool, progress).load();
}

}  // namespace tandem::model
