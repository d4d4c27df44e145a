// What constructions of automata share (dfa.cc, asserted.cc).
#pragma once
#include <unordered_map>

#include "grammar/dfa.h"

namespace tandem::grammar {

struct VectorHash {
  size_t operator()(const std::vector<int32_t>& items) const {
    uint64_t hash = 1469598103934665603ull;
    for (int32_t item : items) hash = (hash ^ uint32_t(item)) * 1099511628211ull, hash ^= hash >> 29;
    return size_t(hash);
  }
};

// Explores states named by int vectors and numbers them in order of discovery.
class Explorer {
 public:
  Explorer(std::array<uint8_t, 256> byte_class, int32_t classes, Budget& budget) : budget_(budget) {
    dfa_.byte_class = byte_class;
    dfa_.classes = classes;
  }
  // `label` is called for new states only.
  template <typename Label>
  int32_t number(const std::vector<int32_t>& name, const Label& label) {
    auto known = numbers_.find(name);
    if (known != numbers_.end()) return known->second;
    known = numbers_.emplace(name, int32_t(dfa_.label.size())).first;
    budget_.add_states(1, size_t(dfa_.classes));
    budget_.add_set(name.size());
    names_.push_back(&known->first);
    dfa_.label.push_back(label());
    dfa_.table.resize(dfa_.table.size() + size_t(dfa_.classes), kNone);
    return known->second;
  }
  // Null when every state was visited.
  const std::vector<int32_t>* todo() { return visited_ < names_.size() ? names_[visited_++] : nullptr; }
  void arc(int32_t symbol, int32_t target) { dfa_.table[(visited_ - 1) * size_t(dfa_.classes) + size_t(symbol)] = target; }
  Dfa& dfa() { return dfa_; }

 private:
  Budget& budget_;
  Dfa dfa_;
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> numbers_;
  std::vector<const std::vector<int32_t>*> names_;
  size_t visited_ = 0;
};

// Removes the states that reach no accepting one and merges those that accept alike.
DfaRef trim(Dfa&& dfa, Budget& budget);
// Bytes that no edge tells apart share a class; gives how many there are.
int32_t classify(const Nfa& nfa, std::array<uint8_t, 256>& byte_class);
// Bytes that are alike by all of these share a class; gives a byte of each.
std::vector<uint8_t> joined_classes(const std::vector<const std::array<uint8_t, 256>*>& all, std::array<uint8_t, 256>& byte_class);
// determinize() of what has assertions.
DfaRef determinize_asserted(const Nfa& nfa, int32_t start, const std::function<int32_t(int32_t)>& accept, bool at_start);

}  // namespace tandem::grammar
