#include "device/train_compute.h"

#include <algorithm>

#include "device/train_units.h"

namespace tandem::device {
namespace {

using train::Keep;

// A device does so many times the work of a CPU's thread in the same time: a unit is a millisecond or two of a large one.
constexpr int64_t kThreadsWorth = 1536;
// Rows whose logits exist at a time.
constexpr int64_t kScoredRows = 256;

// Of a row in the largest layer.
int64_t layer_work(const model::Spec& spec) {
  int64_t most = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) most = std::max(most, feed_forward_work(spec, layer));
  return most + spec.hidden_size * 2 * (spec.query_size() + spec.kv_size());
}

// Of chunks of rows; a chunk is a unit of work. A function of the model and the options, so that sums have one order.
Sizes sizes_of(const model::Spec& spec, const train::Options& options, int64_t unit_work, int64_t layer_work) {
  constexpr int64_t kStep = 16;
  engine::Options sizes;
  sizes.max_batch_tokens = std::min(chunk_rows(unit_work, layer_work), (options.max_row_tokens + kStep - 1) / kStep * kStep);
  sizes.max_sequences = kScoredRows;
  sizes.max_model_len = std::min(options.max_row_tokens, spec.max_position);
  sizes.pages = 1;
  return {spec, sizes};
}

int64_t most_rank(const train::State& state) {
  int64_t most = 0;
  for (const model::Factors& f : state.factors) most = std::max(most, f.rank);
  return most;
}

int64_t bytes_of(const model::Spec& spec, const Sizes& sizes, const Kernels& kernels, const train::State& state) {
  return TrainFactors::bytes(state) + int64_t(sizes.layer_bytes()) + TrainHead::bytes(spec, sizes.logit_rows, kernels) +
         TrainBackward::bytes(spec, sizes, kernels, most_rank(state));
}

int64_t checked(int64_t bytes, const train::Options& options) {
  constexpr int64_t kMiB = int64_t(1) << 20;
  if (bytes <= options.max_row_bytes) return bytes;
  throw Error(ErrorKind::kRange, "training on a GPU needs " + std::to_string(bytes / kMiB + 1) + " MiB beside its rows, and may take " +
                                     std::to_string(options.max_row_bytes / kMiB) + " MiB: raise --training-memory");
}

}  // namespace

TrainCompute::TrainCompute(std::shared_ptr<const Weights> weights, std::shared_ptr<model::Model> facts, const train::Options& options,
                           const train::State& state)
    : weights_(std::move(weights)), facts_(std::move(facts)), unit_work_(options.unit_work * kThreadsWorth),
      layer_work_(layer_work(facts_->spec)), sizes_(sizes_of(facts_->spec, options, unit_work_, layer_work_)),
      fixed_bytes_(checked(bytes_of(facts_->spec, sizes_, weights_->kernels, state), options)), most_bytes_(options.max_row_bytes),
      stream_(cuda::Priority::kLow), factors_(facts_, state, stream_), layers_(facts_->spec, *weights_, sizes_, stream_),
      backward_(facts_->spec, *weights_, layers_, factors_, sizes_, unit_work_, stream_),
      head_(facts_->spec, *weights_, layers_, sizes_.logit_rows, stream_),
      kept_(facts_->spec, options.recompute ? Keep::kInputs : Keep::kActivations, sizes_.rows, factors_.most_rank()),
      passing_(facts_->spec, Keep::kNothing, sizes_.rows, 0) {}

// A row that is only scored counts like one that is trained on, and either as both: the two follow one another.
int64_t TrainCompute::row_bytes(const train::Row& row, train::Under, const model::Adapter*) const {
  return fixed_bytes_ + kept_.bytes(row) + passing_.bytes(row) + TrainBackward::row_bytes(facts_->spec, row.size());
}

// What earlier rows left is given back where this one would not fit beside it.
void TrainCompute::make_room(const train::Row& row, bool current) {
  const int64_t rows = kept_.held_with(row) + passing_.held_with(row) + backward_.held_with(row.size());
  if (fixed_bytes_ + rows <= most_bytes_) return;
  stream_.wait();
  passing_.release();
  if (kept_.ready && !current) return;
  kept_.release();
  backward_.release();
}

train::Steps TrainCompute::forward(train::Row row, train::Under under, std::shared_ptr<const model::Adapter> other, train::Scores& scores) {
  const bool current = under == train::Under::kCurrent;
  TrainTape& tape = current ? kept_ : passing_;
  make_room(row, current);
  tape.begin(std::move(row), current ? factors_.current() : std::move(other), stream_);
  return run_forward(tape, scores);
}

train::Steps TrainCompute::run_forward(TrainTape& tape, train::Scores& scores) {
  const int64_t h = facts_->spec.hidden_size;
  for (const TrainTape::Chunk& chunk : tape.chunks()) layers_.embed(chunk.batch, tape.input(0) + chunk.first * h);
  for (int64_t layer = 0; layer < facts_->spec.layers; ++layer) {
    train::Steps parts = run_layer(tape, layer);
    for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  }
  train::Steps parts = head_.score(tape, scores);
  for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  tape.ready = true;
}

train::Steps TrainCompute::run_layer(TrainTape& tape, int64_t layer) {
  for (const TrainTape::Chunk& chunk : tape.chunks()) {
    pass(tape, layer, chunk);
    stream_.wait();
    co_yield chunk.count* layer_work_;
  }
}

// The residual stream is kept before attention, before the MLP and after it.
void TrainCompute::pass(TrainTape& tape, int64_t layer, const TrainTape::Chunk& chunk) {
  const int64_t at = chunk.first * facts_->spec.hidden_size;
  LayerTap tap = tape.tap(layer, chunk);
  tap.middle = tape.layer(layer).middle.data() + at;
  tap.after = tape.input(layer + 1) + at;
  layers_.attend(chunk.batch, layer, tape.kv(layer), tape.input(layer) + at, &tap);
  layers_.feed_forward(chunk.batch, layer, tap.middle, &tap);
}

train::Steps TrainCompute::backward(std::vector<float> gradients) {
  TrainTape& tape = kept_;
  tape.ready = false;
  backward_.begin(tape);
  head_.backward(tape, gradients, backward_.gradient());
  const int64_t lowest = factors_.lowest_layer();
  for (int64_t layer = facts_->spec.layers - 1; layer >= lowest; --layer) {
    if (tape.keep() == Keep::kInputs) {
      train::Steps again = run_layer(tape, layer);
      for (again.next(); !again.finished(); again.next()) co_yield again.work();
    }
    train::Steps parts = backward_.run(tape, layer, layer > lowest);
    for (parts.next(); !parts.finished(); parts.next()) co_yield parts.work();
  }
}

train::Steps TrainCompute::optimize(train::OptimizerStep step, train::StepOutcome& outcome) {
  kept_.ready = false;
  outcome = factors_.step(step);
  co_yield factors_.size();
}

}  // namespace tandem::device
