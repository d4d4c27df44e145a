#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "engine/cpu_backend.h"

namespace tandem::engine {
namespace {

void in_range(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw Error(ErrorKind::kRange, std::string(what) + " must be in " + std::to_string(low) + ".." + std::to_string(high));
  }
}

Options checked(const Options& o, const model::Spec& spec) {
  in_range("maxSequences", o.max_sequences, 1, 4096);
  in_range("maxBatchTokens", o.max_batch_tokens, 1, 65536);
  in_range("pages", o.pages, 1, int64_t(1) << 30);
  in_range("maxModelLen", o.max_model_len, 1, spec.max_position);
  in_range("samplableVocab", o.samplable_vocab, 1, spec.vocab_size);
  in_range("maxLogprobs", o.max_logprobs, 0, spec.vocab_size);
  return o;
}

// `where`: what holds them, for the message.
void check_bias(const std::string& where, const std::vector<std::pair<int32_t, float>>& bias, int64_t vocab) {
  std::string ids = where + ".biasIds", values = where + ".biasValues must be in -100..100";
  for (const auto& [id, value] : bias) {
    in_range(ids.c_str(), id, 0, vocab - 1);
    require(std::fabs(value) <= 100, ErrorKind::kRange, values.c_str());
  }
}

void check_allowed(const std::string& where, const std::vector<int32_t>& allowed, int64_t vocab) {
  std::string ids = where + ".allowedIds", order = ids + " must ascend";
  for (int32_t id : allowed) in_range(ids.c_str(), id, 0, vocab - 1);
  require(std::is_sorted(allowed.begin(), allowed.end()), ErrorKind::kRange, order.c_str());
}

void check_controls(const ops::SamplingParams& p, int64_t vocab) {
  bool ok = std::fabs(p.frequency_penalty) <= 2 && std::fabs(p.presence_penalty) <= 2 && std::isfinite(p.repetition_penalty) &&
            p.repetition_penalty > 0;
  require(ok, ErrorKind::kRange, "open.sampling: a penalty is out of range");
  check_bias("open.sampling", p.bias, vocab);
  check_allowed("open.sampling", p.allowed, vocab);
  for (const auto& word : p.bad_words) {
    require(!word.empty(), ErrorKind::kRange, "open.sampling.badWords must not hold an empty word");
    for (int32_t id : word) in_range("open.sampling.badWords", id, 0, vocab - 1);
  }
}

void check_open(const Open& open, const Options& options, int64_t vocab) {
  in_range("open.promptLength", open.prompt_length, 1, options.max_model_len);
  const SequenceParams& p = open.params;
  bool ok = std::isfinite(p.sampling.temperature) && p.sampling.temperature >= 0 && p.sampling.top_p > 0 && p.sampling.top_p <= 1 &&
            p.sampling.min_p >= 0 && p.sampling.min_p <= 1;
  require(ok, ErrorKind::kRange, "open.sampling: temperature, topP or minP is out of range");
  check_controls(p.sampling, vocab);
  in_range("open.promptLogprobs", open.prompt_logprobs, -1, options.max_logprobs);
  require(open.prompt_logprobs < 0 || open.cached.empty(), ErrorKind::kRange, "open.promptLogprobs needs an empty cached");
  in_range("open.cached.length", int64_t(open.cached.size()), 0, options.max_model_len - 1);
  // Whole pages only: what follows is written, and a shared page must not be.
  require(open.cached.size() % simd::kPage == 0, ErrorKind::kRange, "open.cached must fill whole pages");
  for (int32_t id : open.cached) in_range("open.cached", id, 0, vocab - 1);
  in_range("open.sampling.topK", p.sampling.top_k, 0, std::numeric_limits<int32_t>::max());
  in_range("open.sampling.choice", p.sampling.choice, 0, std::numeric_limits<int32_t>::max());
  in_range("open.sampling.logprobs", p.sampling.logprobs, -1, options.max_logprobs);
  in_range("open.sampling.maxTokens", p.max_tokens, 1, options.max_model_len);
  in_range("open.sampling.minTokens", p.min_tokens, 0, p.max_tokens);
  in_range("open.sampling.stopIds.length", int64_t(p.stop_ids.size()), 0, 1024);
  for (int32_t id : p.stop_ids) in_range("open.sampling.stopIds", id, 0, vocab - 1);
  in_range("open.sampling.barredIds.length", int64_t(p.barred_ids.size()), 0, 1024);
  for (int32_t id : p.barred_ids) in_range("open.sampling.barredIds", id, 0, vocab - 1);
}

// Appends the best alternatives of a sampled or scored token.
template <typename Token>
void add_top(const std::vector<ops::TopEntry>& top, Token& token, StepResult& result) {
  token.top_offset = int32_t(result.top.size());
  token.top_count = int32_t(top.size());
  result.top.insert(result.top.end(), top.begin(), top.end());
}

}  // namespace

Engine::Engine(std::shared_ptr<model::Model> model, const Options& options)
    : Engine(model, options, [&](const Options& o) { return std::make_unique<CpuBackend>(model, o); }) {}

Engine::Engine(std::shared_ptr<model::Model> model, const Options& options, const MakeBackend& make)
    : model_(std::move(model)), options_(checked(options, model_->spec)), slots_(size_t(options_.max_sequences)), backend_(make(options_)) {
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

void Engine::check_plan(const Plan& plan) const {
  std::vector<uint8_t> opens(slots_.size(), 0), closes(slots_.size(), 0);
  for (int32_t slot : plan.closes) {
    in_range("closes: slot", slot, 0, options_.max_sequences - 1);
    require(slots_[size_t(slot)].open && !closes[size_t(slot)], ErrorKind::kRange, "closes: slot is not open");
    closes[size_t(slot)] = 1;
  }
  for (const Open& open : plan.opens) {
    in_range("opens: slot", open.slot, 0, options_.max_sequences - 1);
    bool free = !slots_[size_t(open.slot)].open || closes[size_t(open.slot)];
    require(free && !opens[size_t(open.slot)], ErrorKind::kRange, "opens: slot is in use");
    opens[size_t(open.slot)] = 1;
    check_open(open, options_, model_->spec.vocab_size);
    require(!open.adapter || open.adapter->fits(model_), ErrorKind::kRange, "open.adapter is not of this model");
    bool fits = !open.constraint || int64_t(open.constraint->vocabulary_size()) >= options_.samplable_vocab;
    require(fits, ErrorKind::kRange, "open.constraint: its vocabulary is smaller than samplableVocab");
  }
  check_rows(plan, opens, closes);
}

void Engine::check_rows(const Plan& plan, const std::vector<uint8_t>& opens, const std::vector<uint8_t>& closes) const {
  auto is_open = [&](int64_t slot) { return opens[size_t(slot)] || (slots_[size_t(slot)].open && !closes[size_t(slot)]); };
  // Pages that a slot will have: assignments must extend its table in order.
  std::vector<int64_t> page_count(slots_.size());
  for (size_t s = 0; s < slots_.size(); ++s) page_count[s] = opens[s] ? 0 : int64_t(slots_[s].pages.size());
  int64_t most_pages = (options_.max_model_len + simd::kPage - 1) / simd::kPage;
  for (const PageAssignment& a : plan.pages) {
    in_range("pages: slot", a.slot, 0, options_.max_sequences - 1);
    require(is_open(a.slot), ErrorKind::kRange, "pages: slot is not open");
    in_range("pages: index", a.index, 0, most_pages - 1);
    require(a.index == page_count[size_t(a.slot)], ErrorKind::kRange, "pages: index must be the next of its slot");
    in_range("pages: page", a.page, 0, options_.pages - 1);
    ++page_count[size_t(a.slot)];
  }
  std::vector<int64_t> position(slots_.size());
  for (size_t s = 0; s < slots_.size(); ++s) position[s] = slots_[s].position;
  std::vector<int64_t> prompt_length(slots_.size());
  for (const Open& open : plan.opens) {
    position[size_t(open.slot)] = int64_t(open.cached.size());
    prompt_length[size_t(open.slot)] = open.prompt_length;
  }
  std::vector<uint8_t> seen(slots_.size(), 0);
  size_t next = 0;
  for (const Row& row : plan.rows) {
    in_range("rows: slot", row.slot, 0, options_.max_sequences - 1);
    size_t s = size_t(row.slot);
    require(is_open(row.slot) && !seen[s], ErrorKind::kRange, "rows: slot is not open or has two rows");
    seen[s] = 1;
    in_range("rows: count", row.count, 1, options_.max_batch_tokens);
    require(row.first_position == position[s], ErrorKind::kRange, "rows: position does not continue its slot");
    require(row.first_position + row.count <= options_.max_model_len, ErrorKind::kRange, "rows: past maxModelLen");
    require(row.first_position + row.count <= page_count[s] * simd::kPage, ErrorKind::kRange, "rows: a position has no page");
    require(size_t(row.count) <= plan.tokens.size() - next, ErrorKind::kRange, "tokens: fewer than the rows need");
    in_range("rows: scored", row.scored, 0, row.count - row.proposals());
    bool known = row.scored < row.count || (!opens[s] && !slots_[s].last_hidden.empty());
    require(known, ErrorKind::kRange, "rows: the position before a scored token was not fed");
    for (int64_t i = 0; i < row.count; ++i) {
      int32_t token = plan.tokens[next + size_t(i)];
      bool sampled = slots_[s].last_token >= 0 || slots_[s].awaited > 0 || (plan.ahead && slots_[s].ended);
      bool last = token == -1 && i == 0 && !opens[s] && sampled;
      require(last || (token >= 0 && token < model_->spec.vocab_size), ErrorKind::kRange, "tokens: id outside the vocabulary");
    }
    next += size_t(row.count);
    in_range("rows: samples", row.samples, 0, row.count);
    int64_t prompt = opens[s] ? prompt_length[s] : slots_[s].prompt_length;
    bool outputs = row.samples <= 1 || row.first_position + row.count - row.samples >= prompt - 1;
    require(outputs, ErrorKind::kRange, "rows: a proposed token lies in the prompt");
  }
  require(next == plan.tokens.size(), ErrorKind::kRange, "tokens: more than the rows need");
  in_range("tokens.length", int64_t(next), 0, options_.max_batch_tokens);
  check_written_pages(plan, opens);
  check_controls(plan);
}

void Engine::check_controls(const Plan& plan) const {
  if (plan.controls.empty()) return;
  std::unordered_set<int64_t> samples;
  for (const Row& row : plan.rows) {
    if (row.samples == 1) samples.insert(row.slot);
  }
  for (const StepControl& control : plan.controls) {
    // Erased: a second entry of the same slot finds nothing.
    require(samples.erase(control.slot) == 1, ErrorKind::kRange, "controls: slot has no row that samples once, or two entries");
    check_bias("controls", control.controls.bias, model_->spec.vocab_size);
    check_allowed("controls", control.controls.allowed, model_->spec.vocab_size);
  }
}

// Prefixes may share pages to read; two rows that write one page would race.
void Engine::check_written_pages(const Plan& plan, const std::vector<uint8_t>& opens) const {
  std::unordered_map<int64_t, int32_t> assigned;  // slot << 32 | page index -> page
  for (const PageAssignment& a : plan.pages) assigned[a.slot << 32 | a.index] = int32_t(a.page);
  std::vector<int32_t> written;
  written.reserve(plan.rows.size() + plan.tokens.size() / simd::kPage + 1);
  for (const Row& row : plan.rows) {
    const std::vector<int32_t>& held = slots_[size_t(row.slot)].pages;
    int64_t held_count = opens[size_t(row.slot)] ? 0 : int64_t(held.size());
    for (int64_t i = row.first_position / simd::kPage; i <= (row.first_position + row.count - 1) / simd::kPage; ++i) {
      written.push_back(i < held_count ? held[size_t(i)] : assigned.at(row.slot << 32 | i));
    }
  }
  std::sort(written.begin(), written.end());
  bool twice = std::adjacent_find(written.begin(), written.end()) != written.end();
  require(!twice, ErrorKind::kRange, "rows: two rows write the same page");
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

void Engine::remember(const Plan& plan, const model::ForwardBatch& batch) {
  size_t next = 0;
  for (const Row& row : plan.rows) {
    Slot& slot = slots_[size_t(row.slot)];
    // Proposals are remembered when they have been sampled.
    int64_t fed = row.count - row.proposals();
    for (int64_t i = 0; i < fed && slot.params.sampling.uses_history(); ++i) {
      slot.history.add(batch.tokens[next + size_t(i)], row.first_position + i >= slot.prompt_length);
    }
    next += size_t(row.count);
  }
}

void Engine::prepare_masks(const Plan& plan) {
  std::vector<std::pair<Constraint*, int64_t>> work;
  for (const Row& row : plan.rows) {
    const Slot& slot = slots_[size_t(row.slot)];
    int64_t index = row.first_position + row.count - row.proposals() - slot.prompt_length;
    if (row.samples > 0 && slot.constraint) work.emplace_back(slot.constraint.get(), index);
  }
  if (work.empty()) return;
  masks_.start([work = std::move(work)] {
    for (const auto& [constraint, index] : work) constraint->prepare(index);
  });
}

StepResult Engine::step(const Plan& plan) {
  // The model's pool has one caller at a time; engines that share a model take turns.
  std::lock_guard<std::mutex> turn(model_->turn);
  require(!broken_, ErrorKind::kState, "an earlier step failed half-way; the engine must be closed");
  require(flights_.empty(), ErrorKind::kState, "a queued step is not finished");
  check_plan(plan);
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
  remember(plan, batch);
  prepare_masks(plan);
  backend_->forward(batch);
  masks_.wait();
  for (const Row& row : plan.rows) slots_[size_t(row.slot)].position = row.first_position + row.count - row.proposals();
  StepResult result;
  sample_rows(plan, batch, result);
  score_fed(plan, batch, result);
  keep_last_hidden(plan);
  // The next step waits for this one's layers.
  running_ = result.samples.empty() ? adapters_of(plan) : std::vector<std::shared_ptr<const model::Adapter>>();
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

void Engine::settle(Drawing& drawing, Answer&& answer) {
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
  if (out.finish == Finish::kNone && out.token == drawing.proposed) drawing.outcome = Drawing::kAccepted;
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
         [this, &drawing](Answer&& answer) { settle(drawing, std::move(answer)); }});
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
