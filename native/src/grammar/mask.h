// Token masks. The mask of a state is the union of its threads' masks; a thread's mask is what its lexer allows by itself (cached by
// lexer state, for lexers common to all grammars once per vocabulary) and, for tokens that reach beyond the lexeme, what the frames
// below allow (cached by thread).
#pragma once
#include <array>
#include <unordered_map>

#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace tandem::grammar {

// A set of tokens: sorted ids while they are few, else bits.
class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(const std::vector<uint32_t>& bits);
  void unite_into(uint32_t* mask) const;
  size_t bytes() const { return (ids_.capacity() + bits_.capacity()) * 4; }

 private:
  std::vector<int32_t> ids_;
  std::vector<uint32_t> bits_;
};

// What one lexer state allows.
struct LexMask {
  TokenSet inside;  // tokens that end within the lexeme or exactly at its end
  struct Exit {
    uint32_t node;  // of the vocabulary's trie: the lexeme may end here
    int32_t label;
  };
  std::vector<Exit> exits;
  // What longer tokens hold beyond the end, one trie per label. Only where there are many exits: few are followed one by one.
  std::unordered_map<int32_t, Trie> rests;
  // Longer tokens that may hold a whole further string: their names are looked at one by one.
  std::vector<int32_t> with_strings;
  // Where most of the state's tokens are those of a string of any text: all of that mask, with this label, but for `excluded`.
  const LexMask* base = nullptr;
  int32_t base_label = kNone;
  std::vector<int32_t> excluded;
  size_t bytes() const;
};
class SharedMasks;
// `shared` may be null: then nothing is taken over from the masks of strings of any text.
LexMask make_lex_mask(const Lexer& lexer, LexState state, const Vocabulary& vocabulary, const SharedMasks* shared);

// Masks of the lexers that all grammars share, made once per vocabulary. Immutable.
class SharedMasks {
 public:
  explicit SharedMasks(std::shared_ptr<const Vocabulary> vocabulary);
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // Inside a string that may hold any text.
  const LexMask& text(Mode mode) const { return texts_[mode == Mode::kAccept ? 0 : 1]; }
  // The tokens of text(mode) that add more than `most` code points (most < 0: no bound) or close the string after fewer than `least`.
  std::vector<int32_t> miscounted(Mode mode, int64_t least, int64_t most) const;
  // Whether the bytes down to a node of the trie are whole characters within a string, and none of them an escape or the end.
  bool plain(Mode mode, uint32_t node) const { return plain_[mode == Mode::kAccept ? 0 : 1][node]; }

 private:
  void measure(Mode mode);
  struct Measured {
    int32_t token;
    int32_t code_points;
  };
  std::shared_ptr<const Vocabulary> vocabulary_;
  LexMask texts_[2];
  std::vector<bool> plain_[2];
  std::vector<Measured> longest_first_[2], closing_[2];  // most code points first; those that close the string, fewest first
};

// The masks of one grammar over one vocabulary, shared by its matchers; one mask at a time. Everything it keeps is bounded in bytes.
class GrammarMasks {
 public:
  GrammarMasks(GrammarRef grammar, std::shared_ptr<const SharedMasks> shared, size_t most_bytes = size_t(32) << 20);
  const Grammar& grammar() const { return *grammar_; }
  const Vocabulary& vocabulary() const { return shared_->vocabulary(); }
  // Sets the bits of all tokens that may come; `mask` has vocabulary().words() words.
  void fill(const State& state, uint32_t* mask);
  size_t bytes() const { return bytes_; }

 private:
  struct Key {
    Thread thread;
    bool operator==(const Key& other) const { return thread.same(other.thread); }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return size_t(key.thread.hash()); }
  };
  struct Known {  // a state met beyond a lexeme, with its transitions
    State state;
    std::unique_ptr<std::array<int32_t, 256>> next;
  };
  const LexMask& lex_mask(const Thread& thread);
  void beyond(const Thread& thread, const LexMask& mask, int32_t label, std::vector<uint32_t>& out);
  TokenSet thread_mask(const Thread& thread);
  void walk(const Trie& trie, uint32_t root, int32_t from, std::vector<uint32_t>& out);
  void check_names(const Thread& thread, const LexMask& mask, std::vector<uint32_t>& out);
  void clear_repeated(const Thread& thread, const LexMask::Exit& exit, std::vector<uint32_t>& out);
  int32_t intern(State state);
  int32_t next(int32_t state, uint8_t byte);
  void forget();

  GrammarRef grammar_;
  std::shared_ptr<const SharedMasks> shared_;
  size_t most_bytes_, bytes_ = 0;
  std::vector<int32_t> path_;
  std::mutex mutex_;
  std::unordered_map<Key, TokenSet, KeyHash> masks_;
  std::unordered_map<const Lexer*, std::unordered_map<LexState, LexMask>> lex_masks_;
  std::vector<Known> known_;
  std::unordered_multimap<uint64_t, int32_t> known_ids_;
};

}  // namespace tandem::grammar
