// A JSON reader for schemas: keeps numbers exact and members in order.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/budget.h"
#include "grammar/decimal.h"

namespace tandem::grammar {

struct JsonMember;

struct Json {
  enum Kind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject } kind = kNull;
  Decimal number;
  std::string text;
  std::vector<Json> items;
  std::vector<JsonMember> members;
  std::vector<uint32_t> by_name;  // places of the members in the order of their names, where they are many
  size_t begin = 0, end = 0;      // where it stands in the text

  bool is(Kind wanted) const { return kind == wanted; }
  bool boolean() const { return kind == kTrue || kind == kFalse; }
  // Null where there is no such member, or no members at all.
  const Json* find(std::string_view name) const;
};

struct JsonMember {
  std::string name;
  Json value;
};

Json parse_json(std::string_view text, Budget& budget);
// Values that are equal in JSON Schema's sense (1 equals 1.0, members in any order) have equal hashes.
uint64_t hash_of(const Json& value);

}  // namespace tandem::grammar
