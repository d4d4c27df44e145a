// Random mixtures of everything that a sequence may want, as a scheduler runs them: queued behind one another or not, in pieces, with pages and
// slots that change hands, preempted, aborted, on cached prefixes. Each gets the bits that it gets alone, one step after the other.
#include <algorithm>
#include <deque>
#include <map>

#include "engine/engine.h"
#include "grammar/regex.h"
#include "hashed_backend.h"
#include "patient_budget.h"
#include "tiny_model.h"

namespace tandem::test {
namespace {

using engine::Finish;

struct Out {
  int32_t id = -1;
  Finish finish = Finish::kNone;
  float logprob = 0;
  int32_t rank = 0;
  std::vector<ops::TopEntry> top = {};
};

bool same_out(const Out& a, const Out& b) {
  bool same = a.id == b.id && a.finish == b.finish && a.rank == b.rank && same_bits(a.logprob, b.logprob) && a.top.size() == b.top.size();
  for (size_t i = 0; same && i < a.top.size(); ++i) same = a.top[i].id == b.top[i].id && same_bits(a.top[i].logprob, b.top[i].logprob);
  return same;
}

struct Wish {
  uint64_t seed = 0, tag = 0;
  std::vector<int32_t> prompt;
  engine::SequenceParams params;
  std::shared_ptr<const engine::Program> program;
  bool jumps = false, steered = false, proposes = false, fails = false;  // fails: its grammar, from the beginning
  int64_t prompt_logprobs = -1;
  // What came of it.
  std::shared_ptr<engine::Constraint> constraint = {};
  std::shared_ptr<const HashedAdapter> adapter = {};
  std::vector<Out> outputs = {};
  std::map<int64_t, Out> scores = {};  // of the prompt
  int64_t forced_from = -1, forced_scored = 0;
  bool ended = false, aborted = false;

  int64_t known() const { return int64_t(prompt.size()) + count(); }
  int64_t count() const { return int64_t(outputs.size()) - (!outputs.empty() && outputs.back().id < 0); }
  int32_t token(int64_t at) const { return at < int64_t(prompt.size()) ? prompt[size_t(at)] : outputs[size_t(at) - prompt.size()].id; }
  std::vector<int32_t> tokens(int64_t end) const {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < end; ++i) all.push_back(token(i));
    return all;
  }
  int64_t most() const { return std::min<int64_t>(int64_t(prompt.size()) + params.max_tokens, 70); }
  int64_t score_from() const { return forced_from >= 0 && params.sampling.logprobs >= 0 ? forced_from + forced_scored : INT64_MAX; }
};

engine::Options mixture_options() {
  engine::Options o;
  o.max_sequences = 4;
  o.max_batch_tokens = 24;
  o.pages = 14;
  o.max_model_len = 70;
  o.samplable_vocab = 100;
  o.max_logprobs = 5;
  return o;
}

class Mixture {
 public:
  Mixture(const std::shared_ptr<model::Model>& model, std::vector<Wish>& wishes, const std::vector<Wish>* truth, uint64_t seed)
      : model_(model), truth_(truth), random_(seed), options_(mixture_options()), readers_(size_t(options_.pages), 0) {
    const bool queues = truth != nullptr;
    if (!queues) options_.max_batch_tokens = 80;
    const engine::QueueLimits limits = {queues ? random_.whole(2, 4) : 0, random_.whole(20, 200), random_.whole(4, 20)};
    auto make = [&](const engine::Options& o) { return std::make_unique<HashedBackend>(model->spec, o, limits, seed + 1); };
    engine_ = std::make_unique<engine::Engine>(model, options_, make);
    for (Wish& wish : wishes) enter(wish);
    for (int32_t page = int32_t(options_.pages); page-- > 0;) free_.push_back(page);
    for (int64_t slot = options_.max_sequences; slot-- > 0;) slots_.push_back(slot);
    first_ = wishes.data();
  }

  int64_t behind = 0, hits = 0, preempted = 0, stepped = 0;

  void run() {
    for (int64_t made = 0; !running_.empty() || !waiting_.empty() || !flights_.empty(); ++made) {
      require(made < 100'000, ErrorKind::kState, "the mixture does not end");
      if (flights_.size() == 2) land();
      const bool ahead = !flights_.empty();
      engine::Plan plan = make_plan(ahead);
      if (plan.rows.empty()) {
        require(ahead || (running_.empty() && waiting_.empty()), ErrorKind::kState, "nothing is planned");
        if (ahead) land();
        continue;
      }
      while (!flights_.empty() && random_.whole(0, 3) == 0) land();
      if (random_.whole(0, 3) == 0) engine_->draw();
      give(plan);
      if (!flights_.empty() && random_.whole(0, 2) == 0) land();
    }
  }

 private:
  struct Running {
    Wish* wish;
    int64_t slot, position = 0, awaited = 0, stored = 0;
    std::vector<int32_t> pages = {};
    size_t told = 0;
    bool sampled_in_slot = false, gone = false;
  };
  struct Rows {
    std::vector<std::shared_ptr<Running>> of;
    std::vector<int64_t> end, samples;
  };

  bool now_and_then(int64_t one_in) { return truth_ && random_.whole(1, one_in) == 1; }

  void enter(Wish& wish) {
    if (wish.tag) {
      wish.adapter = std::make_shared<const HashedAdapter>(
          model::Adapter(model_, std::vector<std::array<ops::LoraFactors, model::kModules>>(size_t(model_->spec.layers))), wish.tag);
    }
    const int64_t most = wish.most() - int64_t(wish.prompt.size());
    if (wish.program) wish.constraint = std::make_shared<engine::Constraint>(wish.program, wish.params.stop_ids, most, wish.jumps);
    if (wish.fails) wish.constraint->take(0, HashedBackend::kBroken);
    jump(wish);
    waiting_.push_back(&wish);
  }

  void jump(Wish& wish) {
    while (wish.jumps) {
      const int64_t room = wish.most() - 1 - wish.known();
      if (room <= 0) return;
      std::vector<int32_t> tokens;
      for (char letter : wish.constraint->forced()) tokens.push_back(letter - 'a');
      tokens.resize(std::min(tokens.size(), size_t(room)));
      const size_t count = tokens.empty() ? 0 : wish.constraint->jump(tokens);
      if (count == 0) return;
      if (wish.forced_from < 0) wish.forced_from = wish.known(), wish.forced_scored = 0;
      for (size_t i = 0; i < count; ++i) wish.outputs.push_back({tokens[i]});
      for (auto& each : running_) {
        if (each->wish == &wish) each->sampled_in_slot = false;
      }
    }
  }

  void give(const engine::Plan& plan) {
    if (engine_->queue(plan)) {
      behind += flights_.size();
      flights_.push_back(std::move(rows_));
      return;
    }
    while (!flights_.empty()) land();
    const engine::StepResult result = engine_->step(plan);
    ++stepped;
    take(rows_, result);
  }

  void land() {
    const engine::StepResult result = engine_->finish();
    const Rows rows = std::move(flights_.front());
    flights_.pop_front();
    take(rows, result);
  }

  void take(const Rows& rows, const engine::StepResult& result) {
    size_t at = 0;
    for (const engine::Scored& s : result.fed) {
      for (const auto& each : rows.of) {
        if (each->slot == s.slot && !each->gone) take_score(*each->wish, s, result);
      }
    }
    for (size_t r = 0; r < rows.of.size(); ++r) {
      if (rows.samples[r] == 0) continue;
      Running& running = *rows.of[r];
      Wish& wish = *running.wish;
      const size_t begin = at;
      while (at < result.samples.size() && result.samples[at].slot == running.slot && int64_t(at - begin) < rows.samples[r]) ++at;
      if (begin == at) {
        CHECK(running.gone);
        continue;
      }
      CHECK(!wish.ended);
      --running.awaited;
      if (running.gone) continue;
      wish.forced_from = -1;
      for (size_t i = begin; i < at; ++i) wish.outputs.push_back(out_of(result.samples[i], result));
      running.position += int64_t(at - begin) - 1;
      running.sampled_in_slot = true;
      store(running, rows.end[r] + int64_t(at - begin) - 1);
      if (result.samples[at - 1].finish != Finish::kNone) {
        wish.ended = true;
        leave(running);
      } else if (result.samples[at - 1].forced) {
        jump(wish);
      }
    }
    CHECK_EQ(at, result.samples.size());
    for (size_t r = 0; r < rows.of.size(); ++r) {
      if (rows.samples[r] == 0 && !rows.of[r]->gone) store(*rows.of[r], rows.end[r]);
    }
    drop_gone();
  }

  template <typename Token>
  static Out out_of(const Token& s, const engine::StepResult& result) {
    Out out;
    if constexpr (requires { s.token; }) out.id = s.token, out.finish = s.finish;
    out.logprob = s.logprob;
    out.rank = s.rank;
    out.top.assign(result.top.begin() + s.top_offset, result.top.begin() + s.top_offset + s.top_count);
    return out;
  }

  void take_score(Wish& wish, const engine::Scored& s, const engine::StepResult& result) {
    Out out = out_of(s, result);
    const int64_t prompt = int64_t(wish.prompt.size());
    if (s.position < prompt) {
      const auto [known, fresh] = wish.scores.try_emplace(s.position, out);
      CHECK(fresh || same_out(known->second, out));
    } else if (s.position == wish.forced_from + wish.forced_scored) {
      ++wish.forced_scored;
      out.id = wish.outputs[size_t(s.position - prompt)].id;
      wish.outputs[size_t(s.position - prompt)] = out;
    }
  }

  // Full pages can be found from now on.
  void store(Running& running, int64_t fed) {
    Wish& wish = *running.wish;
    if (!wish.outputs.empty() && wish.outputs.back().finish == Finish::kNotFinite) return;
    for (int64_t end = std::min(fed, wish.known()); (running.stored + 1) * simd::kPage <= end; ++running.stored) {
      const int32_t page = running.pages[size_t(running.stored)];
      const auto key = std::make_pair(wish.tag, wish.tokens((running.stored + 1) * simd::kPage));
      if (cached_.try_emplace(key, page).second) ++readers_[size_t(page)];
    }
  }

  void release(int32_t page) {
    if (--readers_[size_t(page)] == 0) free_.push_back(page);
  }
  void leave(Running& running) {
    running.gone = true;
    for (int32_t page : running.pages) release(page);
    closes_.push_back(int32_t(running.slot));
    slots_.push_back(running.slot);
    if (running.wish->ended || running.wish->aborted) running.wish->adapter = nullptr;
  }
  void drop_gone() {
    std::erase_if(running_, [](const auto& each) { return each->gone; });
  }

  bool allocate(Running& running, int64_t positions) {
    while (int64_t(running.pages.size()) * simd::kPage < positions) {
      if (free_.empty()) {
        const auto unread = std::find_if(cached_.begin(), cached_.end(), [&](const auto& c) { return readers_[size_t(c.second)] == 1; });
        if (unread == cached_.end()) return false;
        release(unread->second);
        cached_.erase(unread);
      }
      ++readers_[size_t(free_.back())];
      running.pages.push_back(free_.back());
      free_.pop_back();
    }
    return true;
  }

  void preempt(size_t index) {
    const auto victim = running_[index];
    leave(*victim);
    waiting_.push_front(victim->wish);
    drop_gone();
    ++preempted;
  }

  engine::Plan make_plan(bool ahead) {
    rows_ = {};
    plan_ = {};
    plan_.ahead = ahead;
    for (auto& each : running_) {
      if (!now_and_then(60)) continue;
      each->wish->aborted = true;
      leave(*each);
    }
    drop_gone();
    if (!ahead && !running_.empty() && now_and_then(12)) preempt(size_t(random_.whole(0, int64_t(running_.size()) - 1)));
    int64_t budget = truth_ ? random_.whole(3, options_.max_batch_tokens) : options_.max_batch_tokens;
    for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
      if (now_and_then(10)) continue;
      feed(i, ahead, budget);
    }
    while (budget > 0 && !waiting_.empty() && !slots_.empty() && (truth_ || running_.empty()) && start(budget)) {
    }
    // Who is skipped now and then by all still goes on.
    if (plan_.rows.empty() && !ahead && !running_.empty()) feed(0, false, budget);
    if (!plan_.rows.empty()) plan_.closes = std::exchange(closes_, {});
    return std::move(plan_);
  }

  bool start(int64_t& budget) {
    Wish& wish = *waiting_.front();
    auto running = std::make_shared<Running>(Running{&wish, slots_.back()});
    const int64_t reusable = (std::min(wish.known(), wish.score_from()) - 1) / simd::kPage;
    if (truth_ && wish.prompt_logprobs < 0) {
      for (; running->stored < reusable; ++running->stored) {
        const auto found = cached_.find({wish.tag, wish.tokens((running->stored + 1) * simd::kPage)});
        if (found == cached_.end()) break;
        ++readers_[size_t(found->second)];
        running->pages.push_back(found->second);
        ++hits;
      }
    }
    running->position = running->stored * simd::kPage;
    if (!allocate(*running, std::min(wish.known(), running->position + budget))) {
      for (int32_t page : running->pages) release(page);
      return false;
    }
    waiting_.pop_front();
    slots_.pop_back();
    engine::Open open;
    open.slot = running->slot;
    open.prompt_length = int64_t(wish.prompt.size());
    open.params = wish.params;
    open.cached = wish.tokens(running->position);
    open.prompt_logprobs = wish.prompt_logprobs;
    open.adapter = wish.adapter;
    open.constraint = wish.constraint;
    plan_.opens.push_back(open);
    running_.push_back(running);
    feed(running_.size() - 1, true, budget);
    return true;
  }

  void feed(size_t index, bool ahead, int64_t& budget) {
    const auto running = running_[index];
    Wish& wish = *running->wish;
    const int64_t known = wish.known(), start = running->position;
    const int64_t missing = std::min(known + running->awaited, wish.most() - 1) - start;
    if (missing < 1 || (wish.jumps && running->awaited > 0)) return;
    int64_t count = std::min(missing, budget);
    if (truth_) count = std::min(count, random_.whole(1, 30));
    const bool unknown = start == known, samples = unknown || start + count == known;
    const std::vector<int32_t> proposed = samples && wish.proposes && running->awaited == 0 && wish.forced_from < 0
                                              ? proposals(wish, std::min(budget - count, wish.most() - known - 1))
                                              : std::vector<int32_t>();
    const int64_t fed = count + int64_t(proposed.size());
    while (!allocate(*running, start + fed)) {
      if (ahead || running_.back() == running) return;
      preempt(running_.size() - 1);
    }
    for (; running->told < running->pages.size(); ++running->told) {
      plan_.pages.push_back({running->slot, int64_t(running->told), running->pages[running->told]});
    }
    const int64_t scored = unknown ? 0 : std::max<int64_t>(0, start + count - std::max(start, wish.score_from()));
    plan_.rows.push_back({running->slot, start, fed, samples ? 1 + int64_t(proposed.size()) : 0, scored});
    const bool last = unknown || (count == 1 && samples && running->sampled_in_slot);
    for (int64_t i = 0; i < count; ++i) plan_.tokens.push_back(last ? -1 : wish.token(start + i));
    plan_.tokens.insert(plan_.tokens.end(), proposed.begin(), proposed.end());
    if (samples && wish.steered) plan_.controls.push_back({running->slot, control(wish, known + running->awaited)});
    rows_.of.push_back(running);
    rows_.end.push_back(start + count);
    rows_.samples.push_back(plan_.rows.back().samples);
    running->position += count;
    running->awaited += samples;
    budget -= fed;
  }

  std::vector<int32_t> proposals(const Wish& wish, int64_t room) {
    std::vector<int32_t> all;
    if (!truth_) return all;
    const std::vector<Out>& coming = (*truth_)[size_t(&wish - first_)].outputs;
    for (int64_t i = random_.whole(0, 3); i > 0 && int64_t(all.size()) < room; --i) {
      const size_t at = size_t(wish.count()) + all.size();
      const bool right = at < coming.size() && coming[at].id >= 0 && random_.whole(0, 3) > 0;
      all.push_back(right ? coming[at].id : int32_t(random_.whole(0, 99)));
    }
    return all;
  }

  static ops::StepControls control(const Wish& wish, int64_t at) {
    Random random(mixed(wish.seed, uint64_t(at)));
    ops::StepControls controls;
    controls.bias = {{int32_t(random.whole(0, 99)), 5.0f}};
    return controls;
  }

  std::shared_ptr<model::Model> model_;
  const std::vector<Wish>* truth_;
  Random random_;
  engine::Options options_;
  const Wish* first_ = nullptr;
  std::vector<int32_t> readers_, free_, closes_;
  std::map<std::pair<uint64_t, std::vector<int32_t>>, int32_t> cached_;
  std::vector<int64_t> slots_;
  std::unique_ptr<engine::Engine> engine_;
  std::deque<Wish*> waiting_;
  std::vector<std::shared_ptr<Running>> running_;
  std::deque<Rows> flights_;
  Rows rows_;
  engine::Plan plan_;
};

std::vector<std::shared_ptr<const engine::Program>> mixture_programs() {
  std::vector<std::string> tokens;
  for (int i = 0; i < 103; ++i) tokens.emplace_back(1, char('a' + i % 26));
  auto masks = std::make_shared<const grammar::SharedMasks>(std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>()));
  std::vector<std::shared_ptr<const engine::Program>> all;
  for (const char* regex : {"[a-y]*", "([a-r]|[s-z]{30})*", "[a-z]{2,7}", "(abcdef|bcdefghi)([a-m]xyz|n)*"}) {
    grammar::Budget budget = grammar::patient_budget();
    all.push_back(engine::make_program(grammar::compile_whole_regex(regex, budget), masks, budget));
  }
  return all;
}

// `queued`: nothing that has steps taken by turns.
Wish random_wish(uint64_t seed, bool queued, const std::vector<std::shared_ptr<const engine::Program>>& programs) {
  Random random(seed);
  const auto one_in = [&](int64_t n) { return random.whole(1, n) == 1; };
  Wish wish;
  wish.seed = seed;
  Random same(uint64_t(random.whole(1, 2)));
  const int64_t shared = random.whole(0, 40);
  for (int64_t i = 0; i < shared; ++i) wish.prompt.push_back(int32_t(same.whole(0, 99)));
  for (int64_t i = random.whole(1, 20); i > 0; --i) wish.prompt.push_back(int32_t(random.whole(0, one_in(40) ? 101 : 99)));
  if (one_in(4)) wish.tag = uint64_t(random.whole(1, 2));
  ops::SamplingParams& p = wish.params.sampling;
  p.temperature = one_in(4) ? 0 : 1;
  p.seed = seed;
  p.logprobs = random.whole(-1, 3);
  wish.params.max_tokens = random.whole(1, 20);
  if (one_in(3)) p.repetition_penalty = 2;
  if (one_in(4)) p.frequency_penalty = 1;
  if (one_in(4)) p.bias = {{int32_t(random.whole(0, 99)), 3.0f}};
  if (one_in(6)) p.mode = ops::LogprobMode::kTemperature;
  if (one_in(2)) wish.params.min_tokens = random.whole(0, wish.params.max_tokens);
  if (one_in(5)) wish.params.barred_ids = {3, 9};
  if (one_in(3)) wish.program = random.pick(programs);
  wish.jumps = wish.program == programs.back() && one_in(2) && !queued;
  wish.fails = wish.program && !wish.jumps && one_in(8);
  if (!wish.jumps) {
    if (one_in(3)) {
      for (int i = 0; i < 12; ++i) wish.params.stop_ids.push_back(int32_t(random.whole(0, 99)));
    }
    if (one_in(4)) {
      for (int32_t first = 0; first < 10; ++first) p.bad_words.push_back({first, int32_t(random.whole(0, 99))});
    }
    if (one_in(8)) p.mode = ops::LogprobMode::kProcessed;
    wish.steered = one_in(8) && !queued;
    wish.proposes = !wish.steered && one_in(6) && !queued;
  }
  if (one_in(6) && !queued) wish.prompt_logprobs = random.whole(0, 2);
  return wish;
}

void check_same_wish(const Wish& seen, const Wish& wanted) {
  CHECK(seen.aborted || seen.outputs.size() == wanted.outputs.size());
  const size_t count = std::min(seen.outputs.size(), wanted.outputs.size());
  // The last forced outputs of one that was aborted have no scores yet.
  for (size_t i = 0; i < count && !(seen.aborted && seen.forced_from >= 0); ++i) CHECK(same_out(seen.outputs[i], wanted.outputs[i]));
  CHECK(seen.aborted || seen.scores.size() == wanted.scores.size());
  for (const auto& [at, score] : seen.scores) CHECK(same_out(score, wanted.scores.at(at)));
}

TEST_ONCE(engine_gives_each_of_a_random_mixture_what_it_gets_alone) {
  const auto model = TinyModel().load(ops::Element::kBf16, 1);
  const auto programs = mixture_programs();
  int64_t behind = 0, hits = 0, preempted = 0, stepped = 0;
  constexpr uint64_t kRounds = 150;
  for (uint64_t round = 0; round < kRounds; ++round) {
    std::vector<Wish> wishes, truth;
    for (uint64_t i = 0; i < 10; ++i) wishes.push_back(random_wish(1000 * round + i, round % 3 > 0, programs));
    truth = wishes;
    Mixture(model, truth, nullptr, round).run();
    Mixture mixture(model, wishes, &truth, 7 * round + 3);
    mixture.run();
    for (size_t i = 0; i < wishes.size(); ++i) check_same_wish(wishes[i], truth[i]);
    behind += mixture.behind, hits += mixture.hits, preempted += mixture.preempted, stepped += mixture.stepped;
  }
  // All of it came.
  CHECK(behind > 1000 && hits > 300 && preempted > 100 && stepped > 1000);
}

}  // namespace
}  // namespace tandem::test
