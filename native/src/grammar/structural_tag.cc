#include "grammar/structural_tag.h"

#include <algorithm>

#include "grammar/counted_lexer.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"
#include "grammar/values.h"

namespace tandem::grammar {
namespace {

// Texts that hold one of the words; with `more_after`, followed by something.
DfaRef texts_with(const std::vector<std::string>& list, bool more_after, Budget& budget) {
  Nfa nfa(budget);
  int32_t start = nfa.add_state(), end = nfa.add_state(), beyond = nfa.add_state();
  const std::vector<CodeRange> all = {{0, 0x10FFFF}};
  add_code_points(nfa, start, start, all);
  for (const std::string& word : list) {
    int32_t at = start;
    for (size_t i = 0; i < word.size(); ++i) {
      int32_t next = i + 1 == word.size() ? end : nfa.add_state();
      nfa.add_bytes(at, next, uint8_t(word[i]), uint8_t(word[i]));
      at = next;
    }
  }
  add_code_points(nfa, end, beyond, all);
  add_code_points(nfa, beyond, beyond, all);
  return determinize(nfa, start, [=](int32_t state) { return state == beyond || (!more_after && state == end) ? 0 : kNone; });
}

Symbol lexer(DfaRef dfa) { return {Symbol::kLexer, std::make_shared<DfaLexer>(std::move(dfa)), 0, nullptr}; }

struct Tag {
  std::string begin, end;
  Sequence content;
  bool free_content = false;  // any text until `end`
};

class TagReader {
 public:
  TagReader(const GrammarOptions& options, Budget& budget) : options_(options), budget_(budget) {}

  GrammarRef compile(const Json& source) {
    rules_.rules.emplace_back();
    rules_.names.push_back("(start)");
    Sequence whole = top(source);
    rules_.rules[0] = {std::move(whole)};
    auto grammar = std::make_shared<Grammar>(std::move(rules_), budget_);
    if (grammar->empty()) throw Refused("empty language", "no text satisfies the structural tag");
    return grammar;
  }

 private:
  static const std::string& text_of(const Json& object, const char* field) {
    const Json* value = object.find(field);
    if (!value || !value->is(Json::kString)) malformed(std::string("structural_tag: ") + field + " must be a string");
    return value->text;
  }
  static const std::vector<Json>& list_of(const Json& object, const char* field) {
    const Json* value = object.find(field);
    if (!value || !value->is(Json::kArray) || value->items.empty())
      malformed(std::string("structural_tag: ") + field + " must be a list that is not empty");
    return value->items;
  }
  static const Json& schema_of(const Json& format) {
    const Json* schema = format.find("json_schema");
    if (!schema) malformed("structural_tag: json_schema is missing");
    return *schema;
  }
  static bool flag(const Json& object, const char* field) {
    const Json* value = object.find(field);
    if (value && !value->boolean()) malformed(std::string("structural_tag: ") + field + " must be a boolean");
    return value && value->is(Json::kTrue);
  }
  int32_t fresh_rule() {
    require(rules_.rules.size() < 50'000, ErrorKind::kRange, "structural_tag: too many parts");
    rules_.rules.emplace_back();
    rules_.names.push_back("(part)");
    return int32_t(rules_.rules.size()) - 1;
  }
  static Symbol rule(int32_t index) { return {Symbol::kRule, nullptr, index, nullptr}; }
  Sequence literal(const std::string& text) {
    if (text.empty()) return {};
    return {lexer(words({text}, budget_))};
  }

  Sequence top(const Json& source) {
    const Json* format = source.find("format");
    if (!format && !source.find("structures")) malformed("structural_tag: format is missing");
    return format ? read(*format) : legacy(source);
  }
  Sequence choice(const std::vector<Json>& choices) {
    std::vector<std::string> list;
    for (const Json& one : choices) {
      if (!one.is(Json::kString)) malformed("structural_tag: choices must be strings");
      list.push_back(one.text);
    }
    auto same = std::make_shared<Dfa>(*words(list, budget_));
    // All words end alike.
    for (int32_t& label : same->label) label = label == kNone ? kNone : 0;
    return {lexer(same)};
  }
  // The schema's strings as they are, without quotes and escapes; those that the pattern takes as a whole.
  Sequence bare_string(const Json& format) {
    DfaRef within = compile_regex(text_of(format, "pattern"), Anchoring::kWhole, budget_);
    int32_t index = fresh_rule();
    for (const Symbol& symbol : schema_symbols(schema_of(format), options_, budget_)) {
      if (symbol.kind != Symbol::kValue) continue;
      for (const LexerRef& scalar : symbol.values->at(symbol.rule).scalars) {
        auto strings = dynamic_cast<const StringLexer*>(scalar.get());
        if (!strings) continue;
        DfaRef texts = intersect(within, strings->texts(budget_), budget_);  // with the pattern's labels
        LexerRef counted = strings->most() < 0 ? nullptr : std::make_shared<CountedLexer>(texts, strings->most());
        rules_.rules[size_t(index)].push_back({counted ? Symbol{Symbol::kLexer, counted, 0, nullptr} : lexer(texts)});
      }
    }
    return {rule(index)};
  }
  // One tag after the other, with the separator between them.
  Sequence separated(const std::vector<Tag>& tags, const std::string& separator, bool at_least_one, bool stop_after_first) {
    int32_t one = fresh_rule(), more = fresh_rule(), all = fresh_rule();
    for (const Tag& tag : tags) {
      Sequence whole = literal(tag.begin);
      append(whole, inner(tag));
      if (!stop_after_first) whole.push_back(rule(more));
      rules_.rules[size_t(one)].push_back(std::move(whole));
    }
    Sequence again = literal(separator);
    again.push_back(rule(one));
    rules_.rules[size_t(more)] = {{}, std::move(again)};
    rules_.rules[size_t(all)] = {{rule(one)}};
    if (!at_least_one) rules_.rules[size_t(all)].push_back({});
    return {rule(all)};
  }

  Sequence legacy(const Json& source) {
    std::vector<Tag> tags;
    for (const Json& structure : list_of(source, "structures")) {
      Tag tag;
      tag.begin = text_of(structure, "begin");
      tag.end = text_of(structure, "end");
      const Json* schema = structure.find("schema");
      if (!schema) malformed("structural_tag: schema is missing");
      tag.content = schema_symbols(*schema, options_, budget_);
      tags.push_back(std::move(tag));
    }
    return triggered(tags, triggers_of(source), false, false);
  }
  static std::vector<std::string> triggers_of(const Json& source) {
    std::vector<std::string> out;
    for (const Json& trigger : list_of(source, "triggers")) {
      if (!trigger.is(Json::kString) || trigger.text.empty()) malformed("structural_tag: triggers must be strings that are not empty");
      out.push_back(trigger.text);
    }
    return out;
  }

  // No deeper than the reader of JSON went.
  Sequence read(const Json& format) {
    budget_.tick();
    const std::string& type = text_of(format, "type");
    if (type == "const_string") return literal(text_of(format, "value"));
    if (type == "json_schema") return schema_symbols(schema_of(format), options_, budget_);
    if (type == "bare_string") return bare_string(format);
    if (type == "regex") return {lexer(compile_regex(text_of(format, "pattern"), Anchoring::kWhole, budget_))};
    if (type == "grammar") return grammar(text_of(format, "grammar"));
    if (type == "any_text") return {lexer(any_string())};
    if (type == "sequence") {
      Sequence out;
      for (const Json& element : list_of(format, "elements")) {
        for (Symbol& symbol : read(element)) out.push_back(std::move(symbol));
      }
      return out;
    }
    if (type == "or") {
      std::vector<Sequence> options;
      for (const Json& element : list_of(format, "elements")) options.push_back(read(element));
      int32_t index = fresh_rule();
      rules_.rules[size_t(index)] = std::move(options);
      return {rule(index)};
    }
    if (type == "tag") {
      Tag tag = read_tag(format);
      Sequence out = literal(tag.begin);
      append(out, inner(tag));
      return out;
    }
    if (type == "choice") return choice(list_of(format, "choices"));
    if (type == "structural_tag") {
      const Json* whole = format.find("structural_tag");
      if (!whole || !whole->is(Json::kObject)) malformed("structural_tag: must be an object");
      return top(*whole);
    }
    if (type == "tags_with_separator") {
      std::vector<Tag> tags;
      for (const Json& tag : list_of(format, "tags")) tags.push_back(read_tag(tag));
      return separated(tags, text_of(format, "separator"), flag(format, "at_least_one"), flag(format, "stop_after_first"));
    }
    if (type == "triggered_tags") {
      std::vector<Tag> tags;
      for (const Json& tag : list_of(format, "tags")) tags.push_back(read_tag(tag));
      return triggered(tags, triggers_of(format), flag(format, "at_least_one"), flag(format, "stop_after_first"));
    }
    throw Refused("structural_tag " + type.substr(0, 60), "this format is not supported");
  }
  Tag read_tag(const Json& format) {
    Tag tag;
    tag.begin = text_of(format, "begin");
    tag.end = text_of(format, "end");
    const Json* content = format.find("content");
    if (!content || !content->is(Json::kObject)) malformed("structural_tag: content must be a format");
    const Json* type = content->find("type");
    tag.free_content = type && type->is(Json::kString) && type->text == "any_text" && !tag.end.empty();
    if (!tag.free_content) tag.content = read_content(tag.begin, *content);
    return tag;
  }
  // An error says in which tag it lies.
  Sequence read_content(const std::string& begin, const Json& content) {
    std::string where = begin.empty() ? "" : "in the tag \"" + begin.substr(0, 100) + "\": ";
    try {
      return read(content);
    } catch (const Refused& refused) {
      std::string why = refused.what();
      throw Refused(refused.keyword(), where + why.substr(std::min(why.size(), refused.keyword().size() + 2)));
    } catch (const Error& error) {
      throw Error(error.kind(), where + error.what());
    }
  }
  static void append(Sequence& to, Sequence from) {
    for (Symbol& symbol : from) to.push_back(std::move(symbol));
  }
  // Content and end. Free content stops at the first end.
  Sequence inner(const Tag& tag) {
    if (tag.free_content) return {lexer(up_to(tag.end, {tag.end}))};
    Sequence out = tag.content;
    append(out, literal(tag.end));
    return out;
  }
  // Texts in which the first occurrence of any of the words is `word` at the very end.
  DfaRef up_to(const std::string& word, const std::vector<std::string>& list) {
    return intersect(ending_with(word), complement(texts_with(list, true, budget_), budget_), budget_);
  }
  DfaRef ending_with(const std::string& word) {
    Nfa nfa(budget_);
    int32_t start = nfa.add_state(), at = start;
    add_code_points(nfa, start, start, {{0, 0x10FFFF}});
    for (char byte : word) {
      int32_t next = nfa.add_state();
      nfa.add_bytes(at, next, uint8_t(byte), uint8_t(byte));
      at = next;
    }
    return determinize(nfa, start, [at](int32_t state) { return state == at ? 0 : kNone; });
  }

  Sequence grammar(const std::string& source) {
    Rules inner = read_ebnf(source, budget_);
    int32_t offset = int32_t(rules_.rules.size());
    for (auto& alternatives : inner.rules) {
      for (Sequence& sequence : alternatives) {
        for (Symbol& symbol : sequence) {
          if (symbol.kind == Symbol::kRule) symbol.rule += offset;
        }
      }
      rules_.rules.push_back(std::move(alternatives));
    }
    rules_.names.insert(rules_.names.end(), inner.names.begin(), inner.names.end());
    return {rule(offset)};
  }

  // Free text; after each trigger one of the tags that begin with it. Where several triggers end at the same byte, the tags of all
  // of them are possible.
  Sequence triggered(const std::vector<Tag>& tags, const std::vector<std::string>& triggers, bool at_least_one, bool stop_after_first) {
    for (const Tag& tag : tags) {
      bool opened =
          std::any_of(triggers.begin(), triggers.end(), [&](const std::string& trigger) { return tag.begin.rfind(trigger, 0) == 0; });
      if (!opened) malformed("structural_tag: no trigger starts the tag \"" + tag.begin.substr(0, 100) + '"');
    }
    Symbol quiet = lexer(complement(texts_with(triggers, false, budget_), budget_));
    int32_t again = fresh_rule(), first = at_least_one ? fresh_rule() : again;
    std::vector<Sequence> options;
    for (const std::string& trigger : triggers) {
      std::vector<Sequence> following;
      for (const Tag& tag : tags) {
        if (tag.begin.rfind(trigger, 0) != 0) continue;
        Sequence rest = literal(tag.begin.substr(trigger.size()));
        append(rest, inner(tag));
        following.push_back(std::move(rest));
      }
      if (following.empty()) continue;
      int32_t choice = fresh_rule();
      rules_.rules[size_t(choice)] = std::move(following);
      Sequence option = {lexer(up_to(trigger, triggers)), rule(choice)};
      if (!stop_after_first) option.push_back(rule(again));
      options.push_back(std::move(option));
    }
    if (at_least_one) rules_.rules[size_t(first)] = options;
    options.push_back({quiet});
    rules_.rules[size_t(again)] = std::move(options);
    return {rule(first)};
  }

  GrammarOptions options_;
  Budget& budget_;
  Rules rules_;
};

}  // namespace

GrammarRef compile_structural_tag(std::string_view source, const GrammarOptions& options, Budget& budget) {
  Json parsed = parse_json(source, budget);
  if (!parsed.is(Json::kObject)) malformed("structural_tag: must be an object");
  return TagReader(options, budget).compile(parsed);
}

}  // namespace tandem::grammar
