#include "grammar/grammar.h"

#include <algorithm>

#include "grammar/expand.h"
#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

class EndFrame final : public Frame {
 public:
  void resume(const NodeRef&, int32_t, const Text&, Sink& sink) const override { sink.accept(); }
  int64_t distance(const Node&, int32_t) const override { return 0; }
};
const EndFrame kEndFrame;

}  // namespace

// Node: a = alternative's number, b = symbols done.
class Grammar::RuleFrame final : public Frame, public RuleSource {
 public:
  RuleFrame(Rules rules, Budget& budget) : rules_(std::move(rules)), most_depth_(uint32_t(budget.limits().document_depth)) {
    for (size_t rule = 0; rule < rules_.rules.size(); ++rule) {
      first_.push_back(sequences_.size());
      for (const Sequence& sequence : rules_.rules[rule]) sequences_.push_back(&sequence);
    }
    first_.push_back(sequences_.size());
    find_costs(budget);
    refuse_left_recursion();
  }
  int64_t cost() const { return costs_[0]; }
  // Of the rules themselves, about.
  size_t bytes() const {
    size_t symbols = 0;
    for (const Sequence* sequence : sequences_) symbols += sequence->size();
    return symbols * (sizeof(Symbol) + sizeof(int64_t)) + (sequences_.size() + rules_.rules.size()) * 100;
  }

  void begin(int32_t rule, const NodeRef& parent, Sink& sink) const override {
    if (parent->depth >= most_depth_) return;
    for (size_t i = first_[size_t(rule)]; i < first_[size_t(rule) + 1]; ++i) go_on(i, 0, parent, sink);
  }
  void resume(const NodeRef& node, int32_t, const Text&, Sink& sink) const override {
    go_on(size_t(node->a), size_t(node->b), node->parent, sink);
  }
  int64_t distance(const Node& node, int32_t) const override { return rests_[size_t(node.a)][size_t(node.b)]; }

 private:
  void go_on(size_t index, size_t done, const NodeRef& parent, Sink& sink) const {
    const Sequence& sequence = *sequences_[index];
    if (rests_[index][done] >= kNever) return;
    if (done == sequence.size()) return sink.resume(parent);
    const Symbol& symbol = sequence[done];
    // The last symbol needs no frame of its own: right recursion keeps the stack flat.
    NodeRef next = done + 1 == sequence.size() ? parent : make_node(this, parent, uint64_t(index), done + 1);
    if (symbol.kind == Symbol::kLexer) sink.add(*symbol.lexer, next);
    else if (symbol.kind == Symbol::kRule) sink.begin(*this, symbol.rule, next);
    else symbol.values->begin(symbol.rule, next, sink);
  }

  int64_t cost_of(const Symbol& symbol) const {
    if (symbol.kind == Symbol::kRule) return costs_[size_t(symbol.rule)];
    if (symbol.kind == Symbol::kValue) return symbol.values->at(symbol.rule).cost;
    LexState start = symbol.lexer->start();
    if (start == kDead) return kNever;
    int64_t best = kNever;
    for (int32_t label : symbol.lexer->labels()) best = std::min(best, symbol.lexer->distance(start, label));
    return best;
  }
  // Least fixed points: of the rules, then from every place in a sequence on. A rule is looked at again when one that it uses got cheaper.
  void find_costs(Budget& budget) {
    const int32_t count = int32_t(rules_.rules.size());
    costs_.assign(size_t(count), kNever);
    std::vector<std::vector<int32_t>> users(costs_.size());
    std::vector<int32_t> todo;
    for (int32_t rule = 0; rule < count; ++rule) {
      todo.push_back(rule);
      for (const Sequence& sequence : rules_.rules[size_t(rule)]) {
        for (const Symbol& symbol : sequence) {
          if (symbol.kind == Symbol::kRule && (users[size_t(symbol.rule)].empty() || users[size_t(symbol.rule)].back() != rule))
            users[size_t(symbol.rule)].push_back(rule);
        }
      }
    }
    std::vector<bool> waits(costs_.size(), true);
    while (!todo.empty()) {
      const int32_t rule = todo.back();
      todo.pop_back();
      waits[size_t(rule)] = false;
      const int64_t cost = cost_of_rule(rule, budget);
      if (cost == costs_[size_t(rule)]) continue;
      costs_[size_t(rule)] = cost;
      for (int32_t user : users[size_t(rule)]) {
        if (!waits[size_t(user)]) todo.push_back(user), waits[size_t(user)] = true;
      }
    }
    for (const Sequence* sequence : sequences_) {
      std::vector<int64_t>& rests = rests_.emplace_back(sequence->size() + 1, 0);
      for (size_t i = sequence->size(); i-- > 0;) rests[i] = std::min(kNever, rests[i + 1] + cost_of((*sequence)[i]));
    }
  }
  int64_t cost_of_rule(int32_t rule, Budget& budget) const {
    int64_t best = kNever;
    for (const Sequence& sequence : rules_.rules[size_t(rule)]) {
      int64_t cost = 0;
      for (size_t i = 0; i < sequence.size() && cost < best; ++i) {
        cost += cost_of(sequence[i]);
        budget.tick();
      }
      best = std::min(best, cost);
    }
    return best;
  }
  bool may_be_empty(const Symbol& symbol) const { return symbol.kind != Symbol::kValue && cost_of(symbol) == 0; }

  void refuse_left_recursion() const {
    std::vector<uint8_t> colour(rules_.rules.size(), 0);
    std::vector<std::pair<int32_t, std::vector<int32_t>>> path;
    auto open = [&](int32_t rule) {
      colour[size_t(rule)] = 1;
      std::vector<int32_t> left;
      for (const Sequence& sequence : rules_.rules[size_t(rule)]) {
        for (const Symbol& symbol : sequence) {
          if (symbol.kind == Symbol::kRule) left.push_back(symbol.rule);
          if (!may_be_empty(symbol)) break;
        }
      }
      path.push_back({rule, std::move(left)});
    };
    for (size_t root = 0; root < rules_.rules.size(); ++root) {
      if (colour[root] != 0) continue;
      open(int32_t(root));
      while (!path.empty()) {
        auto& [rule, left] = path.back();
        if (left.empty()) {
          colour[size_t(rule)] = 2;
          path.pop_back();
          continue;
        }
        int32_t next = left.back();
        left.pop_back();
        if (colour[size_t(next)] == 1) throw Refused("left recursion", "rule " + rules_.names[size_t(next)] + " starts with itself");
        if (colour[size_t(next)] == 0) open(next);
      }
    }
  }

  Rules rules_;
  uint32_t most_depth_;
  std::vector<const Sequence*> sequences_;
  std::vector<size_t> first_;                // of each rule's sequences
  std::vector<int64_t> costs_;               // bytes of each rule's shortest text
  std::vector<std::vector<int64_t>> rests_;  // the same from each place in a sequence to its end
};

Grammar::Grammar(Rules rules, Budget& budget)
    : frame_(std::make_unique<RuleFrame>(std::move(rules), budget)), end_(make_node(&kEndFrame, nullptr)),
      bytes_(budget.bytes() + frame_->bytes()), remembered_(budget.remembered()) {
  if (frame_->cost() >= kNever) return;
  Sink sink(start_);
  sink.begin(*frame_, 0, end_);
  sink.settle();
  close(start_);
}

Grammar::~Grammar() = default;

namespace {

std::shared_ptr<const Punctuation> punctuation(const GrammarOptions& options, Budget& budget) {
  // Generate mode: at most one space, or one line break and an indentation of at most 32.
  static const std::shared_ptr<const Punctuation> known[3] = {[] {
                                                                Budget own;
                                                                return make_punctuation("[ \\t\\n\\r]*", own);
                                                              }(),
                                                              [] {
                                                                Budget own;
                                                                return make_punctuation("( |\\n {0,32})?", own);
                                                              }(),
                                                              [] {
                                                                Budget own;
                                                                return make_punctuation("", own);
                                                              }()};
  if (!options.any_space) return known[2];
  if (!options.space.empty()) return make_punctuation(options.space, budget);
  return known[options.mode == Mode::kAccept ? 0 : 1];
}

GrammarRef finish(Rules rules, Budget& budget) {
  auto grammar = std::make_shared<Grammar>(std::move(rules), budget);
  if (grammar->empty()) throw Refused("empty language", "no text satisfies the constraint");
  return grammar;
}

// What a schema keeps beside its tables: frames, lexers and their distances, about, as measured on schemas of 3 to 60 properties.
constexpr size_t kSchemaBytes = size_t(4) << 10, kValueBytes = 768;

}  // namespace

Sequence schema_symbols(const Json& schema, const GrammarOptions& options, Budget& budget) {
  SchemaFormulas formulas = read_schema(
      schema,
      {.mode = options.mode, .assert_formats = options.assert_formats, .draft7 = options.draft7, .only_declared = options.only_declared},
      budget);
  auto table = std::make_shared<ValueTable>();
  table->punctuation = punctuation(options, budget);
  table->most_depth = uint32_t(budget.limits().document_depth);
  ValueId root = expand(formulas, options.mode, budget, *table);
  budget.add_states(0, (kSchemaBytes + table->values.size() * kValueBytes) / sizeof(int32_t));
  Symbol value{Symbol::kValue, nullptr, root, table};
  if (options.mode == Mode::kGenerate || !table->punctuation->space) return {value};
  Symbol space{Symbol::kLexer, table->punctuation->space, 0, nullptr};
  return {space, value, space};
}

GrammarRef compile_json_schema(std::string_view schema, const GrammarOptions& options, Budget& budget) {
  Json parsed = parse_json(schema, budget);
  Rules rules{{{schema_symbols(parsed, options, budget)}}, {"root"}};
  return std::make_shared<Grammar>(std::move(rules), budget);
}

GrammarRef compile_json_object(const GrammarOptions& options, Budget& budget) {
  return compile_json_schema("{\"type\":\"object\"}", options, budget);
}

GrammarRef compile_whole_regex(std::string_view pattern, Budget& budget) {
  Symbol text{Symbol::kLexer, std::make_shared<DfaLexer>(compile_regex(pattern, Anchoring::kWhole, budget)), 0, nullptr};
  return finish(Rules{{{{text}}}, {"root"}}, budget);
}

GrammarRef compile_choice(const std::vector<std::string>& choices, Budget& budget) {
  if (choices.empty()) malformed("choice: must not be empty");
  // All words end alike: their labels would only make threads that differ in nothing.
  DfaRef list = words(choices, budget);
  auto same = std::make_shared<Dfa>(*list);
  for (int32_t& label : same->label) label = label == kNone ? kNone : 0;
  Symbol text{Symbol::kLexer, std::make_shared<DfaLexer>(same), 0, nullptr};
  return finish(Rules{{{{text}}}, {"root"}}, budget);
}

}  // namespace tandem::grammar
