// Token masks. The mask of a state is the union of its threads' masks; a thread's mask is what its lexer allows by itself (cached by
// lexer state, for lexers common to all grammars once per vocabulary) and, for tokens that reach beyond the lexeme, what the frames
// below allow (cached by thread).
#pragma once
#include <array>
#include <atomic>
#include <unordered_map>

#include "grammar/grammar.h"
#include "grammar/shared_masks.h"

namespace tandem::grammar {

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
  const LexMask& lex_mask(const Thread& thread, TokenBits& bits);
  void beyond(const Thread& thread, const LexMask& mask, int32_t label, TokenBits& out);
  TokenSet thread_mask(const Thread& thread, TokenBits& bits);
  void walk(const Trie& trie, uint32_t root, int32_t from, TokenBits& out);
  void check_names(const Thread& thread, const LexMask& mask, TokenBits& out);
  void clear_repeated(const Thread& thread, const LexMask::Exit& exit, TokenBits& out);
  void clear_refused(const Thread& thread, uint32_t node, TokenBits& out);
  void clear_below(uint32_t node, TokenBits& out) const;
  void judge(const Thread& thread, int32_t token, TokenBits& out);
  int32_t intern(State state);
  int32_t next(int32_t state, uint8_t byte);
  // Counts steps of threads within one mask; throws where there are too many.
  void spend(size_t threads);
  void forget();

  GrammarRef grammar_;
  std::shared_ptr<const SharedMasks> shared_;
  size_t most_bytes_;
  std::atomic<size_t> bytes_{0};  // written under the mutex, read by anyone
  size_t spent_ = 0;
  std::vector<int32_t> path_;
  std::mutex mutex_;
  std::unordered_map<Key, TokenSet, KeyHash> masks_;
  std::unordered_map<const Lexer*, std::unordered_map<LexState, LexMask>> lex_masks_;
  std::vector<Known> known_;
  std::unordered_multimap<uint64_t, int32_t> known_ids_;
};

}  // namespace tandem::grammar
