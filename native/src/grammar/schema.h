// JSON Schema as a table of formulas: boolean combinations of atoms, each about one type of value and true of every other type.
#pragma once
#include <deque>
#include <map>

#include "grammar/json.h"
#include "grammar/lexer.h"
#include "grammar/number_lexer.h"

namespace tandem::grammar {

using FormulaId = int32_t;

enum TypeBits : uint8_t {
  kNullBit = 1,
  kFalseBit = 2,
  kTrueBit = 4,
  kNumberBit = 8,
  kStringBit = 16,
  kArrayBit = 32,
  kObjectBit = 64,
  kAllTypes = 127
};

struct Formula {
  enum Kind : uint8_t {
    kAnd,
    kOr,
    kNot,        // of parts
    kTypes,      // types
    kNumber,     // numbers, a union
    kText,       // text
    kLength,     // least or most code points: one bound per atom of kLength, kItemCount and kPropertyCount, so that its negation is one too
    kItems,      // parts: prefix, then the rest
    kItemCount,  // least or most
    kContains,   // parts[0], least..most
    kUnique,
    kProperties,     // see below
    kHas,            // name
    kPropertyCount,  // least or most
    kPropertyNames,  // parts[0]
  } kind = kAnd;
  std::vector<FormulaId> parts{};
  uint8_t types = 0;
  std::vector<NumberSet> numbers{};
  DfaRef text{};
  int64_t least = 0, most = -1;
  std::string name{};
  // kProperties: a name's value satisfies its own formula and those of all patterns that match; parts[0] where neither applies.
  std::vector<std::pair<std::string, FormulaId>> named{};
  std::vector<std::pair<DfaRef, FormulaId>> patterns{};

  uint8_t about() const;  // the types that an atom says something about
};

struct SchemaOptions {
  Mode mode = Mode::kAccept;
  bool assert_formats = false;
  bool draft7 = false;         // where the schema names no dialect
  bool only_declared = false;  // objects that declare properties have no others, unless additionalProperties says so
};

struct SchemaFormulas {
  std::deque<Formula> formulas;
  FormulaId root = 0;
  FormulaId yes = 0, no = 0;
};

SchemaFormulas read_schema(const Json& schema, const SchemaOptions& options, Budget& budget);

// Null for a format that is not known.
DfaRef format_language(const std::string& format, Budget& budget);

// Where $ref leads: absolute URIs and anchors of all subschemas that have them.
class Locations {
 public:
  Locations(const Json& root, bool draft7);
  // The schema that `reference` names, seen from one whose base is `base`; throws Refused when it lies outside the document.
  struct Place {
    const Json* schema;
    std::string base;
  };
  Place resolve(const std::string& base, const std::string& reference) const;
  // The base of a schema's content: its own $id applied.
  std::string base_of(const Json& schema, const std::string& outer) const;
  static std::string join(const std::string& base, const std::string& reference);
  bool draft7() const { return draft7_; }

 private:
  void visit(const Json& schema, const std::string& base, int depth);
  Place follow(const Place& from, const std::string& pointer) const;
  bool draft7_;
  std::map<std::string, Place> known_;
};

}  // namespace tandem::grammar
