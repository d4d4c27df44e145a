#include "grammar/expand.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "grammar/regex.h"
#include "grammar/unique_arrays.h"

namespace tandem::grammar {
namespace {

constexpr int64_t kMostCounts = 200'000;  // places in an array times items counted there
// States of a text times its lengths, which are states of their own; beyond, the lexer counts characters where it can.
constexpr int64_t kMostLengths = 20'000;
constexpr std::pair<uint8_t, const char*> kConstants[] = {{kNullBit, "null"}, {kFalseBit, "false"}, {kTrueBit, "true"}};

// A formula or its negation.
struct Literal {
  FormulaId id;
  bool negated;
  auto operator<=>(const Literal&) const = default;
};
using Literals = std::vector<Literal>;

class Expander {
 public:
  Expander(const SchemaFormulas& schema, Mode mode, Budget& budget, ValueTable& table)
      : schema_(schema), mode_(mode), budget_(budget), table_(table) {}

  ValueId run() {
    ValueId root = value({{schema_.root, false}});
    for (size_t i = 0; i < pending_.size(); ++i) build(ValueId(i));
    table_.find_costs(budget_);
    keep_unique(uniques_, root, mode_, budget_, table_);
    table_.settle_frames();
    return root;
  }

 private:
  const Formula& formula(FormulaId id) const { return schema_.formulas[size_t(id)]; }

  // The value node of a set of literals; made later if new.
  ValueId value(Literals literals) {
    std::erase_if(literals, [&](const Literal& l) { return l == Literal{schema_.yes, false} || l == Literal{schema_.no, true}; });
    std::sort(literals.begin(), literals.end());
    literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
    bool never = std::any_of(literals.begin(), literals.end(), [&](const Literal& l) {
      return l == Literal{schema_.no, false} || l == Literal{schema_.yes, true} ||
             (l.negated && std::binary_search(literals.begin(), literals.end(), Literal{l.id, false}));
    });
    if (never) literals = {{schema_.no, false}};
    auto [known, fresh] = ids_.emplace(std::move(literals), ValueId(pending_.size()));
    if (fresh) {
      require(pending_.size() < budget_.limits().values, ErrorKind::kRange, "the schema has too many combinations of subschemas");
      budget_.tick();
      pending_.push_back(&known->first);
      table_.values.emplace_back();
    }
    return known->second;
  }

  void build(ValueId id) {
    const Literals literals = *pending_[size_t(id)];
    if (literals.empty()) return build_any(id);
    for (auto [type, word] : kConstants) constant(id, literals, type, word);
    for (const Literals& atoms : alternatives(literals, kNumberBit)) build_numbers(id, atoms);
    build_strings(id, literals);
    for (const Literals& atoms : alternatives(literals, kArrayBit)) constrain_array(id, atoms, 0, {});
    for (const Literals& atoms : alternatives(literals, kObjectBit)) constrain_object(id, atoms, 0, {});
  }
  Value& at(ValueId id) { return table_.values[size_t(id)]; }

  // Any value at all; accept mode lets names repeat, as JSON does.
  void build_any(ValueId id) {
    for (const char* word : {"null", "false", "true"}) at(id).scalars.push_back(keyword_lexer(word));
    at(id).scalars.push_back(any_number_lexer(mode_));
    at(id).scalars.push_back(any_text());
    ArrayRule items;
    items.rest = id;
    at(id).nested.push_back(make_array(table_, std::move(items)));
    ObjectRule object;
    object.classes = {id};
    object.keys = any_text();
    object.unique = mode_ == Mode::kGenerate;
    object.plain = mode_ == Mode::kAccept;
    at(id).nested.push_back(make_object(table_, std::move(object), budget_));
  }
  const std::shared_ptr<const StringLexer>& any_text() const { return any_text_lexer(mode_); }
  // The disjuncts of the conjunction for values of one type: lists of atoms about that type.
  std::vector<Literals> alternatives(const Literals& literals, uint8_t type) {
    std::vector<Literals> out;
    steps_ = 0;
    multiply({literals.rbegin(), literals.rend()}, {}, type, 0, out);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  void multiply(Literals pending, Literals atoms, uint8_t type, int depth, std::vector<Literals>& out) {
    if (depth > 500) throw Error(ErrorKind::kRange, "the schema has too many combinations of subschemas");
    while (!pending.empty()) {
      budget_.tick();
      if (++steps_ > 400'000)
        throw Error(ErrorKind::kRange, "the schema has too many combinations of subschemas, or refers to itself without end");
      Literal literal = pending.back();
      pending.pop_back();
      const Formula& f = formula(literal.id);
      if (f.kind == Formula::kNot) {
        pending.push_back({f.parts[0], !literal.negated});
      } else if (f.kind == Formula::kTypes) {
        if (bool(f.types & type) == literal.negated) return;
      } else if (f.kind == Formula::kAnd || f.kind == Formula::kOr) {
        if ((f.kind == Formula::kAnd) != literal.negated) {
          for (size_t i = f.parts.size(); i-- > 0;) pending.push_back({f.parts[i], literal.negated});
          continue;
        }
        for (FormulaId part : f.parts) {
          Literals branch = pending;
          branch.push_back({part, literal.negated});
          multiply(std::move(branch), atoms, type, depth + 1, out);
        }
        return;
      } else if (f.about() != type) {
        if (literal.negated) return;
      } else {
        atoms.push_back(literal);
      }
    }
    std::sort(atoms.begin(), atoms.end());
    atoms.erase(std::unique(atoms.begin(), atoms.end()), atoms.end());
    for (const Literal& atom : atoms) {
      if (atom.negated && std::binary_search(atoms.begin(), atoms.end(), Literal{atom.id, false})) return;
    }
    if (out.size() > budget_.limits().alternatives) throw Error(ErrorKind::kRange, "the schema has too many combinations of subschemas");
    out.push_back(std::move(atoms));
  }

  void constant(ValueId id, const Literals& literals, uint8_t type, const char* word) {
    if (!alternatives(literals, type).empty()) at(id).scalars.push_back(keyword_lexer(word));
  }

  // ---- numbers
  void build_numbers(ValueId id, const Literals& atoms) {
    if (atoms.empty()) return at(id).scalars.push_back(any_number_lexer(mode_));
    std::vector<NumberSet> sets = {{}};
    for (const Literal& atom : atoms) {
      std::vector<NumberSet> choices = atom.negated ? outside(formula(atom.id).numbers, 4 * budget_.limits().alternatives)
                                                    : formula(atom.id).numbers,
                             next;
      for (const NumberSet& set : sets) {
        for (const NumberSet& choice : choices) {
          budget_.tick();
          if (std::optional<NumberSet> both = intersect(set, choice)) next.push_back(*both);
        }
      }
      if (next.size() > 4 * budget_.limits().alternatives) throw Error(ErrorKind::kRange, "too many ranges of numbers");
      sets = std::move(next);
    }
    for (const NumberSet& set : sets) {
      budget_.tick();
      if (LexerRef lexer = make_number_lexer(set, mode_, budget_)) at(id).scalars.push_back(lexer);
    }
  }
  // ---- strings
  struct TextRule {
    DfaRef text{};  // null: any
    int64_t least = 0, most = -1;
  };
  void build_strings(ValueId id, const Literals& literals) {
    DfaRef all;
    for (const Literals& atoms : alternatives(literals, kStringBit)) {
      TextRule rule = text_rule(atoms);
      if (!rule.text) {
        auto lexer =
            rule.least == 0 && rule.most < 0 ? any_text() : std::make_shared<StringLexer>(any_string(), mode_, rule.least, rule.most);
        if (!lexer->empty()) at(id).scalars.push_back(lexer);
      } else if (rule.most > kMostLengths / int64_t(rule.text->size() + 1) && is_ascii(*rule.text)) {
        auto lexer = std::make_shared<StringLexer>(with_lengths(rule.text, rule.least, -1, budget_), mode_, 0, rule.most);
        if (!lexer->empty()) at(id).scalars.push_back(lexer);
      } else {
        DfaRef text = with_lengths(rule.text, rule.least, rule.most, budget_);
        all = all ? unite(all, text, budget_) : text;
      }
    }
    if (all && !all->empty()) at(id).scalars.push_back(std::make_shared<StringLexer>(all, mode_));
  }
  TextRule text_rule(const Literals& atoms) {
    TextRule rule;
    for (const Literal& atom : atoms) {
      const Formula& f = formula(atom.id);
      if (f.kind == Formula::kText) {
        DfaRef language = atom.negated ? complement(f.text, budget_) : f.text;
        rule.text = rule.text ? intersect(rule.text, language, budget_) : language;
        continue;
      }
      int64_t least = f.least, most = f.most;
      if (atom.negated && most < 0) most = least - 1, least = 0;  // each length atom has one bound
      else if (atom.negated) least = most + 1, most = -1;
      if (atom.negated && f.most < 0 && f.least == 0) return {empty_language()};
      rule.least = std::max(rule.least, least);
      if (most >= 0) rule.most = rule.most < 0 ? most : std::min(rule.most, most);
    }
    if (rule.most >= 0 && rule.least > rule.most) return {empty_language()};
    return rule;
  }
  // The texts of the strings that satisfy a formula.
  DfaRef language(Literals literals) {
    DfaRef out = empty_language();
    for (const Literals& atoms : alternatives(literals, kStringBit)) {
      TextRule rule = text_rule(atoms);
      out = unite(out, with_lengths(rule.text ? rule.text : any_string(), rule.least, rule.most, budget_), budget_);
    }
    return out;
  }

  // ---- arrays
  struct ArrayConstraint {
    std::vector<Literals> prefix;
    Literals rest;
    int64_t least = 0, most = kUnbounded;
    bool unique = false;
    struct Counted {
      Literal part;
      int64_t from, least, most;
    };
    std::vector<Counted> counted;
    void widen(size_t size) {
      while (prefix.size() < size) prefix.push_back(rest);
    }
    void at_most(int64_t count) { most = most == kUnbounded ? count : std::min(most, count); }
  };
  void constrain_array(ValueId id, const Literals& atoms, size_t index, ArrayConstraint rule) {
    for (; index < atoms.size(); ++index) {
      const Formula& f = formula(atoms[index].id);
      bool negated = atoms[index].negated;
      if (f.kind == Formula::kUnique) {
        if (negated) throw Refused("uniqueItems", "under not");
        rule.unique = true;
      } else if (f.kind == Formula::kItemCount) {
        if (negated && f.most < 0) {
          if (f.least == 0) return;
          rule.at_most(f.least - 1);
        } else {
          rule.least = std::max(rule.least, negated ? f.most + 1 : f.least);
          if (!negated && f.most >= 0) rule.at_most(f.most);
        }
      } else if (f.kind == Formula::kItems && !negated) {
        rule.widen(f.parts.size() - 1);
        for (size_t i = 0; i < rule.prefix.size(); ++i) rule.prefix[i].push_back({f.parts[std::min(i, f.parts.size() - 1)], false});
        rule.rest.push_back({f.parts.back(), false});
      } else if (f.kind == Formula::kItems) {
        return some_item_wrong(id, atoms, index, rule, f);
      } else {
        return contains(id, atoms, index, rule, f, negated);
      }
    }
    finish_array(id, std::move(rule));
  }
  void some_item_wrong(ValueId id, const Literals& atoms, size_t index, const ArrayConstraint& rule, const Formula& f) {
    size_t size = f.parts.size() - 1;
    for (size_t i = 0; i < size; ++i) {
      if (f.parts[i] == schema_.yes) continue;
      ArrayConstraint branch = rule;
      branch.widen(i + 1);
      branch.prefix[i].push_back({f.parts[i], true});
      branch.least = std::max(branch.least, int64_t(i) + 1);
      constrain_array(id, atoms, index + 1, std::move(branch));
    }
    if (f.parts[size] == schema_.yes) return;
    ArrayConstraint branch = rule;
    branch.widen(size);
    if (f.parts[size] == schema_.no) branch.least = std::max(branch.least, int64_t(size) + 1);
    else branch.counted.push_back({{f.parts[size], true}, int64_t(size), 1, -1});
    constrain_array(id, atoms, index + 1, std::move(branch));
  }
  void contains(ValueId id, const Literals& atoms, size_t index, const ArrayConstraint& rule, const Formula& f, bool negated) {
    auto branch = [&](int64_t least, int64_t most) {
      ArrayConstraint next = rule;
      Literal part{f.parts[0], false};
      if (most >= 0 && least > most) return;
      if (most == 0) {
        for (Literals& position : next.prefix) position.push_back({part.id, true});
        next.rest.push_back({part.id, true});
      } else if (least > 0 || most > 0) {
        next.counted.push_back({part, 0, least, most});
      }
      constrain_array(id, atoms, index + 1, std::move(next));
    };
    if (!negated) return branch(f.least, f.most);
    if (f.least > 0) branch(0, f.least - 1);
    if (f.most >= 0) branch(f.most + 1, -1);
  }
  void finish_array(ValueId id, ArrayConstraint rule) {
    if (rule.most != kUnbounded && rule.least > rule.most) return;
    ArrayRule out;
    out.least = rule.least, out.most = rule.most;
    // Positions that can never be filled end the array before them.
    if (rule.counted.size() > 1) throw Refused("contains", "several kinds of counted items at once");
    if (rule.counted.empty()) {
      for (const Literals& position : rule.prefix) out.prefix.push_back(value(position));
      out.rest = value(rule.rest);
    } else {
      count_items(rule, out);
    }
    if (rule.unique)
      uniques_.push_back({id, at(id).nested.size(), rule.prefix.size(), !rule.counted.empty(), rule.least, rule.most, out.rest});
    at(id).nested.push_back(make_array(table_, std::move(out)));
  }
  void count_items(ArrayConstraint& rule, ArrayRule& out) {
    const auto& counted = rule.counted[0];
    int64_t items = std::max(rule.least, int64_t(rule.prefix.size())) + 1, counts = std::max(counted.least, counted.most) + 1;
    require(items * counts <= kMostCounts, ErrorKind::kRange, "contains: minItems, minContains and maxContains are too large together");
    rule.widen(size_t(counted.from));
    out.counts = true;
    out.contain_least = counted.least;
    out.contain_most = counted.most < 0 ? kUnbounded : counted.most;
    // Items before `from` do not count. With no upper count, items that match may also be taken as not counted: more threads, same language.
    auto split = [&](Literals position, bool counts, bool yes) {
      if (counts) position.push_back({counted.part.id, counted.part.negated == yes});
      else if (yes) position.push_back({schema_.no, false});
      return value(position);
    };
    for (size_t i = 0; i < rule.prefix.size(); ++i) {
      out.yes.push_back(split(rule.prefix[i], int64_t(i) >= counted.from, true));
      out.no.push_back(split(rule.prefix[i], int64_t(i) >= counted.from, false));
    }
    out.rest_yes = split(rule.rest, true, true);
    out.rest_no = split(rule.rest, true, false);
  }

  // ---- objects
  struct ObjectConstraint {
    std::vector<const Formula*> properties;
    Literals names;  // of propertyNames
    std::vector<std::string> order;
    std::unordered_set<std::string> mentioned;  // what stands in `order`
    std::map<std::string, Literals> forced;     // literals of a name besides those of `properties`
    std::set<std::string> required, absent;
    int64_t least = 0, most = kUnbounded;
    void mention(const std::string& name) {
      if (mentioned.insert(name).second) order.push_back(name);
    }
  };
  void constrain_object(ValueId id, const Literals& atoms, size_t index, ObjectConstraint rule) {
    for (; index < atoms.size(); ++index) {
      const Formula& f = formula(atoms[index].id);
      bool negated = atoms[index].negated;
      if (f.kind == Formula::kHas) {
        rule.mention(f.name);
        (negated ? rule.absent : rule.required).insert(f.name);
        if (rule.absent.count(f.name) && rule.required.count(f.name)) return;
      } else if (f.kind == Formula::kPropertyCount) {
        int64_t most = negated ? (f.most < 0 ? f.least - 1 : -1) : f.most, least = negated ? (f.most < 0 ? 0 : f.most + 1) : f.least;
        if (negated && f.most < 0 && f.least == 0) return;
        rule.least = std::max(rule.least, least);
        if (most >= 0) rule.most = rule.most == kUnbounded ? most : std::min(rule.most, most);
      } else if (f.kind == Formula::kPropertyNames) {
        if (negated) throw Refused("propertyNames", "under not or oneOf, where some name must be wrong");
        rule.names.push_back({f.parts[0], false});
      } else if (!negated) {
        rule.properties.push_back(&f);
        for (const auto& member : f.named) rule.mention(member.first);
      } else {
        return some_property_wrong(id, atoms, index, rule, f);
      }
    }
    finish_object(id, rule);
  }
  void some_property_wrong(ValueId id, const Literals& atoms, size_t index, const ObjectConstraint& rule, const Formula& f) {
    bool others = f.parts[0] != schema_.yes ||
                  std::any_of(f.patterns.begin(), f.patterns.end(), [&](const auto& p) { return p.second != schema_.yes; });
    if (others)
      throw Refused(f.patterns.empty() ? "additionalProperties" : "patternProperties",
                    "under not or oneOf, where some property must be wrong");
    for (const auto& [name, part] : f.named) {
      if (part == schema_.yes || rule.absent.count(name)) continue;
      ObjectConstraint branch = rule;
      branch.mention(name);
      branch.required.insert(name);
      branch.forced[name].push_back({part, true});
      constrain_object(id, atoms, index + 1, std::move(branch));
    }
  }

  // What the value of each name of `order` must satisfy, all in all.
  std::vector<Literals> literals_by_name(const ObjectConstraint& rule) {
    std::unordered_map<std::string_view, size_t> place;
    for (const std::string& name : rule.order) place.emplace(name, place.size());
    std::vector<Literals> out(rule.order.size());
    for (const auto& [name, literals] : rule.forced) out[place.at(name)] = literals;
    for (const Formula* f : rule.properties) {
      std::vector<bool> met(out.size(), false);
      auto meets = [&](size_t i, FormulaId part) { out[i].push_back({part, false}), met[i] = true; };
      for (const auto& [name, part] : f->named) meets(place.at(name), part);
      for (size_t i = 0; i < out.size(); ++i) {
        for (const auto& [pattern, part] : f->patterns) {
          budget_.tick();
          if (pattern->match(rule.order[i]) != kNone) meets(i, part);
        }
        if (!met[i]) out[i].push_back({f->parts[0], false});
      }
    }
    return out;
  }

  void finish_object(ValueId id, ObjectConstraint& rule) {
    if (rule.most != kUnbounded && rule.least > rule.most) return;
    bool plain = rule.properties.empty() && rule.names.empty() && rule.order.empty() && rule.least == 0 && rule.most == kUnbounded;
    DfaRef names = rule.names.empty() ? any_string() : language(rule.names);
    name_finite_classes(rule, names);
    ObjectRule out;
    out.least = rule.least, out.most = rule.most;
    out.plain = plain && mode_ == Mode::kAccept;
    out.unique = !out.plain;
    out.ordered = mode_ == Mode::kGenerate;
    std::vector<Literals> literals = literals_by_name(rule);
    for (const std::string& name : rule.order) {
      Literals& own = literals[out.names.size()];
      if (rule.absent.count(name) || names->match(name) == kNone) own = {{schema_.no, false}};
      out.names.push_back({name, value(std::move(own)), rule.required.count(name) > 0});
    }
    if (plain) out.classes = {value({})}, out.keys = any_text();
    else key_classes(rule, names, out);
    at(id).nested.push_back(make_object(table_, std::move(out), budget_));
  }

  // Names that a pattern lists one by one become named properties: only then can the engine know that all of them were used.
  void name_finite_classes(ObjectConstraint& rule, const DfaRef& names) {
    std::vector<DfaRef> finite;
    if (!is_infinite(*names)) finite.push_back(names);
    for (const Formula* f : rule.properties) {
      for (const auto& entry : f->patterns) {
        if (!is_infinite(*entry.first)) finite.push_back(entry.first);
      }
    }
    for (const DfaRef& dfa : finite) {
      std::vector<std::string> found;
      if (dfa->empty() || dfa->size() > 4096 || !list_words(*dfa, dfa->start, "", found)) continue;
      for (const std::string& name : found) rule.mention(name);
    }
  }

  // One automaton over names: label i for the i-th name, further labels for classes of other names by the patterns they match.
  void key_classes(const ObjectConstraint& rule, const DfaRef& names, ObjectRule& out) {
    std::vector<DfaRef> parts = {names, words(rule.order, budget_)};
    for (const Formula* f : rule.properties) {
      for (const auto& entry : f->patterns) parts.push_back(entry.first);
    }
    std::map<ValueId, int32_t> labels;
    auto combine = [&](const std::vector<int32_t>& found) -> int32_t {
      if (found[1] != kNone) return found[1];
      if (found[0] == kNone) return kNone;
      Literals literals;
      size_t next = 2;
      for (const Formula* f : rule.properties) {
        bool met = false;
        for (const auto& entry : f->patterns) {
          if (found[next++] != kNone) literals.push_back({entry.second, false}), met = true;
        }
        if (!met) literals.push_back({f->parts[0], false});
      }
      ValueId id = value(std::move(literals));
      if (pending_[size_t(id)]->size() == 1 && pending_[size_t(id)]->front() == Literal{schema_.no, false}) return kNone;
      auto [entry, fresh] = labels.emplace(id, int32_t(rule.order.size() + labels.size()));
      if (fresh) out.classes.push_back(id);
      return entry->second;
    };
    DfaRef keys = product(parts, combine, budget_);
    out.keys = std::make_shared<StringLexer>(keys, mode_);
  }

  const SchemaFormulas& schema_;
  Mode mode_;
  Budget& budget_;
  ValueTable& table_;
  std::map<Literals, ValueId> ids_;
  std::vector<const Literals*> pending_;
  std::vector<UniqueArray> uniques_;
  size_t steps_ = 0;
};

}  // namespace

ValueId expand(const SchemaFormulas& schema, Mode mode, Budget& budget, ValueTable& table) {
  return Expander(schema, mode, budget, table).run();
}

}  // namespace tandem::grammar
