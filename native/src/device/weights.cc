#include "device/weights.h"

#include <algorithm>

#include "cuda/common/stream.h"
#include "device/quant_panels.h"

namespace tandem::device {
namespace {

// Elements (of quantised weights: bytes) that go to the device with one copy, and elements that one thread reads at once: whole rows, at
// most so many (but one row).
constexpr int64_t kChunk = int64_t(16) << 20;
constexpr int64_t kPiece = int64_t(1) << 18;

class Loader {
 public:
  Loader(const model::Spec& spec, const WeightSource& source, ThreadPool& pool, const model::Progress& progress)
      : spec_(spec), source_(source), pool_(pool), progress_(progress) {}

  Weights load() {
    dry_ = true;
    read_all();
    dry_ = false;
    total_ = seen_;
    seen_ = 0;
    staging_ = cuda::PinnedBuffer<bf16>(size_t(kChunk));
    return read_all();
  }

 private:
  // Name and rows of one part of a matrix whose rows come from several tensors.
  using Part = std::pair<std::string, int64_t>;

  Weights read_all() {
    Weights weights;
    const int64_t h = spec_.hidden_size, v = spec_.vocab_size;
    weights.embedding = matrix({{"model.embed_tokens.weight", v}}, h);
    if (!spec_.tied_embeddings) weights.head = matrix({{"lm_head.weight", v}}, h);
    weights.final_norm = vectors({{"model.norm.weight", h}});
    for (int64_t i = 0; i < spec_.layers; ++i) weights.layers.push_back(layer("model.layers." + std::to_string(i) + "."));
    return weights;
  }

  Layer layer(const std::string& prefix) {
    const int64_t h = spec_.hidden_size, q = spec_.query_size(), kv = spec_.kv_size(), f = spec_.intermediate_size;
    const std::string a = prefix + "self_attn.", m = prefix + "mlp.";
    Layer layer;
    layer.attention_norm = vectors({{prefix + "input_layernorm.weight", h}});
    layer.mlp_norm = vectors({{prefix + "post_attention_layernorm.weight", h}});
    layer.qkv = matrix({{a + "q_proj.weight", q}, {a + "k_proj.weight", kv}, {a + "v_proj.weight", kv}}, h);
    if (spec_.qkv_bias) layer.qkv_bias = vectors({{a + "q_proj.bias", q}, {a + "k_proj.bias", kv}, {a + "v_proj.bias", kv}});
    if (spec_.qk_norm) {
      layer.q_norm = vectors({{a + "q_norm.weight", spec_.head_dim}});
      layer.k_norm = vectors({{a + "k_norm.weight", spec_.head_dim}});
    }
    layer.output = matrix({{a + "o_proj.weight", h}}, q);
    if (spec_.output_bias) layer.output_bias = vectors({{a + "o_proj.bias", h}});
    layer.gate_up = matrix({{m + "gate_proj.weight", f}, {m + "up_proj.weight", f}}, h);
    layer.down = matrix({{m + "down_proj.weight", h}}, f);
    if (spec_.mlp_bias) {
      layer.gate_up_bias = vectors({{m + "gate_proj.bias", f}, {m + "up_proj.bias", f}});
      layer.down_bias = vectors({{m + "down_proj.bias", h}});
    }
    return layer;
  }

  DeviceBuffer<float> vectors(const std::vector<Part>& parts) const {
    std::vector<float> values;
    for (const auto& [name, rows] : parts) {
      const size_t start = values.size();
      if (!dry_) values.resize(start + size_t(rows));
      source_.read(name, {rows}, 0, dry_ ? 0 : rows, values.data() + start);
    }
    return DeviceBuffer<float>(values);
  }

  Matrix matrix(const std::vector<Part>& parts, int64_t columns) {
    int64_t rows = 0;
    for (const auto& [name, part_rows] : parts) {
      if (dry_) source_.read(name, {part_rows, columns}, 0, 0, nullptr);
      rows += part_rows;
    }
    seen_ += rows * columns;
    if (dry_) return {};
    const std::vector<ops::QuantPart> numbers = source_.quantised(parts, columns);
    Matrix matrix = numbers.empty() ? elements(parts, rows, columns) : quantised_matrix(numbers, columns, pool_);
    if (progress_) progress_(int64_t(sizeof(bf16)) * seen_, int64_t(sizeof(bf16)) * total_);
    return matrix;
  }

  Matrix elements(const std::vector<Part>& parts, int64_t rows, int64_t columns) {
    Matrix matrix{rows, columns, DeviceBuffer<bf16>(size_t(rows * columns))};
    bf16* to = matrix.data.data();
    for (const auto& [name, part_rows] : parts) {
      copy(name, part_rows, columns, to);
      to += part_rows * columns;
    }
    return matrix;
  }

  void copy(const std::string& name, int64_t rows, int64_t columns, bf16* to) {
    const int64_t chunk = kChunk / columns, piece = std::max<int64_t>(1, kPiece / columns);  // rows
    for (int64_t first = 0; first < rows; first += chunk) {
      const int64_t count = std::min(chunk, rows - first);
      pool_.run((count + piece - 1) / piece, [&](int64_t index) {
        const int64_t begin = index * piece, size = std::min(piece, count - begin) * columns;
        std::vector<float> values(static_cast<size_t>(size));
        source_.read(name, {rows, columns}, (first + begin) * columns, size, values.data());
        for (int64_t i = 0; i < size; ++i) staging_.data()[begin * columns + i] = cuda::to_bf16(values[size_t(i)]);
      });
      cuda::device_copy(to + first * columns, staging_.data(), size_t(count * columns) * sizeof(bf16));
    }
  }

  const model::Spec& spec_;
  const WeightSource& source_;
  ThreadPool& pool_;
  const model::Progress& progress_;
  cuda::PinnedBuffer<bf16> staging_;
  int64_t seen_ = 0, total_ = 0;  // elements of matrices
  bool dry_ = false;
};

}  // namespace

Matrix quantised_matrix(const std::vector<ops::QuantPart>& parts, int64_t columns, ThreadPool& pool) {
  const ops::QuantisedMatrix packed(cuda::kQuantPanel, columns, parts, pool);
  const int64_t count = packed.rows_padded() / cuda::kQuantPanel;
  std::vector<cuda::QuantPanel> panels;
  int64_t bytes = 0, most = 0;
  bool alike = true;
  for (int64_t p = 0; p < count; ++p) {
    panels.push_back(panel_of(packed.format(p)));
    panels.back().first_byte = bytes;
    bytes += panels.back().bytes(columns);
    most = std::max<int64_t>(most, panels.back().tile_bytes());
    alike = alike && packed.format(p) == packed.format(0);
  }
  Matrix matrix{packed.rows(), columns, {}, DeviceBuffer<uint8_t>(size_t(bytes)), DeviceBuffer<cuda::QuantPanel>(panels), most};
  if (alike) {
    matrix.alike = panels[0];
    matrix.alike_bytes = panels[0].bytes(columns);
  }
  // Some panels at a time: the whole matrix lies here once already.
  std::vector<uint8_t> reordered;
  for (int64_t first = 0, end = 0; first < count; first = end) {
    const int64_t begin = panels[size_t(first)].first_byte;
    auto end_of = [&](int64_t panel) { return panel + 1 < count ? panels[size_t(panel + 1)].first_byte : bytes; };
    end = first + 1;
    while (end < count && end_of(end) - begin <= kChunk) ++end;
    reordered.resize(size_t(end_of(end - 1) - begin));
    pool.run(end - first,
             [&](int64_t i) { reorder_panel(packed, first + i, reordered.data() + panels[size_t(first + i)].first_byte - begin); });
    cuda::device_copy(matrix.numbers.data() + begin, reordered.data(), reordered.size());
  }
  return matrix;
}

size_t Weights::bytes() const {
  size_t bytes = embedding.bytes() + head.bytes();
  for (const Layer& layer : layers) {
    for (const Matrix* m : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) bytes += m->bytes();
  }
  return bytes;
}

Weights load_weights(const model::Spec& spec, const WeightSource& source, ThreadPool& pool, const model::Progress& progress) {
  return Loader(spec, source, pool, progress).load();
}

}  // namespace tandem::device
