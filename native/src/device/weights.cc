#include "device/weights.h"

#include <algorithm>

#include "cuda/common/stream.h"
#include "device/quant_panels.h"
#include "model/quant_parts.h"

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
  // Rows of a matrix: those of a tensor; of two tensors by turns, `rows` of each; or without a name zeros, which only a quantised one has.
  struct Part {
    std::vector<std::string> names;
    int64_t rows;

    Part(const std::string& name, int64_t rows) : names{name}, rows(rows) {}
    Part(std::vector<std::string> names, int64_t rows) : names(std::move(names)), rows(rows) {}
  };

  Weights read_all() {
    Weights weights;
    const int64_t h = spec_.hidden_size, v = spec_.vocab_size;
    weights.embedding = matrix({{"model.embed_tokens.weight", v}}, h);
    if (!spec_.tied_embeddings) weights.head = matrix({{"lm_head.weight", v}}, h);
    weights.final_norm = vectors({{"model.norm.weight", h}});
    for (int64_t i = 0; i < spec_.layers; ++i) weights.layers.push_back(layer(i));
    return weights;
  }

  Layer layer(int64_t index) {
    const int64_t h = spec_.hidden_size, q = spec_.query_size(), kv = spec_.kv_size();
    const std::string prefix = "model.layers." + std::to_string(index) + ".", a = prefix + "self_attn.";
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
    layer.down_bias = vectors({{m + "down_proj.bias", h}});
  }

  void mixture(Layer& layer, const std::string& m) {
    const int64_t h = spec_.hidden_size, f = spec_.experts.size;
    layer.router = matrix({{m + "gate.weight", spec_.experts.count}}, h, false);
    std::vector<Part> gate_up, down;
    for (int64_t i = 0; i < spec_.experts.count; ++i) {
      const std::string e = m + "experts." + std::to_string(i) + ".";
      gate_up.insert(gate_up.end(), {{{e + "gate_proj.weight", e + "up_proj.weight"}, f}, padding(2 * f)});
      down.insert(down.end(), {{e + "down_proj.weight", h}, padding(h)});
    }
    layer.gate_up = matrix(gate_up, h);
    layer.down = matrix(down, f);
  }

  // To the next panel.
  static Part padding(int64_t rows) {
    return {std::vector<std::string>(), (cuda::kQuantPanel - rows % cuda::kQuantPanel) % cuda::kQuantPanel};
  }

  DeviceBuffer<float> vectors(const std::vector<Part>& parts) const {
    std::vector<float> values;
    for (const Part& part : parts) {
      const size_t start = values.size();
      if (!dry_) values.resize(start + size_t(part.rows));
      source_.read(part.names[0], {part.rows}, 0, dry_ ? 0 : part.rows, values.data() + start);
    }
    return DeviceBuffer<float>(values);
  }

  Matrix matrix(const std::vector<Part>& parts, int64_t columns, bool may_be_quantised = true) {
    std::vector<std::pair<std::string, int64_t>> tensors;
    int64_t rows = 0;
    for (const Part& part : parts) {
      for (const std::string& name : part.names) {
        if (dry_) source_.read(name, {part.rows, columns}, 0, 0, nullptr);
        tensors.emplace_back(name, part.rows);
        rows += part.rows;
      }
    }
    seen_ += rows * columns;
    if (dry_) return {};
    std::vector<ops::QuantPart> numbers;
    if (may_be_quantised) numbers = source_.quantised(tensors, columns);
    Matrix matrix = numbers.empty() ? elements(parts, rows, columns) : quantised_matrix(joined(parts, numbers, columns), columns, pool_);
    if (progress_) progress_(int64_t(sizeof(bf16)) * seen_, int64_t(sizeof(bf16)) * total_);
    return matrix;
  }

  // The parts of a matrix whose tensors have those numbers.
  static std::vector<ops::QuantPart> joined(const std::vector<Part>& parts, const std::vector<ops::QuantPart>& numbers, int64_t columns) {
    std::vector<ops::QuantPart> all;
    size_t next = 0;
    for (const Part& part : parts) {
      if (part.names.empty()) {
        all.push_back(model::zero_part(part.rows, all.back().format, columns));
      } else if (part.names.size() == 1) {
        all.push_back(numbers[next]);
      } else {
        add_by_turns(all, numbers[next], numbers[next + 1], columns);
      }
      next += part.names.size();
    }
    return all;
  }

  static void add_by_turns(std::vector<ops::QuantPart>& all, const ops::QuantPart& a, const ops::QuantPart& b, int64_t columns) {
    // Of two formats each row is a part of its own.
    for (int64_t row = 0; a.format != b.format && row < 2 * a.rows; ++row) {
      const ops::QuantPart& from = row % 2 == 0 ? a : b;
      all.push_back({1, from.format, [from, row](int64_t, int64_t, const ops::QuantRows& out) { return from.read(row / 2, 1, out); }});
    }
    if (a.format != b.format) return;
    const int64_t scales = simd::traits_of(a.format).scales_of(columns);
    auto read = [a, b, columns, scales](int64_t first, int64_t count, const ops::QuantRows& out) {
      for (int64_t i = 0; i < count; ++i) {
        const ops::QuantRows row{out.values + i * columns, out.scales + i * scales, out.minima ? out.minima + i * scales : nullptr};
        if (!((first + i) % 2 == 0 ? a : b).read((first + i) / 2, 1, row)) return false;
      }
      return true;
    };
    all.push_back({2 * a.rows, a.format, read});
  }

  Matrix elements(const std::vector<Part>& parts, int64_t rows, int64_t columns) {
    Matrix matrix{rows, columns, DeviceBuffer<bf16>(size_t(rows * columns))};
    bf16* to = matrix.data.data();
    for (const Part& part : parts) {
      copy(part, columns, to);
      to += part.rows * int64_t(part.names.size()) * columns;
    }
    return matrix;
  }

  void copy(const Part& part, int64_t columns, bf16* to) {
    const int64_t by_turns = int64_t(part.names.size()), width = by_turns * columns;
    if (by_turns == 0) return;
    const int64_t chunk = std::max<int64_t>(1, kChunk / width), piece = std::max<int64_t>(1, kPiece / columns);  // rows
    for (int64_t first = 0; first < part.rows; first += chunk) {
      const int64_t count = std::min(chunk, part.rows - first);
      for (int64_t turn = 0; turn < by_turns; ++turn) {
        pool_.run((count + piece - 1) / piece, [&](int64_t index) {
          const int64_t begin = index * piece, rows = std::min(piece, count - begin);
          std::vector<float> values(static_cast<size_t>(rows * columns));
          source_.read(part.names[size_t(turn)], {part.rows, columns}, (first + begin) * columns, rows * columns, values.data());
          for (int64_t r = 0; r < rows; ++r) {
            bf16* row = staging_.data() + ((begin + r) * by_turns + turn) * columns;
            for (int64_t c = 0; c < columns; ++c) row[c] = cuda::to_bf16(values[size_t(r * columns + c)]);
          }
        });
      }
      cuda::device_copy(to + first * width, staging_.data(), size_t(count * width) * sizeof(bf16));
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
    for (const Matrix* m : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down, &layer.router}) bytes += m->bytes();
  }
  return bytes;
}

Weights load_weights(const model::Spec& spec, const WeightSource& source, ThreadPool& pool, const model::Progress& progress) {
  return Loader(spec, source, pool, progress).load();
}

}  // namespace tandem::device
