#include "grammar/mask.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

constexpr int32_t kUnknown = -2;

void set_bit(uint32_t* mask, int32_t token) { mask[size_t(token) / 32] |= 1u << (token % 32); }

void set_tokens(uint32_t* mask, const Trie& trie, uint32_t node) {
  auto [first, last] = trie.tokens_at(node);
  for (const int32_t* token = first; token != last; ++token) set_bit(mask, *token);
}

constexpr size_t kFewExits = 512;

// Longer tokens with at least two quotes after the exit. Only string lexers are asked for them, whose exits follow a quote.
void find_strings(LexMask& mask, const Vocabulary& vocabulary, uint32_t exit) {
  const Trie& trie = vocabulary.trie();
  const Trie::Node& node = trie.nodes()[exit];
  if (node.byte != '"') return;
  for (uint32_t i = trie.nodes()[exit + 1].tokens; i < trie.nodes()[node.end].tokens; ++i) {
    const std::string& bytes = vocabulary.bytes(trie.ids()[i]);
    if (std::count(bytes.begin() + node.depth, bytes.end(), '"') > 1) mask.with_strings.push_back(trie.ids()[i]);
  }
}

// The rests of all tokens that go on after an exit, by label.
void make_rests(LexMask& mask, const Vocabulary& vocabulary) {
  const Trie& trie = vocabulary.trie();
  if (mask.exits.size() <= kFewExits) {
    for (const LexMask::Exit& exit : mask.exits) find_strings(mask, vocabulary, exit.node);
    return;
  }
  std::unordered_map<int32_t, std::vector<std::pair<std::string_view, int32_t>>> words;
  for (const LexMask::Exit& exit : mask.exits) {
    const Trie::Node& node = trie.nodes()[exit.node];
    uint32_t first = trie.nodes()[exit.node + 1].tokens, last = trie.nodes()[node.end].tokens;
    for (uint32_t i = first; i < last; ++i) {
      int32_t token = trie.ids()[i];
      std::string_view rest = std::string_view(vocabulary.bytes(token)).substr(node.depth);
      words[exit.label].emplace_back(rest, token);
    }
    find_strings(mask, vocabulary, exit.node);
  }
  for (auto& [label, list] : words) mask.rests.emplace(label, Trie(std::move(list)));
}

}  // namespace

TokenSet::TokenSet(const std::vector<uint32_t>& bits) {
  size_t count = 0;
  for (uint32_t word : bits) count += size_t(__builtin_popcount(word));
  if (count >= bits.size()) {
    bits_ = bits;
    return;
  }
  ids_.reserve(count);
  for (size_t word = 0; word < bits.size(); ++word) {
    for (uint32_t rest = bits[word]; rest; rest &= rest - 1) ids_.push_back(int32_t(word * 32) + __builtin_ctz(rest));
  }
}

void TokenSet::unite_into(uint32_t* mask) const {
  for (int32_t token : ids_) set_bit(mask, token);
  for (size_t i = 0; i < bits_.size(); ++i) mask[i] |= bits_[i];
}

size_t LexMask::bytes() const {
  size_t total = inside.bytes() + exits.capacity() * sizeof(Exit) + with_strings.capacity() * 4 + 256;
  for (const auto& [label, trie] : rests) total += trie.size() * sizeof(Trie::Node) + trie.ids().size() * 4;
  return total;
}

namespace {

// Walks the trie along one lexer state. Subtrees below which the lexer takes any text are not walked: their tokens are known.
class LexWalk {
 public:
  LexWalk(const Lexer& lexer, const Vocabulary& vocabulary, const SharedMasks* shared)
      : lexer_(lexer), vocabulary_(vocabulary), trie_(vocabulary.trie()), shared_(shared), bits_(vocabulary.words(), 0) {
    text_ = shared ? dynamic_cast<const StringLexer*>(&lexer) : nullptr;
  }

  LexMask run(LexState state) {
    std::vector<LexState> path(size_t(trie_.depth()) + 1, kDead);
    path[0] = state;
    if (text_ && whole(state)) return std::move(out_);
    for (uint32_t i = 1; i < trie_.size();) {
      const Trie::Node& node = trie_.nodes()[i];
      LexState next = lexer_.next(path[size_t(node.depth) - 1], node.byte);
      if (next == kDead || (text_ && take_over(i, next))) {
        i = node.end;
        continue;
      }
      path[node.depth] = next;
      set_tokens(bits_.data(), trie_, i);
      int32_t label = lexer_.label(next);
      if (label != kNone) out_.exits.push_back({i, label});
      ++i;
    }
    return finish();
  }

 private:
  // The state takes any text from here on: its mask is that of all such strings, but for tokens too long or too short.
  bool whole(LexState state) {
    StringLexer::FreeView view = text_->free_view(state);
    if (!view.free) return false;
    out_.base = &shared_->text(text_->mode());
    out_.base_label = view.label;
    out_.excluded = shared_->miscounted(text_->mode(), view.least, view.most);
    return true;
  }
  bool take_over(uint32_t node, LexState state) {
    if (!shared_->plain(text_->mode(), node)) return false;
    StringLexer::FreeView view = text_->free_view(state);
    bool counts = view.least > 0 || (view.most >= 0 && view.most < int64_t(trie_.longest(node)));
    if (!view.free || counts || (out_.base_label != kNone && out_.base_label != view.label)) return false;
    out_.base_label = view.label;
    taken_.push_back(node);
    taken_tokens_ += trie_.nodes()[trie_.nodes()[node].end].tokens - trie_.nodes()[node].tokens;
    return true;
  }

  LexMask finish() {
    if (!taken_.empty()) {
      if (2 * taken_tokens_ >= trie_.ids().size()) exclude_rest();
      else copy_taken();
    }
    out_.inside = TokenSet(bits_);
    make_rests(out_, vocabulary_);
    return std::move(out_);
  }
  void exclude_rest() {
    out_.base = &shared_->text(text_->mode());
    uint32_t from = 0;
    auto exclude = [&](uint32_t to) { out_.excluded.insert(out_.excluded.end(), trie_.ids().begin() + from, trie_.ids().begin() + std::max(from, to)); };
    for (uint32_t node : taken_) {
      exclude(trie_.nodes()[node].tokens);
      from = trie_.nodes()[trie_.nodes()[node].end].tokens;
    }
    exclude(uint32_t(trie_.ids().size()));
  }
  void copy_taken() {
    const LexMask& text = shared_->text(text_->mode());
    std::vector<uint32_t> all(bits_.size(), 0);
    text.inside.unite_into(all.data());
    auto exit = text.exits.begin();
    for (uint32_t node : taken_) {
      uint32_t end = trie_.nodes()[node].end;
      for (uint32_t i = trie_.nodes()[node].tokens; i < trie_.nodes()[end].tokens; ++i) {
        int32_t token = trie_.ids()[i];
        if (all[size_t(token) / 32] >> (token % 32) & 1) set_bit(bits_.data(), token);
      }
      exit = std::lower_bound(exit, text.exits.end(), node, [](const LexMask::Exit& e, uint32_t n) { return e.node < n; });
      for (; exit != text.exits.end() && exit->node < end; ++exit) out_.exits.push_back({exit->node, out_.base_label});
    }
  }

  const Lexer& lexer_;
  const Vocabulary& vocabulary_;
  const Trie& trie_;
  const SharedMasks* shared_;
  const StringLexer* text_;
  LexMask out_;
  std::vector<uint32_t> bits_, taken_;
  size_t taken_tokens_ = 0;
};

}  // namespace

LexMask make_lex_mask(const Lexer& lexer, LexState state, const Vocabulary& vocabulary, const SharedMasks* shared) {
  return LexWalk(lexer, vocabulary, shared).run(state);
}

SharedMasks::SharedMasks(std::shared_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {
  for (Mode mode : {Mode::kAccept, Mode::kGenerate}) {
    const StringLexer& lexer = *any_text_lexer(mode);
    texts_[mode == Mode::kAccept ? 0 : 1] = make_lex_mask(lexer, lexer.next(lexer.start(), '"'), *vocabulary_, nullptr);
    measure(mode);
  }
}

// Walks the trie as make_lex_mask does, with a lexer that counts code points.
void SharedMasks::measure(Mode mode) {
  const size_t index = mode == Mode::kAccept ? 0 : 1;
  const StringLexer& lexer = *any_text_lexer(mode);
  const StringLexer counting(any_string(), mode, 200'000, -1);
  const Trie& trie = vocabulary_->trie();
  const LexState inside = lexer.next(lexer.start(), '"');
  plain_[index].assign(trie.size(), false);
  plain_[index][0] = true;
  struct Step {
    LexState state, counted;
    bool closed, escaped;
  };
  std::vector<Step> path(size_t(trie.depth()) + 1);
  path[0] = {inside, counting.next(counting.start(), '"'), false, false};
  for (uint32_t i = 1; i < trie.size(); ++i) {
    const Trie::Node& node = trie.nodes()[i];
    Step step = path[size_t(node.depth) - 1];
    if (!step.closed) {
      step.escaped = step.escaped || node.byte == '\\';
      step.state = lexer.next(step.state, node.byte);
      if (step.state == kDead) {
        i = node.end - 1;
        continue;
      }
      step.closed = lexer.label(step.state) != kNone;
      if (!step.closed) step.counted = counting.next(step.counted, node.byte);
    }
    path[node.depth] = step;
    plain_[index][i] = !step.closed && !step.escaped && step.state == inside;
    auto [first, last] = trie.tokens_at(i);
    for (const int32_t* token = first; token != last; ++token) {
      Measured measured{*token, int32_t(counting.code_points(step.counted))};
      longest_first_[index].push_back(measured);
      if (step.closed) closing_[index].push_back(measured);
    }
  }
  auto more = [](const Measured& a, const Measured& b) { return a.code_points > b.code_points; };
  std::stable_sort(longest_first_[index].begin(), longest_first_[index].end(), more);
  std::stable_sort(closing_[index].rbegin(), closing_[index].rend(), more);
}

std::vector<int32_t> SharedMasks::miscounted(Mode mode, int64_t least, int64_t most) const {
  const size_t index = mode == Mode::kAccept ? 0 : 1;
  std::vector<int32_t> out;
  for (const Measured& one : longest_first_[index]) {
    if (most < 0 || one.code_points <= most) break;
    out.push_back(one.token);
  }
  for (const Measured& one : closing_[index]) {
    if (one.code_points >= least) break;
    out.push_back(one.token);
  }
  return out;
}

GrammarMasks::GrammarMasks(GrammarRef grammar, std::shared_ptr<const SharedMasks> shared, size_t most_bytes)
    : grammar_(std::move(grammar)), shared_(std::move(shared)), most_bytes_(most_bytes) {}

void GrammarMasks::forget() {
  masks_.clear();
  lex_masks_.clear();
  known_.clear();
  known_ids_.clear();
  bytes_ = 0;
}

int32_t GrammarMasks::intern(State state) {
  uint64_t hash = state.hash();
  auto [first, last] = known_ids_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (known_[size_t(at->second)].state.same(state)) return at->second;
  }
  int32_t id = int32_t(known_.size());
  bytes_ += 200 + state.threads.size() * 120;
  known_.push_back({std::move(state), nullptr});
  known_ids_.emplace(hash, id);
  return id;
}

int32_t GrammarMasks::next(int32_t state, uint8_t byte) {
  if (!known_[size_t(state)].next) {
    known_[size_t(state)].next = std::make_unique<std::array<int32_t, 256>>();
    known_[size_t(state)].next->fill(kUnknown);
    bytes_ += 1024;
  }
  int32_t found = (*known_[size_t(state)].next)[byte];
  if (found != kUnknown) return found;
  State to;
  step(known_[size_t(state)].state, byte, to);
  found = to.alive() ? intern(std::move(to)) : kNone;
  (*known_[size_t(state)].next)[byte] = found;
  return found;
}

const LexMask& GrammarMasks::lex_mask(const Thread& thread) {
  auto [entry, fresh] = lex_masks_[thread.lexer].try_emplace(thread.state);
  if (fresh) {
    entry->second = make_lex_mask(*thread.lexer, thread.state, vocabulary(), shared_.get());
    bytes_ += entry->second.bytes();
  }
  return entry->second;
}

// Sets the tokens below `root` whose bytes from there on keep the text possible.
void GrammarMasks::walk(const Trie& trie, uint32_t root, int32_t from, std::vector<uint32_t>& out) {
  const auto& nodes = trie.nodes();
  const uint16_t base = nodes[root].depth;
  path_.resize(std::max(path_.size(), size_t(trie.depth()) + 1));
  path_[0] = from;
  for (uint32_t i = root + 1; i < nodes[root].end;) {
    const Trie::Node& node = nodes[i];
    int32_t to = next(path_[size_t(node.depth - base) - 1], node.byte);
    if (to == kNone) {
      i = node.end;
      continue;
    }
    path_[size_t(node.depth - base)] = to;
    set_tokens(out.data(), trie, i);
    ++i;
  }
}

// The tokens that go on after the lexeme. The text of a name does not matter here but for repeated names, which check_names takes out.
void GrammarMasks::beyond(const Thread& thread, const LexMask& mask, int32_t label, std::vector<uint32_t>& out) {
  for (const auto& [own, rests] : mask.rests) {
    walk(rests, 0, intern(after_lexeme(thread.parent, label == kNone ? own : label, {})), out);
  }
  if (!mask.rests.empty()) return;
  int32_t from = kNone, before = kNone;
  for (const LexMask::Exit& exit : mask.exits) {
    if (vocabulary().trie().leaf(exit.node)) continue;
    int32_t found = label == kNone ? exit.label : label;
    if (found != before || from == kNone) from = intern(after_lexeme(thread.parent, found, {})), before = found;
    walk(vocabulary().trie(), exit.node, from, out);
  }
}

TokenSet GrammarMasks::thread_mask(const Thread& thread) {
  const LexMask& mask = lex_mask(thread);
  std::vector<uint32_t> bits(vocabulary().words(), 0);
  if (mask.base) {
    mask.base->inside.unite_into(bits.data());
    beyond(thread, *mask.base, mask.base_label, bits);
    for (int32_t token : mask.excluded) bits[size_t(token) / 32] &= ~(1u << (token % 32));
  }
  mask.inside.unite_into(bits.data());
  beyond(thread, mask, kNone, bits);
  if (thread.parent->frame->reads_text(*thread.parent)) {
    if (mask.base) check_names(thread, *mask.base, bits);
    check_names(thread, mask, bits);
  }
  return TokenSet(bits);
}

// Takes out the tokens that would end a name met before, and decides one by one those that hold another whole name.
void GrammarMasks::check_names(const Thread& thread, const LexMask& mask, std::vector<uint32_t>& out) {
  if (thread.parent->frame->remembers(*thread.parent)) {
    for (const LexMask::Exit& exit : mask.exits) clear_repeated(thread, exit, out);
  }
  for (int32_t token : mask.with_strings) {
    State state{{thread}, false}, to;
    for (char byte : vocabulary().bytes(token)) {
      step(state, uint8_t(byte), to);
      std::swap(state, to);
    }
    out[size_t(token) / 32] &= ~(1u << (token % 32));
    if (state.alive()) set_bit(out.data(), token);
  }
}

void GrammarMasks::clear_repeated(const Thread& thread, const LexMask::Exit& exit, std::vector<uint32_t>& out) {
  const Trie& trie = vocabulary().trie();
  const Trie::Node& node = trie.nodes()[exit.node];
  const std::string& bytes = vocabulary().bytes(trie.ids()[node.tokens]);
  LexState state = thread.state;
  std::string decoded;
  for (size_t i = 0; i < node.depth; ++i) {
    LexState next = thread.lexer->next(state, uint8_t(bytes[i]));
    if (next == kDead) return;
    thread.lexer->decode(state, uint8_t(bytes[i]), decoded);
    state = next;
  }
  int32_t label = thread.lexer->label(state);
  TextHash text = thread.text;
  text.add(decoded);
  if (label == kNone || thread.parent->frame->admits(*thread.parent, label, text)) return;
  for (uint32_t i = node.tokens; i < trie.nodes()[node.end].tokens; ++i) {
    int32_t token = trie.ids()[i];
    out[size_t(token) / 32] &= ~(1u << (token % 32));
  }
}

void GrammarMasks::fill(const State& state, uint32_t* mask) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::fill(mask, mask + vocabulary().words(), 0u);
  if (bytes_ > most_bytes_) forget();
  for (const Thread& thread : state.threads) {
    auto entry = masks_.find(Key{thread});
    if (entry == masks_.end()) {
      entry = masks_.emplace(Key{thread}, thread_mask(thread)).first;
      bytes_ += entry->second.bytes() + 200;
    }
    entry->second.unite_into(mask);
  }
  if (!state.can_end) return;
  for (int32_t token : vocabulary().end_tokens()) set_bit(mask, token);
}

}  // namespace tandem::grammar
