#include "grammar/lex_mask.h"

#include <algorithm>

#include "grammar/shared_masks.h"

namespace tandem::grammar {
namespace {

// Subtrees smaller than this are walked at once.
constexpr uint32_t kSmallSubtree = 4;
// With more exceptions than this a mask of its own is smaller.
constexpr size_t kMostExcluded = 4096;

// Finds the loops of a lexer's states, each once. Other lexers (numbers) have none worth asking for.
class Loops {
 public:
  const ByteLoops& of(const Lexer&, LexState) { return none_; }
  const ByteLoops& of(const DfaLexer& lexer, LexState state) { return cached(lexer, size_t(state), state); }
  const ByteLoops& of(const StringLexer& lexer, LexState state) {
    int32_t text = lexer.text_state(state);
    return text == kNone ? none_ : cached(lexer, size_t(text), state);
  }

 private:
  template <typename L>
  const ByteLoops& cached(const L& lexer, size_t index, LexState state) {
    if (index >= numbers_.size()) numbers_.resize(index + 64, kNone);
    if (numbers_[index] == kNone) {
      numbers_[index] = int32_t(found_.size());
      found_.push_back(lexer.loops(state));
    }
    return found_[size_t(numbers_[index])];
  }
  ByteLoops none_;
  std::vector<int32_t> numbers_;
  std::vector<ByteLoops> found_;
};

template <typename L>
class LexWalk {
 public:
  static constexpr bool kString = std::is_same_v<L, StringLexer>;

  LexWalk(const L& lexer, const SharedMasks& shared, TokenBits& bits)
      : lexer_(lexer), vocabulary_(shared.vocabulary()), trie_(vocabulary_.trie()), shared_(shared), bits_(bits) {
    if constexpr (kString) base_ = shared.text(lexer.mode());
  }

  LexMask run(LexState state, bool of_all) {
    if (base_ && whole(state)) return std::move(out_);
    path_.assign(size_t(trie_.depth()) + 1, kDead);
    path_[0] = state;
    if (takes_text(0, state)) add_text(0);
    else walk();
    if constexpr (!kString) drop_settled_exits();
    out_.inside = bits_.take();
    if (of_all) make_rests();
    if (of_all) make_texts(state);
    return std::move(out_);
  }

 private:
  void walk() {
    for (uint32_t i = 1; i < trie_.size();) {
      LexState next = enter(i);
      uint32_t end = trie_.nodes()[i].end;
      if (next == kDead) {
        i = end;
      } else if (end - i < kSmallSubtree) {
        ++i;  // asking about it would cost as much as walking it
      } else if (takes_text(i, next)) {
        add_text(i);
        i = end;
      } else if (is_full(i, next)) {
        walk_landmarks(i);
        i = end;
      } else if (stays(i, next)) {
        for_tokens_below(i, [&](int32_t token) { bits_.set(token); });
        i = end;
      } else {
        ++i;
      }
    }
  }
  // The lexer's state at a node; its tokens are set and it is an exit where it can be one.
  LexState enter(uint32_t i) {
    const Trie::Node& node = trie_.nodes()[i];
    LexState next;
    if constexpr (kString) next = lexer_.next_inline(path_[size_t(node.depth) - 1], node.byte);
    else next = lexer_.next(path_[size_t(node.depth) - 1], node.byte);
    if (next == kDead) return kDead;
    path_[node.depth] = next;
    set_tokens(i);
    if constexpr (kString) {
      if (StringLexer::inside(next)) return next;
    }
    int32_t label = lexer_.label(next);
    if (label != kNone) add_exit(i, label);
    return next;
  }
  void set_tokens(uint32_t node) {
    auto [first, last] = trie_.tokens_at(node);
    for (const int32_t* token = first; token != last; ++token) bits_.set(*token);
  }
  void add_exit(uint32_t node, int32_t label) {
    if (kString || !trie_.leaf(node)) out_.exits.push_back({node, label});
    if constexpr (kString) shared_.append_quoted(node, out_.with_strings);
  }

  // Behind an exit whose longer tokens are all allowed already, nothing is to be found: of a number mostly longer numbers. After strings exits are
  // looked at for the names that end there.
  void drop_settled_exits() {
    std::erase_if(out_.exits, [&](const LexMask::Exit& exit) {
      const uint32_t first = trie_.nodes()[exit.node + 1].tokens, last = trie_.nodes()[trie_.nodes()[exit.node].end].tokens;
      return std::all_of(trie_.ids().begin() + first, trie_.ids().begin() + last, [&](int32_t token) { return bits_.has(token); });
    });
    out_.exits.shrink_to_fit();
  }

  // Whether every token below the node is allowed because the state stays as it is all the way down.
  bool stays(uint32_t node, LexState state) { return shared_.uniform(node, loops_.of(lexer_, state)) && has_room(node, state); }
  bool has_room(uint32_t node, LexState state) const {
    if constexpr (kString) return lexer_.room(state) >= int64_t(trie_.longest(node));
    return true;
  }
  template <typename Visit>
  void for_tokens_below(uint32_t node, const Visit& visit) const {
    uint32_t last = trie_.nodes()[trie_.nodes()[node].end].tokens;
    for (uint32_t i = trie_.nodes()[node].tokens; i < last; ++i) visit(trie_.ids()[i]);
  }

  // Whether all text below the node is allowed, whatever it leads to.
  bool takes_text(uint32_t node, LexState state) const {
    if constexpr (kString) return shared_.plain(node) && lexer_.takes_any_text(state) && has_room(node, state);
    return false;
  }
  // The tokens that are nothing but text, and a walk over those that end the string or hold an escape.
  void add_text(uint32_t top) {
    if (top == 0) bits_.unite(shared_.plain_tokens());
    else
      for_tokens_below(top, [&](int32_t token) {
        if (shared_.plain_tokens().has(token)) bits_.set(token);
      });
    walk_landmarks(top);
  }
  // Whether no further character may come: only the string's end.
  bool is_full(uint32_t node, LexState state) const {
    if constexpr (kString) return shared_.plain(node) && lexer_.full(state) && lexer_.text_state(state) != kNone;
    return false;
  }
  void walk_landmarks(uint32_t top) {
    const std::vector<SharedMasks::Landmark>& marks = shared_.landmarks();
    size_t at = shared_.landmark_after(top);
    while (at < marks.size() && marks[at].node < trie_.nodes()[top].end) at = enter(marks[at].node) == kDead ? marks[at].end : at + 1;
  }

  // The state takes any text from here on: its mask is that of all such strings, but for tokens too long or too short.
  bool whole(LexState state) {
    if constexpr (kString) {
      StringLexer::FreeView view = lexer_.free_view(state);
      if (!view.free) return false;
      out_.within = view.most < 0 ? nullptr : shared_.no_longer_than(lexer_.mode(), view.most);
      // What is cut off need not be listed too.
      std::vector<int32_t> excluded = shared_.miscounted(lexer_.mode(), view.least, out_.within ? -1 : view.most, kMostExcluded);
      if (excluded.size() >= kMostExcluded) return false;
      out_.base = base_;
      out_.base_label = view.label;
      out_.excluded = std::move(excluded);
      return true;
    }
    return false;
  }

  // The rests of all tokens that go on after an exit, by label.
  void make_rests() {
    std::unordered_map<int32_t, std::vector<std::pair<std::string_view, int32_t>>> words;
    for (const LexMask::Exit& exit : out_.exits) {
      const Trie::Node& node = trie_.nodes()[exit.node];
      uint32_t first = trie_.nodes()[exit.node + 1].tokens, last = trie_.nodes()[node.end].tokens;
      for (uint32_t i = first; i < last; ++i) {
        int32_t token = trie_.ids()[i];
        words[exit.label].emplace_back(std::string_view(vocabulary_.bytes(token)).substr(node.depth), token);
      }
    }
    for (auto& [label, list] : words) out_.rests.emplace(label, Trie(std::move(list)));
  }

  void make_texts(LexState start) {
    for (const LexMask::Exit& exit : out_.exits) {
      const Trie::Node& node = trie_.nodes()[exit.node];
      LexState state = start;
      std::string& text = out_.texts.emplace_back();
      for (char byte : std::string_view(vocabulary_.bytes(trie_.ids()[node.tokens])).substr(0, node.depth)) {
        lexer_.decode(state, uint8_t(byte), text);
        state = lexer_.next(state, uint8_t(byte));
      }
    }
  }

  const L& lexer_;
  const Vocabulary& vocabulary_;
  const Trie& trie_;
  const SharedMasks& shared_;
  const LexMask* base_ = nullptr;
  Loops loops_;
  LexMask out_;
  TokenBits& bits_;
  std::vector<LexState> path_;
};

LexMask walk_lexer(const Lexer& lexer, LexState state, const SharedMasks& shared, TokenBits& bits, bool of_all) {
  bits.reset();
  if (auto* text = dynamic_cast<const StringLexer*>(&lexer)) return LexWalk<StringLexer>(*text, shared, bits).run(state, of_all);
  if (auto* plain = dynamic_cast<const DfaLexer*>(&lexer)) return LexWalk<DfaLexer>(*plain, shared, bits).run(state, of_all);
  return LexWalk<Lexer>(lexer, shared, bits).run(state, of_all);
}

}  // namespace

void TokenBits::unite(const TokenSet& set) {
  for (int32_t token : set.ids()) this->set(token);
  for (size_t i = 0; i < set.bits().size(); ++i) bits_[i] |= set.bits()[i];
  dense_ = dense_ || !set.bits().empty();
}

void TokenBits::cut(const TokenSet& set) {
  std::vector<uint32_t> kept = set.bits();
  if (kept.empty()) kept.assign(bits_.size(), 0);
  for (int32_t token : set.ids()) set_bit(kept.data(), token);
  for (size_t i = 0; i < kept.size(); ++i) bits_[i] &= kept[i];
}

TokenSet TokenBits::take() {
  std::vector<int32_t> ids;
  // Half of the words touched: bits take no more room than ids would.
  bool few = !dense_ && 2 * touched_.size() < bits_.size();
  if (few) {
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (uint32_t word : touched_) {
      for (uint32_t rest = bits_[word]; rest; rest &= rest - 1) ids.push_back(int32_t(word * 32) + __builtin_ctz(rest));
    }
  }
  TokenSet out = few && ids.size() < bits_.size() ? TokenSet(std::move(ids)) : TokenSet(bits_);
  reset();
  return out;
}

void TokenBits::reset() {
  if (dense_ || 2 * touched_.size() >= bits_.size()) std::fill(bits_.begin(), bits_.end(), 0u);
  for (uint32_t word : touched_) bits_[word] = 0;
  touched_.clear();
  dense_ = false;
}

void TokenSet::unite_into(uint32_t* mask) const {
  for (int32_t token : ids_) set_bit(mask, token);
  for (size_t i = 0; i < bits_.size(); ++i) mask[i] |= bits_[i];
}

bool TokenSet::has(int32_t token) const {
  if (!bits_.empty()) return bits_[size_t(token) / 32] >> (token % 32) & 1;
  return std::binary_search(ids_.begin(), ids_.end(), token);
}

size_t LexMask::bytes() const {
  size_t total = inside.bytes() + exits.capacity() * sizeof(Exit) + (with_strings.capacity() + excluded.capacity()) * 4 + 256;
  for (const std::string& text : texts) total += sizeof text + text.capacity();
  for (const auto& [label, trie] : rests) total += trie.size() * sizeof(Trie::Node) + trie.ids().size() * 4;
  return total;
}

LexMask make_lex_mask(const Lexer& lexer, LexState state, const SharedMasks& shared, TokenBits& bits) {
  return walk_lexer(lexer, state, shared, bits, false);
}
LexMask make_shared_lex_mask(const Lexer& lexer, LexState state, const SharedMasks& shared, TokenBits& bits) {
  return walk_lexer(lexer, state, shared, bits, true);
}

}  // namespace tandem::grammar
