// Masks against brute force: at every position of accepted texts the mask is the set of tokens whose bytes keep the text possible.
#include <algorithm>
#include <random>

#include "grammar/ebnf.h"
#include "grammar/matcher.h"
#include "patient_budget.h"
#include "test.h"

namespace {

using namespace tandem;
using namespace tandem::grammar;

std::shared_ptr<const SharedMasks> small_vocabulary() {
  static const std::shared_ptr<const SharedMasks> made = [] {
    std::vector<std::string> tokens = {""};  // token 0 ends the text
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
    for (const char* word :
         {"{\"",   "\":", "\": ", "\",",  "\",\"", "\"}",       "},",        "}]",  "]}",     "[]",           "{}",   "[[",         "]]",
          "true",  "tru", "null", "fal",  "false", "12",        "00",        "1.5", "-1",     "e1",           "\\\"", "\\u00",      "\\n",
          "ab",    "abc", "name", "a\"",  "b\":1", "a\":1,\"a", "\",\"a\":", "1,",  "1}",     "  ",           "\n  ", "é",          "\xC3",
          "\xA9x", "foo", "bar",  "2020", "-01",   "0.",        ".5",        "ba",  "a\":\"", "x\",\"x\":\"", "\"\"", "\":\"\",\"", "}}"}) {
      tokens.push_back(word);
    }
    return std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{0}));
  }();
  return made;
}

// Words of a few letters, signs and characters of several bytes, some of them cut: its trie has deep and wide subtrees.
std::shared_ptr<const SharedMasks> wide_vocabulary() {
  static const std::shared_ptr<const SharedMasks> made = [] {
    const std::vector<std::string> pieces = {"a",  "b",  "o",  "f", " ", "1", "é", "ß", "日", "\xE6", "\x97", "😀",
                                             "\"", "\\", "\n", ",", ":", "{", "}", "[", "]",  "-",    "u0"};
    std::mt19937 random(5);
    std::vector<std::string> tokens = {""};
    for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, char(byte)));
    for (int i = 0; i < 900; ++i) {
      std::string word;
      size_t kinds = i % 3 == 0 ? pieces.size() : i % 3 == 1 ? 5 : 12, length = 2 + random() % 4;
      while (length-- > 0) word += pieces[random() % kinds];
      tokens.push_back(word);
    }
    return std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{0}));
  }();
  return made;
}

std::vector<uint32_t> brute_force(const Matcher& matcher, const Vocabulary& vocabulary) {
  std::vector<uint32_t> out(vocabulary.words(), 0);
  for (int32_t token = 0; size_t(token) < vocabulary.size(); ++token) {
    Matcher trial = matcher;
    if (trial.advance(token)) out[size_t(token) / 32] |= 1u << (token % 32);
  }
  return out;
}

std::string describe(const std::vector<uint32_t>& seen, const std::vector<uint32_t>& wanted, const Vocabulary& vocabulary) {
  std::string out;
  for (int32_t token = 0; size_t(token) < vocabulary.size(); ++token) {
    bool has = seen[size_t(token) / 32] >> (token % 32) & 1, should = wanted[size_t(token) / 32] >> (token % 32) & 1;
    if (has != should) out += (has ? " +" : " -") + ("<" + vocabulary.bytes(token) + ">");
  }
  return out.substr(0, 200);
}

// Tokens 1 to 256 of both vocabularies are bytes.
bool take(Matcher& matcher, const std::string& text) {
  return std::all_of(text.begin(), text.end(), [&](char byte) { return matcher.advance(1 + int32_t(uint8_t(byte))); });
}

// Walks at random, comparing each mask; then closes by the shortest way. Every state that the walk meets can end.
void walk(const GrammarRef& grammar, const std::string& name, uint32_t seed, int steps, bool closes = true,
          const std::shared_ptr<const SharedMasks>& shared = small_vocabulary(), const std::string& begun = "") {
  auto masks = std::make_shared<GrammarMasks>(grammar, shared);
  const Vocabulary& vocabulary = shared->vocabulary();
  std::mt19937 random(seed);
  Matcher matcher(masks);
  std::string text;
  CHECK(take(matcher, begun));
  for (int i = 0; i < steps && !matcher.ended(); ++i) {
    std::vector<uint32_t> mask(vocabulary.words());
    matcher.fill_mask(mask.data(), mask.size());
    std::vector<uint32_t> wanted = brute_force(matcher, vocabulary);
    if (mask != wanted)
      return test::fail(__FILE__, __LINE__, name + " after " + text + ": mask differs:" + describe(mask, wanted, vocabulary));
    std::vector<int32_t> allowed;
    for (int32_t token = 0; size_t(token) < vocabulary.size(); ++token) {
      if (mask[size_t(token) / 32] >> (token % 32) & 1) allowed.push_back(token);
    }
    if (allowed.empty()) return test::fail(__FILE__, __LINE__, name + " after " + text + ": no token may come");
    int32_t token = allowed[random() % allowed.size()];
    text += vocabulary.bytes(token);
    CHECK(matcher.advance(token));
  }
  std::vector<int32_t> ending;
  if (matcher.ended() || !closes) return;
  if (!matcher.completion_tokens(ending)) return test::fail(__FILE__, __LINE__, name + " after " + text + ": no way to end");
  for (int32_t token : ending) CHECK(matcher.advance(token));
  CHECK(matcher.can_end());
}

const char* const kSchemas[] = {
    "true",
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"name\":{\"type\":\"string\"}},\"required\":[\"a\"],"
    "\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":true},\"required\":[\"b\"],\"minProperties\":2}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"},\"maxProperties\":2}",
    "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"b$\":{\"minimum\":3}},\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":12},\"minItems\":1,\"maxItems\":3}",
    "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"type\":\"null\"}],\"items\":false}",
    "{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"minContains\":2,\"maxContains\":3}",
    "{\"enum\":[\"foo\",\"foobar\",12,1.5,null,[1,\"a\"],{\"a\":1}]}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":4}",
    "{\"type\":\"string\",\"pattern\":\"^a+b*$\"}",
    "{\"type\":\"string\",\"pattern\":\"[0-9]{2}-x\",\"maxLength\":8}",
    "{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":12.25}",
    "{\"type\":\"number\",\"multipleOf\":0.25,\"maximum\":2,\"minimum\":-1}",
    "{\"type\":\"integer\",\"multipleOf\":7}",
    "{\"anyOf\":[{\"type\":\"object\",\"required\":[\"a\"]},{\"type\":\"array\",\"minItems\":2},{\"type\":\"string\",\"format\":\"date\"}]"
    "}",
    "{\"oneOf\":[{\"type\":\"integer\",\"multipleOf\":3},{\"type\":\"integer\",\"multipleOf\":2}]}",
    "{\"not\":{\"type\":[\"object\",\"string\"]}}",
    "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
    "n\"}}},\"additionalProperties\":false}}}",
    "{\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]},\"else\":{\"maxProperties\":1},"
    "\"type\":\"object\"}",
    "{\"type\":\"string\",\"format\":\"ipv4\"}",
    "{\"type\":\"string\",\"format\":\"date-time\"}",
    "{\"type\":\"object\",\"propertyNames\":{\"maxLength\":1},\"additionalProperties\":{\"const\":true}}",
    "{\"type\":\"object\",\"patternProperties\":{\"^[ab\\n\\\"]{4}$\":{\"enum\":[\"\",true]}},\"additionalProperties\":false}",
};

TEST_ONCE(grammar_masks_equal_brute_force) {
  uint32_t seed = 1;
  for (const char* schema : kSchemas) {
    for (Mode mode : {Mode::kAccept, Mode::kGenerate}) {
      Budget budget = patient_budget();
      GrammarRef grammar = compile_json_schema(schema, {.mode = mode}, budget);
      for (int round = 0; round < 3; ++round) walk(grammar, schema, ++seed, 14, mode == Mode::kGenerate);
    }
  }
}

TEST_ONCE(grammar_masks_of_expressions_equal_brute_force) {
  uint32_t seed = 1000;
  for (const char* regex : {"(ab|abc)*12", "[a-c]{2,5}", "\\{\"name\": (true|false)\\}", "é+x", "\\p{L}{3}"}) {
    Budget budget = patient_budget();
    GrammarRef grammar = compile_whole_regex(regex, budget);
    for (int round = 0; round < 3; ++round) walk(grammar, regex, ++seed, 10);
  }
  Budget budget = patient_budget();
  walk(compile_choice({"foo", "foobar", "true", "tr"}, budget), "choice", 7, 6);
}

// Lengths that the lexer counts beside an automaton: near the bound, and far from it.
TEST_ONCE(grammar_masks_of_counted_lengths_equal_brute_force) {
  const std::string as(19'994, 'a'), url = "\"http://a/" + std::string(2068, 'b');
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"{\"type\":\"string\",\"pattern\":\"^a*(bc)?$\",\"maxLength\":20000}", {"", "\"" + as, "\"" + as + "aaa"}},
      {"{\"type\":\"string\",\"pattern\":\"^[ab\\n]*x?$\",\"minLength\":3,\"maxLength\":20000}", {"", "\"" + as}},
      {"{\"type\":\"string\",\"pattern\":\"^(aaa)*b$\",\"maxLength\":20000}", {"\"" + as}},
      {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}", {"", "\"http://a", url}},
      {"{\"anyOf\":[{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2083},{\"type\":\"string\",\"maxLength\":5}]}", {"", url}},
  };
  uint32_t seed = 9000;
  for (const auto& [schema, begun] : cases) {
    for (Mode mode : {Mode::kAccept, Mode::kGenerate}) {
      Budget budget = patient_budget();
      GrammarRef grammar = compile_json_schema(schema, {.mode = mode}, budget);
      for (const std::string& text : begun) {
        for (const auto& shared : {small_vocabulary(), wide_vocabulary()}) {
          // Under sanitizers, where it takes long, other texts would find nothing else.
          for (int round = 0; round < (test::sanitized() ? 1 : 3); ++round)
            walk(grammar, schema, ++seed, 12, mode == Mode::kGenerate, shared, text);
        }
      }
    }
  }
}

TEST_ONCE(grammar_counts_lengths_beside_an_automaton) {
  auto verdict = [](const std::string& rules, const std::string& text) {
    Budget budget;
    GrammarRef grammar = compile_json_schema("{\"type\":\"string\"," + rules + "}", {}, budget);
    Matcher matcher(std::make_shared<GrammarMasks>(grammar, small_vocabulary()));
    return take(matcher, "\"" + text + "\"") && matcher.can_end();
  };
  const std::string tail = "\"pattern\":\"^a*(bc)?$\",\"maxLength\":20000";
  auto as = [](size_t count) { return std::string(count, 'a'); };
  for (const std::string& text : {as(0), as(20'000), as(19'998) + "bc", std::string("bc")}) CHECK(verdict(tail, text));
  for (const std::string& text : {as(20'001), as(19'999) + "bc", as(19'999) + "b", std::string("cb")}) CHECK(!verdict(tail, text));
  // An escape is one character, and none may begin where none fits.
  const std::string lines = "\"pattern\":\"^[a\\n]*$\",\"minLength\":2,\"maxLength\":20000";
  for (const std::string& text : {as(19'999) + "\\n", as(1) + "\\n", as(2)}) CHECK(verdict(lines, text));
  for (const std::string& text : {as(20'000) + "\\n", as(1), std::string("\\n")}) CHECK(!verdict(lines, text));
  const std::string url = "\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083";
  const std::string site = "https://user@[2001:db8::7]:8080/x%20y";
  CHECK(verdict(url, site));
  CHECK(verdict(url, site + as(2083 - site.size())));
  CHECK(!verdict(url, site + as(2084 - site.size())));
  CHECK(!verdict(url, site + as(2081 - site.size()) + "%20"));
  CHECK(!verdict(url, "no url"));
  // The shortest text is too long.
  CHECK(!verdict("\"pattern\":\"^a{300}b*$\",\"maxLength\":100", as(300)));
}

// States whose subtrees are taken whole: strings of any text, of bounded length, by patterns that loop, names beside patterns.
TEST_ONCE(grammar_masks_of_wide_tries_equal_brute_force) {
  const char* const schemas[] = {
      "{\"type\":\"string\"}",
      "{\"type\":\"string\",\"minLength\":3,\"maxLength\":4}",
      "{\"type\":\"string\",\"maxLength\":300}",
      "{\"type\":\"string\",\"pattern\":\"a+\"}",
      "{\"type\":\"string\",\"pattern\":\"^[ab]*$\"}",
      "{\"type\":\"string\",\"pattern\":\"^\\\\p{L}+$\",\"maxLength\":5}",
      "{\"type\":\"string\",\"pattern\":\"^[^a]*$\"}",
      "{\"properties\":{\"ab\":{\"type\":\"integer\"},\"fo\":false},\"type\":\"object\"}",
      "{\"type\":\"object\",\"patternProperties\":{\"f.*o\":{\"type\":\"integer\"},\"^é\":false}}",
      "{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2}}",
      "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[abé]{1,4}$\"},\"additionalProperties\":{\"const\":\"\"}}",
      "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"string\",\"minLength\":4,\"maxLength\":6}]}",
      "{\"enum\":[\"ab\",\"ab 1\",\"日é\"]}",
  };
  uint32_t seed = 5000;
  for (const char* schema : schemas) {
    for (Mode mode : {Mode::kAccept, Mode::kGenerate}) {
      Budget budget = patient_budget();
      walk(compile_json_schema(schema, {.mode = mode}, budget), schema, ++seed, 10, mode == Mode::kGenerate, wide_vocabulary());
    }
  }
  for (const char* regex : {"[ab]*1", "[^1]+", "(\\p{L}+ )*1", ".*"}) {
    Budget budget = patient_budget();
    walk(compile_whole_regex(regex, budget), regex, ++seed, 10, true, wide_vocabulary());
  }
  Budget budget = patient_budget();
  walk(compile_ebnf("root ::= name (\",\" name)*\nname ::= [a-fo ]+ | [^,1]+ \"1\"", budget), "names", ++seed, 12, true, wide_vocabulary());
}

TEST_ONCE(grammar_rolls_back) {
  Budget budget = patient_budget();
  auto masks = std::make_shared<GrammarMasks>(compile_whole_regex("abc", budget), small_vocabulary());
  Matcher matcher(masks);
  CHECK_EQ(matcher.forced(), std::string("abc"));
  CHECK(matcher.advance_bytes("ab"));
  CHECK(!matcher.advance_bytes("x"));
  matcher.rollback(1);
  CHECK(matcher.advance_bytes("abc"));
  CHECK(matcher.can_end());
  CHECK(matcher.complete());
  CHECK(!matcher.ended());
  CHECK(matcher.advance(0));
  CHECK(matcher.ended());
  CHECK(!matcher.advance(1));
}

// The language "ab". Refuses to go on once, like a lexer that has met too many different numbers.
class FailingLexer final : public Lexer {
 public:
  LexState start() const override { return 0; }
  LexState next(LexState state, uint8_t byte) const override {
    if (failures_ > 0 && failures_-- > 0) throw Error(ErrorKind::kRange, "too many different numbers");
    return state < 2 && byte == "ab"[state] ? state + 1 : kDead;
  }
  int32_t label(LexState state) const override { return state == 2 ? 0 : kNone; }
  int64_t distance(LexState state, int32_t) const override { return 2 - int64_t(state); }

 private:
  mutable int failures_ = 1;
};

TEST_ONCE(grammar_mask_that_failed_is_made_anew) {
  Budget budget = patient_budget();
  Rules rules{{{{Symbol{Symbol::kLexer, std::make_shared<const FailingLexer>(), 0, nullptr}}}}, {"root"}};
  Matcher matcher(std::make_shared<GrammarMasks>(std::make_shared<const Grammar>(std::move(rules), budget), small_vocabulary()));
  std::vector<uint32_t> mask(small_vocabulary()->vocabulary().words());
  CHECK_ERROR(kRange, "too many different numbers", matcher.fill_mask(mask.data(), mask.size()));
  matcher.fill_mask(mask.data(), mask.size());
  CHECK(mask == brute_force(matcher, small_vocabulary()->vocabulary()));
}

// Tokenizers may lack bytes: a text is spelled wherever tokens spell it, the longest first that leave a rest that can be spelled.
TEST_ONCE(grammar_texts_are_spelled_where_they_can_be) {
  const Vocabulary vocabulary({"a", "ab", "bc", "c", "cde", "abcx", "e"}, {});
  const std::vector<int32_t> none;
  CHECK(vocabulary.spell("abc") == (std::vector<int32_t>{1, 3}));
  CHECK(vocabulary.spell("abcde") == (std::vector<int32_t>{1, 4}));
  CHECK(vocabulary.spell("abce") == (std::vector<int32_t>{1, 3, 6}));
  CHECK(vocabulary.spell("bcab") == (std::vector<int32_t>{2, 1}));
  CHECK(vocabulary.spell("abbc") == (std::vector<int32_t>{1, 2}));
  CHECK(vocabulary.spell("abcab") == (std::vector<int32_t>{1, 3, 1}));
  CHECK(vocabulary.spell("d") == none);
  CHECK(vocabulary.spell("") == none);
  // The longest token at the first place leaves a byte without one.
  const Vocabulary gaps({"x", "xy", "yz", "xyzx"}, {});
  CHECK(gaps.spell("xyz") == (std::vector<int32_t>{0, 2}));
  CHECK(gaps.spell("xyzxyz") == (std::vector<int32_t>{3, 2}));
  CHECK(gaps.spell("xyzxyxyz") == (std::vector<int32_t>{0, 2, 1, 0, 2}));
  CHECK(gaps.spell("xyzz") == none);
  // As many ways as there are, each place is tried once.
  const Vocabulary ways({"a", "aa", "aaa", "b"}, {});
  CHECK(ways.spell(std::string(4000, 'a') + "c") == none);
  CHECK_EQ(ways.spell(std::string(3000, 'a') + "b").size(), size_t(1001));
}

void bomb(const char* schema) {
  Budget budget({.seconds = 2});
  try {
    compile_json_schema(schema, {}, budget);
    test::fail(__FILE__, __LINE__, std::string("compiled: ") + std::string(schema).substr(0, 80));
  } catch (const Error&) {
  }
}

// However many numbers the texts of a grammar have held, with tokens of up to three digits.
TEST_ONCE(grammar_numbers_do_not_run_out) {
  std::vector<std::string> tokens = {"[", ",", "]", "-", "."};
  for (int number = 0; number < 1000; ++number) {
    std::string three = std::to_string(1000 + number).substr(1);
    for (size_t digits = 1; digits <= 3; ++digits) {
      if (number < (digits == 1 ? 10 : digits == 2 ? 100 : 1000)) tokens.push_back(three.substr(3 - digits));
    }
  }
  auto shared = std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{}));
  std::vector<uint32_t> mask(shared->vocabulary().words());
  std::mt19937 random(1);
  for (const char* item : {"\"integer\"", "\"number\",\"minimum\":-5,\"maximum\":987654.5", "\"integer\",\"multipleOf\":5,\"minimum\":0",
                           "\"integer\",\"multipleOf\":20"}) {
    Budget budget = patient_budget();
    std::string schema = "{\"type\":\"array\",\"items\":{\"type\":" + std::string(item) + "}}";
    auto masks = std::make_shared<GrammarMasks>(compile_json_schema(schema, {.any_space = false}, budget), shared);
    for (int text = 0; text < 300; ++text) {
      Matcher matcher(masks);
      matcher.advance_bytes("[");
      for (int step = 0; step < 6; ++step) {
        matcher.fill_mask(mask.data(), mask.size());
        int32_t token = int32_t(random() % tokens.size());
        while (!(mask[size_t(token) / 32] >> (token % 32) & 1)) token = int32_t((token + 1) % tokens.size());
        CHECK(matcher.advance(token));
        if (tokens[size_t(token)] == "]") break;
      }
    }
  }
}

TEST_ONCE(grammar_end_tokens_are_no_text) {
  Budget budget = patient_budget();
  auto shared = std::make_shared<const SharedMasks>(
      std::make_shared<const Vocabulary>(std::vector<std::string>{"a", "b", "a"}, std::vector<int32_t>{2}));
  Matcher matcher(std::make_shared<GrammarMasks>(compile_whole_regex("ab", budget), shared));
  uint32_t mask = 0;
  for (uint32_t expected : {1u, 2u, 4u}) {
    matcher.fill_mask(&mask, 1);
    CHECK(mask == expected);
    CHECK(matcher.advance(expected == 1 ? 0 : expected == 2 ? 1 : 2));
  }
}

TEST_ONCE(grammar_bombs_are_refused) {
  bomb("{\"$ref\":\"#\"}");
  bomb("{\"$ref\":\"file:///etc/passwd\"}");
  bomb("{\"$ref\":\"http://example.com/x\"}");
  bomb("{\"type\":\"string\",\"pattern\":\"(a{1,1000}){1,1000}\"}");
  bomb("{\"type\":\"string\",\"pattern\":\"(?=.*a.{18}$)(?!.*b.{17}$)(?=.*c.{16}$).*\"}");
  bomb("{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}");
  bomb("{\"type\":\"string\",\"pattern\":\"[.*\"}");
  bomb("{\"type\":\"array\",\"minItems\":1000000000}");
  bomb("{\"type\":\"array\",\"minItems\":10000,\"contains\":{\"type\":\"integer\"},\"minContains\":1000}");
  bomb("{\"type\":\"number\",\"maximum\":1e999999999}");
  bomb("{\"type\":7}");
  bomb("{\"type\":\"strin\"}");
  bomb("not json");
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "{\"anyOf\":[";
  bomb(nested.c_str());
}

// Large, but not for that wrong: each is compiled or refused, within its bounds.
void ends(const std::string& schema) {
  Budget budget({.seconds = 2});
  try {
    compile_json_schema(schema, {}, budget);
  } catch (const Error&) {
  }
}

// `one(i)` for each i below `count`, with commas between.
template <typename One>
std::string listed(int count, const One& one) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i ? "," : "") + one(i);
  return out;
}

// An object with so many properties, whose values are alike.
std::string many_properties(int count, const std::string& more) {
  auto property = [](int i) { return "\"p" + std::to_string(i) + "\":{\"type\":\"integer\"}"; };
  return "{\"type\":\"object\",\"properties\":{" + listed(count, property) + "}" + more + "}";
}

// Accept mode takes white space around a text, where any is taken.
TEST_ONCE(grammar_without_white_space) {
  Budget budget = patient_budget();
  GrammarRef grammar = compile_json_schema("{\"type\":\"array\"}", {.mode = Mode::kAccept, .any_space = false}, budget);
  Matcher matcher(std::make_shared<GrammarMasks>(grammar, small_vocabulary()));
  CHECK(!matcher.advance_bytes(" "));
  CHECK(matcher.advance_bytes("[1,2]"));
  CHECK(matcher.complete());
}

// By their hashes the schemas of a oneOf are told apart.
TEST_ONCE(grammar_equal_values_have_equal_hashes) {
  Budget budget = patient_budget();
  auto hash = [&](const char* text) { return hash_of(parse_json(text, budget)); };
  CHECK_EQ(hash("10"), hash("1e1"));
  CHECK_EQ(hash("-0.0"), hash("0"));
  CHECK_EQ(hash("{\"a\":1,\"b\":[2]}"), hash("{\"b\":[2.0],\"a\":1}"));
  const char* const different[] = {"0",  "1",   "-1",    "10",      "\"1\"", "null",      "false",
                                   "[]", "[1]", "[1,1]", "[[1],1]", "{}",    "{\"a\":1}", "{\"1\":\"a\"}"};
  std::vector<uint64_t> all;
  for (const char* text : different) all.push_back(hash(text));
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_ONCE(grammar_hostile_sources_end) {
  const int many = test::sanitized() ? 15'000 : 60'000;
  ends("{\"type\":\"string\",\"pattern\":\"(a+)+b\"}");
  ends("{\"type\":\"string\",\"pattern\":\"^a{1,100000}$\"}");
  ends("{\"type\":\"string\",\"pattern\":\"^(\\\\p{L}|[^a-z\\\\d]){1,1000}$\"}");
  ends("{\"type\":\"object\",\"propertyNames\":{\"maxLength\":200000},\"minProperties\":5000000}");
  std::string list = "{\"enum\":[\"\"";
  for (int64_t i = 0; list.size() < size_t(many) * 160; ++i) list += ",\"a value " + std::to_string(i * 7919) + "\"";
  ends(list + "]}");
  std::string nested;
  for (int i = 0; i < 100; ++i) nested += "{\"anyOf\":[{\"type\":\"integer\"},";
  nested += "true";
  for (int i = 0; i < 100; ++i) nested += "]}";
  ends(nested);
  // All schemas of a oneOf are compared with each other, and all references are followed.
  auto numbers = [](int of) { return "{\"enum\":[" + listed(1500, [of](int i) { return std::to_string(of * 1500 + i); }) + "]}"; };
  ends("{\"oneOf\":[" + listed(300, numbers) + "]}");
  std::string names = listed(1500, [](int i) { return "\"p" + std::to_string(i) + "\""; });
  ends("{\"oneOf\":[" + listed(60, [&](int) { return many_properties(1500, ",\"required\":[" + names + "]"); }) + "]}");
  auto property = [many](int i) {
    return "\"p" + std::to_string(i) + "\":{\"$ref\":\"#/properties/p" + std::to_string(i * 7 % many) + "\"}";
  };
  ends("{\"type\":\"array\",\"properties\":{" + listed(many, property) + "}}");
  ends(many_properties(many, ",\"patternProperties\":{" + listed(500, [](int i) { return "\"^q" + std::to_string(i) + "\":{}"; }) + "}"));
  // Few states, each of which stands for all of those of the expression.
  Budget budget = patient_budget();
  CHECK_ERROR(kRange, "too many states", compile_whole_regex("(a?){60000}", budget));
}

// What a matcher is asked while it writes is bounded too, whatever the grammar: it answers, or says that it gives up.
void bounded(const GrammarRef& grammar, const std::string& text) {
  Matcher matcher(std::make_shared<GrammarMasks>(grammar, small_vocabulary(), size_t(1) << 20));
  std::vector<uint32_t> mask(small_vocabulary()->vocabulary().words());
  try {
    for (char byte : text) {
      matcher.fill_mask(mask.data(), mask.size());
      if (!matcher.advance_bytes(std::string_view(&byte, 1))) break;
    }
    std::string ending;
    matcher.completion(ending, 512);
    matcher.forced();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kRange);
  }
}

TEST_ONCE(grammar_matchers_are_bounded) {
  Budget budget = patient_budget();
  bounded(compile_ebnf("root ::= s\ns ::= \"a\" s \"a\" | \"a\" s | \"a\"", budget), std::string(200, 'a'));
  bounded(compile_ebnf("root ::= s\ns ::= \"a\" s s | \"a\"", budget), std::string(200, 'a'));
  bounded(compile_ebnf("root ::= (\"a\"+ \"b\"?)* \"c\"", budget), std::string(200, 'a'));
  bounded(compile_ebnf("root ::= [ \\t\\n] root | \"x\"", budget), std::string(200, ' '));
  bounded(compile_json_schema("{\"type\":\"object\",\"minProperties\":3000}", {}, budget), "{\"a\":1,\"b\":");
  bounded(compile_json_schema("{\"type\":\"string\",\"minLength\":200000}", {}, budget), "\"aaaa");
  bounded(compile_json_schema("true", {}, budget), std::string(1100, '['));
  // Many names may follow at once, and each has its own ending.
  bounded(compile_json_schema(many_properties(3000, ""), {}, budget), "{\"p7\":1,\"p8");
  bounded(compile_json_schema(many_properties(3000, ",\"additionalProperties\":false,\"minProperties\":10"), {}, budget), "{\"p7\":1,\"p8");
  std::string names = listed(2000, [](int i) { return "\"p" + std::to_string(i) + "\""; });
  bounded(compile_json_schema(many_properties(3000, ",\"required\":[" + names + "]"), {}, budget), "{\"p0\":1,\"p1\":1");
}

}  // namespace
