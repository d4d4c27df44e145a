// The layers' products with what adapters add to them.
#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "cuda/lora/lora_silu.h"
#include "device/layers.h"

namespace tandem::device {
namespace {

// Adapters of a batch that a product's own blocks make. More of them are as much to read as products have blocks for.
constexpr int64_t kMostWithin = 1;
// Elements of factors that the cache has room for beside what products bring.
constexpr int64_t kMostFetched = int64_t(4) << 20;

struct Modules {
  int first, count;
};

Modules modules_in(model::Product product) {
  using model::Module;
  switch (product) {
    case model::Product::kQkv: return {int(Module::kQ), 3};
    case model::Product::kOutput: return {int(Module::kO), 1};
    case model::Product::kGateUp: return {int(Module::kGate), 2};
    case model::Product::kDown: return {int(Module::kDown), 1};
  }
  return {0, 0};
}

// Whether the kernel behind a product may run beside it: the others make no promise of when that begins (common/early_launch.h).
bool lets_next_begin(const cuda::MatMul& product) {
  return product.m > 0 && product.kernel == cuda::MatMulKernel::kWgmma && product.quantised.data == nullptr;
}

}  // namespace

const bf16* Layers::gated_product(const Batch& batch, int64_t layer, const bf16* x) {
  const Matrix& w = weights_.layers[size_t(layer)].gate_up;
  cuda::MatMul gated = product_of(w, x, batch.rows, wide_.data());
  gated.gated = reinterpret_cast<bf16*>(wide_.data());  // x is where an activation is otherwise
  const bool gates = cuda::matmul_gates(gated);
  if (!adapted(batch)) {
    if (!gates) return nullptr;
    cuda::matmul(gated, stream_.get());
    return gated.gated;
  }
  std::optional<Adapted> both = adapted_product(batch, layer, model::Product::kGateUp, w, x);
  if (!both) return nullptr;
  if (gates && makes_within(batch, gated, both->adapters)) {
    gated.adapters = &both->adapters;
    cuda::matmul(gated, stream_.get());
    return gated.gated;
  }
  run_product(*both);
  cuda::lora_gated({both->adapters, both->parts, gated.gated}, stream_.get());
  return gated.gated;
}

cuda::Parts Layers::project(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x, float* y,
                            const float* onto, bool leave, const LayerTap* tap) {
  if (!adapted(batch)) return product(w, x, batch.rows, y, onto, leave);
  if (leave) {
    if (const auto parts = project_beside(batch, layer, which, w, x)) return *parts;
  }
  // The adapters belong to the product, which is whole before it is added to anything. Nobody else uses wide_ where a product has `onto`.
  float* sums = onto == y ? wide_.data() : y;
  require(static_cast<const void*>(x) != sums, ErrorKind::kState, "a product of wide rows has no room for its adapters");
  product(w, x, batch.rows, sums, nullptr);
  adapt(batch, layer, which, x, sums, onto, y, w.n, tap);
  return {};
}

std::optional<Layers::Adapted> Layers::adapted_product(const Batch& batch, int64_t layer, model::Product which, const Matrix& w,
                                                       const bf16* x) {
  Adapted out{product_of(w, x, batch.rows, workspace_.data()), {}, {}};
  out.product.leave_parts = true;
  out.parts = cuda::matmul_parts(out.product);
  // A product that is whole is the only part.
  if (out.parts.count == 0) out.parts = {workspace_.data(), 1, batch.rows, w.n};
  const int64_t each = batch.rows * w.n;
  if (batch.rows > cuda::LoraPart::kMostRows || (out.parts.count + 1) * each > sizes_.workspace_floats) return {};
  if (cuda::lora_part_floats(batch.rows, cuda::LoraPart::kMost, batch.most_rank) > sizes_.lora_floats) return {};
  out.adapters = part_of(batch, layer, which, w, x, workspace_.data() + out.parts.count * each);
  return out;
}

bool Layers::makes_within(const Batch& batch, const cuda::MatMul& product, const cuda::LoraPart& adapters) const {
  if (weights_.kernels.adapters != cuda::AdapterKernel::kWithin || batch.adapter_count > kMostWithin) return false;
  return cuda::matmul_takes_adapters(product, adapters);
}

void Layers::run_product(Adapted& both) {
  // The kernel behind reads x too, and uses nothing that the product writes; `leave_parts`: no kernel comes between them.
  both.product.beside = both.adapters.beside = lets_next_begin(both.product);
  cuda::matmul(both.product, stream_.get());
}

std::optional<cuda::Parts> Layers::project_beside(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x) {
  std::optional<Adapted> both = adapted_product(batch, layer, which, w, x);
  if (!both) return {};
  if (makes_within(batch, both->product, both->adapters)) {
    both->product.adapters = &both->adapters;
    cuda::matmul(both->product, stream_.get());
  } else {
    run_product(*both);
    cuda::lora_part(both->adapters, stream_.get());
  }
  ++both->parts.count;
  return both->parts;
}

cuda::LoraPart Layers::part_of(const Batch& batch, int64_t layer, model::Product which, const Matrix& w, const bf16* x, float* to) {
  const Modules modules = modules_in(which);
  cuda::LoraPart part{};
  part.count = modules.count;
  for (int i = 0; i < modules.count; ++i) {
    const auto module = model::Module(modules.first + i);
    const ops::LoraShape shape = model::shape_of(spec_, module);
    part.projections[i] = {adapters_of(batch, layer, module), shape.first_out, shape.out};
  }
  add_next(batch, layer, which, part);
  part.adapter_count = batch.adapter_count;
  part.tiles = batch.adapter_tiles;
  part.tile_count = cuda::lora_most_tiles(batch.rows, batch.adapter_count);
  part.rows = batch.rows;
  part.in = part.ldx = w.k;
  part.most_rank = batch.most_rank;
  part.x = x;
  part.u = lora_.data();
  part.arrived = arrived_.data();
  part.part = to;
  part.columns = w.n;
  return part;
}

void Layers::add_next(const Batch& batch, int64_t layer, model::Product which, cuda::LoraPart& part) const {
  const bool last = which == model::Product::kDown;
  const int64_t next_layer = layer + last;
  // Experts have no adapters.
  if (next_layer == spec_.layers || (which == model::Product::kOutput && spec_.mixes(layer))) return;
  const Modules modules = modules_in(last ? model::Product::kQkv : model::Product(int(which) + 1));
  int64_t columns = 0;
  for (int i = 0; i < modules.count; ++i) {
    const auto module = model::Module(modules.first + i);
    const ops::LoraShape shape = model::shape_of(spec_, module);
    part.next[i] = {adapters_of(batch, next_layer, module), shape.first_out, shape.out};
    part.next_in = shape.in;
    columns += shape.in + shape.out;
  }
  if (batch.adapter_count * batch.most_rank * columns <= kMostFetched) part.next_count = modules.count;
}

const cuda::LoraWeights* Layers::adapters_of(const Batch& batch, int64_t layer, model::Module module) const {
  return batch.adapters + (layer * model::kModules + int64_t(module)) * batch.adapter_count;
}

cuda::Lora Layers::adapter_of(const Batch& batch, int64_t layer, model::Module module, const bf16* x, int64_t first, int64_t rows,
                              const LayerTap* tap, int64_t before) {
  const ops::LoraShape shape = model::shape_of(spec_, module);
  const bool kept = tap && tap->shrunk;
  cuda::Lora args{};
  args.adapters = adapters_of(batch, layer, module);
  args.adapter_count = batch.adapter_count;
  args.row_adapters = batch.row_adapters + first;
  args.rows = rows;
  args.in = args.ldx = shape.in;
  args.out = args.ldy = shape.out;
  args.most_rank = batch.most_rank;
  args.x = x + first * shape.in;
  args.u = kept ? tap->shrunk + int64_t(module) * tap->shrunk_ld + first * batch.most_rank : lora_.data() + before;
  return args;
}

void Layers::adapt(const Batch& batch, int64_t layer, model::Product which, const bf16* x, float* sums, const float* onto, float* y,
                   int64_t ld, const LayerTap* tap) {
  const Modules modules = modules_in(which);
  const int64_t at_once = sizes_.lora_floats / (batch.most_rank * modules.count);
  for (int64_t first = 0; first < batch.rows; first += at_once) {
    const int64_t rows = std::min(at_once, batch.rows - first);
    std::array<cuda::Lora, cuda::Lora::kMost> all{};
    for (int i = 0; i < modules.count; ++i) {
      const auto module = model::Module(modules.first + i);
      cuda::Lora& args = all[size_t(i)] = adapter_of(batch, layer, module, x, first, rows, tap, i * rows * batch.most_rank);
      const int64_t at = first * ld + model::shape_of(spec_, module).first_out;
      args.y = sums + at;
      args.ldy = ld;
      if (onto == nullptr) continue;
      args.onto = onto + at;
      args.whole = y + at;
    }
    cuda::lora_add(all.data(), modules.count, stream_.get());
  }
}

bool Layers::adapted_activation(const Batch& batch, int64_t index, const LayerTap* tap) {
  using model::Module;
  const int64_t f = spec_.intermediate_size, each = batch.rows * batch.most_rank;
  if (!adapted(batch) || batch.rows <= cuda::LoraPart::kMostRows || 2 * each > sizes_.lora_floats) return false;
  const bf16* x = activation_.data();
  product(weights_.layers[size_t(index)].gate_up, x, batch.rows, wide_.data(), nullptr);
  const cuda::Lora both[] = {adapter_of(batch, index, Module::kGate, x, 0, batch.rows, tap, 0),
                             adapter_of(batch, index, Module::kUp, x, 0, batch.rows, tap, each)};
  cuda::lora_shrink(both, 2, stream_.get());
  cuda::LoraSilu args{};
  args.silu = {wide_.data(), 2 * f, activation_.data(), f, batch.rows, f, {}, tap ? tap->gate_up : nullptr};
  args.gate = both[0].adapters;
  args.up = both[1].adapters;
  args.adapter_count = batch.adapter_count;
  args.row_adapters = batch.row_adapters;
  args.most_rank = batch.most_rank;
  args.gate_u = both[0].u;
  args.up_u = both[1].u;
  cuda::lora_silu_multiply(args, stream_.get());
  return true;
}

}  // namespace tandem::device
