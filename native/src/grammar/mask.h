// Token masks. The mask of a state is the union of its threads' masks; a thread's mask is what its lexer allows by itself (cached by
// lexer state, for lexers common to all grammars once per vocabulary) and, for tokens that reach beyond the lexeme, what the frames
// below allow (cached by thread).
#pragma once
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "grammar/grammar.h"
#include "grammar/mask_walk.h"

namespace tandem::grammar {

// The masks of one grammar over one vocabulary, shared by its matchers, whose threads may ask at the same time: each makes what is not known
// yet outside the lock, and what two of them make is the same. Everything it keeps is bounded in bytes.
class GrammarMasks {
 public:
  GrammarMasks(GrammarRef grammar, std::shared_ptr<const SharedMasks> shared, size_t most_bytes = size_t(32) << 20);
  const Grammar& grammar() const { return *grammar_; }
  const Vocabulary& vocabulary() const { return shared_->vocabulary(); }
  // Sets the bits of all tokens that may come; `mask` has vocabulary().words() words. It, or that it throws, follows from the state alone.
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
  struct ThreadMask {
    TokenSet tokens;
    size_t steps;  // that it took to make
  };
  using Made = std::shared_ptr<const ThreadMask>;
  using Masks = std::unordered_map<Key, Made, KeyHash>;
  using LexMasks = std::unordered_map<const Lexer*, std::unordered_map<LexState, std::shared_ptr<const LexMask>>>;
  // Of the state's threads; null where one is not known.
  std::vector<Made> known(const State& state);
  Made make(const Thread& thread, MaskWalk& walk);
  std::shared_ptr<const LexMask> lex_mask(const Thread& thread, MaskWalk& walk);
  void keep(const State& state, const std::vector<Made>& masks);
  // What is forgotten to make room, for the caller to let go outside the lock.
  struct Forgotten {
    Masks masks;
    LexMasks lex_masks;
  };
  Forgotten make_room();

  GrammarRef grammar_;
  std::shared_ptr<const SharedMasks> shared_;
  size_t most_bytes_, lex_bytes_ = 0;  // of lex_masks_
  std::atomic<size_t> bytes_{0};       // of all; written under the mutex, read by anyone
  std::mutex mutex_;
  Masks masks_;
  LexMasks lex_masks_;
};

}  // namespace tandem::grammar
