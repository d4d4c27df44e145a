// Makes the mask of one thread of a state: what its lexer allows, and which of the tokens that reach beyond its lexeme the frames below allow.
// It remembers nothing of masks made before, so that neither a mask nor whether it is too much to make depends on them.
#pragma once
#include <array>
#include <unordered_map>

#include "grammar/frame.h"
#include "grammar/shared_masks.h"

namespace tandem::grammar {

class MaskWalk {
 public:
  explicit MaskWalk(const SharedMasks& shared) : shared_(shared), bits_(shared.vocabulary().words()) {}
  LexMask lex_mask(const Thread& thread) { return make_lex_mask(*thread.lexer, thread.state, shared_, bits_); }
  // `lex` is the thread's lex_mask(). Throws where that takes too many steps or too much memory.
  TokenSet mask(const Thread& thread, const LexMask& lex);
  // Steps that the last mask took.
  size_t steps() const { return steps_; }

 private:
  struct Known {  // a state met beyond the lexeme, with its transitions
    State state;
    std::unique_ptr<std::array<int32_t, 256>> next;
  };
  const Vocabulary& vocabulary() const { return shared_.vocabulary(); }
  void beyond(const Thread& thread, const LexMask& lex, int32_t label);
  void walk(const Trie& trie, uint32_t root, int32_t from);
  void check_names(const Thread& thread, const LexMask& lex);
  void clear_repeated(const Thread& thread, const LexMask& lex);
  bool read_name(uint32_t node, Thread& thread) const;
  void clear_refused(const Thread& thread, uint32_t node);
  void clear_below(uint32_t node);
  void judge(const Thread& thread, int32_t token);
  int32_t intern(State state);
  int32_t next(int32_t state, uint8_t byte);
  void spend(size_t threads);

  const SharedMasks& shared_;
  TokenBits bits_;
  size_t steps_ = 0, bytes_ = 0;  // of this mask
  std::vector<int32_t> path_;
  std::vector<Known> known_;
  std::unordered_multimap<uint64_t, int32_t> known_ids_;
};

}  // namespace tandem::grammar
