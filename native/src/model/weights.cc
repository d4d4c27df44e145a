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
  // One part of a matrix whose rows come from several tensors; without a name, zeros.
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
    for (int64_t i = 0; i < spec_.layers; ++i) weights.layers.push_back(layer(i));
    return weights;
  }

  Layer layer(int64_t index) {
    int64_t h = spec_.hidden_size, q = spec_.query_size(), kv = spec_.kv_size();
    const std::string prefix = "model.layers." + std::to_string(index) + ".", a = prefix + "self_attn.";
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
    if (spec_.mixes(index)) mixture(layer, prefix + "mlp.");
    else feed_forward(layer, prefix + "mlp.");
    return layer;
  }

  void feed_forward(Layer& layer, const std::string& m) {
    const int64_t h = spec_.hidden_size, f = spec_.intermediate_size;
    layer.gate_up = matrix({{m + "gate_proj.weight", f}, {m + "up_proj.weight", f}}, h);
    layer.down = matrix({{m + "down_proj.weight", h}}, f);
    if (!spec_.mlp_bias) return;
    layer.gate_up_bias = vectors({{m + "gate_proj.bias", f}, {m + "up_proj.bias", f}});
    layer.down_bias = vector(m + "down_proj.bias", h);
  }

  void mixture(Layer& layer, const std::string& m) {
    const int64_t h = spec_.hidden_size, f = spec_.experts.size;
    // Choices hang on small differences, and the router is a thousandth of a layer.
    layer.router = plain_matrix({{m + "gate.weight", spec_.experts.count}}, h);
    std::vector<Part> gate_up, down;
    for (int64_t i = 0; i < spec_.experts.count; ++i) {
      const std::string e = m + "experts." + std::to_string(i) + ".";
      gate_up.insert(gate_up.end(), {{e + "gate_proj.weight", f}, {e + "up_proj.weight", f}, padding(2 * f)});
      down.insert(down.end(), {{e + "down_proj.weight", h}, padding(h)});
    }
    layer.gate_up = matrix(gate_up, h);
    layer.down = matrix(down, f);
  }

  // Rows of zeros after `rows` others, to the next panel.
  Part padding(int64_t rows) const { return {"", round_up(rows, kernels_.panel) - rows}; }

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
    const std::vector<const Tensor*> tensors = find(parts, columns);
    const auto format = quantise_ ? std::optional(quantise_->format) : std::nullopt;
    std::vector<ops::QuantPart> quantised = quant_parts(files_, named(tensors), format);
    if (!quantised.empty()) {
      for (size_t i = 0; i < parts.size(); ++i) {
        if (!tensors[i]) quantised.insert(quantised.begin() + int64_t(i), zero_part(parts[i].rows, quantised[i - 1].format, columns));
      }
    }
    return packed(parts, tensors, columns, quantised);
  }

  // Never quantised, whatever the others are.
  ops::PackedMatrix plain_matrix(const std::vector<Part>& parts, int64_t columns) {
    return packed(parts, find(parts, columns), columns, {});
  }

  // Null for zeros.
  std::vector<const Tensor*> find(const std::vector<Part>& parts, int64_t columns) const {
    std::vector<const Tensor*> tensors;
    for (const Part& part : parts) tensors.push_back(part.name.empty() ? nullptr : &files_.find(part.name, {part.rows, columns}));
    return tensors;
  }

  static std::vector<const Tensor*> named(std::vector<const Tensor*> tensors) {
    std::erase(tensors, nullptr);
    return tensors;
  }

  ops::PackedMatrix packed(const std::vector<Part>& parts, const std::vector<const Tensor*>& tensors, int64_t columns,
                           const std::vector<ops::QuantPart>& quantised) {
    int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    if (dry_) {
      total_ += quantised.empty() ? rows * columns * int64_t(ops::element_size(element_)) : packed_bytes(quantised, columns);
      return {};
    }
    ops::PackedMatrix matrix = quantised.empty() ? elements(parts, tensors, rows, columns)
                               : cached_         ? from_cache(rows, columns)
                                         : ops::PackedMatrix(element_, ops::QuantisedMatrix(kernels_.panel, columns, quantised, pool_));
    done_ += int64_t(matrix.bytes());
    if (progress_) progress_(std::min(done_, total_), total_);
    return matrix;
  }

  ops::PackedMatrix elements(const std::vector<Part>& parts, const std::vector<const Tensor*>& tensors, int64_t rows, int64_t columns) {
    auto read_rows = [&](int64_t first, int64_t count, float* out) {
      int64_t part_first = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        int64_t from = std::max(first, part_first), to = std::min(first + count, part_first + parts[i].rows);
        float* rows_out = out + (from - first) * columns;
        if (from < to && !tensors[i]) std::fill_n(rows_out, (to - from) * columns, 0.0f);
        if (from < to && tensors[i] && !files_.read(*tensors[i], (from - part_first) * columns, (to - from) * columns, rows_out))
          return false;
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

  // About what will be packed: only for showing progress.
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
  for (const Layer& layer : layers) {
    total += layer.qkv.bytes() + layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes() + layer.router.bytes();
  }
  return total;
}

Widths widths_of(const Weights& weights) {
  Widths widths;
  for (const Layer& layer : weights.layers) {
    widths.residual = std::max(widths.residual, layer.output.rows_padded());
    widths.wide = std::max(widths.wide, layer.qkv.rows_padded());
    widths.activation = std::max({widths.activation, layer.qkv.columns_padded(), layer.output.columns_padded()});
    if (layer.mixes()) continue;
    widths.wide = std::max(widths.wide, layer.gate_up.rows_padded());
    widths.activation = std::max(widths.activation, layer.down.columns_padded());
  }
  return widths;
}

Weights load(const Spec& spec, const std::vector<std::string>& files, const std::vector<Tensor>& tensors, ops::Element element,
             const std::optional<Quantise>& quantise, const simd::Kernels& kernels, ThreadPool& pool, const Progress& progress) {
  check(spec);
  if (quantise && simd::traits_of(quantise->format).floating) throw Error(ErrorKind::kUnsupported, "fp8 weights need a GPU");
  TensorFiles open_files(files, tensors);
  return Loader(spec, open_files, element, quantise, kernels, pool, progress).load();
}

}  // namespace tandem::model
