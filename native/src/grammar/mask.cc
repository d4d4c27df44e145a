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

// The rests of all tokens that go on after an exit, by label.
void make_rests(LexMask& mask, const Vocabulary& vocabulary) {
  const Trie& trie = vocabulary.trie();
  std::unordered_map<int32_t, std::vector<std::pair<std::string_view, int32_t>>> words;
  for (const LexMask::Exit& exit : mask.exits) {
    const Trie::Node& node = trie.nodes()[exit.node];
    uint32_t first = trie.nodes()[exit.node + 1].tokens, last = trie.nodes()[node.end].tokens;
    for (uint32_t i = first; i < last; ++i) {
      int32_t token = trie.ids()[i];
      std::string_view rest = std::string_view(vocabulary.bytes(token)).substr(node.depth);
      words[exit.label].emplace_back(rest, token);
      if (std::count(rest.begin(), rest.end(), '"') > 1) mask.with_strings.push_back(token);
    }
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

LexMask make_lex_mask(const Lexer& lexer, LexState state, const Vocabulary& vocabulary) {
  LexMask out;
  const Trie& trie = vocabulary.trie();
  const auto& nodes = trie.nodes();
  std::vector<uint32_t> bits(vocabulary.words(), 0);
  std::vector<LexState> path(size_t(trie.depth()) + 1, kDead);
  path[0] = state;
  for (uint32_t i = 1; i < trie.size();) {
    const Trie::Node& node = nodes[i];
    LexState next = lexer.next(path[size_t(node.depth) - 1], node.byte);
    if (next == kDead) {
      i = node.end;
      continue;
    }
    path[node.depth] = next;
    set_tokens(bits.data(), trie, i);
    int32_t label = lexer.label(next);
    if (label != kNone) out.exits.push_back({i, label});
    ++i;
  }
  out.inside = TokenSet(bits);
  make_rests(out, vocabulary);
  return out;
}

SharedMasks::SharedMasks(std::shared_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {
  for (Mode mode : {Mode::kAccept, Mode::kGenerate}) {
    const StringLexer& lexer = *any_text_lexer(mode);
    texts_[mode == Mode::kAccept ? 0 : 1] = make_lex_mask(lexer, lexer.next(lexer.start(), '"'), *vocabulary_);
  }
  for (size_t i = 0; i < vocabulary_->size(); ++i) most_code_points_ = std::max(most_code_points_, int64_t(vocabulary_->bytes(int32_t(i)).size()));
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

GrammarMasks::LexView GrammarMasks::lex_mask(const Thread& thread) {
  if (const auto* text = dynamic_cast<const StringLexer*>(thread.lexer)) {
    StringLexer::FreeView view = text->free_view(thread.state, shared_->most_code_points());
    if (view.free) return {&shared_->text(text->mode()), view.label};
  }
  auto [entry, fresh] = lex_masks_[thread.lexer].try_emplace(thread.state);
  if (fresh) {
    entry->second = make_lex_mask(*thread.lexer, thread.state, vocabulary());
    bytes_ += entry->second.bytes();
  }
  return {&entry->second, kNone};
}

void GrammarMasks::walk_rests(const Trie& rests, int32_t from, std::vector<uint32_t>& out) {
  const auto& nodes = rests.nodes();
  std::vector<int32_t> path(size_t(rests.depth()) + 1, kNone);
  path[0] = from;
  for (uint32_t i = 1; i < rests.size();) {
    const Trie::Node& node = nodes[i];
    int32_t to = next(path[size_t(node.depth) - 1], node.byte);
    if (to == kNone) {
      i = node.end;
      continue;
    }
    path[node.depth] = to;
    set_tokens(out.data(), rests, i);
    ++i;
  }
}

TokenSet GrammarMasks::thread_mask(const Thread& thread) {
  LexView view = lex_mask(thread);
  std::vector<uint32_t> bits(vocabulary().words(), 0);
  view.mask->inside.unite_into(bits.data());
  for (const auto& [label, rests] : view.mask->rests) {
    // The text of a name does not matter here but for repeated names, which check_names takes out again.
    walk_rests(rests, intern(after_lexeme(thread.parent, view.label == kNone ? label : view.label, {})), bits);
  }
  if (thread.parent->frame->reads_text(*thread.parent)) check_names(thread, *view.mask, bits);
  return TokenSet(bits);
}

// Takes out the tokens that would end a name met before, and decides one by one those that hold another whole name.
void GrammarMasks::check_names(const Thread& thread, const LexMask& mask, std::vector<uint32_t>& out) {
  const Trie& trie = vocabulary().trie();
  auto clear = [&](int32_t token) { out[size_t(token) / 32] &= ~(1u << (token % 32)); };
  const Frame& frame = *thread.parent->frame;
  if (frame.remembers(*thread.parent)) {
    for (const LexMask::Exit& exit : mask.exits) {
      const Trie::Node& node = trie.nodes()[exit.node];
      const std::string& bytes = vocabulary().bytes(trie.ids()[node.tokens]);
      LexState state = thread.state;
      std::string decoded;
      for (size_t i = 0; i < node.depth; ++i) {
        thread.lexer->decode(state, uint8_t(bytes[i]), decoded);
        state = thread.lexer->next(state, uint8_t(bytes[i]));
      }
      TextHash text = thread.text;
      text.add(decoded);
      if (frame.admits(*thread.parent, thread.lexer->label(state), text)) continue;
      for (uint32_t i = node.tokens; i < trie.nodes()[node.end].tokens; ++i) clear(trie.ids()[i]);
    }
  }
  for (int32_t token : mask.with_strings) {
    clear(token);
    State state{{thread}, false}, to;
    for (char byte : vocabulary().bytes(token)) {
      step(state, uint8_t(byte), to);
      std::swap(state, to);
    }
    if (state.alive()) set_bit(out.data(), token);
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
