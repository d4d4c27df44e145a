// Automata of expressions that look around themselves.
//
// A state of the automaton is a set of paths, and how far the languages of look-behinds are, which run along from the start of the text. A
// path is a state of the NFA and what it has promised of the text that follows: a set of states of look-aheads' languages, in each of which
// that text is to be. A promise that every text keeps is dropped, and a path with one that no text keeps, and of the paths in one state
// those that promise more than another.
#include <algorithm>

#include "grammar/explorer.h"

namespace tandem::grammar {
namespace {

// Whether every text is in the language from a state on that lies between two characters. Of a minimal automaton; of others it may say no.
bool takes_all(const Dfa& dfa, int32_t state) {
  const Dfa& any = *any_string();
  std::vector<int32_t> same(any.size(), kNone), todo{any.start};
  same[size_t(any.start)] = state;
  while (!todo.empty()) {
    const int32_t at = todo.back(), mine = same[size_t(at)];
    todo.pop_back();
    if (any.label[size_t(at)] != kNone && dfa.label[size_t(mine)] == kNone) return false;
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t wanted = any.next(at, uint8_t(byte));
      if (wanted == kNone) continue;
      const int32_t next = dfa.next(mine, uint8_t(byte));
      if (next == kNone) return false;
      if (same[size_t(wanted)] == kNone) todo.push_back(wanted);
      else if (same[size_t(wanted)] != next) return false;
      same[size_t(wanted)] = next;
    }
  }
  return true;
}

// Sets of promises, each with a number.
class Promises {
 public:
  static constexpr int32_t kNothing = 0;

  explicit Promises(Budget& budget) : budget_(budget) { number({}); }

  // Gives the language's number.
  size_t add(const DfaRef& language) {
    languages_.push_back({language, languages_.empty() ? 0 : languages_.back().first + int32_t(languages_.back().dfa->size()),
                          std::vector<int8_t>(language->size(), -1)});
    return languages_.size() - 1;
  }
  // The set, and that what follows is in a language; kNone where nothing can be.
  int32_t with(int32_t set, size_t language) {
    Language& wanted = languages_[language];
    if (wanted.dfa->empty()) return kNone;
    if (always(wanted, wanted.dfa->start)) return set;
    std::vector<int32_t> items = *sets_[size_t(set)];
    items.push_back(wanted.first + wanted.dfa->start);
    return number(std::move(items));
  }
  // What is left of the set behind a byte; kNone where it cannot be kept any more.
  int32_t after(int32_t set, uint8_t byte) {
    if (set == kNothing) return set;
    auto [known, fresh] = after_.emplace(int64_t(set) << 8 | byte, kNone);
    if (!fresh) return known->second;
    budget_.add_set(sets_[size_t(set)]->size());
    std::vector<int32_t> items;
    for (int32_t item : *sets_[size_t(set)]) {
      budget_.tick();
      Language& language = language_of(item);
      const int32_t next = language.dfa->next(item - language.first, byte);
      if (next == kNone) return kNone;
      if (!always(language, next)) items.push_back(language.first + next);
    }
    return known->second = number(std::move(items));
  }
  // Whether they are kept where the text ends.
  bool kept(int32_t set) {
    return std::all_of(sets_[size_t(set)]->begin(), sets_[size_t(set)]->end(), [&](int32_t item) {
      const Language& language = language_of(item);
      return language.dfa->label[size_t(item - language.first)] != kNone;
    });
  }
  bool includes(int32_t more, int32_t less) const {
    const std::vector<int32_t>&all = *sets_[size_t(more)], &some = *sets_[size_t(less)];
    return std::includes(all.begin(), all.end(), some.begin(), some.end());
  }

 private:
  struct Language {
    DfaRef dfa;
    int32_t first;                  // the number of its first state
    std::vector<int8_t> takes_all;  // by state, -1 = not known
  };

  Language& language_of(int32_t item) {
    return *std::prev(
        std::upper_bound(languages_.begin(), languages_.end(), item, [](int32_t i, const Language& l) { return i < l.first; }));
  }
  static bool always(Language& language, int32_t state) {
    int8_t& known = language.takes_all[size_t(state)];
    if (known < 0) known = takes_all(*language.dfa, state);
    return known != 0;
  }
  int32_t number(std::vector<int32_t> items) {
    std::sort(items.begin(), items.end());
    items.erase(std::unique(items.begin(), items.end()), items.end());
    auto [known, fresh] = numbers_.emplace(std::move(items), int32_t(sets_.size()));
    if (fresh) {
      budget_.add_set(known->first.size() + 1);
      sets_.push_back(&known->first);
    }
    return known->second;
  }

  Budget& budget_;
  std::vector<Language> languages_;
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> numbers_;
  std::vector<const std::vector<int32_t>*> sets_;
  std::unordered_map<int64_t, int32_t> after_;
};

// Which assertions are met where the text starts, and which elsewhere.
struct Met {
  std::vector<bool> at_start, elsewhere;
};

Met find_met(const Nfa& nfa, int32_t start, bool at_start) {
  Met met{std::vector<bool>(nfa.assertions().size()), std::vector<bool>(nfa.assertions().size())};
  const auto walk = [&](std::vector<int32_t> todo, bool starts) {
    std::vector<bool> seen(nfa.size());
    while (!todo.empty()) {
      const int32_t state = todo.back();
      todo.pop_back();
      nfa.budget().tick();
      if (seen[size_t(state)]) continue;
      seen[size_t(state)] = true;
      for (const Nfa::Arc& arc : nfa.arcs(state)) {
        if (arc.kind == Nfa::Edge::kBytes || (arc.kind == Nfa::Edge::kAtStart && !starts)) continue;
        if (arc.kind == Nfa::Edge::kAsserted) (starts ? met.at_start : met.elsewhere)[arc.low] = true;
        todo.push_back(arc.target);
      }
    }
  };
  std::vector<int32_t> elsewhere;
  for (size_t state = 0; state < nfa.size(); ++state) {
    for (const Nfa::Arc& arc : nfa.arcs(int32_t(state))) {
      if (arc.kind == Nfa::Edge::kBytes) elsewhere.push_back(arc.target);
    }
  }
  if (at_start) walk({start}, true);
  else elsewhere.push_back(start);
  walk(std::move(elsewhere), false);
  return met;
}

// The languages of an NFA's assertions.
struct Languages {
  static constexpr size_t kUnmet = size_t(-1);
  struct Ahead {
    size_t at_start = kUnmet, elsewhere = kUnmet;  // numbers among the promises
  };

  Promises promises;
  std::vector<Ahead> ahead;       // by assertion
  std::vector<size_t> behind_of;  // by assertion: its number among these
  std::vector<DfaRef> behind;
  std::vector<DfaRef> all;

  Languages(const Nfa& nfa, int32_t start, bool at_start)
      : promises(nfa.budget()), ahead(nfa.assertions().size()), behind_of(nfa.assertions().size(), kUnmet) {
    const Met met = find_met(nfa, start, at_start);
    for (size_t i = 0; i < nfa.assertions().size(); ++i) {
      const Assertion& assertion = nfa.assertions()[i];
      if (assertion.ahead) {
        if (met.at_start[i]) ahead[i].at_start = promises.add(keep(assertion.language(true)));
        if (met.elsewhere[i]) ahead[i].elsewhere = promises.add(keep(assertion.language(false)));
      } else if (met.at_start[i] || met.elsewhere[i]) {
        if (!at_start) throw Refused("pattern", "look-behind within a look-ahead is decided here only where that stands at the start");
        behind_of[i] = behind.size();
        behind.push_back(keep(assertion.language(true)));
      }
    }
  }

 private:
  const DfaRef& keep(DfaRef language) { return all.emplace_back(std::move(language)); }
};

struct Path {
  int32_t state, promises;
  bool operator<(const Path& other) const { return state != other.state ? state < other.state : promises < other.promises; }
};

// Where a set of paths is.
struct Spot {
  bool at_start, at_end;
  const int32_t* behind;  // the state of each look-behind's language
};

class Paths {
 public:
  Paths(const Nfa& nfa, Languages& languages, const std::function<int32_t(int32_t)>& accept)
      : nfa_(nfa), languages_(languages), accept_(accept) {}

  std::vector<Path> closure(std::vector<Path> todo, const Spot& spot) {
    seen_.clear();
    std::vector<Path> out;
    while (!todo.empty()) {
      const Path path = todo.back();
      todo.pop_back();
      nfa_.budget().tick();
      if (!seen_.emplace(int64_t(path.state) << 32 | path.promises, true).second) continue;
      out.push_back(path);
      for (const Nfa::Arc& arc : nfa_.arcs(path.state)) {
        const int32_t promises = passes(arc, path.promises, spot);
        if (promises != kNone) todo.push_back({arc.target, promises});
      }
    }
    return without_needless(std::move(out));
  }
  int32_t label(const std::vector<Path>& paths, Spot spot) {
    spot.at_end = true;
    int32_t best = kNone;
    for (const Path& path : closure(paths, spot)) {
      const int32_t found = languages_.promises.kept(path.promises) ? accept_(path.state) : kNone;
      if (found != kNone && (best == kNone || found < best)) best = found;
    }
    return best;
  }

 private:
  // What a path has promised behind an empty edge; kNone where that is closed to it.
  int32_t passes(const Nfa::Arc& arc, int32_t promises, const Spot& spot) {
    switch (arc.kind) {
      case Nfa::Edge::kBytes: return kNone;
      case Nfa::Edge::kEmpty: return promises;
      case Nfa::Edge::kAtStart: return spot.at_start ? promises : kNone;
      case Nfa::Edge::kAtEnd: return spot.at_end ? promises : kNone;
      case Nfa::Edge::kAsserted: break;
    }
    const size_t behind = languages_.behind_of[arc.low];
    if (behind == Languages::kUnmet) {
      const Languages::Ahead& ahead = languages_.ahead[arc.low];
      return languages_.promises.with(promises, spot.at_start ? ahead.at_start : ahead.elsewhere);
    }
    const int32_t at = spot.behind[behind];
    return at != kNone && languages_.behind[behind]->label[size_t(at)] != kNone ? promises : kNone;
  }
  std::vector<Path> without_needless(std::vector<Path> paths) {
    std::sort(paths.begin(), paths.end());
    std::vector<Path> out;
    for (size_t first = 0, end; first < paths.size(); first = end) {
      end = first + 1;
      while (end < paths.size() && paths[end].state == paths[first].state) ++end;
      for (size_t i = first; i < end; ++i) {
        const auto needs_less = [&](const Path& other) {
          nfa_.budget().tick();
          return other.promises != paths[i].promises && languages_.promises.includes(paths[i].promises, other.promises);
        };
        if (std::none_of(paths.begin() + int64_t(first), paths.begin() + int64_t(end), needs_less)) out.push_back(paths[i]);
      }
    }
    return out;
  }

  const Nfa& nfa_;
  Languages& languages_;
  const std::function<int32_t(int32_t)>& accept_;
  std::unordered_map<int64_t, bool> seen_;
};

// The states of look-behinds' languages, then the paths; a state at the start of the text has one more item.
class Names {
 public:
  explicit Names(size_t behind) : behind_(behind) {}
  std::vector<int32_t> of(const std::vector<int32_t>& behind, const std::vector<Path>& paths, bool at_start) const {
    std::vector<int32_t> name = behind;
    for (const Path& path : paths) name.push_back(path.state), name.push_back(path.promises);
    if (at_start) name.push_back(kNone);
    return name;
  }
  std::vector<Path> paths(const std::vector<int32_t>& name) const {
    std::vector<Path> out;
    for (size_t i = behind_; i + 1 < name.size(); i += 2) out.push_back({name[i], name[i + 1]});
    return out;
  }

 private:
  size_t behind_;
};

// Where the paths of a state are behind a byte, before empty edges.
std::vector<Path> paths_after(const Nfa& nfa, Promises& promises, const std::vector<Path>& paths, uint8_t byte) {
  std::vector<Path> out;
  for (const Path& path : paths) {
    nfa.budget().tick();
    for (const Nfa::Arc& arc : nfa.arcs(path.state)) {
      if (arc.kind != Nfa::Edge::kBytes || byte < arc.low || byte > arc.high) continue;
      const int32_t left = promises.after(path.promises, byte);
      if (left != kNone) out.push_back({arc.target, left});
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

DfaRef determinize_asserted(const Nfa& nfa, int32_t start, const std::function<int32_t(int32_t)>& accept, bool at_start) {
  Languages languages(nfa, start, at_start);
  std::array<uint8_t, 256> byte_class{}, of_nfa{};
  classify(nfa, of_nfa);
  std::vector<const std::array<uint8_t, 256>*> classes{&of_nfa};
  for (const DfaRef& language : languages.all) classes.push_back(&language->byte_class);
  const std::vector<uint8_t> representative = joined_classes(classes, byte_class);
  Explorer explorer(byte_class, int32_t(representative.size()), nfa.budget());
  Paths paths(nfa, languages, accept);
  const Names names(languages.behind.size());

  std::vector<int32_t> behind;
  for (const DfaRef& language : languages.behind) behind.push_back(language->start);
  const auto number = [&](const std::vector<Path>& seeds, bool starts) {
    const Spot spot{starts, false, behind.data()};
    const std::vector<Path> all = paths.closure(seeds, spot);
    return explorer.number(names.of(behind, all, starts), [&] { return paths.label(all, spot); });
  };
  number({{start, Promises::kNothing}}, at_start);
  std::unordered_map<std::vector<int32_t>, int32_t, VectorHash> known;
  while (const std::vector<int32_t>* name = explorer.todo()) {
    const std::vector<int32_t> own = *name;
    const std::vector<Path> set = names.paths(own);
    for (size_t symbol = 0; symbol < representative.size(); ++symbol) {
      const uint8_t byte = representative[symbol];
      const std::vector<Path> seeds = paths_after(nfa, languages.promises, set, byte);
      if (seeds.empty()) continue;
      for (size_t i = 0; i < behind.size(); ++i) behind[i] = own[i] == kNone ? kNone : languages.behind[i]->next(own[i], byte);
      auto [target, fresh] = known.emplace(names.of(behind, seeds, false), 0);
      if (fresh) {
        nfa.budget().add_set(target->first.size());
        target->second = number(seeds, false);
      }
      explorer.arc(int32_t(symbol), target->second);
    }
  }
  return trim(std::move(explorer.dfa()), nfa.budget());
}

}  // namespace tandem::grammar
