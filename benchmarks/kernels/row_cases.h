// The kernels of rows at the shapes of an 8B model, with the bytes that each has to move.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cuda/elementwise/elementwise.h"
#include "cuda/elementwise/row_backward.h"
#include "cuda/norm/rms_norm.h"
#include "cuda/rope/rope_store.h"

namespace tandem::benchmarks {

using cuda::bf16;
using cuda::DeviceBuffer;
// Name, bytes, call.
using TimeRows = std::function<void(const std::string&, double, const std::function<void()>&)>;

constexpr int64_t kRowWidth = 4096, kRowInner = 12288, kRowHeads = 32, kRowKvHeads = 8, kRowDim = 128;

inline void time_norms(int64_t count, const TimeRows& time) {
  const int64_t width = kRowWidth, parts = 5;
  const double values = double(count * width);
  DeviceBuffer<float> x(size_t(count * width)), dx(size_t(count * width)), weight{size_t(width)};
  DeviceBuffer<bf16> y(size_t(count * width)), table(size_t(1024 * width));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(int32_t(i % 1024));
  DeviceBuffer<int32_t> tokens(ids);
  const cuda::RmsNorm norm{x.data(), width, weight.data(), y.data(), width, count, width, 1e-6f};
  time("rms norm", 6 * values, [&] { cuda::rms_norm(norm, nullptr); });
  if (count <= 64) {
    DeviceBuffer<float> left(size_t(parts * count * width));
    cuda::RmsNorm of_parts = norm;
    of_parts.parts = {left.data(), parts, count, width};
    of_parts.sums = x.data();
    time("rms norm of 5 parts", (10 + 4 * parts) * values, [&] { cuda::rms_norm(of_parts, nullptr); });
    time("adding 5 parts", (4 + 4 * parts) * values, [&] { cuda::add_parts(of_parts.parts, x.data(), width, false, nullptr); });
  }
  const cuda::EmbedTokens embed{tokens.data(), table.data(), 1024, width, count, x.data(), width};
  time("embedding, its weights in the cache", 4 * values, [&] { cuda::embed_tokens(embed, nullptr); });
  time("narrowing", 6 * values, [&] { cuda::narrow({x.data(), width, nullptr, y.data(), width, count, width}, nullptr); });
  DeviceBuffer<float> d(size_t(count * width));
  const cuda::RmsNormBackward back{x.data(), width, weight.data(), d.data(), width, dx.data(), width, count, width, 1e-6f};
  time("rms norm back", 16 * values, [&] { cuda::rms_norm_backward(back, nullptr); });
}

inline void time_activations(int64_t count, const TimeRows& time) {
  const int64_t inner = kRowInner;
  const double values = double(count * inner);
  DeviceBuffer<float> wide(size_t(count * 2 * inner));
  DeviceBuffer<bf16> y(size_t(count * inner)), kept(size_t(count * 2 * inner)), dx(size_t(count * 2 * inner));
  time("silu multiply", 10 * values, [&] { cuda::silu_multiply({wide.data(), 2 * inner, y.data(), inner, count, inner}, nullptr); });
  const cuda::SiluBackward back{kept.data(), wide.data(), inner, dx.data(), nullptr, count, inner};
  time("silu multiply back", 12 * values, [&] { cuda::silu_multiply_backward(back, nullptr); });
}

inline void time_rotation(int64_t count, const TimeRows& time) {
  const int64_t heads = kRowHeads, kv_heads = kRowKvHeads, dim = kRowDim, ld = (heads + 2 * kv_heads) * dim, pages = (count + 15) / 16;
  std::vector<int32_t> places;
  for (int64_t i = 0; i < count; ++i) places.push_back(int32_t(i));
  DeviceBuffer<int32_t> positions(places);
  DeviceBuffer<float> qkv(size_t(count * ld)), norm{size_t(dim)}, cosines(size_t(count * dim / 2)), sines(size_t(count * dim / 2));
  DeviceBuffer<bf16> queries(size_t(count * heads * dim)), keys(size_t(pages * 16 * kv_heads * dim)), values(keys.size());
  cuda::RopeStore rope{};
  rope.qkv = qkv.data();
  rope.ld = ld;
  rope.q_norm = rope.k_norm = norm.data();
  rope.eps = 1e-6f;
  rope.cosines = cosines.data();
  rope.sines = sines.data();
  rope.positions = rope.slots = positions.data();
  rope.queries = queries.data();
  rope.kv = {keys.data(), values.data(), pages, kv_heads, dim};
  rope.rows = rope.table_positions = count;
  rope.heads = heads;
  rope.dim = dim;
  time("rotation", 6 * double(count * ld), [&] { cuda::rope_store(rope, nullptr); });
  DeviceBuffer<bf16> qk(size_t(count * ld)), d(size_t(count * ld));
  float* dk = qkv.data() + count * heads * dim;
  const cuda::RopeBackward back{qk.data(),
                                norm.data(),
                                norm.data(),
                                1e-6f,
                                cosines.data(),
                                sines.data(),
                                positions.data(),
                                qkv.data(),
                                dk,
                                dk + count * kv_heads * dim,
                                d.data(),
                                count,
                                heads,
                                kv_heads,
                                dim,
                                count};
  time("rotation back", double(count) * (6 * double(ld) + 2 * double((heads + kv_heads) * dim)),
       [&] { cuda::rope_backward(back, nullptr); });
}

}  // namespace tandem::benchmarks
