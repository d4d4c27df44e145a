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
  explicit TokenSet(const std::vector<uint32_t>& bits) : bits_(bits) {}
  explicit TokenSet(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  void unite_into(uint32_t* mask) const;
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<uint32_t>& bits() const { return bits_; }
  bool has(int32_t token) const;
  size_t bytes() const { return (ids_.capacity() + bits_.capacity()) * 4; }

 private:
  std::vector<int32_t> ids_;
  std::vector<uint32_t> bits_;
};

// Bits of tokens while a mask is put together. It knows which words were touched: most masks have few, and to go over all words of a large
// vocabulary takes longer than to find them.
class TokenBits {
 public:
  explicit TokenBits(size_t words) : bits_(words, 0) {}
  void set(int32_t token) {
    uint32_t& word = bits_[size_t(token) / 32];
    if (word == 0) touched_.push_back(uint32_t(token) / 32);
    word |= 1u << (token % 32);
  }
  void clear(int32_t token) { clear_bit(bits_.data(), token); }
  bool has(int32_t token) const { return bits_[size_t(token) / 32] >> (token % 32) & 1; }
  void unite(const TokenSet& set);
  // Keeps only the tokens of the set.
  void cut(const TokenSet& set);
  // What is set; nothing is set any more.
  TokenSet take();
  // Forgets what is set.
  void reset();

 private:
  std::vector<uint32_t> bits_;
  std::vector<uint32_t> touched_;  // words that are or were set; not all of them where `dense_`
  bool dense_ = false;
};

struct LexMask {
  TokenSet inside;  // tokens that end within the lexeme or exactly at its end
  struct Exit {
    uint32_t node;  // of the vocabulary's trie: the lexeme may end here
    int32_t label;
  };
  std::vector<Exit> exits;  // in the trie's order; those without longer tokens to be found are left out, except after strings
  // What longer tokens hold beyond the exits, one trie per label, made for shared masks only. Empty: the exits are followed one by one.
  std::unordered_map<int32_t, Trie> rests;
  // What the text says up to each exit, escapes read; made for shared masks only.
  std::vector<std::string> texts;
  // Longer tokens that may hold a whole further string: their names are looked at one by one.
  std::vector<int32_t> with_strings;
  // Where most of the state's tokens are those of a string of any text: all of that mask, with this label, but for `excluded` and for
  // those outside `within` (null: there are none such).
  const LexMask* base = nullptr;
  int32_t base_label = kNone;
  const TokenSet* within = nullptr;
  std::vector<int32_t> excluded;
  size_t bytes() const;
};

class SharedMasks;
// `bits` has nothing set, before and after.
LexMask make_lex_mask(const Lexer& lexer, LexState state, const SharedMasks& shared, TokenBits& bits);
// The mask of a state that is shared between grammars: on its own, with rests and texts.
LexMask make_shared_lex_mask(const Lexer& lexer, LexState state, const SharedMasks& shared, TokenBits& bits);

}  // namespace tandem::grammar
