// Lists without repeated items (uniqueItems): what may come next is what a plain enumeration of all lists says, token by token.
#include <algorithm>
#include <random>
#include <set>

#include "grammar/matcher.h"
#include "patient_budget.h"
#include "test.h"

namespace tandem::test {
namespace {

using namespace grammar;
using Words = std::vector<std::string>;
using Generator = std::mt19937;

size_t below(Generator& random, size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); }
const std::string& pick(Generator& random, const Words& words) { return words[below(random, words.size())]; }

// All items that a list may hold, as they are written, and how many.
struct Lists {
  std::set<std::string> values;
  size_t least = 0, most = 1000;

  // Whether some list begins with the text.
  bool begins(std::string_view text) const {
    if (values.size() < least || most < least) return false;
    if (text.empty()) return true;
    if (text[0] != '[') return false;
    text.remove_prefix(1);
    if (text.empty() || (text == "]" && least == 0)) return true;
    std::set<std::string> used;
    return most > 0 && item(text, used);
  }
  bool ends(const std::string& text) const { return !text.empty() && text.back() == ']' && begins(text) && !begins(text + "]"); }

 private:
  bool item(std::string_view text, std::set<std::string>& used) const {
    for (const std::string& value : values) {
      if (used.count(value)) continue;
      if (value.compare(0, text.size(), text) == 0) return true;
      if (text.substr(0, value.size()) != value) continue;
      used.insert(value);
      const bool found = after(text.substr(value.size()), used);
      used.erase(value);
      if (found) return true;
    }
    return false;
  }
  bool after(std::string_view text, std::set<std::string>& used) const {
    if (text == "]") return used.size() >= least;
    if (text[0] != ',' || used.size() >= most || used.size() == values.size()) return false;
    return text.size() == 1 || item(text.substr(1), used);
  }
};

std::string quoted(const std::string& text) { return '"' + text + '"'; }

// A schema of some values, which it adds to the list.
std::string random_kind(Generator& random, std::set<std::string>& values) {
  static const Words letters = {"a", "b", "aa", "ab", "\\n", "\\\"", "\xC3\xA9", "\xC3\xA8", "\xE6\x97\xA5", "", "1", "\\u0001", "\\u0002"};
  std::string list;
  auto add = [&](const std::string& value) {
    values.insert(value);
    list += (list.empty() ? "" : ",") + value;
  };
  switch (below(random, 7)) {
    case 0:
      for (size_t i = 0; i < 4; ++i) add(quoted(pick(random, letters) + pick(random, letters)));
      return "{\"enum\":[" + list + "]}";
    case 1:
      for (const char* word :
           {"0", "1", "12", "-1", "1.5", "125", "null", "true", "\"1\"", "false", "\"null\"", "1000000000000000000000"}) {
        if (below(random, 2)) add(word);
      }
      add("7");
      return "{\"enum\":[" + list + "]}";
    case 2: {
      const int64_t low = int64_t(below(random, 30)) - 12, high = low + int64_t(below(random, random() % 2 ? 25 : 900)),
                    step = 1 + int64_t(below(random, 3));
      for (int64_t value = low; value <= high; ++value) {
        if (value % step == 0) values.insert(std::to_string(value));
      }
      if (values.empty()) add("0");
      return "{\"anyOf\":[{\"enum\":[" + list + "]},{\"type\":\"integer\",\"minimum\":" + std::to_string(low) +
             ",\"maximum\":" + std::to_string(high) + ",\"multipleOf\":" + std::to_string(step) + "}]}";
    }
    case 3: add("true"), add("false"); return "{\"type\":\"boolean\"}";
    case 4: {
      const size_t least = below(random, 3), most = least + below(random, 3);
      Words texts = {""};
      for (size_t length = 0; length <= most; ++length) {
        Words longer;
        for (const std::string& text : texts) {
          if (length >= least) values.insert(quoted(text));
          for (const char* letter : {"a", "b", "\\n"}) longer.push_back(text + letter);
        }
        texts = longer;
      }
      return "{\"type\":\"string\",\"pattern\":\"^[ab\\n]{" + std::to_string(least) + "," + std::to_string(most) + "}$\"}";
    }
    case 5: add("null"); return "{\"type\":\"null\"}";
    default: add("\"\""); return "{\"type\":\"string\",\"maxLength\":0}";
  }
}

// Tokens that belong to lists with and without repetitions.
Words random_tokens(Generator& random, const Words& values) {
  std::set<std::string> tokens = {"[", "]", ",", "\"", "\\", "n", "0", "1", "2", "a", "b", "[]", "],", "\",\"", "\"]"};
  for (int i = 0; i < 60; ++i) {
    std::string text = "[";
    for (size_t items = 1 + below(random, 4); items > 0; --items) text += pick(random, values) + (items > 1 ? "," : "]");
    for (int pieces = 0; pieces < 6; ++pieces) {
      const size_t begin = below(random, text.size());
      tokens.insert(text.substr(begin, 1 + below(random, random() % 2 ? 4 : 20)));
    }
    for (char byte : text) tokens.insert(std::string(1, byte));
  }
  return {tokens.begin(), tokens.end()};
}

struct Walker {
  const Lists& lists;
  const Words& tokens;
  std::string schema;
  std::vector<uint32_t> mask = {};

  void wrong(const std::string& text, const std::string& what) const { fail(__FILE__, __LINE__, schema + "\nafter " + text + ": " + what); }
  // The tokens that may come, by the enumeration; the mask and the matcher say the same.
  std::vector<int32_t> check(const Matcher& matcher, const std::string& text) {
    std::vector<int32_t> out;
    mask.assign((tokens.size() + 31) / 32, 0);
    matcher.fill_mask(mask.data(), mask.size());
    for (size_t token = 0; token < tokens.size(); ++token) {
      const bool wanted = lists.begins(text + tokens[token]), found = mask[token / 32] >> (token % 32) & 1;
      if (found != wanted) wrong(text, (found ? "allows " : "refuses ") + tokens[token]);
      if (Matcher(matcher).advance(int32_t(token)) != wanted) wrong(text, (wanted ? "does not take " : "takes ") + tokens[token]);
      if (wanted) out.push_back(int32_t(token));
    }
    if (matcher.can_end() != lists.ends(text)) wrong(text, "wrong about the end");
    return out;
  }
  void check_ending(const Matcher& matcher, const std::string& text) const {
    std::string rest;
    if (!matcher.completion(rest, 4096) || !lists.ends(text + rest)) wrong(text, "is not completed by " + rest);
    const std::string forced = matcher.forced(16);
    for (size_t i = 0; i < forced.size(); ++i) {
      for (int other = 0; other < 256; ++other) {
        const std::string begun = text + forced.substr(0, i) + char(other);
        if (lists.begins(begun) != (char(other) == forced[i])) wrong(text, "does not force " + forced);
      }
    }
  }
};

void walk(Generator& random, const std::shared_ptr<GrammarMasks>& masks, Walker& walker) {
  Matcher matcher(masks);
  std::vector<std::string> texts = {""};
  for (int steps = 0; steps < 14; ++steps) {
    const std::vector<int32_t> allowed = walker.check(matcher, texts.back());
    if (steps % 3 == 0) walker.check_ending(matcher, texts.back());
    if (allowed.empty()) break;
    // Closing is put off, so that lists get long.
    int32_t token = allowed[below(random, allowed.size())];
    if (walker.lists.ends(texts.back() + walker.tokens[size_t(token)])) token = allowed[below(random, allowed.size())];
    CHECK(matcher.advance(token));
    texts.push_back(texts.back() + walker.tokens[size_t(token)]);
    if (below(random, 5) == 0 && texts.size() > 3) {
      const size_t back = 1 + below(random, 2);
      matcher.rollback(back);
      texts.resize(texts.size() - back);
    }
  }
}

TEST_ONCE(grammar_unique_items_are_those_of_an_enumeration) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Generator random(seed);
    Lists lists;
    std::string kinds;
    for (size_t i = 1 + below(random, 3); i > 0; --i) kinds += random_kind(random, lists.values) + (i > 1 ? "," : "");
    std::string schema = "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"anyOf\":[" + kinds + "]}";
    if (below(random, 2)) lists.least = below(random, std::min<size_t>(lists.values.size(), 4) + 1);
    if (below(random, 2)) lists.most = lists.least + below(random, 4);
    schema += ",\"minItems\":" + std::to_string(lists.least) + ",\"maxItems\":" + std::to_string(lists.most) + "}";
    const Words tokens = random_tokens(random, {lists.values.begin(), lists.values.end()});
    Budget budget = patient_budget();
    auto shared = std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>()));
    auto masks = std::make_shared<GrammarMasks>(compile_json_schema(schema, {.any_space = false}, budget), shared);
    Walker walker{lists, tokens, schema};
    for (int walks = 0; walks < 6; ++walks) walk(random, masks, walker);
  }
}

std::shared_ptr<GrammarMasks> masks_of(const std::string& schema, const Words& tokens, Mode mode = Mode::kGenerate) {
  Budget budget = patient_budget();
  auto shared = std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>()));
  return std::make_shared<GrammarMasks>(compile_json_schema(schema, {.mode = mode, .any_space = false}, budget), shared);
}
std::string list_of(const std::string& items, const std::string& more = "") {
  return "{\"type\":\"array\",\"uniqueItems\":true,\"items\":" + items + more + "}";
}

// The items of a list as they are written, but for an unfinished one.
Words whole_items(const std::string& text) {
  Words out;
  bool inside = false;
  for (size_t at = 1, begin = 1; at < text.size(); ++at) {
    if (text[at] == '\\') ++at;
    else if (text[at] == '"') inside = !inside;
    else if (!inside && (text[at] == ',' || text[at] == ']')) out.push_back(text.substr(begin, at - begin)), begin = at + 1;
  }
  return out;
}

// Endless kinds: whatever was written, the mask and the matcher agree, repetitions are refused, and there is a way to the end.
TEST_ONCE(grammar_unique_items_of_endless_kinds_come_once) {
  const Words tokens = {"[",          "]",     ",",     "\"",     "\",\"",        "\"]",          "a",
                        "b",          "aa",    "\"a\"", "a\",\"", "\"a\",\"a\"]", "\"a\",\"b\"]", "a\",\"a\"]",
                        "a\",\"b\"]", "a\",1", ",1",    ",1,",    "1,1]",         "1,2]",         "1,\"",
                        "1",          "2",     "-",     "\xC3",   "\xA9",         "\xA8",         "\\",
                        "n",          "u00",   "0",     "1]",     "\xA9\"",       "null",         ",null]"};
  for (const std::string items :
       {"{\"type\":\"string\"}", "{\"type\":\"string\",\"minLength\":2}", "{\"type\":\"string\",\"maxLength\":1}",
        "{\"type\":\"string\",\"pattern\":\"^a*b?$\"}", "{\"type\":\"integer\"}", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":12345}",
        "{\"type\":[\"integer\",\"string\",\"null\"]}", "{\"type\":[\"integer\",\"string\"],\"maxLength\":2,\"not\":{\"multipleOf\":3}}"}) {
    const auto masks = masks_of(list_of(items, ",\"minItems\":5"), tokens);
    for (uint32_t seed = 0; seed < 12; ++seed) {
      Generator random(seed);
      Matcher matcher(masks);
      std::string text;
      for (int steps = 0; steps < 30; ++steps) {
        std::vector<uint32_t> mask((tokens.size() + 31) / 32);
        matcher.fill_mask(mask.data(), mask.size());
        Words taken;
        for (size_t token = 0; token < tokens.size(); ++token) {
          const bool found = mask[token / 32] >> (token % 32) & 1, wanted = Matcher(matcher).advance(int32_t(token));
          if (found != wanted) fail(__FILE__, __LINE__, items + text + (found ? " allows " : " refuses ") + tokens[token]);
          if (wanted) taken.push_back(tokens[token]);
        }
        std::string rest;
        if (!matcher.completion(rest, 300)) fail(__FILE__, __LINE__, items + " is not completed after " + text);
        if (int64_t(rest.size()) > matcher.bytes_to_end() + 8)
          fail(__FILE__, __LINE__, items + ' ' + text + " is completed late by " + rest);
        if (taken.empty()) break;
        const std::string& token = pick(random, taken);
        CHECK(matcher.advance_bytes(token));
        text += token;
      }
      std::set<std::string> items_met;
      for (const std::string& item : whole_items(text)) {
        if (!items_met.insert(item).second) fail(__FILE__, __LINE__, items + " comes twice in " + text);
      }
    }
  }
}

// The last character of a text of bounded length: all that begin with the same byte may be used up.
TEST_ONCE(grammar_unique_items_leave_no_unfinished_character) {
  const auto masks = masks_of(list_of("{\"type\":\"string\",\"maxLength\":1}"), {"["});
  Matcher matcher(masks);
  CHECK(matcher.advance_bytes("["));
  for (char last = char(0x80); uint8_t(last) < 0xC0; ++last) {
    CHECK(matcher.advance_bytes(std::string("\"\xC3") + last + "\","));
    if (last == char(0xBE)) CHECK_EQ(Matcher(matcher).advance_bytes("\"\xC3\xBF"), true);
  }
  CHECK_EQ(Matcher(matcher).advance_bytes("\"\xC4"), true);
  CHECK_EQ(Matcher(matcher).advance_bytes("\"\xC3"), false);
}

TEST_ONCE(grammar_unique_items_are_as_many_as_there_are_values) {
  CHECK_ERROR(kUnsupported, "uniqueItems: minItems asks for 3 different items, of which there are 2",
              masks_of(list_of("{\"type\":\"boolean\"}", ",\"minItems\":3"), {"["}));
  CHECK_ERROR(kRange, "minItems is at most 4096", masks_of(list_of("{\"type\":\"string\"}", ",\"minItems\":5000"), {"["}));
  for (const char* items :
       {"{}", "{\"type\":\"number\"}", "{\"type\":\"object\"}", "{\"type\":\"array\"}", "{\"type\":\"number\",\"multipleOf\":0.5}"})
    CHECK_ERROR(kUnsupported, "uniqueItems: of", masks_of(list_of(items), {"["}));
  // Where another kind of value is possible, a list that cannot be is left out.
  Matcher other(masks_of("{\"anyOf\":[{\"const\":1}," + list_of("{\"const\":2}", ",\"minItems\":2") + "]}", {"["}));
  CHECK_EQ(other.forced(), std::string("1"));
  // A list that is written closes behind as many items as are remembered, and stays fast.
  Matcher many(masks_of(list_of("{\"type\":\"integer\"}"), {"[", "]", ",", "1"}));
  CHECK(many.advance_bytes("["));
  for (int i = 0; i < 4095; ++i) CHECK(many.advance_bytes(std::to_string(i) + ","));
  CHECK_EQ(Matcher(many).advance_bytes("17]"), false);
  CHECK_EQ(Matcher(many).advance_bytes("17,"), false);
  CHECK_EQ(Matcher(many).advance_bytes("171717,"), false);
  CHECK_EQ(Matcher(many).advance_bytes("171717]"), true);
  CHECK(many.bytes_to_end() <= 6);
}

// Accept mode reads every spelling of a value.
TEST_ONCE(grammar_unique_items_are_told_apart_by_their_values) {
  const std::vector<Words> values = {{"1", "1.0", "10e-1", "0.1E1"},
                                     {"0", "-0", "0.0", "0e5"},
                                     {"-1", "-1.0"},
                                     {"1.5", "15e-1"},
                                     {"100", "1e2"},
                                     {"null"},
                                     {"true"},
                                     {"\"1\"", "\"\\u0031\""},
                                     {"\"a\"", "\"\\u0061\""},
                                     {"\"\\n\"", "\"\\u000a\"", "\"\\u000A\""},
                                     {"\"\xF0\x9F\x98\x80\"", "\"\\ud83d\\ude00\""},
                                     {"\"null\""},
                                     {"\"\"", "\"\""}};
  for (const std::string items : {"{\"anyOf\":[{\"type\":[\"integer\",\"string\",\"null\",\"boolean\"]},{\"const\":1.5}]}",
                                  "{\"enum\":[1,0,-1,1.5,100,null,true,\"1\",\"a\",\"\\n\",\"\xF0\x9F\x98\x80\",\"null\",\"\"]}"}) {
    const auto masks = masks_of(list_of(items), {"["}, Mode::kAccept);
    Generator random(7);
    for (int round = 0; round < 400; ++round) {
      std::set<size_t> met;
      std::string text = "[";
      bool alike = false;
      for (size_t count = 1 + below(random, 5); count > 0; --count) {
        const size_t value = below(random, values.size());
        alike = alike || !met.insert(value).second;
        text += pick(random, values[value]) + (count > 1 ? "," : "]");
      }
      Matcher matcher(masks);
      const bool read = matcher.advance_bytes(text) && matcher.can_end();
      if (read == alike) fail(__FILE__, __LINE__, items + (read ? " takes " : " refuses ") + text);
    }
  }
}

}  // namespace
}  // namespace tandem::test
