#include "shapes.h"

#include <cmath>
#include <cstdlib>

#include "../../kernels/device_noise.h"
#include "base/error.h"

namespace tandem::benchmarks {
model::Spec shape_of(const std::string& name) {
  model::Spec s;
  const size_t colon = name.find(':');
  const std::string size = name.substr(0, colon);
  const bool large = size == "8b", mixed = size == "30b-a3b", tiny = size == "tiny" || size == "tiny-a3b";
  require(large || mixed || tiny || size == "0.6b", ErrorKind::kRange, "the shape must be 0.6b, 8b or 30b-a3b");
  s.vocab_size = tiny ? 512 : 151936;
  s.hidden_size = tiny ? 64 : large ? 4096 : mixed ? 2048 : 1024;
  s.intermediate_size = 3 * s.hidden_size;
  s.layers = colon != std::string::npos ? std::atoi(name.c_str() + colon + 1) : tiny ? 2 : large ? 36 : mixed ? 48 : 28;
  s.heads = tiny ? 4 : large || mixed ? 32 : 16;
  s.kv_heads = tiny ? 2 : mixed ? 4 : 8;
  s.head_dim = tiny ? 32 : 128;
  s.rope.theta = 1e6;
  s.max_position = 40960;
  s.window_layers.assign(size_t(s.layers), 0);
  s.qk_norm = true;
  s.tied_embeddings = !large && !mixed;
  if (mixed) s.experts = {128, 8, 768, true};
  if (size == "tiny-a3b") s.experts = {8, 3, 40, true};
  if (s.experts.count > 0) s.expert_layers.assign(size_t(s.layers), 1);
  return s;
}

std::optional<ops::QuantFormat> format_of(const std::string& name) {
  if (name == "bf16") return {};
  if (name == "int8") return ops::QuantFormat::kInt8;
  if (name == "fp8") return ops::QuantFormat::kFp8;
  require(name == "int4", ErrorKind::kRange, "weights must be bf16, int8, int4 or fp8");
  return ops::QuantFormat::kInt4;
}

Counts counts_of(const std::string& shape) {
  Counts c;
  if (!shape.starts_with("tiny")) return c;
  c.streams = 4, c.prompt = 8, c.longer_prompt = 20, c.warm = 3, c.steps = 3, c.rounds = 1;
  c.adapters = 3, c.least_rank = 2, c.most_rank = 6;
  c.compared = {5, 18, 37};
  c.prefills = {40};
  c.requests = 5, c.shortest = 3, c.longest = 9;
  c.row = c.profiled_row = 24, c.packed = 7;
  c.product = 64;
  c.copied = c.beyond_cache = size_t(1) << 16;
  return c;
}

void RandomWeights::read(const std::string& name, const std::vector<int64_t>& shape, int64_t first, int64_t count, float* out) const {
  uint64_t seed = 14695981039346656037ull;
  for (char c : name) seed = (seed ^ uint64_t(c)) * 1099511628211ull;
  const float scale = name.find("embed_tokens") != std::string::npos ? 0.05f : 1.7f / std::sqrt(float(shape.back()));
  for (int64_t i = 0; i < count; ++i) out[i] = shape.size() == 1 ? 1.0f : noise_at(seed + uint64_t(first + i)) * scale;
}

std::vector<ops::QuantPart> RandomWeights::quantised(const std::vector<std::pair<std::string, int64_t>>& parts, int64_t columns) const {
  std::vector<ops::QuantPart> out;
  if (!quantise_) return out;
  for (const auto& part : parts) {
    const int64_t scales = simd::traits_of(*quantise_).scales_of(columns);
    auto rows = [this, part, columns, scales](int64_t first, int64_t count, const ops::QuantRows& to) {
      std::vector<float> row(static_cast<size_t>(columns));
      for (int64_t r = 0; r < count; ++r) {
        read(part.first, {part.second, columns}, (first + r) * columns, columns, row.data());
        ops::quantise_weights(*quantise_, row.data(), columns, to.values + r * columns, to.scales + r * scales);
      }
      return true;
    };
    out.push_back({part.second, *quantise_, rows});
  }
  return out;
}

}  // namespace tandem::benchmarks
