#include "grammar/schema.h"

#include <algorithm>
#include <unordered_map>

#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

constexpr int64_t kMostCount = 10'000'000;

class SchemaReader {
 public:
  SchemaReader(const Json& root, const SchemaOptions& options, Budget& budget)
      : options_(options), budget_(budget), locations_(root, is_draft7(root, options)) {
    out_.yes = add({});
    out_.no = add({.kind = Formula::kOr});
    out_.root = read(root, "");
  }
  SchemaFormulas take() { return std::move(out_); }

 private:
  static bool is_draft7(const Json& root, const SchemaOptions& options) {
    const Json* dialect = root.find("$schema");
    if (!dialect || !dialect->is(Json::kString)) return options.draft7;
    if (dialect->text.find("json-schema.org") == std::string::npos)
      throw Refused("$schema", "the dialect \"" + dialect->text.substr(0, 200) + "\" is not known");
    return dialect->text.find("draft-0") != std::string::npos;
  }
  [[noreturn]] static void wrong(const std::string& keyword, const std::string& expected) { malformed(keyword + ": must be " + expected); }

  FormulaId add(Formula formula) {
    require(out_.formulas.size() < 200'000, ErrorKind::kRange, "the schema is too large");
    budget_.tick();
    out_.formulas.push_back(std::move(formula));
    return FormulaId(out_.formulas.size()) - 1;
  }
  FormulaId both(std::vector<FormulaId> parts) {
    return parts.size() == 1 ? parts[0] : add({.kind = Formula::kAnd, .parts = std::move(parts)});
  }
  FormulaId either(std::vector<FormulaId> parts) {
    return parts.size() == 1 ? parts[0] : add({.kind = Formula::kOr, .parts = std::move(parts)});
  }
  FormulaId negation(FormulaId part) { return add({.kind = Formula::kNot, .parts = {part}}); }
  FormulaId types(uint8_t bits) { return add({.kind = Formula::kTypes, .types = bits}); }

  // Each schema is read once; a recursive reference finds the formula being built.
  FormulaId read(const Json& schema, const std::string& outer) {
    if (schema.is(Json::kTrue)) return out_.yes;
    if (schema.is(Json::kFalse)) return out_.no;
    if (!schema.is(Json::kObject)) malformed("a schema must be an object or a boolean");
    std::string base = locations_.base_of(schema, outer);
    auto [known, fresh] = read_.emplace(&schema, FormulaId(out_.formulas.size()));
    if (!fresh) return known->second;
    FormulaId id = add({});
    if (++depth_ > 1000) throw Error(ErrorKind::kRange, "the schema is nested too deeply");
    std::vector<FormulaId> parts;
    const Json* ref = schema.find("$ref");
    if (ref) parts.push_back(reference(*ref, base));
    if (!ref || !locations_.draft7()) {
      refuse_undecidable(schema);
      read_general(schema, base, parts);
      read_numbers(schema, parts);
      read_strings(schema, parts);
      read_arrays(schema, base, parts);
      read_objects(schema, base, parts);
    }
    out_.formulas[size_t(id)].parts = std::move(parts);
    --depth_;
    return id;
  }

  FormulaId reference(const Json& ref, const std::string& base) {
    if (!ref.is(Json::kString)) wrong("$ref", "a string");
    Locations::Place place = locations_.resolve(base, ref.text);
    // The place's base was found along the pointer; read() applies the schema's own $id to it again, which changes nothing.
    return read(*place.schema, place.base);
  }

  void refuse_undecidable(const Json& schema) {
    static const std::pair<const char*, const char*> kRefused[] = {
        {"$dynamicRef", "the target depends on the way by which the schema was reached"},
        {"$recursiveRef", "the target depends on the way by which the schema was reached"},
        {"unevaluatedProperties", "which properties are evaluated is known only at the end"},
        {"unevaluatedItems", "which items are evaluated is known only at the end"}};
    for (auto [keyword, why] : kRefused) {
      const Json* value = schema.find(keyword);
      if (locations_.draft7() || !value || value->is(Json::kTrue)) continue;
      if (std::string(keyword).rfind("unevaluated", 0) == 0 && value->is(Json::kObject) && value->members.empty()) continue;
      throw Refused(keyword, why);
    }
    const Json* vocabulary = schema.find("$vocabulary");
    if (vocabulary) throw Refused("$vocabulary", "vocabularies cannot be chosen");
  }

  void read_general(const Json& schema, const std::string& base, std::vector<FormulaId>& parts) {
    if (const Json* type = schema.find("type")) parts.push_back(read_type(*type));
    if (const Json* value = schema.find("const")) parts.push_back(constant(*value));
    if (const Json* list = schema.find("enum")) parts.push_back(enumeration(*list));
    if (const Json* list = schema.find("allOf")) {
      for (FormulaId part : read_list(*list, "allOf", base)) parts.push_back(part);
    }
    if (const Json* list = schema.find("anyOf")) parts.push_back(either(read_list(*list, "anyOf", base)));
    if (const Json* list = schema.find("oneOf")) parts.push_back(exactly_one(*list, base));
    if (const Json* inner = schema.find("not")) parts.push_back(negation(read(*inner, base)));
    const Json* condition = schema.find("if");
    if (!condition) return;
    const Json *then = schema.find("then"), *otherwise = schema.find("else");
    if (!then && !otherwise) return;
    FormulaId test = read(*condition, base);
    FormulaId yes = both({test, then ? read(*then, base) : out_.yes});
    FormulaId no = both({negation(test), otherwise ? read(*otherwise, base) : out_.yes});
    parts.push_back(either({yes, no}));
  }

  std::vector<FormulaId> read_list(const Json& list, const char* keyword, const std::string& base) {
    if (!list.is(Json::kArray) || list.items.empty()) wrong(keyword, "a list of schemas that is not empty");
    std::vector<FormulaId> out;
    for (const Json& item : list.items) out.push_back(read(item, base));
    return out;
  }

  FormulaId exactly_one(const Json& list, const std::string& base) {
    std::vector<FormulaId> parts = read_list(list, "oneOf", base), options;
    require(parts.size() <= 400, ErrorKind::kRange, "oneOf: too many schemas");
    std::vector<Locations::Place> places;
    for (const Json& item : list.items) places.push_back(behind(item, base));
    for (size_t i = 0; i < parts.size(); ++i) {
      std::vector<FormulaId> terms = {parts[i]};
      for (size_t j = 0; j < parts.size(); ++j) {
        if (i != j && !disjoint(places[i], places[j])) terms.push_back(negation(parts[j]));
      }
      options.push_back(both(std::move(terms)));
    }
    return either(std::move(options));
  }

  // The schema that a chain of references leads to: its keywords hold of every value, whatever stands beside a reference.
  Locations::Place behind(const Json& schema, const std::string& outer) {
    Locations::Place place{&schema, outer};
    for (int steps = 0; steps < 8 && place.schema->is(Json::kObject); ++steps) {
      budget_.tick();
      const Json* ref = place.schema->find("$ref");
      place.base = locations_.base_of(*place.schema, place.base);
      if (!ref || !ref->is(Json::kString)) break;
      place = locations_.resolve(place.base, ref->text);
    }
    return place;
  }

  // What a schema's own keywords say of its values, as far as disjoint() asks.
  struct Outline {
    uint8_t types = kAllTypes;
    std::vector<uint64_t> listed;                                         // hashes of the values of const or enum, ascending; empty: any
    std::vector<std::pair<std::string_view, Locations::Place>> required;  // properties that must be there, by their names
    std::vector<const std::string*> needed;                               // all names that must be there
    bool closed = false;                                                  // no names but those of `properties`
  };
  const Outline& outline(const Locations::Place& place) {
    const Json& schema = *place.schema;
    auto [known, fresh] = outlines_.try_emplace(&schema);
    Outline& out = known->second;
    if (!fresh) return out;
    out.types = possible_types(schema);
    if (const Json* value = schema.find("const")) out.listed.push_back(hash_of(*value));
    else if (const Json* list = schema.find("enum")) {
      for (const Json& item : list->items) out.listed.push_back(hash_of(item));
    }
    std::sort(out.listed.begin(), out.listed.end());
    const Json *properties = schema.find("properties"), *required = schema.find("required"), *others = schema.find("additionalProperties");
    out.closed = others && others->is(Json::kFalse) && !schema.find("patternProperties");
    if (!required || out.types != kObjectBit) return out;
    for (const Json& name : required->items) {
      if (!name.is(Json::kString)) continue;
      out.needed.push_back(&name.text);
      const Json* property = properties ? properties->find(name.text) : nullptr;
      if (property) out.required.emplace_back(name.text, behind(*property, place.base));
    }
    std::sort(out.required.begin(), out.required.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return out;
  }
  // Calls both(a, b) for the entries of two ascending lists that have the same key, until one says true.
  template <typename List, typename Key, typename Both>
  bool any_alike(const List& a, const List& b, const Key& key, const Both& both) {
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      budget_.tick();
      if (key(a[i]) == key(b[j]) && both(a[i], b[j])) return true;
      if (key(a[i]) < key(b[j])) ++i;
      else ++j;
    }
    return false;
  }
  // True only where no value can satisfy both, seen from their own keywords.
  bool disjoint(const Locations::Place& a, const Locations::Place& b, int depth = 0) {
    budget_.tick();
    if (depth > 4 || !has_outline(*a.schema) || !has_outline(*b.schema)) return false;
    const Outline &left = outline(a), &right = outline(b);
    if (!(left.types & right.types)) return true;
    if (!left.listed.empty() && !right.listed.empty())
      return !any_alike(
          left.listed, right.listed, [](uint64_t hash) { return hash; }, [](uint64_t, uint64_t) { return true; });
    return needs_more(left, right, *b.schema) || needs_more(right, left, *a.schema) ||
           any_alike(
               left.required, right.required, [](const auto& property) { return property.first; },
               [&](const auto& mine, const auto& other) { return disjoint(mine.second, other.second, depth + 1); });
  }
  // Whether objects of one schema must have a property that the other one knows nothing of and rules out.
  bool needs_more(const Outline& one, const Outline& other, const Json& schema) {
    const Json* properties = schema.find("properties");
    return other.closed && std::any_of(one.needed.begin(), one.needed.end(), [&](const std::string* name) {
             budget_.tick();
             return !properties || !properties->find(*name);
           });
  }
  static bool has_outline(const Json& schema) { return schema.is(Json::kObject) && !schema.find("$ref"); }
  static uint8_t possible_types(const Json& schema) {
    const Json* type = schema.find("type");
    if (!type) return kAllTypes;
    if (type->is(Json::kString)) return type_bits(type->text);
    uint8_t bits = 0;
    for (const Json& item : type->items) bits |= type_bits(item.text);
    return bits;
  }
  static uint8_t type_bits(const std::string& name) {
    static const std::pair<const char*, uint8_t> kNames[] = {{"null", kNullBit},     {"boolean", kFalseBit | kTrueBit},
                                                             {"number", kNumberBit}, {"integer", kNumberBit},
                                                             {"string", kStringBit}, {"array", kArrayBit},
                                                             {"object", kObjectBit}};
    for (auto [known, bits] : kNames) {
      if (name == known) return bits;
    }
    malformed("type: \"" + name.substr(0, 100) + "\" is no type");
  }

  FormulaId read_type(const Json& type) {
    std::vector<std::string> names;
    if (type.is(Json::kString)) names.push_back(type.text);
    if (type.is(Json::kArray)) {
      for (const Json& item : type.items) {
        if (!item.is(Json::kString)) wrong("type", "a type name or a list of them");
        names.push_back(item.text);
      }
    }
    if (names.empty()) wrong("type", "a type name or a list of them");
    uint8_t bits = 0;
    for (const std::string& name : names) bits |= type_bits(name);
    auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    if (!has("integer") || has("number")) return types(bits);
    return both({types(bits), number({.step = Step{}})});
  }

  FormulaId number(NumberSet set) { return add({.kind = Formula::kNumber, .numbers = {std::move(set)}}); }

  FormulaId constant(const Json& value) {
    switch (value.kind) {
      case Json::kNull: return types(kNullBit);
      case Json::kFalse: return types(kFalseBit);
      case Json::kTrue: return types(kTrueBit);
      case Json::kNumber:
        return both({types(kNumberBit), number({.low = checked(value.number, false), .high = checked(value.number, false)})});
      case Json::kString: return both({types(kStringBit), add({.kind = Formula::kText, .text = words({value.text}, budget_)})});
      case Json::kArray: return constant_array(value);
      default: return constant_object(value);
    }
  }
  FormulaId constant_array(const Json& value) {
    Formula items{.kind = Formula::kItems};
    for (const Json& item : value.items) items.parts.push_back(constant(item));
    items.parts.push_back(out_.no);
    int64_t size = int64_t(value.items.size());
    FormulaId least = add({.kind = Formula::kItemCount, .least = size}), most = add({.kind = Formula::kItemCount, .most = size});
    return both({types(kArrayBit), add(std::move(items)), least, most});
  }
  FormulaId constant_object(const Json& value) {
    std::vector<FormulaId> parts = {types(kObjectBit)};
    Formula properties{.kind = Formula::kProperties, .parts = {out_.no}};
    for (const auto& [name, item] : value.members) {
      properties.named.emplace_back(name, constant(item));
      parts.push_back(has(name));
    }
    parts.push_back(add(std::move(properties)));
    return both(std::move(parts));
  }
  FormulaId has(const std::string& name) { return add({.kind = Formula::kHas, .name = name}); }

  FormulaId enumeration(const Json& list) {
    if (!list.is(Json::kArray)) wrong("enum", "a list of values");
    std::vector<FormulaId> options;
    std::vector<std::string> texts;
    Formula numbers{.kind = Formula::kNumber};
    for (const Json& value : list.items) {
      budget_.tick();
      if (value.is(Json::kString)) texts.push_back(value.text);
      else if (value.is(Json::kNumber))
        numbers.numbers.push_back({.low = checked(value.number, false), .high = checked(value.number, false)});
      else options.push_back(constant(value));
    }
    if (!texts.empty()) {
      // All texts end alike: labels would only be kept apart for nothing.
      auto alike = std::make_shared<Dfa>(*words(texts, budget_));
      for (int32_t& label : alike->label) label = label == kNone ? kNone : 0;
      options.push_back(both({types(kStringBit), add({.kind = Formula::kText, .text = alike})}));
    }
    if (!numbers.numbers.empty()) {
      FormulaId bits = types(kNumberBit);
      options.push_back(both({bits, add(std::move(numbers))}));
    }
    return either(std::move(options));
  }

  static Bound checked(const Decimal& value, bool strict) {
    if (value.digits.size() > 400 || std::abs(value.magnitude()) > 400)
      throw Refused("number", "a bound beyond 10^400 or with more than 400 digits");
    return {value, strict};
  }
  static const Decimal* number_of(const Json& schema, const char* keyword) {
    const Json* value = schema.find(keyword);
    if (value && !value->is(Json::kNumber)) wrong(keyword, "a number");
    return value ? &value->number : nullptr;
  }

  void read_numbers(const Json& schema, std::vector<FormulaId>& parts) {
    if (const Decimal* bound = number_of(schema, "minimum")) parts.push_back(number({.low = checked(*bound, false)}));
    if (const Decimal* bound = number_of(schema, "maximum")) parts.push_back(number({.high = checked(*bound, false)}));
    if (const Decimal* bound = number_of(schema, "exclusiveMinimum")) parts.push_back(number({.low = checked(*bound, true)}));
    if (const Decimal* bound = number_of(schema, "exclusiveMaximum")) parts.push_back(number({.high = checked(*bound, true)}));
    const Decimal* multiple = number_of(schema, "multipleOf");
    if (!multiple) return;
    if (multiple->negative || multiple->zero()) wrong("multipleOf", "a number above zero");
    std::optional<Step> step = to_step(*multiple);
    if (!step || std::abs(multiple->magnitude()) > 400) throw Refused("multipleOf", "more than 18 digits");
    parts.push_back(number({.step = step}));
  }

  static std::optional<int64_t> count_of(const Json& schema, const char* keyword) {
    const Json* value = schema.find(keyword);
    if (!value) return {};
    if (!value->is(Json::kNumber) || value->number.negative || value->number.exponent < 0)
      wrong(keyword, "an integer that is not negative");
    if (value->number.zero()) return 0;
    if (value->number.magnitude() > 15) return kMostCount + 1;
    return std::min<int64_t>(std::stoll(value->number.digits + std::string(size_t(value->number.exponent), '0')), kMostCount + 1);
  }
  // A lower and an upper bound as one atom each.
  void read_counts(const Json& schema, const char* least, const char* most, Formula::Kind kind, std::vector<FormulaId>& parts) {
    if (auto count = count_of(schema, least)) {
      if (*count > kMostCount) throw Error(ErrorKind::kRange, std::string(least) + ": at most 10000000 is supported");
      parts.push_back(add({.kind = kind, .least = *count}));
    }
    // An upper bound beyond every bounded text says nothing.
    if (auto count = count_of(schema, most); count && *count <= kMostCount) parts.push_back(add({.kind = kind, .most = *count}));
  }

  void read_strings(const Json& schema, std::vector<FormulaId>& parts) {
    read_counts(schema, "minLength", "maxLength", Formula::kLength, parts);
    if (const Json* pattern = schema.find("pattern")) {
      if (!pattern->is(Json::kString)) wrong("pattern", "a string");
      parts.push_back(add({.kind = Formula::kText, .text = compile_regex(pattern->text, Anchoring::kSearch, budget_)}));
    }
    const Json* format = schema.find("format");
    if (!format) return;
    if (!format->is(Json::kString)) wrong("format", "a string");
    if (!options_.assert_formats) return;
    if (DfaRef language = format_language(format->text, budget_)) parts.push_back(add({.kind = Formula::kText, .text = language}));
  }

  void read_arrays(const Json& schema, const std::string& base, std::vector<FormulaId>& parts) {
    read_counts(schema, "minItems", "maxItems", Formula::kItemCount, parts);
    const Json *prefix = schema.find("prefixItems"), *items = schema.find("items"), *rest = items;
    if (locations_.draft7()) prefix = nullptr;
    bool list = items && items->is(Json::kArray);
    if (list && (!prefix || locations_.draft7())) prefix = items, rest = schema.find("additionalItems");
    if (prefix || rest) {
      Formula formula{.kind = Formula::kItems};
      if (prefix) {
        if (!prefix->is(Json::kArray)) wrong("prefixItems", "a list of schemas");
        for (const Json& item : prefix->items) formula.parts.push_back(read(item, base));
      }
      formula.parts.push_back(rest ? read(*rest, base) : out_.yes);
      parts.push_back(add(std::move(formula)));
    }
    if (const Json* unique = schema.find("uniqueItems")) {
      if (!unique->boolean()) wrong("uniqueItems", "a boolean");
      if (unique->is(Json::kTrue)) parts.push_back(add({.kind = Formula::kUnique}));
    }
    const Json* contains = schema.find("contains");
    if (!contains) return;
    auto least = locations_.draft7() ? std::nullopt : count_of(schema, "minContains");
    auto most = locations_.draft7() ? std::nullopt : count_of(schema, "maxContains");
    if (least.value_or(0) > 1000 || most.value_or(0) > 1000) throw Refused("minContains", "counts above 1000");
    FormulaId part = read(*contains, base);
    parts.push_back(add({.kind = Formula::kContains, .parts = {part}, .least = least.value_or(1), .most = most ? *most : -1}));
  }

  void read_objects(const Json& schema, const std::string& base, std::vector<FormulaId>& parts) {
    read_counts(schema, "minProperties", "maxProperties", Formula::kPropertyCount, parts);
    const Json *named = schema.find("properties"), *patterns = schema.find("patternProperties"),
               *others = schema.find("additionalProperties");
    if (named || patterns || others) {
      Formula formula{.kind = Formula::kProperties};
      for (const auto& [name, value] : members(named, "properties")) formula.named.emplace_back(name, read(value, base));
      for (const auto& [pattern, value] : members(patterns, "patternProperties")) {
        formula.patterns.emplace_back(compile_regex(pattern, Anchoring::kSearch, budget_), read(value, base));
      }
      formula.parts.push_back(others ? read(*others, base) : options_.only_declared ? out_.no : out_.yes);
      parts.push_back(add(std::move(formula)));
    }
    if (const Json* names = schema.find("propertyNames")) {
      FormulaId part = read(*names, base);
      parts.push_back(add({.kind = Formula::kPropertyNames, .parts = {part}}));
    }
    for (const std::string& name : names_of(schema.find("required"), "required")) parts.push_back(has(name));
    for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
      if (locations_.draft7() && keyword[9] != 'i') continue;
      for (const auto& [name, value] : members(schema.find(keyword), keyword)) parts.push_back(dependency(name, value, keyword, base));
    }
  }
  FormulaId dependency(const std::string& name, const Json& value, const char* keyword, const std::string& base) {
    std::vector<FormulaId> then;
    if (value.is(Json::kArray)) {
      for (const std::string& other : names_of(&value, keyword)) then.push_back(has(other));
    } else {
      then.push_back(read(value, base));
    }
    if (then.empty()) return out_.yes;
    FormulaId present = has(name);
    then.push_back(present);
    FormulaId absent = negation(present), no_object = types(kAllTypes & ~kObjectBit);
    return either({no_object, absent, both(std::move(then))});
  }
  static const std::vector<JsonMember>& members(const Json* value, const char* keyword) {
    static const std::vector<JsonMember> none;
    if (!value) return none;
    if (!value->is(Json::kObject)) wrong(keyword, "an object");
    return value->members;
  }
  static std::vector<std::string> names_of(const Json* list, const char* keyword) {
    std::vector<std::string> out;
    if (!list) return out;
    if (!list->is(Json::kArray)) wrong(keyword, "a list of property names");
    for (const Json& item : list->items) {
      if (!item.is(Json::kString)) wrong(keyword, "a list of property names");
      out.push_back(item.text);
    }
    return out;
  }

  SchemaOptions options_;
  Budget& budget_;
  Locations locations_;
  SchemaFormulas out_;
  std::unordered_map<const Json*, FormulaId> read_;
  std::unordered_map<const Json*, Outline> outlines_;
  int depth_ = 0;
};

}  // namespace

uint8_t Formula::about() const {
  switch (kind) {
    case kNumber: return kNumberBit;
    case kText:
    case kLength: return kStringBit;
    case kItems:
    case kItemCount:
    case kContains:
    case kUnique: return kArrayBit;
    case kProperties:
    case kHas:
    case kPropertyCount:
    case kPropertyNames: return kObjectBit;
    default: return 0;
  }
}

SchemaFormulas read_schema(const Json& schema, const SchemaOptions& options, Budget& budget) {
  return SchemaReader(schema, options, budget).take();
}

}  // namespace tandem::grammar
