// What one lexer state allows of a vocabulary's tokens, found by one walk over the trie. The walk leaves out whole subtrees: those below
// which the state stays as it is, and inside strings those below which any text may come.
#pragma once
#include <unordered_map>

#include "grammar/lexer.h"
#include "grammar/token_trie.h"

namespace tandem::grammar {

inline void set_bit(uint32_t* mask, int32_t token) { mask[size_t(token) / 32] |= 1u << (token % 32); }
inline void clear_bit(uint32_t* mask, int32_t token) { mask[size_t(token) / 32] &= ~(1u << (token % 32)); }

// A set of tokens: sorted ids while they are few, else bits.
class TokenSet {
 public:
  TokenSet() = default;
  explicit TokenSet(const std::vector<uint32_t>& bits);
  void unite_into(uint32_t* mask) const;
  bool has(int32_t token) const;
  size_t bytes() const { return (ids_.capacity() + bits_.capacity()) * 4; }

 private:
  std::vector<int32_t> ids_;
  std::vector<uint32_t> bits_;
};

struct LexMask {
  TokenSet inside;  // tokens that end within the lexeme or exactly at its end
  struct Exit {
    uint32_t node;  // of the vocabulary's trie: the lexeme may end here
    int32_t label;
  };
  std::vector<Exit> exits;  // in the trie's order; those without longer tokens are left out, except after strings
  std::vector<Exit> spans;  // the lexeme may end at every node below this one
  // What longer tokens hold beyond the exits, one trie per label, made for shared masks only. Empty: the exits are followed one by one.
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
LexMask make_lex_mask(const Lexer& lexer, LexState state, const SharedMasks& shared);
// The mask of a state that is shared between grammars: on its own, and with rests.
LexMask make_shared_lex_mask(const Lexer& lexer, LexState state, const SharedMasks& shared);

}  // namespace tandem::grammar
