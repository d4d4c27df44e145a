// Every bound of a compilation, each by itself; sources that are not what they should be; and what a matcher keeps and refuses.
#include <functional>

#include "grammar/ebnf.h"
#include "grammar/matcher.h"
#include "grammar/number_lexer.h"
#include "grammar/structural_tag.h"
#include "patient_budget.h"
#include "test.h"

namespace tandem::test {
namespace {

using namespace grammar;

using Compile = std::function<GrammarRef(const std::string& source, Budget& budget)>;
GrammarRef schema(const std::string& source, Budget& budget) { return compile_json_schema(source, {.mode = Mode::kAccept}, budget); }
GrammarRef regex(const std::string& source, Budget& budget) { return compile_whole_regex(source, budget); }
GrammarRef ebnf(const std::string& source, Budget& budget) { return compile_ebnf(source, budget); }
GrammarRef tags(const std::string& source, Budget& budget) { return compile_structural_tag(source, {}, budget); }

// Refused under the bound alone, not without it.
void refuse_under(const char* text, Limits limits, const Compile& compile, const std::string& source) {
  Budget patient = patient_budget(), budget(limits);
  compile(source, patient);
  CHECK_ERROR(kRange, text, compile(source, budget));
}

TEST_ONCE(grammar_bounds_hold_one_by_one) {
  refuse_under("too many states", {.states = 100, .seconds = 60}, regex, "[a-z]{200}");
  refuse_under("too many states", {.table_cells = 1000, .seconds = 60}, regex, "[a-z]{200}x");
  refuse_under("too many states", {.set_items = 1000, .seconds = 60}, regex, "(a|b)*a(a|b){9}");
  refuse_under("too many states", {.states = 20, .seconds = 60}, ebnf, "root ::= \"abcdefghijklmnopqrstuvwxyz\"");
  refuse_under("takes too long", {.seconds = 0}, regex, "[a-z]{2000}");
  refuse_under("takes too long", {.seconds = 0}, ebnf, "root ::= \"a\"{1000} (\"b\"{1000}){10}");
  refuse_under("too large", {.source_bytes = 20, .seconds = 60}, schema, "{\"type\":\"integer\"}   ");
  refuse_under("too large", {.source_bytes = 12, .seconds = 60}, ebnf, "root ::= \"a\" ");
  refuse_under("nested too deeply", {.nesting = 4, .seconds = 60}, schema, "{\"enum\":[[[[1]]]]}");
  refuse_under("nested too deeply", {.nesting = 4, .seconds = 60}, regex, "(((((a)))))");
  refuse_under("nested too deeply", {.nesting = 4, .seconds = 60}, ebnf, "root ::= (((((\"a\")))))");
  const std::string tag = "{\"type\":\"sequence\",\"elements\":[{\"type\":\"any_text\"}]}";
  refuse_under("nested too deeply", {.nesting = 2, .seconds = 60}, tags, "{\"type\":\"structural_tag\",\"format\":" + tag + "}");
  std::string items = "{\"prefixItems\":[";
  for (int i = 0; i < 30; ++i) items += "{\"const\":" + std::to_string(i) + "},";
  refuse_under("too many combinations", {.values = 20, .seconds = 60}, schema, items + "{}]}");
  std::string options = "{\"anyOf\":[";
  for (int i = 0; i < 9; ++i) options += "{\"minLength\":" + std::to_string(2 * i) + ",\"maxLength\":" + std::to_string(2 * i + 1) + "},";
  refuse_under("too many combinations", {.alternatives = 5, .seconds = 60}, schema, options + "{}]}");
  std::string ranges = "{\"allOf\":[";
  for (int i = 0; i < 5; ++i) {
    const std::string at = std::to_string(10 * i);
    ranges += "{\"not\":{\"enum\":[" + at + ".5," + at + ".25,7]}},";
  }
  refuse_under("too many ranges of numbers", {.alternatives = 2, .seconds = 60}, schema, ranges + "{\"type\":\"number\"}]}");
}

// A lexer is its grammar's, for all sequences: what it refused to one it may be asked for by the next.
TEST_ONCE(grammar_numbers_beyond_the_bound_are_refused_each_time) {
  const LexerRef lexer = make_number_lexer({.avoid = {{7, 0}}}, Mode::kAccept, Budget());
  LexState state = lexer->start();
  uint8_t byte = '1';
  const auto read_on = [&](const std::string& text) {
    state = lexer->start();
    for (char c : text) {
      byte = uint8_t(c);
      state = lexer->next(state, byte);
    }
  };
  const auto read_all = [&] {
    for (int number = 100'000; number < 1'000'000; ++number) read_on(std::to_string(number));
  };
  CHECK_ERROR(kRange, "too many different numbers", read_all());
  CHECK_ERROR(kRange, "too many different numbers", lexer->next(state, byte));
  read_on("100001");
  CHECK_EQ(lexer->label(state), 0);
}

TEST_ONCE(grammar_repeats_are_bounded_whatever_the_budget) {
  Budget budget = patient_budget();
  CHECK_ERROR(kRange, "repetition count", regex("a{100001}", budget));
  CHECK_ERROR(kRange, "repetition count", ebnf("root ::= \"a\"{1001}", budget));
  std::string many = "{\"oneOf\":[";
  for (int i = 0; i < 400; ++i) many += "{\"const\":" + std::to_string(i) + "},";
  CHECK_ERROR(kRange, "oneOf: too many", schema(many + "{}]}", budget));
  CHECK_ERROR(kUnsupported, "400 digits", schema("{\"minimum\":1" + std::string(400, '3') + "}", budget));
  CHECK_ERROR(kUnsupported, "400 digits", schema("{\"maximum\":1e401}", budget));
  CHECK_ERROR(kUnsupported, "counts above 1000", schema("{\"contains\":{\"type\":\"null\"},\"maxContains\":1001}", budget));
  CHECK_ERROR(kRange, "at most 10000000", schema("{\"minItems\":10000001}", budget));
  CHECK_ERROR(kRange, "at most 10000000", schema("{\"minItems\":1e300}", budget));
}

std::shared_ptr<GrammarMasks> masks_of(const GrammarRef& grammar) {
  auto vocabulary = std::make_shared<const Vocabulary>(std::vector<std::string>{"a", "[", "ab", ""}, std::vector<int32_t>{3});
  return std::make_shared<GrammarMasks>(grammar, std::make_shared<const SharedMasks>(vocabulary));
}

TEST_ONCE(grammar_texts_are_as_deep_as_they_may_be) {
  Limits limits{.document_depth = 5, .seconds = 60};
  Budget budget(limits);
  auto deepest = [&](const GrammarRef& grammar) {
    Matcher matcher(masks_of(grammar));
    int depth = 0;
    while (depth < 100 && matcher.advance_bytes("[")) ++depth;
    return depth;
  };
  // The white space around a schema's value is a level of its own.
  CHECK_EQ(deepest(schema("{}", budget)), 4);
  CHECK_EQ(deepest(ebnf("root ::= \"[\" root \"]\" | \"a\"", budget)), 5);
}

TEST_ONCE(grammar_matchers_keep_256_steps_and_end) {
  Budget budget = patient_budget();
  Matcher matcher(masks_of(regex("a*", budget)));
  CHECK_ERROR(kRange, "not kept", matcher.rollback(1));
  matcher.rollback(0);
  for (int i = 0; i < 300; ++i) CHECK(matcher.advance(0));
  CHECK_ERROR(kRange, "not kept", matcher.rollback(257));
  matcher.rollback(256);
  CHECK(!matcher.complete());
  CHECK(matcher.advance(3));
  CHECK(matcher.ended() && matcher.complete());
  CHECK(!matcher.advance(0) && !matcher.advance(3) && !matcher.advance_bytes("a"));
  uint32_t mask = 0;
  matcher.fill_mask(&mask, 1);
  CHECK_EQ(mask, 8u);
  CHECK_ERROR(kRange, "its size", matcher.fill_mask(&mask, 0));
  CHECK_ERROR(kRange, "its size", matcher.fill_mask(&mask, 2));
  matcher.rollback(1);
  CHECK(matcher.advance(0));
  // No end where the text may not end.
  CHECK(!Matcher(masks_of(regex("aa", budget))).advance(3));
}

TEST_ONCE(grammar_sources_are_what_they_should_be) {
  Budget budget = patient_budget();
  CHECK_ERROR(kType, "not valid JSON", schema("{} x", budget));
  CHECK_ERROR(kType, "not valid JSON", schema("{\"const\":\"a\nb\"}", budget));
  CHECK_ERROR(kType, "not valid JSON", schema("{\"const\":\"a\\", budget));
  CHECK_ERROR(kType, "not valid JSON", schema("{\"const\":\"a\\x\"}", budget));
  for (const char* half : {"\\uDC00", "\\uDFFF", "\\uD800\\uDBFF", "\\uD800\\uE000"}) {
    CHECK_ERROR(kType, "half of a surrogate pair", schema("{\"const\":\"" + std::string(half) + "\"}", budget));
  }
  // The last of two members with one name counts.
  Matcher last(masks_of(schema("{\"const\":1,\"const\":[]}", budget)));
  CHECK(!last.advance_bytes("1"));
  CHECK(last.advance_bytes("[]"));
  CHECK_ERROR(kType, "choice: must not be empty", compile_choice({}, budget));
  CHECK_ERROR(kUnsupported, "empty language", regex("[]", budget));
  for (const char* space : {"a", "[ x]*", "\\u00a0?"}) {
    CHECK_ERROR(kType, "more than JSON white space", compile_json_object({.space = space}, budget));
  }
  CHECK_ERROR(kType, "must match the empty text", compile_json_object({.space = " +"}, budget));
  for (const char* space : {"[ \\n]?", "^[ \\n]?$"}) {
    Matcher matcher(masks_of(compile_json_object({.space = space}, budget)));
    CHECK(matcher.advance_bytes("{\n\"a\" :[ 1\n]}") && matcher.can_end());
  }
  for (const char* bytes :
       {"\xc0\x80", "\xc1\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe0\x80\x80", "\xc3(", "\x80", "\xf0\x9f"}) {
    CHECK_ERROR(kType, "not valid UTF-8", regex(bytes, budget));
    CHECK_ERROR(kType, "not valid UTF-8", ebnf("root ::= \"a\" # " + std::string(bytes), budget));
    CHECK_ERROR(kType, "not valid UTF-8", schema("{\"const\":\"" + std::string(bytes) + "\"}", budget));
  }
  CHECK_ERROR(kRange, "4096 bytes", Vocabulary({std::string(4097, 'a')}, {}));
  CHECK_ERROR(kRange, "end token", Vocabulary({"a"}, {1}));
  CHECK_ERROR(kRange, "end token", Vocabulary({"a"}, {-1}));
}

struct Wrong {
  Compile compile;
  std::string source, text;
};

TEST_ONCE(grammar_faults_are_named) {
  const std::vector<Wrong> malformed = {
      {regex, "\\u{1234567}", "wrong \\u{} escape"},
      {regex, "\\u{110000}", "no code point"},
      {regex, "\\u{d800}", "no code point"},
      {regex, "a{3,2}", "numbers out of order"},
      {regex, "^*", "after an anchor"},
      {regex, "$+", "after an anchor"},
      {regex, "[b-a]", "wrong range"},
      {regex, "a\\01", "an octal escape"},
      {regex, std::string("a\0b", 3), "NUL is not allowed"},
      {ebnf, "root ::= \"a\"{3,2}", "numbers out of order"},
      {ebnf, "start: item~3..2\nitem: \"a\"", "numbers out of order after ~"},
      {ebnf, "start: \"z\"..\"a\"", "wrong range of characters"},
      {ebnf, "start: \"a\"..", "wrong range of characters"},
      {ebnf, "root ::= \"\\U00110000\"", "no code point"},
      {ebnf, "root ::= \"\\uD800\"", "no code point"},
      {schema, "{\"anyOf\":[{}],\"$ref\":\"#/anyOf/1\"}", "nothing is found"},
      {schema, "{\"multipleOf\":0}", "above zero"},
      {schema, "{\"minimum\":1e9999999999}", "not valid JSON"},
      {tags, "{\"structures\":[{\"begin\":\"<a>\",\"end\":\"</a>\",\"schema\":{}}],\"triggers\":[\"<b\"]}", "no trigger starts the tag"},
  };
  const std::vector<Wrong> refused = {
      {schema, "{\"multipleOf\":0.1234567890123456789}", "more than 18 digits"},
      {schema, "{\"multipleOf\":1e-500}", "more than 18 digits"},
      {schema, "{\"unevaluatedItems\":{\"type\":\"null\"}}", "unevaluatedItems"},
      {tags, "{\"format\":{\"type\":\"regex\",\"pattern\":\"[]\"}}", "no text satisfies the structural tag"},
      {ebnf, "root ::= root", "no text satisfies"},
      {regex, "(?>a)b", "an atomic group"},
      {regex, "a(?#b)", "a comment"},
      {regex, "(a)?(?(1)b)", "a condition"},
      {regex, "(?P<a>b)(?P=a)", "a back-reference"},
      {regex, "(?i)a", "a group with flags"},
      {regex, "\\p{\u00cc}", "the Unicode property \u00cc is not known"},
  };
  Budget budget = patient_budget();
  for (const Wrong& wrong : malformed) CHECK_ERROR(kType, wrong.text, wrong.compile(wrong.source, budget));
  for (const Wrong& wrong : refused) CHECK_ERROR(kUnsupported, wrong.text, wrong.compile(wrong.source, budget));
}

TEST_ONCE(grammar_tags_come_as_often_as_they_are_asked_for) {
  Budget budget = patient_budget();
  for (bool least : {false, true}) {
    for (bool stops : {false, true}) {
      const std::string flags =
          std::string(",\"at_least_one\":") + (least ? "true" : "false") + ",\"stop_after_first\":" + (stops ? "true" : "false");
      const std::string one = "[{\"type\":\"tag\",\"begin\":\"<\",\"end\":\">\",\"content\":{\"type\":\"const_string\",\"value\":\"x\"}}]";
      const std::string list = "{\"format\":{\"type\":\"tags_with_separator\",\"separator\":\",\",\"tags\":" + one + flags + "}}";
      const auto masks = masks_of(tags(list, budget));
      auto takes = [&](const char* text) {
        Matcher matcher(masks);
        return matcher.advance_bytes(text) && matcher.can_end();
      };
      CHECK_EQ(Matcher(masks).can_end(), !least);
      CHECK(takes("<x>"));
      CHECK_EQ(takes("<x>,<x>"), !stops);
      CHECK(!takes("<x>,") && !takes("<x><x>"));
    }
  }
}

}  // namespace
}  // namespace tandem::test
