// A compiled constraint: rules over lexers and JSON values, and the state before the first byte. Immutable and shared by all matchers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "grammar/schema.h"
#include "grammar/values.h"

namespace tandem::grammar {

struct Symbol {
  enum Kind : uint8_t { kLexer, kRule, kValue } kind;
  LexerRef lexer;
  int32_t rule = 0;                    // index of a rule, or the value's id
  std::shared_ptr<ValueTable> values;  // kValue
};
using Sequence = std::vector<Symbol>;

// A context-free grammar; rule 0 is the start.
struct Rules {
  std::vector<std::vector<Sequence>> rules;  // [rule][alternative]
  std::vector<std::string> names;            // for messages
};

struct GrammarOptions {
  Mode mode = Mode::kGenerate;
  bool assert_formats = true;
  bool draft7 = false;
  bool any_space = true;       // false: no white space between tokens of JSON
  std::string space{};         // instead of the mode's own white space, where not empty
  bool only_declared = false;  // objects that declare properties have no others, unless additionalProperties says so
};

class Grammar {
 public:
  // `budget`: the one under which all of the rules were made.
  Grammar(Rules rules, Budget& budget);
  State start() const { return start_; }
  // True where no text at all is in the language.
  bool empty() const { return !start_.alive(); }
  // Grows with what its lexers remember.
  size_t bytes() const { return bytes_ + remembered_->load(std::memory_order_relaxed); }
  ~Grammar();

 private:
  class RuleFrame;
  std::unique_ptr<RuleFrame> frame_;
  NodeRef end_;
  State start_;
  size_t bytes_;
  Remembered remembered_;
};
using GrammarRef = std::shared_ptr<const Grammar>;

GrammarRef compile_json_schema(std::string_view schema, const GrammarOptions& options, Budget& budget);
GrammarRef compile_json_object(const GrammarOptions& options, Budget& budget);
GrammarRef compile_whole_regex(std::string_view pattern, Budget& budget);
GrammarRef compile_choice(const std::vector<std::string>& choices, Budget& budget);

// The schema as the symbols of a sequence: white space and the value.
Sequence schema_symbols(const Json& schema, const GrammarOptions& options, Budget& budget);

}  // namespace tandem::grammar
