// What a JSON value may be, as frames of the stack machine. A ValueTable is built once and then only read.
#pragma once
#include <deque>

#include "grammar/frame.h"

namespace tandem::grammar {

using ValueId = int32_t;

// Lexers between values. Separators read white space first: label 0 is the comma, label 1 the closing bracket.
struct Punctuation {
  LexerRef space;  // null where none is allowed
  LexerRef open_array, open_object, colon;
  LexerRef array_next[4], object_next[4];  // index: bit 0 = a comma may come, bit 1 = the bracket may come; 0 is unused
};
// `space` is a regular expression of JSON white space, empty for none.
std::shared_ptr<const Punctuation> make_punctuation(const std::string& space, Budget& budget);

struct Value {
  std::vector<LexerRef> scalars;
  std::vector<std::unique_ptr<Frame>> nested;  // arrays and objects
  int64_t cost = kNever;                       // bytes of the shortest text; kNever: there is none
};

struct ValueTable {
  std::shared_ptr<const Punctuation> punctuation;
  std::deque<Value> values;
  uint32_t most_depth = 1024;

  const Value& at(ValueId id) const { return values[size_t(id)]; }
  bool possible(ValueId id) const { return at(id).cost < kNever; }
  void begin(ValueId id, const NodeRef& parent, Sink& sink) const;
  // Which values exist, and how short they can be: a least fixed point. Frames settle after it. Again where less has turned out to be possible.
  void find_costs(Budget& budget);
  void settle_frames();
};

constexpr int64_t kUnbounded = -1;

struct ArrayRule {
  std::vector<ValueId> prefix;
  ValueId rest = 0;
  int64_t least = 0, most = kUnbounded;
  // Between contain_least and contain_most items are in `yes`, the others in `no` (prefix positions, then the rest); prefix and rest
  // above are not used then.
  bool counts = false;
  std::vector<ValueId> yes, no;
  ValueId rest_yes = 0, rest_no = 0;
  int64_t contain_least = 0, contain_most = kUnbounded;
};
struct ObjectRule {
  struct Name {
    std::string name;
    ValueId value = 0;
    bool required = false;
  };
  std::vector<Name> names;       // label i of the key lexer
  std::vector<ValueId> classes;  // label names.size() + j
  std::shared_ptr<const StringLexer> keys;
  int64_t least = 0, most = kUnbounded;
  bool unique = true;    // refuse repeated names
  bool ordered = false;  // names in their order, then the others
  bool plain = false;    // no constraint at all: nothing is tracked
};
class UniqueItems;
// From now on the array holds no item twice; it has no prefix and counts nothing.
void make_unique(Frame& array, std::shared_ptr<const UniqueItems> items, Mode mode);
std::unique_ptr<Frame> make_array(const ValueTable& table, ArrayRule rule);
std::unique_ptr<Frame> make_object(const ValueTable& table, ObjectRule rule, const Budget& budget);

// Cost of the shortest instance from the costs known so far; kNever where there is none (yet).
class NestedFrame : public Frame {
 public:
  virtual int64_t shortest() const = 0;
  virtual const Lexer& opening() const = 0;
  // Called once all costs are final, before first use.
  virtual void settle() {}
};

}  // namespace tandem::grammar
