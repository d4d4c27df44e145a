#include "train/experts_backward.h"

#include <algorithm>
#include <cstring>

#include "ops/matmul_backward.h"
#include "ops/row_backward.h"

namespace tandem::train {

ExpertsBackward::ExpertsBackward(model::Model& model, LayerForward& forward)
    : model_(model), forward_(forward), experts_(forward.experts()) {
  const model::Experts& experts = model.spec.experts;
  if (experts.count == 0) return;
  const int64_t panel = model.kernels.panel, pairs = experts_.max_pairs(), size = int64_t(forward.element());
  const int64_t h = round_up(model.spec.hidden_size, panel);
  ld_elements_ = std::max(h, round_up(2 * experts.size, panel));
  ld_floats_ = std::max(round_up(round_up(model.spec.hidden_size, 32), panel), round_up(round_up(experts.size, 32), panel));
  ld_router_ = round_up(experts.count, panel);
  elements_ = Buffer<uint8_t>(size_t(pairs * ld_elements_ * size));
  active_ = Buffer<uint8_t>(size_t(pairs * experts.size * size));
  floats_ = Buffer<float>(size_t(pairs * ld_floats_));
}

Steps ExpertsBackward::run(Tape& tape, int64_t index, Chunk chunk, Rows rows) {
  const model::Layer& layer = model_.weights.layers[size_t(index)];
  const int64_t h = model_.spec.hidden_size, f = model_.spec.experts.size, router_work = chunk.count * h * model_.spec.experts.count;
  experts_.route(layer, rows.x, rows.ldx, chunk.count);
  d_weights_.assign(size_t(chunk.count * experts_.used()), 0.0f);
  for_rows(model_.pool, chunk.count, [&](int64_t r) { std::fill_n(rows.dx + r * rows.ld_dx, rows.ld_dx, 0.0f); });
  co_yield router_work;
  while (experts_.take()) {
    gather(rows);
    Steps down = back(layer.down, h);
    for (down.next(); !down.finished(); down.next()) co_yield down.work();
    back_activation(tape, index, chunk);
    co_yield experts_.batch_rows() * 2 * f;
    Steps gate_up = back(layer.gate_up, 2 * f);
    for (gate_up.next(); !gate_up.finished(); gate_up.next()) co_yield gate_up.work();
    experts_.combine(rows.dx, rows.ld_dx, floats_.data(), ld_floats_, nullptr);
    co_yield experts_.batch_rows() * h;
  }
  back_router(layer, chunk, rows);
  co_yield router_work;
}

Steps ExpertsBackward::back(const ops::PackedMatrix& w, int64_t outputs) {
  const int64_t row_work = model::expert_panels(w, 0, outputs).end * w.panel() * w.panel();
  for (const auto& part : forward_.unit().cut(experts_.pieces(), ops::backward_panels(w).end, row_work)) {
    for (const auto& [piece, columns] : part.runs) {
      const ops::PanelRange panels = model::expert_panels(w, piece.expert, outputs);
      const uint8_t* dy = elements_.data() + size_t(piece.first * ld_elements_) * forward_.element();
      ops::matmul_backward(model_.kernels, model_.pool, dy, ld_elements_, piece.count, w, panels, columns,
                           floats_.data() + piece.first * ld_floats_, ld_floats_, false, panels.first);
    }
    co_yield part.work;
  }
}

void ExpertsBackward::gather(const Rows& rows) {
  const size_t size = forward_.element(), bytes = size_t(round_up(model_.spec.hidden_size, model_.kernels.panel)) * size;
  for_rows(model_.pool, experts_.batch_rows(), [&](int64_t i) {
    std::memcpy(elements_.data() + size_t(i * ld_elements_) * size, rows.d_out + size_t(experts_.row(i) * rows.ld_out) * size, bytes);
  });
}

// y = weight * down(active): d weight = d_out . down(active) = (d_out . W_down) . active.
void ExpertsBackward::back_activation(Tape& tape, int64_t index, Chunk chunk) {
  const int64_t f = model_.spec.experts.size, padded = round_up(2 * f, model_.kernels.panel), first = chunk.first * experts_.used();
  const size_t size = forward_.element();
  for_rows(model_.pool, experts_.batch_rows(), [&](int64_t i) {
    const int64_t pair = experts_.pair(i);
    const uint8_t* gate_up = tape.layer(index).gate_up.data() + size_t((first + pair) * 2 * f) * size;
    thread_local std::vector<float> active;
    active.resize(size_t(f));
    uint8_t* rounded = active_.data() + size_t(i * f) * size;
    forward_.activate_row(gate_up, f, rounded);
    forward_.read_elements(rounded, 0, f, active.data());
    float* d = floats_.data() + i * ld_floats_;
    float sum = 0;
    for (int64_t j = 0; j < f; ++j) {
      sum += d[j] * active[size_t(j)];
      d[j] *= experts_.weight(pair);
    }
    d_weights_[size_t(pair)] = sum;
    uint8_t* out = elements_.data() + size_t(i * ld_elements_) * size;
    ops::silu_mul_backward(model_.kernels, model_.element, gate_up, d, f, out);
    std::memset(out + size_t(2 * f) * size, 0, size_t(padded - 2 * f) * size);
  });
}

void ExpertsBackward::back_router(const model::Layer& layer, Chunk chunk, const Rows& rows) {
  const int64_t experts = model_.spec.experts.count, used = experts_.used();
  const size_t size = forward_.element();
  at_least(d_logits_, int64_t(size_t(chunk.count * ld_router_) * size));
  for_rows(model_.pool, chunk.count, [&](int64_t r) {
    thread_local std::vector<float> d;
    d.resize(size_t(experts));
    ops::route_backward(experts_.routing(), experts_.logits(r), experts_.chosen(r), experts_.weights(r), d_weights_.data() + r * used,
                        d.data());
    uint8_t* out = d_logits_.data() + size_t(r * ld_router_) * size;
    forward_.write_elements(d.data(), experts, out);
    std::memset(out + size_t(experts) * size, 0, size_t(ld_router_ - experts) * size);
  });
  ops::matmul_backward(model_.kernels, model_.pool, d_logits_.data(), ld_router_, chunk.count, layer.router, ops::all_panels(layer.router),
                       ops::backward_panels(layer.router), rows.dx, rows.ld_dx, true);
}

}  // namespace tandem::train
