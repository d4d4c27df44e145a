#include "grammar/dfa.h"

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/explorer.h"
#include "grammar/minimize.h"

namespace tandem::grammar {
namespace {

std::vector<std::vector<int32_t>> reversed(const Dfa& dfa) {
  std::vector<std::vector<int32_t>> back(dfa.size());
  for (size_t state = 0; state < dfa.size(); ++state) {
    for (int32_t symbol = 0; symbol < dfa.classes; ++symbol) {
      int32_t target = dfa.table[state * size_t(dfa.classes) + size_t(symbol)];
      if (target == kNone) continue;
      std::vector<int32_t>& sources = back[size_t(target)];
      if (sources.empty() || sources.back() != int32_t(state)) sources.push_back(int32_t(state));
    }
  }
  return back;
}

}  // namespace

DfaRef trim(Dfa&& dfa, Budget& budget) {
  if (dfa.size() > 0 && dfa.start == kNone) dfa.start = 0;
  std::vector<int32_t> distance = distances(dfa);
  auto out = std::make_shared<Dfa>();
  out->byte_class = dfa.byte_class;
  out->classes = dfa.classes;
  std::vector<int32_t> renumbered(dfa.size(), kNone);
  for (size_t state = 0; state < dfa.size(); ++state) {
    if (distance[state] == kNone) continue;
    renumbered[state] = int32_t(out->label.size());
    out->label.push_back(dfa.label[state]);
  }
  if (dfa.size() == 0 || renumbered[size_t(dfa.start)] == kNone) return empty_language();
  out->start = renumbered[size_t(dfa.start)];
  out->table.reserve(out->label.size() * size_t(dfa.classes));
  for (size_t state = 0; state < dfa.size(); ++state) {
    if (renumbered[state] == kNone) continue;
    for (int32_t symbol = 0; symbol < dfa.classes; ++symbol) {
      int32_t target = dfa.table[state * size_t(dfa.classes) + size_t(symbol)];
      out->table.push_back(target == kNone ? kNone : renumbered[size_t(target)]);
    }
  }
  minimize(*out, budget);
  return out;
}

int32_t classify(const Nfa& nfa, std::array<uint8_t, 256>& byte_class) {
  std::array<bool, 257> boundary{};
  boundary[0] = true;
  for (size_t state = 0; state < nfa.size(); ++state) {
    for (const Nfa::Arc& arc : nfa.arcs(int32_t(state))) {
      if (arc.kind != Nfa::Edge::kBytes) continue;
      boundary[arc.low] = true;
      boundary[size_t(arc.high) + 1] = true;
    }
  }
  int32_t classes = 0;
  for (int byte = 0; byte < 256; ++byte) {
    classes += boundary[size_t(byte)];
    byte_class[size_t(byte)] = uint8_t(classes - 1);
  }
  return classes;
}

namespace {

class Subsets {
 public:
  Subsets(const Nfa& nfa, const std::array<uint8_t, 256>& byte_class, int32_t classes, const std::function<int32_t(int32_t)>& accept)
      : nfa_(nfa), byte_class_(byte_class), accept_(accept), mark_(nfa.size(), 0), seeds_(size_t(classes)) {}
  std::vector<int32_t> closure(const std::vector<int32_t>& seeds, bool at_start, bool at_end) {
    ++round_;
    std::vector<int32_t> out, stack = seeds;
    for (int32_t seed : seeds) mark_[size_t(seed)] = round_;
    while (!stack.empty()) {
      int32_t state = stack.back();
      stack.pop_back();
      out.push_back(state);
      nfa_.budget().tick();
      for (const Nfa::Arc& arc : nfa_.arcs(state)) {
        bool open =
            arc.kind == Nfa::Edge::kEmpty || (arc.kind == Nfa::Edge::kAtStart && at_start) || (arc.kind == Nfa::Edge::kAtEnd && at_end);
        if (!open || mark_[size_t(arc.target)] == round_) continue;
        mark_[size_t(arc.target)] = round_;
        stack.push_back(arc.target);
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  int32_t label(const std::vector<int32_t>& set, bool at_start) {
    int32_t best = kNone;
    for (int32_t state : closure(set, at_start, true)) {
      int32_t found = accept_(state);
      if (found != kNone && (best == kNone || found < best)) best = found;
    }
    return best;
  }
  // Sorts the edges of a set by their symbols; each is looked at once, however many symbols there are.
  void leave(const std::vector<int32_t>& set) {
    for (std::vector<int32_t>& targets : seeds_) targets.clear();
    for (int32_t state : set) {
      for (const Nfa::Arc& arc : nfa_.arcs(state)) {
        if (arc.kind != Nfa::Edge::kBytes) continue;
        for (size_t symbol = byte_class_[arc.low]; symbol <= byte_class_[arc.high]; ++symbol) seeds_[symbol].push_back(arc.target);
      }
    }
  }
  // The targets of a symbol's edges out of the set that was left.
  const std::vector<int32_t>& targets(int32_t symbol) {
    std::vector<int32_t>& seeds = seeds_[size_t(symbol)];
    std::sort(seeds.begin(), seeds.end());
    seeds.erase(std::unique(seeds.begin(), seeds.end()), seeds.end());
    return seeds;
  }

 private:
  const Nfa& nfa_;
  const std::array<uint8_t, 256>& byte_class_;
  const std::function<int32_t(int32_t)>& accept_;
  std::vector<uint32_t> mark_;
  std::vector<std::vector<int32_t>> seeds_;  // by symbol
  uint32_t round_ = 0;
};

}  // namespace

int32_t Dfa::match(std::string_view text) const {
  int32_t state = start;
  for (char byte : text) {
    if (state == kNone) return kNone;
    state = next(state, uint8_t(byte));
  }
  return state == kNone ? kNone : label[size_t(state)];
}

int32_t Nfa::add_assertion(Assertion assertion) {
  constexpr size_t kMost = 250;
  if (assertions_.size() == kMost) throw Error(ErrorKind::kRange, "pattern: there are too many look-arounds");
  assertions_.push_back(std::move(assertion));
  return int32_t(assertions_.size()) - 1;
}

int32_t Nfa::add_state() {
  budget_->add_states(1, 4);
  states_.emplace_back();
  return int32_t(states_.size()) - 1;
}

DfaRef determinize(const Nfa& nfa, int32_t start, const std::function<int32_t(int32_t)>& accept, bool at_start) {
  if (!nfa.assertions().empty()) return determinize_asserted(nfa, start, accept, at_start);
  std::array<uint8_t, 256> byte_class{};
  int32_t classes = classify(nfa, byte_class);
  Explorer explorer(byte_class, classes, nfa.budget());
  Subsets subsets(nfa, byte_class, classes, accept);
  std::vector<int32_t> first = subsets.closure({start}, at_start, false);
  int32_t first_label = subsets.label(first, at_start);
  // The start set is told apart from the same set met later: only it stands at the start of the text.
  first.push_back(-2);
  explorer.number(first, [&] { return first_label; });
  // Many symbols lead to the same few states, whose closures may be large: each is found once.
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> closures;
  while (const std::vector<int32_t>* name = explorer.todo()) {
    std::vector<int32_t> set = *name;
    if (set.back() == -2) set.pop_back();
    subsets.leave(set);
    for (int32_t symbol = 0; symbol < classes; ++symbol) {
      const std::vector<int32_t>& targets = subsets.targets(symbol);
      if (targets.empty()) continue;
      auto [known, fresh] = closures.emplace(targets, 0);
      if (fresh) {
        nfa.budget().add_set(targets.size());
        std::vector<int32_t> target = subsets.closure(targets, false, false);
        known->second = explorer.number(target, [&] { return subsets.label(target, false); });
      }
      explorer.arc(symbol, known->second);
    }
  }
  return trim(std::move(explorer.dfa()), nfa.budget());
}

std::vector<uint8_t> joined_classes(const std::vector<const std::array<uint8_t, 256>*>& all, std::array<uint8_t, 256>& byte_class) {
  std::vector<uint8_t> representative;
  std::map<std::vector<uint8_t>, uint8_t> kinds;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::vector<uint8_t> kind;
    for (const std::array<uint8_t, 256>* classes : all) kind.push_back((*classes)[byte]);
    auto [entry, fresh] = kinds.emplace(kind, uint8_t(kinds.size()));
    if (fresh) representative.push_back(uint8_t(byte));
    byte_class[byte] = entry->second;
  }
  return representative;
}

DfaRef product(const std::vector<DfaRef>& parts, const Combine& combine, Budget& budget) {
  std::vector<const std::array<uint8_t, 256>*> classes;
  for (const DfaRef& part : parts) classes.push_back(&part->byte_class);
  std::array<uint8_t, 256> byte_class{};
  const std::vector<uint8_t> representative = joined_classes(classes, byte_class);
  Explorer explorer(byte_class, int32_t(representative.size()), budget);
  auto label_of = [&](const std::vector<int32_t>& states) {
    std::vector<int32_t> labels(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) labels[i] = states[i] == kNone ? kNone : parts[i]->label[size_t(states[i])];
    return combine(labels);
  };
  std::vector<int32_t> first;
  for (const DfaRef& part : parts) first.push_back(part->start);
  explorer.number(first, [&] { return label_of(first); });
  std::vector<int32_t> target(parts.size());
  while (const std::vector<int32_t>* name = explorer.todo()) {
    for (size_t symbol = 0; symbol < representative.size(); ++symbol) {
      std::fill(target.begin(), target.end(), kNone);
      bool alive = false;
      for (size_t i = 0; i < parts.size(); ++i) {
        if ((*name)[i] != kNone) target[i] = parts[i]->next((*name)[i], representative[symbol]);
        alive = alive || target[i] != kNone;
      }
      if (!alive) continue;
      explorer.arc(int32_t(symbol), explorer.number(target, [&] { return label_of(target); }));
    }
  }
  return trim(std::move(explorer.dfa()), budget);
}

DfaRef utf8_strings(int64_t least, int64_t most, Budget& budget) {
  require(least >= 0 && least <= 1'000'000 && most <= 1'000'000, ErrorKind::kRange,
          "a length bound is too large to combine with other constraints");
  Nfa nfa(budget);
  int64_t counted = most >= 0 ? most : least;
  std::vector<int32_t> at;
  for (int64_t i = 0; i <= counted; ++i) at.push_back(nfa.add_state());
  auto add_char = [&](int32_t from, int32_t to) {
    int32_t last = nfa.add_state(), two = nfa.add_state();
    nfa.add_bytes(last, to, 0x80, 0xBF);
    nfa.add_bytes(two, last, 0x80, 0xBF);
    nfa.add_bytes(from, to, 0x00, 0x7F);
    nfa.add_bytes(from, last, 0xC2, 0xDF);
    auto lead = [&](int low, int high, int second_low, int second_high, int32_t target) {
      int32_t middle = nfa.add_state();
      nfa.add_bytes(from, middle, uint8_t(low), uint8_t(high));
      nfa.add_bytes(middle, target, uint8_t(second_low), uint8_t(second_high));
    };
    lead(0xE0, 0xE0, 0xA0, 0xBF, last);
    lead(0xE1, 0xEC, 0x80, 0xBF, last);
    lead(0xED, 0xED, 0x80, 0x9F, last);
    lead(0xEE, 0xEF, 0x80, 0xBF, last);
    lead(0xF0, 0xF0, 0x90, 0xBF, two);
    lead(0xF1, 0xF3, 0x80, 0xBF, two);
    lead(0xF4, 0xF4, 0x80, 0x8F, two);
  };
  for (int64_t i = 0; i < counted; ++i) add_char(at[size_t(i)], at[size_t(i) + 1]);
  if (most < 0) add_char(at.back(), at.back());
  return determinize(nfa, at[0], [&](int32_t state) { return state >= at[0] && state <= at.back() && state - at[0] >= least ? 0 : kNone; });
}

DfaRef any_string() {
  static const DfaRef any = [] {
    Budget budget;
    return utf8_strings(0, -1, budget);
  }();
  return any;
}

DfaRef empty_language() {
  static const DfaRef none = std::make_shared<const Dfa>();
  return none;
}

DfaRef words(const std::vector<std::string>& list, Budget& budget) {
  if (list.empty()) return empty_language();
  // A trie needs no subset construction: it is deterministic already.
  Dfa dfa;
  std::array<bool, 256> used{};
  for (const std::string& word : list) {
    for (char byte : word) used[uint8_t(byte)] = true;
  }
  dfa.classes = 1;
  for (size_t byte = 0; byte < 256; ++byte) dfa.byte_class[byte] = used[byte] ? uint8_t(std::min(dfa.classes++, 255)) : 0;
  auto add_state = [&] {
    budget.add_states(1, size_t(dfa.classes));
    dfa.label.push_back(kNone);
    dfa.table.resize(dfa.table.size() + size_t(dfa.classes), kNone);
    return int32_t(dfa.label.size()) - 1;
  };
  add_state();
  for (size_t i = 0; i < list.size(); ++i) {
    int32_t state = 0;
    for (char byte : list[i]) {
      size_t cell = size_t(state) * size_t(dfa.classes) + dfa.byte_class[uint8_t(byte)];
      if (dfa.table[cell] == kNone) {
        int32_t fresh = add_state();
        dfa.table[cell] = fresh;
      }
      state = dfa.table[cell];
    }
    if (dfa.label[size_t(state)] == kNone) dfa.label[size_t(state)] = int32_t(i);
  }
  return trim(std::move(dfa), budget);
}

DfaRef intersect(const DfaRef& a, const DfaRef& b, Budget& budget) {
  if (a->empty() || b->empty()) return empty_language();
  return product(
      {a, b}, [](const std::vector<int32_t>& l) { return l[0] != kNone && l[1] != kNone ? l[0] : kNone; }, budget);
}

DfaRef with_lengths(const DfaRef& a, int64_t least, int64_t most, Budget& budget) {
  if (least == 0 && most < 0) return a;
  DfaRef lengths = utf8_strings(least, most, budget);
  return a == any_string() ? lengths : intersect(a, lengths, budget);
}

DfaRef unite(const DfaRef& a, const DfaRef& b, Budget& budget) {
  if (a->empty()) return b;
  if (b->empty()) return a;
  return product(
      {a, b}, [](const std::vector<int32_t>& l) { return l[0] != kNone ? l[0] : l[1]; }, budget);
}

DfaRef complement(const DfaRef& a, Budget& budget) {
  if (a->empty()) return any_string();
  return product(
      {any_string(), a}, [](const std::vector<int32_t>& l) { return l[0] != kNone && l[1] == kNone ? 0 : kNone; }, budget);
}

std::vector<int32_t> distances(const Dfa& dfa) {
  std::vector<std::vector<int32_t>> back = reversed(dfa);
  std::vector<int32_t> distance(dfa.size(), kNone), queue;
  for (size_t state = 0; state < dfa.size(); ++state) {
    if (dfa.label[state] != kNone) distance[state] = 0, queue.push_back(int32_t(state));
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    for (int32_t from : back[size_t(queue[i])]) {
      if (distance[size_t(from)] != kNone) continue;
      distance[size_t(from)] = distance[size_t(queue[i])] + 1;
      queue.push_back(from);
    }
  }
  return distance;
}

namespace {

// Follows the characters beyond ASCII side by side with the automaton of any text.
bool keeps_characters(const Dfa& dfa, int32_t state) {
  const Dfa& any = *any_string();
  std::vector<std::pair<int32_t, int32_t>> todo = {{state, any.start}};
  for (size_t i = 0; i < todo.size(); ++i) {
    for (int byte = 0x80; byte < 256; ++byte) {
      auto [mine, other] = todo[i];
      other = any.next(other, uint8_t(byte));
      if (other == kNone) continue;
      mine = dfa.next(mine, uint8_t(byte));
      if (mine == kNone) return false;
      if (any.label[size_t(other)] != kNone) {
        if (mine != state) return false;
      } else if (std::find(todo.begin(), todo.end(), std::pair(mine, other)) == todo.end()) {
        todo.emplace_back(mine, other);
        if (todo.size() > 16) return false;
      }
    }
  }
  return true;
}

}  // namespace

ByteLoops loops_of(const Dfa& dfa, int32_t state) {
  ByteLoops out;
  for (size_t byte = 0; byte < 128; ++byte) out.ascii[byte / 64] |= uint64_t(dfa.next(state, uint8_t(byte)) == state) << (byte % 64);
  // A state within a character has no loops at all.
  out.others = (out.ascii[0] | out.ascii[1]) && keeps_characters(dfa, state);
  return out;
}

bool is_infinite(const Dfa& dfa) {
  if (dfa.empty()) return false;
  // Every state is live: the language is infinite exactly when a cycle is reachable from the start.
  std::vector<uint8_t> colour(dfa.size(), 0);
  std::vector<std::pair<int32_t, int32_t>> path{{dfa.start, 0}};
  colour[size_t(dfa.start)] = 1;
  while (!path.empty()) {
    auto& [state, symbol] = path.back();
    if (symbol == dfa.classes) {
      colour[size_t(state)] = 2;
      path.pop_back();
      continue;
    }
    int32_t target = dfa.table[size_t(state) * size_t(dfa.classes) + size_t(symbol++)];
    if (target == kNone || colour[size_t(target)] == 2) continue;
    if (colour[size_t(target)] == 1) return true;
    colour[size_t(target)] = 1;
    path.push_back({target, 0});
  }
  return false;
}

bool is_ascii(const Dfa& dfa) {
  std::array<bool, 256> beyond{};  // classes of bytes beyond ASCII
  for (size_t byte = 128; byte < 256; ++byte) beyond[dfa.byte_class[byte]] = true;
  for (size_t cell = 0; cell < dfa.table.size(); ++cell) {
    if (dfa.table[cell] != kNone && beyond[cell % size_t(dfa.classes)]) return false;
  }
  return true;
}

bool list_words(const Dfa& dfa, int32_t state, const std::string& text, std::vector<std::string>& out, size_t most) {
  if (dfa.label[size_t(state)] != kNone) out.push_back(text);
  for (int byte = 0; byte < 256; ++byte) {
    int32_t next = dfa.next(state, uint8_t(byte));
    if (next != kNone && (out.size() > most || !list_words(dfa, next, text + char(byte), out, most))) return false;
  }
  return out.size() <= most;
}

}  // namespace tandem::grammar
