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
  std::string begin;
  Sequence rest;  // content and end
};

class TagReader {
 public:
  TagReader(const GrammarOptions& options, Budget& budget) : options_(options), budget_(budget) {}

  GrammarRef compile(const Json& source) {
    rules_.rules.emplace_back();
    rules_.names.push_back("(start)");
    Sequence whole = top(source, "");
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

  Sequence top(const Json& source, const std::string& end) {
    const Json* format = source.find("format");
    if (!format && !source.find("structures")) malformed("structural_tag: format is missing");
    return format ? read(*format, end) : legacy(source, end);
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
      Sequence whole = whole_of(tag);
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

  Sequence legacy(const Json& source, const std::string& end) {
    std::vector<Tag> tags;
    for (const Json& structure : list_of(source, "structures")) {
      const Json* schema = structure.find("schema");
      if (!schema) malformed("structural_tag: schema is missing");
      Tag tag{text_of(structure, "begin"), schema_symbols(*schema, options_, budget_)};
      append(tag.rest, literal(text_of(structure, "end")));
      tags.push_back(std::move(tag));
    }
    return triggered(tags, triggers_of(source), end, false, false);
  }
  static std::vector<std::string> triggers_of(const Json& source) {
    std::vector<std::string> out;
    for (const Json& trigger : list_of(source, "triggers")) {
      if (!trigger.is(Json::kString) || trigger.text.empty()) malformed("structural_tag: triggers must be strings that are not empty");
      out.push_back(trigger.text);
    }
    return out;
  }

  // The format, and behind it `end`: free text that the format ends with stops where `end` first occurs. No
  // deeper than the reader of JSON went.
  Sequence read(const Json& format, const std::string& end) {
    budget_.tick();
    refuse_unknown(format);
    const std::string& type = text_of(format, "type");
    if (type == "any_text") return {lexer(end.empty() ? any_string() : up_to(end, {end}))};
    if (type == "triggered_tags")
      return triggered(tags_of(format), triggers_of(format), end, flag(format, "at_least_one"), flag(format, "stop_after_first"));
    if (type == "sequence") {
      Sequence out;
      const std::vector<Json>& elements = list_of(format, "elements");
      for (const Json& element : elements) append(out, read(element, &element == &elements.back() ? end : ""));
      return out;
    }
    if (type == "or") {
      std::vector<Sequence> options;
      for (const Json& element : list_of(format, "elements")) options.push_back(read(element, end));
      int32_t index = fresh_rule();
      rules_.rules[size_t(index)] = std::move(options);
      return {rule(index)};
    }
    if (type == "structural_tag") {
      const Json* whole = format.find("structural_tag");
      if (!whole || !whole->is(Json::kObject)) malformed("structural_tag: must be an object");
      return top(*whole, end);
    }
    Sequence out = closed(type, format);
    append(out, literal(end));
    return out;
  }
  // A format that says itself where it ends.
  Sequence closed(const std::string& type, const Json& format) {
    if (type == "const_string") return literal(text_of(format, "value"));
    if (type == "json_schema") return schema_symbols(schema_of(format), options_, budget_);
    if (type == "bare_string") return bare_string(format);
    if (type == "regex") return {lexer(compile_regex(text_of(format, "pattern"), Anchoring::kWhole, budget_))};
    if (type == "grammar") return grammar(text_of(format, "grammar"));
    if (type == "choice") return choice(list_of(format, "choices"));
    if (type == "tag") return whole_of(read_tag(format));
    if (type == "tags_with_separator")
      return separated(tags_of(format), text_of(format, "separator"), flag(format, "at_least_one"), flag(format, "stop_after_first"));
    throw Refused("structural_tag " + type.substr(0, 60), "this format is not supported");
  }
  // XGrammar's fields that would change what is allowed.
  static void refuse_unknown(const Json& format) {
    for (const char* field : {"excludes", "excluded_str", "excluded_strs"}) {
      const Json* words = format.find(field);
      if (words && !words->is(Json::kNull) && !(words->is(Json::kArray) && words->items.empty()))
        throw Refused(std::string("structural_tag ") + field, "this field is not supported");
    }
    const Json* style = format.find("style");
    if (style && !style->is(Json::kNull) && style->text != "json") throw Refused("structural_tag style", "only JSON can be written");
  }
  std::vector<Tag> tags_of(const Json& format) {
    std::vector<Tag> tags;
    for (const Json& tag : list_of(format, "tags")) tags.push_back(read_tag(tag));
    return tags;
  }
  Tag read_tag(const Json& format) {
    Tag tag{text_of(format, "begin"), {}};
    const std::string& end = text_of(format, "end");
    const Json* content = format.find("content");
    if (!content || !content->is(Json::kObject)) malformed("structural_tag: content must be a format");
    tag.rest = read_content(tag.begin, *content, end);
    return tag;
  }
  // An error says in which tag it lies.
  Sequence read_content(const std::string& begin, const Json& content, const std::string& end) {
    std::string where = begin.empty() ? "" : "in the tag \"" + begin.substr(0, 100) + "\": ";
    try {
      return read(content, end);
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
  Sequence whole_of(const Tag& tag) {
    Sequence out = literal(tag.begin);
    append(out, tag.rest);
    return out;
  }
  // Texts in which the first occurrence of any of the words is `word` at the very end.
  DfaRef up_to(const std::string& word, const std::vector<std::string>& list) {
    return intersect(ending_with(word), complement(texts_with(list, true, budget_), budget_), budget_);
  }
  // Texts up to the first `end` in which no trigger stands before it.
  DfaRef closing(const std::vector<std::string>& triggers, const std::string& end) {
    Nfa nfa(budget_);
    int32_t start = nfa.add_state(), met = nfa.add_state(), at = met;
    for (int32_t state : {start, met}) add_code_points(nfa, state, state, {{0, 0x10FFFF}});
    auto word = [&](int32_t from, const std::string& bytes, int32_t to) {
      for (size_t i = 0; i < bytes.size(); ++i) {
        int32_t next = i + 1 == bytes.size() && to != kNone ? to : nfa.add_state();
        nfa.add_bytes(from, next, uint8_t(bytes[i]), uint8_t(bytes[i]));
        from = next;
      }
      return from;
    };
    for (const std::string& trigger : triggers) word(start, trigger, met);
    at = word(met, end, kNone);
    DfaRef opened = determinize(nfa, start, [at](int32_t state) { return state == at ? 0 : kNone; });
    return intersect(up_to(end, {end}), complement(opened, budget_), budget_);
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

  // Free text up to `end`, if there is one; after each trigger one of the tags that begin with it. Where several triggers end at the
  // same byte, the tags of all of them are possible, and so is the end where it has begun with a trigger. `at_least_one`: the text
  // begins with a tag.
  Sequence triggered(const std::vector<Tag>& tags, const std::vector<std::string>& triggers, const std::string& end, bool at_least_one,
                     bool stop_after_first) {
    std::vector<std::string> stops = triggers;
    if (!end.empty()) stops.push_back(end);
    int32_t again = fresh_rule();
    auto followed = [&](Sequence sequence) {
      append(sequence, stop_after_first ? literal(end) : Sequence{rule(again)});
      return sequence;
    };
    std::vector<Sequence> options = {
        {lexer(end.empty() ? complement(texts_with(triggers, false, budget_), budget_) : closing(triggers, end))}};
    for (const std::string& trigger : triggers) {
      std::vector<Sequence> following = behind(trigger, tags);
      if (following.empty()) continue;
      int32_t choice = fresh_rule();
      rules_.rules[size_t(choice)] = std::move(following);
      options.push_back(followed({lexer(up_to(trigger, stops)), rule(choice)}));
    }
    rules_.rules[size_t(again)] = std::move(options);
    std::vector<Sequence> first;
    for (const Tag& tag : tags) {
      auto opens = [&](const std::string& trigger) { return tag.begin.rfind(trigger, 0) == 0; };
      if (std::none_of(triggers.begin(), triggers.end(), opens))
        malformed("structural_tag: no trigger starts the tag \"" + tag.begin.substr(0, 100) + '"');
      first.push_back(followed(whole_of(tag)));
    }
    if (!at_least_one) return {rule(again)};
    int32_t begin = fresh_rule();
    rules_.rules[size_t(begin)] = std::move(first);
    return {rule(begin)};
  }
  // What may follow the trigger.
  std::vector<Sequence> behind(const std::string& trigger, const std::vector<Tag>& tags) {
    std::vector<Sequence> out;
    for (const Tag& tag : tags) {
      if (tag.begin.rfind(trigger, 0) != 0) continue;
      out.push_back(literal(tag.begin.substr(trigger.size())));
      append(out.back(), tag.rest);
    }
    return out;
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
