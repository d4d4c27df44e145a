#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "base/error.h"
#include "engine/cpu_backend.h"
#include "engine/plan_check.h"

namespace tandem::engine {
namespace {

// Appends the best alternatives of a sampled or scored token.
template <typename Token>
void add_top(const std::vector<ops::TopEntry>& top, Token& token, StepResult& result) {
  token.top_offset = int32_t(result.top.size());
  token.top_count = int32_t(top.size());
  result.top.insert(result.top.end(), top.begin(), top.end());
}

std::unique_ptr<Backend> make_backend(const MakeBackend& make, const Options& options, const model::Spec& spec) {
  check_options(options, spec);
  return make(options);
}

// On the CPU the model has the cores; a device leaves them.
int mask_threads(const Backend& backend, const model::Model& model) {
  return backend.queue_limits().draws > 0 ? int(model.pool.threads()) : 1;
}

}  // namespace

Engine::Engine(std::shared_ptr<model::Model> model, const Options& options)
    : Engine(model, options, [&](const Options& o) { return std::make_unique<CpuBackend>(model, o); }) {}

Engine::Engine(std::shared_ptr<model::Model> model, const Options& options, const MakeBackend& make)
    : model_(std::move(model)), options_(options), backend_(make_backend(make, options_, model_->spec)),
      masks_(mask_threads(*backend_, *model_)) {
  slots_.resize(size_t(options_.max_sequences));
}

std::vector<uint8_t> Engine::read_pages(const std::vector<int32_t>& pages) const {
  in_range("pages.length", int64_t(pages.size()), 0, options_.pages);
  for (int32_t page : pages) in_range("pages", page, 0, options_.pages - 1);
  std::vector<uint8_t> bytes(pages.size() * page_bytes());
  for (size_t i = 0; i < pages.size(); ++i) backend_->read_page(pages[i], bytes.data() + i * page_bytes());
  return bytes;
}

void Engine::write_pages(const std::vector<int32_t>& pages, const std::vector<uint8_t>& bytes) {
  for (int32_t page : pages) in_range("pages", page, 0, options_.pages - 1);
  require(bytes.size() == pages.size() * page_bytes(), ErrorKind::kRange, "bytes must hold pageBytes per page");
  for (size_t i = 0; i < pages.size(); ++i) {
    require(ops::KvPages::finite(model_->kv_shape(), bytes.data() + i * page_bytes()), ErrorKind::kRange, "bytes must hold finite numbers");
  }
  for (size_t i = 0; i < pages.size(); ++i) backend_->write_page(pages[i], bytes.data() + i * page_bytes());
}

void Engine::apply_slots(const Plan& plan) {
  for (int32_t slot : plan.closes) slots_[size_t(slot)] = Slot{};
  for (const Open& open : plan.opens) {
    Slot& slot = slots_[size_t(open.slot)];
    slot = Slot{};
    slot.open = true;
    slot.prompt_length = open.prompt_length;
    slot.params = open.params;
    slot.banned_early = open.params.stop_ids;
    slot.banned_early.insert(slot.banned_early.end(), open.params.barred_ids.begin(), open.params.barred_ids.end());
    ops::SamplingParams& sampling = slot.params.sampling;
    if (!sampling.allowed.empty()) sampling.allowed_bits = ops::id_bits(sampling.allowed, model_->spec.vocab_size);
    slot.position = int64_t(open.cached.size());
    slot.prompt_logprobs = open.prompt_logprobs;
    slot.adapter = open.adapter;
    slot.constraint = open.constraint;
    if (!open.params.sampling.uses_history()) continue;
    for (size_t i = 0; i < open.cached.size(); ++i) slot.history.add(open.cached[i], int64_t(i) >= open.prompt_length);
  }
  for (const PageAssignment& a : plan.pages) slots_[size_t(a.slot)].pages.push_back(int32_t(a.page));
}

model::ForwardBatch Engine::build_batch(const Plan& plan) {
  model::ForwardBatch batch;
  batch.tokens = plan.tokens;
  batch.runs.reserve(plan.rows.size());
  batch.adapters.reserve(plan.rows.size());
  batch.wanted.reserve(plan.tokens.size());
  int64_t first = 0;
  for (const Row& row : plan.rows) {
    Slot& slot = slots_[size_t(row.slot)];
    if (batch.tokens[size_t(first)] == -1) batch.tokens[size_t(first)] = slot.awaited > 0 ? sampled_by(row.slot) : slot.last_token;
    batch.runs.push_back({first, row.first_position, row.count, slot.pages.data()});
    batch.adapters.push_back(slot.adapter.get());
    first += row.count;
    // What drawings, scorings and keep_last_hidden may ask for.
    const bool scores = row.scored > 0 || (slot.prompt_logprobs >= 0 && row.first_position < slot.prompt_length);
    const bool keeps = slot.constraint && slot.constraint->jumps();
    const int64_t wanted = scores ? row.count : std::max<int64_t>(row.samples, keeps ? 1 : 0);
    for (int64_t at = first - wanted; at < first; ++at) batch.wanted.push_back(int32_t(at));
  }
  return batch;
}

void Engine::remember(const std::vector<Row>& rows, const std::vector<int32_t>& tokens) {
  size_t next = 0;
  for (const Row& row : rows) {
    Slot& slot = slots_[size_t(row.slot)];
    // Proposals are remembered when they have been sampled.
    int64_t fed = row.count - row.proposals();
    for (int64_t i = 0; i < fed && slot.params.sampling.uses_history(); ++i) {
      const int32_t token = tokens[next + size_t(i)];
      slot.history.add(token == sampled_by(row.slot) ? slot.last_token : token, row.first_position + i >= slot.prompt_length);
    }
    next += size_t(row.count);
  }
}

void Engine::prepare_masks(const std::vector<Row>& rows) {
  std::vector<std::pair<Constraint*, int64_t>> work;
  for (const Row& row : rows) {
    const Slot& slot = slots_[size_t(row.slot)];
    int64_t index = row.first_position + row.count - row.proposals() - slot.prompt_length;
    if (row.samples > 0 && slot.constraint && !slot.ended) work.emplace_back(slot.constraint.get(), index);
  }
  if (work.empty()) return;
  const size_t count = work.size();
  masks_.start(count, [work = std::move(work)](size_t i) { work[i].first->prepare(work[i].second); });
}

void Engine::require_whole() const { require(!broken_, ErrorKind::kState, kBroken); }

StepResult Engine::step(const Plan& plan) {
  // The model's pool has one caller at a time; engines that share a model take turns.
  std::lock_guard<std::mutex> turn(model_->turn);
  require_whole();
  require(flights_.empty(), ErrorKind::kState, "a queued step is not finished");
  check_plan(plan, slots_, options_, model_);
  broken_ = true;
  StepResult result = run_checked(plan);
  broken_ = false;
  return result;
}

bool Engine::has_ended_rows(const Plan& plan) const {
  return std::any_of(plan.rows.begin(), plan.rows.end(), [&](const Row& row) { return slots_[size_t(row.slot)].ended; });
}

Plan Engine::without_ended(const Plan& plan) const {
  Plan kept;
  kept.controls = plan.controls;
  auto begin = plan.tokens.begin();
  for (const Row& row : plan.rows) {
    auto end = begin + row.count;
    if (!slots_[size_t(row.slot)].ended) {
      kept.rows.push_back(row);
      kept.tokens.insert(kept.tokens.end(), begin, end);
    }
    begin = end;
  }
  return kept;
}

StepResult Engine::run_checked(const Plan& plan) {
  // Whoever gets a slot whose sequence has ended begins anew.
  apply_slots(plan);
  return plan.ahead && has_ended_rows(plan) ? run_rows(without_ended(plan)) : run_rows(plan);
}

StepResult Engine::run_rows(const Plan& plan) {
  if (plan.rows.empty()) return {};
  model::ForwardBatch batch = build_batch(plan);
  remember(plan.rows, batch.tokens);
  prepare_masks(plan.rows);
  backend_->forward(batch);
  masks_.wait();
  for (const Row& row : plan.rows) slots_[size_t(row.slot)].position = row.first_position + row.count - row.proposals();
  StepResult result;
  sample_rows(plan, batch, result);
  score_fed(plan, batch, result);
  keep_last_hidden(plan);
  // Of what a grammar ended nothing need have been drawn. The next step waits for this one's layers.
  const auto drawn = [](const Sampled& s) { return s.finish != Finish::kGrammar; };
  const bool waited = !result.fed.empty() || std::any_of(result.samples.begin(), result.samples.end(), drawn);
  running_ = waited ? std::vector<std::shared_ptr<const model::Adapter>>() : adapters_of(plan);
  return result;
}

std::vector<Engine::Drawing> Engine::drawings(const Plan& plan, const model::ForwardBatch& batch) const {
  std::unordered_map<int64_t, const ops::StepControls*> controls;
  for (const StepControl& control : plan.controls) controls[control.slot] = &control.controls;
  std::vector<Drawing> all;
  auto count = [](int64_t n, const Row& row) { return n + row.samples; };
  all.reserve(size_t(std::accumulate(plan.rows.begin(), plan.rows.end(), int64_t(0), count)));
  int64_t first = 0;
  for (const Row& row : plan.rows) {
    auto found = controls.find(row.slot);
    const ops::StepControls* own = found == controls.end() ? nullptr : found->second;
    for (int64_t i = row.count - row.samples; i < row.count; ++i) {
      int32_t proposed = i + 1 < row.count ? batch.tokens[size_t(first + i + 1)] : -1;
      bool follows = i > row.count - row.samples;
      all.push_back({row.slot, row.first_position + i + 1, {first + i, nullptr}, proposed, own, follows});
    }
    first += row.count;
  }
  return all;
}

std::vector<Engine::Scoring> Engine::scorings(const Plan& plan, const model::ForwardBatch& batch) const {
  std::vector<Scoring> all;
  int64_t first = 0;
  for (const Row& row : plan.rows) {
    const Slot& slot = slots_[size_t(row.slot)];
    int64_t end = row.first_position + row.count - row.proposals(), forced = end - row.scored;
    int64_t prompt_end = slot.prompt_logprobs >= 0 ? std::min(end, slot.prompt_length) : 0;
    for (int64_t p = std::max<int64_t>(1, row.first_position); p < end; ++p) {
      if (p >= prompt_end && p < forced) continue;
      int64_t at = first + p - row.first_position;
      HiddenRow before = p == row.first_position ? HiddenRow{-1, slot.last_hidden.data()} : HiddenRow{at - 1, nullptr};
      bool prompt = p < slot.prompt_length;
      const ops::SamplingParams& own = slot.params.sampling;
      int64_t best = prompt ? slot.prompt_logprobs : own.logprobs;
      float scale = prompt ? 1.0f : ops::logprob_scale(own);
      all.push_back({row.slot, p, {before, batch.tokens[size_t(at)], best, scale}});
    }
    first += row.count;
  }
  return all;
}

void Engine::keep_last_hidden(const Plan& plan) {
  int64_t first = 0;
  for (const Row& row : plan.rows) {
    Slot& slot = slots_[size_t(row.slot)];
    first += row.count;
    bool in_prompt = slot.prompt_logprobs >= 0 && slot.position < slot.prompt_length;
    bool before_forced = slot.constraint && slot.constraint->jumps() && slot.params.sampling.logprobs >= 0 && row.samples == 0;
    slot.last_hidden.clear();
    if (!in_prompt && !before_forced) continue;
    slot.last_hidden.resize(size_t(model_->spec.hidden_size));
    backend_->copy_hidden(first - 1, slot.last_hidden.data());
  }
}

bool Engine::begin(Drawing& drawing, const Drawing* before, ops::SampleInput& input) {
  static const std::vector<int32_t> kNone;
  if (before) {
    if (before->outcome != Drawing::kAccepted) return false;
    accept_proposal(drawing, before->sampled.token);
  }
  int64_t slot_index = drawing.slot;
  Slot& slot = slots_[size_t(slot_index)];
  const SequenceParams& p = slot.params;
  int64_t outputs = std::max<int64_t>(0, slot.position - slot.prompt_length);
  const std::vector<int32_t>& banned = outputs < p.min_tokens ? slot.banned_early : kNone;
  drawing.outcome = Drawing::kLast;
  drawing.sampled = {int32_t(slot_index), -1, Finish::kGrammar, std::numeric_limits<float>::quiet_NaN(), 0, 0, 0};
  input = {nullptr, model_->spec.vocab_size, options_.samplable_vocab, &banned, &p.sampling, &slot.history, uint64_t(outputs)};
  input.step = drawing.controls;
  if (!slot.constraint) return true;
  if (slot.constraint->failed()) return false;
  input.mask = slot.constraint->mask();
  input.takes = [&drawing, outputs, constraint = slot.constraint.get()](int32_t token) {
    drawing.verdict = constraint->accept(outputs, token);
    return drawing.verdict != Constraint::Verdict::kTooLong;
  };
  return true;
}

void Engine::take(Drawing& drawing, Answer&& answer) {
  Slot& slot = slots_[size_t(drawing.slot)];
  const SequenceParams& p = slot.params;
  const ops::Sample& s = answer.sample;
  drawing.top = std::move(answer.top);
  if (drawing.verdict == Constraint::Verdict::kFailed) return;
  // A step behind this one may have moved the slot on.
  int64_t outputs = std::max<int64_t>(0, drawing.position - slot.prompt_length);
  Sampled& out = drawing.sampled;
  out.token = slot.last_token = s.token;
  if (p.sampling.logprobs >= 0) out.logprob = s.logprob;
  out.rank = s.rank;
  out.finish = finish_of(p, s, drawing.verdict == Constraint::Verdict::kComplete, outputs + 1, drawing.position + 1);
  out.forced = out.finish == Finish::kNone && slot.constraint && slot.constraint->jumps() && slot.constraint->is_forced();
  // What is forced comes next, spelled as the tokenizer does: a proposal would take its place.
  if (out.finish == Finish::kNone && !out.forced && out.token == drawing.proposed) drawing.outcome = Drawing::kAccepted;
}

void Engine::sample_rows(const Plan& plan, const model::ForwardBatch& batch, StepResult& result) {
  std::vector<Drawing> all = drawings(plan, batch);
  std::vector<SampleQuery> queries;
  queries.reserve(all.size());
  result.samples.reserve(all.size());
  for (Drawing& drawing : all) {
    queries.push_back(
        {drawing.hidden, drawing.follows,
         [this, &drawing](ops::SampleInput& input) { return begin(drawing, drawing.follows ? &drawing - 1 : nullptr, input); },
         [this, &drawing](Answer&& answer) { take(drawing, std::move(answer)); }});
  }
  backend_->sample(queries);
  for (Drawing& drawing : all) {
    if (drawing.outcome != Drawing::kSkipped) note(drawing, result);
  }
}

void Engine::note(Drawing& drawing, StepResult& result) {
  slots_[size_t(drawing.slot)].ended = drawing.sampled.finish != Finish::kNone;
  add_top(drawing.top, drawing.sampled, result);
  result.samples.push_back(drawing.sampled);
}

void Engine::accept_proposal(const Drawing& drawing, int32_t token) {
  Slot& slot = slots_[size_t(drawing.slot)];
  slot.position = drawing.position;
  if (slot.params.sampling.uses_history()) slot.history.add(token, true);
  if (slot.constraint) slot.constraint->prepare(drawing.position - slot.prompt_length);
}

void Engine::score_fed(const Plan& plan, const model::ForwardBatch& batch, StepResult& result) {
  std::vector<Scoring> all = scorings(plan, batch);
  std::vector<ScoreQuery> queries;
  for (const Scoring& scoring : all) queries.push_back(scoring.query);
  std::vector<Answer> answers = backend_->score(queries);
  for (size_t i = 0; i < all.size(); ++i) {
    const ops::Sample& s = answers[i].sample;
    Scored scored{int32_t(all[i].slot), int32_t(all[i].position), s.logprob, s.rank, 0, 0};
    add_top(answers[i].top, scored, result);
    result.fed.push_back(scored);
  }
}

// `outputs` and `length` count the sampled token.
Finish Engine::finish_of(const SequenceParams& p, const ops::Sample& s, bool complete, int64_t outputs, int64_t length) const {
  if (s.token < 0) return s.forbidden ? Finish::kNoToken : Finish::kNotFinite;
  if (std::find(p.stop_ids.begin(), p.stop_ids.end(), s.token) != p.stop_ids.end()) return Finish::kStopToken;
  if (complete) return Finish::kComplete;
  return outputs >= p.max_tokens || length >= options_.max_model_len ? Finish::kLength : Finish::kNone;
}

}  // namespace tandem::engine
