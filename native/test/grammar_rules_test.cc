// EBNF in both notations and structural tags: texts that are in the language and texts that are not.
#include "grammar/ebnf.h"
#include "grammar/matcher.h"
#include "grammar/structural_tag.h"
#include "patient_budget.h"
#include "test.h"

namespace {

using namespace tandem;
using namespace tandem::grammar;

bool accepts(const Grammar& grammar, const std::string& text) {
  State state = grammar.start(), next;
  for (char byte : text) {
    step(state, uint8_t(byte), next);
    std::swap(state, next);
    if (!state.alive()) return false;
  }
  return state.can_end;
}

void expect(const Grammar& grammar, const std::string& name, const std::vector<std::string>& in, const std::vector<std::string>& out) {
  for (const std::string& text : in) {
    if (!accepts(grammar, text)) test::fail(__FILE__, __LINE__, name + " refuses " + text);
  }
  for (const std::string& text : out) {
    if (accepts(grammar, text)) test::fail(__FILE__, __LINE__, name + " accepts " + text);
  }
}

void expect_grammar(const std::string& source, const std::vector<std::string>& in, const std::vector<std::string>& out) {
  Budget budget = patient_budget();
  expect(*compile_ebnf(source, budget), source, in, out);
}

TEST_ONCE(grammar_gbnf) {
  expect_grammar("root ::= \"a\" [b-d]* | \"x\"+ # note\n", {"a", "abcd", "xx"}, {"", "b", "ax"});
  expect_grammar("root ::= expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= [0-9]+ |\n  \"(\" expr \")\"\n", {"1", "(1+2)-3", "((4))"},
                 {"1+", "(1", "()"});
  expect_grammar("root ::= [^\\n\\]]{2,3} \"\\\"\"", {"ab\"", "é[c\""}, {"a\"", "abcd\"", "a]\""});
  expect_grammar("root ::= root \"+\" num | num\nnum ::= [0-9]", {"1", "1+2+3"}, {"+", "1+", "12"});
  expect_grammar("root ::= \"SELECT \" col \" from \" tab\ncol ::= \"a\" | \"b\"\ntab ::= \"t1\"", {"SELECT a from t1"},
                 {"SELECT c from t1"});
  expect_grammar("root ::= \"a\" * [b-c] {2} (\"d\" ) ?\nx ::= \"e\" # y\n", {"bc", "aabbd"}, {"a", "abcdd"});
  expect_grammar("root ::= .[\\U0001F600-\\U0001F64F[]", {"\n\U0001F601", "a["}, {"a", "aU", "a\U0001F650"});
}

TEST_ONCE(grammar_lark) {
  expect_grammar("start: \"a\" NAME? (\",\" NAME)*\nNAME: /[a-z]+/\n// note\n", {"a", "abc", "a,x,yz"}, {"a,", "A"});
  expect_grammar("?start: sum\nsum: product | sum \"+\" product -> add\nproduct: \"0\"..\"9\" | \"[\" sum \"]\"\n", {"1", "1+2", "[1+2]+3"},
                 {"+1", "12"});
  expect_grammar("start: \"a\" * item ~2\n?item: \"b\" | \"c\" ?\n", {"bb", "aab", ""}, {"a b", "bbb"});
  expect_grammar("start: item~2..3 [\"!\"]\nitem: \"ab\"\n", {"abab", "ababab!"}, {"ab", "abababab"});
  expect_grammar("start: \"\u00e0\"..\"\u00ff\" \"\\u0430\"..\"\u044f\"", {"\u00e9\u0431"}, {"\u00e9a", "\u00e9", "a\u0431"});
}

// What stands in texts and comments says nothing.
TEST_ONCE(grammar_notations_are_told_by_the_first_definition) {
  expect_grammar("// x ::= y\nstart.2: \"::=\" // z ::= y\n", {"::="}, {"", "z"});
  expect_grammar("# start: x\nroot = \"a:\" b # c: \"d\"\nb = \":\"", {"a::"}, {"a:"});
}

TEST_ONCE(grammar_rules_are_checked) {
  Budget budget = patient_budget();
  CHECK_ERROR(kType, "not defined", compile_ebnf("root ::= missing", budget));
  CHECK_ERROR(kType, "missing", compile_ebnf("other ::= \"a\"", budget));
  CHECK_ERROR(kType, "empty", compile_ebnf("", budget));
  CHECK_ERROR(kUnsupported, "left recursion", compile_ebnf("root ::= a\na ::= b \"x\"\nb ::= a \"y\" | \"z\"", budget));
  CHECK_ERROR(kUnsupported, "empty language", compile_ebnf("root ::= \"a\" root", budget));
  CHECK_ERROR(kType, "grammar", compile_ebnf("root ::= (\"a\"", budget));
  CHECK_ERROR(kUnsupported, "pattern", compile_ebnf("root ::= /(?=a)b/", budget));
  CHECK_ERROR(kType, "a line of its own", compile_ebnf("root ::= \"a\" root.b\nroot.b ::= \"c\"", budget));
  std::string nested = "root ::= ";
  for (int i = 0; i < 100'000; ++i) nested += '(';
  CHECK_ERROR(kRange, "nested", compile_ebnf(nested, budget));
}

// Ranges that overlap, also where one of them goes on behind the surrogates.
TEST_ONCE(grammar_classes_are_unions) {
  auto expect_regex = [](const std::string& pattern, const std::vector<std::string>& in, const std::vector<std::string>& out) {
    Budget budget = patient_budget();
    expect(*compile_whole_regex(pattern, budget), pattern, in, out);
  };
  expect_regex("[^\\D_]", {"0", "9"}, {"_", "a", "z", "é", "\u65e5", "\ue000"});
  expect_regex("[^\\W_]", {"a", "Z", "5"}, {"_", "-", "é"});
  expect_regex("[^b-\\uffffd]", {"a", "\U0001F600"}, {"b", "d", "z", "\ud7ff", "\ue000", "\uffff"});
  expect_regex("\\p{Close_Punctuation}\\p{Nonspacing_Mark}\\p{gc=LC}", {")\u0301a", "]\u0301\u01c5"}, {"(\u0301a", ")a", ")\u0301\u65e5"});
  expect_regex("[d\\u{80}-\\u{10ffff}a-fé]", {"a", "é", "\ud7ff", "\U0010ffff"}, {"g", "A"});
}

// Python repeats up to n times here, ECMA-262 reads the characters: neither is guessed. Other braces that repeat nothing are characters.
TEST_ONCE(grammar_a_repetition_says_its_least_count) {
  for (const char* pattern : {"x{,3}", "(ab){,12}c", "{,3}"}) {
    Budget budget = patient_budget();
    CHECK_ERROR(kType, "write {0,n}", compile_whole_regex(pattern, budget));
  }
  for (const char* pattern : {"x{,}", "x{,b}", "x{, 3}", "{x}", "x{b,3}"}) {
    Budget budget = patient_budget();
    expect(*compile_whole_regex(pattern, budget), pattern, {pattern}, {"x", "", "xxx"});
  }
}

// Every text of an ambiguous grammar is still read; the number of threads stays bounded or the text is refused with an error.
TEST_ONCE(grammar_ambiguity_stays_bounded) {
  Budget budget = patient_budget();
  GrammarRef grammar = compile_ebnf("root ::= e\ne ::= t | t e\nt ::= \"a\" | \"a\" \"a\" | \"a\" t", budget);
  try {
    accepts(*grammar, std::string(40, 'a'));
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kRange);
  }
}

// Of the ways to the same place one is followed: through empty texts, and through rules with the same beginning.
TEST_ONCE(grammar_ways_to_the_same_place_are_one) {
  expect_grammar("root ::= (\"x\"* | \"y\"*){40} \"!\"", {"!", "xyxyx!", std::string(40, 'y') + "!"}, {"", "z!"});
  std::string doubled = "root ::= r0\n";
  for (int i = 0; i < 40; ++i)
    doubled += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " | r" + std::to_string(i + 1) + "\n";
  expect_grammar(doubled + "r40 ::= \"a\"", {"a"}, {"", "aa"});
  Budget budget = patient_budget();
  std::string differing = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) {
    std::string next = "r" + std::to_string(i + 1);
    differing += "r" + std::to_string(i) + " ::= " + next + " \"b\" | " + next + " \"c\"\n";
  }
  CHECK_ERROR(kRange, "too ambiguous", compile_ebnf(differing + "r40 ::= \"a\"", budget));
}

// However deep rules lie in one another, they do not lie on the stack of the thread.
TEST_ONCE(grammar_of_long_chains) {
  std::string chain;
  for (int i = 0; i < 9000; ++i) chain += "c" + std::to_string(i) + " ::= c" + std::to_string(i + 1) + "\n";
  chain += "c9000 ::= \"q\"*\n";
  expect_grammar("root ::= c0 c0 c0 \"z\"\n" + chain, {"z", "qqqz"}, {"q"});
  std::string many = "root ::= \"z\"";
  for (int i = 0; i < 100; ++i) many += " c0";
  Budget budget = patient_budget();
  GrammarRef grammar = compile_ebnf(many + "\n" + chain, budget);
  CHECK_ERROR(kRange, "too ambiguous", accepts(*grammar, "z"));
}

TEST_ONCE(grammar_repetitions_are_counted_before_they_are_made) {
  std::string long_item = "root ::= (";
  for (int i = 0; i < 10'000; ++i) long_item += "\"a\" ";
  for (const char* count : {"{1000}", "{0,1000}"}) {
    Budget budget = patient_budget();
    CHECK_ERROR(kRange, "too many states", compile_ebnf(long_item + ")" + count, budget));
  }
}

// What a cache is told that it keeps.
TEST_ONCE(grammar_bytes_are_those_of_its_rules) {
  Budget budget = patient_budget();
  std::string source = "root ::= [a-z]{1,200} r\n";
  for (int i = 0; i < 1000; ++i) source += "r" + std::to_string(i) + " ::= \"a\" \"b\"\n";
  size_t bytes = compile_ebnf(source + "r ::= \"c\"", budget)->bytes();
  CHECK(bytes > 100'000);
}

// Beside tables of 60 KB, 80 KB of what reads them.
TEST_ONCE(grammar_bytes_are_those_of_its_values) {
  Budget budget = patient_budget();
  const std::string kinds[] = {"{\"type\":\"string\"}", "{\"type\":\"integer\"}", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
                               "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"}}}"};
  std::string schema = "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{";
  for (size_t i = 0; i < 60; ++i) schema += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":" + kinds[i % 4];
  size_t bytes = compile_json_schema(schema + "}}", {}, budget)->bytes();
  CHECK(bytes > 100'000);
}

// What a grammar is asked about it remembers, and who bounds grammars is told.
TEST_ONCE(grammar_bytes_grow_with_what_its_lexers_remember) {
  Budget budget = patient_budget();
  const GrammarRef numbers = compile_json_schema(R"({"type":"array","items":{"type":"integer","not":{"multipleOf":7}}})", {}, budget);
  size_t before = numbers->bytes();
  std::string text = "[1";
  for (int number = 100'003; number < 300'000; number += 7) text += "," + std::to_string(number);
  CHECK(accepts(*numbers, text + "]"));
  CHECK(numbers->bytes() > before + 28'000 * 200);

  std::string schema = "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{";
  for (int i = 0; i < 100; ++i) schema += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":{\"const\":1}";
  const GrammarRef names = compile_json_schema(schema + "}}", {}, budget);
  before = names->bytes();
  text = "{";
  for (int i = 0; i < 100; ++i) text += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":1";
  CHECK(accepts(*names, text + "}"));
  CHECK(names->bytes() > before + 90 * 400);
}

TEST_ONCE(grammar_structural_tags) {
  Budget budget = patient_budget();
  GrammarOptions options;
  GrammarRef legacy = compile_structural_tag(
      "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f=a>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</"
      "f>\"},{\"begin\":\"<f=b>\",\"schema\":{\"const\":\"x\"},\"end\":\"</f>\"}],"
      "\"triggers\":[\"<f=\"]}",
      options, budget);
  expect(*legacy, "legacy", {"", "free text <f", "see <f=a>12</f> and <f=b>\"x\"</f>."}, {"<f=", "<f=a>x</f>", "<f=c>1</f>", "a <f=a>1"});
  GrammarRef layered = compile_structural_tag(
      "{\"type\":\"structural_tag\",\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"tag\",\"begin\":\"<think>\",\"content\":{"
      "\"type\":\"any_text\"},\"end\":\"</think>\"},"
      "{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\",\"value\":\"no\"},{\"type\":\"json_schema\",\"json_schema\":{\"type\":"
      "\"boolean\"}},{\"type\":\"regex\",\"pattern\":\"[0-9]+\"},"
      "{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"g\\\"+\"}]}]}}",
      options, budget);
  expect(*layered, "format", {"<think>a < b</think>no", "<think></think>true", "<think>x</think>12", "<think>x</think>gg"},
         {"no", "<think>x</think>", "<think>x</think>nono"});
  GrammarRef once = compile_structural_tag(
      "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<a\",\"<ab\"],\"tags\":[{\"begin\":\"<a>\",\"content\":{\"type\":\"const_"
      "string\",\"value\":\"1\"},\"end\":\"!\"},"
      "{\"begin\":\"<ab>\",\"content\":{\"type\":\"const_string\",\"value\":\"2\"},\"end\":\"!\"}],\"at_least_one\":true,\"stop_after_"
      "first\":true}}",
      options, budget);
  expect(*once, "triggered", {"<a>1!", "<ab>2!"}, {"", "x", "x<a>1!", "<a>1!x", "<ab>1!"});
  CHECK_ERROR(kType, "structural_tag", compile_structural_tag("{\"format\":{\"type\":\"tag\"}}", options, budget));
  CHECK_ERROR(kType, "structural_tag", compile_structural_tag("{\"structures\":[],\"triggers\":[\"a\"]}", options, budget));
  CHECK_ERROR(kUnsupported, "structural_tag", compile_structural_tag("{\"format\":{\"type\":\"magic\"}}", options, budget));
}

std::string tagged(const std::string& content, const std::string& end) {
  return R"({"type":"tag","begin":"<","content":)" + content + R"(,"end":")" + end + R"("})";
}

TEST_ONCE(grammar_free_text_within_a_tag_stops_at_its_end) {
  auto expect_format = [](const std::string& format, const std::vector<std::string>& in, const std::vector<std::string>& out) {
    Budget budget = patient_budget();
    const std::string tags = R"({"format":{"type":"sequence","elements":[)" + format + R"(,{"type":"const_string","value":"."}]}})";
    expect(*compile_structural_tag(tags, {}, budget), tags, in, out);
  };
  const std::string any = R"({"type":"any_text"})", x = R"({"type":"const_string","value":"x"})";
  const std::vector<std::string> once = {"<x>.", "<xa<b>."}, twice = {"<x>>.", "<xa>b>.", "<xa."};
  expect_format(tagged(R"({"type":"sequence","elements":[)" + x + "," + any + "]}", ">"), once, twice);
  expect_format(tagged(R"({"type":"or","elements":[)" + any + "," + x + "]}", ">"), once, twice);
  expect_format(tagged(R"({"type":"structural_tag","structural_tag":{"format":)" + any + "}}", ">"), once, twice);
  // The text before, between and behind the tags, too; an end that begins with a trigger is an end.
  auto triggered = [&](const std::string& flags) {
    return R"({"type":"triggered_tags","triggers":["["],"tags":[{"begin":"[1","content":)" + x + R"(,"end":"]"}])" + flags + "}";
  };
  expect_format(tagged(triggered(""), "[/]"), {"<[/].", "<a[1x]b]c[/]."}, {"<a[/]b[/].", "<[1x]a[/][/].", "<[2x][/].", "<a."});
  expect_format(tagged(triggered(R"(,"at_least_one":true)"), "[/]"), {"<[1x]a[1x][/]."}, {"<[/].", "<a[1x][/]."});
  expect_format(tagged(triggered(R"(,"stop_after_first":true)"), ">"), {"<a>.", "<a[1x]>."}, {"<a[1x]b>.", "<a[1x]>>."});
}

TEST_ONCE(grammar_tags_refuse_by_name_what_they_would_ignore) {
  for (const char* field : {R"("excludes":["a"])", R"("excluded_strs":["a"])", R"("style":"qwen_xml")"}) {
    Budget budget = patient_budget();
    const std::string format = std::string(R"({"type":"any_text",)") + field + "}";
    CHECK_ERROR(kUnsupported, std::string(field).substr(1, 5), compile_structural_tag(R"({"format":)" + format + "}", {}, budget));
  }
  Budget budget = patient_budget();
  compile_structural_tag(R"({"format":{"type":"json_schema","json_schema":true,"style":"json","excludes":[]}})", {}, budget);
}

}  // namespace
