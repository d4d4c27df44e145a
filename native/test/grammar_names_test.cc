// Tokens that hold more than one name of an object, or the end of one and the beginning of another: a mask allows those that the matcher takes.
#include "grammar/matcher.h"
#include "patient_budget.h"
#include "test.h"

namespace tandem::test {
namespace {

using namespace grammar;

void check_masks(const std::string& schema, const std::vector<std::string>& tokens, const std::vector<std::string>& texts) {
  Budget budget = patient_budget();
  auto shared = std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>()));
  auto masks = std::make_shared<GrammarMasks>(compile_json_schema(schema, {}, budget), shared);
  size_t allowed = 0, refused = 0;
  for (const std::string& text : texts) {
    Matcher matcher(masks);
    CHECK(matcher.advance_bytes(text));
    std::vector<uint32_t> mask(shared->vocabulary().words());
    matcher.fill_mask(mask.data(), mask.size());
    for (size_t token = 0; token < tokens.size(); ++token) {
      const bool found = mask[token / 32] >> (token % 32) & 1, wanted = Matcher(matcher).advance(int32_t(token));
      if (found != wanted) fail(__FILE__, __LINE__, text + (found ? " allows " : " refuses ") + tokens[token]);
      (wanted ? allowed : refused) += 1;
    }
  }
  CHECK(allowed > 0 && refused > 0);
}

TEST_ONCE(grammar_names_of_any_text_come_once_within_a_token) {
  const std::vector<std::string> tokens = {"\"a\":1,\"a\":1}",
                                           "\"a\":1,\"b\":1}",
                                           "a\":1,\"a\":1}",
                                           "a\":1,\"b\":1}",
                                           "\":1,\"a\":1}",
                                           "\":1,\"b\":2,\"b\":1}",
                                           "\":\"\",\"c",
                                           "a\":1}",
                                           "a",
                                           "\"",
                                           "\":1,\"a",
                                           ",\"a\":1}",
                                           ",\"a\":\"\",\"a\":1}"};
  check_masks("{\"type\":\"object\"}", tokens,
              {"{", "{\"", "{\"a", "{\"a\":1", "{\"a\":1,\"", "{\"b\":1,\"a", "{\"a\":1,\"b", "{\"a\":1,\"b\":2,\""});
  check_masks("{\"type\":\"object\",\"properties\":{\"a\":{},\"q\":{}},\"additionalProperties\":{\"type\":\"integer\"}}", tokens,
              {"{", "{\"", "{\"a", "{\"a\":1", "{\"a\":1,\"", "{\"b\":1,\"", "{\"b\":1,\"c\":2,\""});
}

// More names than are listed one by one, and yet bounded: what is unfinished must lead to one that is left.
TEST_ONCE(grammar_names_of_many_words_come_once_within_a_token) {
  const std::vector<std::string> tokens = {"bb\":1,\"bbbb",
                                           "bb\":1,\"bbbc",
                                           "bb\":1,\"bbb",
                                           "bbbb\":1,\"bbbb\":1}",
                                           "bbbb\":1,\"bbba\":1}",
                                           "\"bbbb\":1,\"bbbb\":1}",
                                           "\"bbbb\":1,\"aaaa\":1}",
                                           "b",
                                           "bb",
                                           "bbbb",
                                           "\"",
                                           "\":1,\"",
                                           "\":1,\"bbbb\":1}"};
  const std::string schema =
      "{\"type\":\"object\",\"patternProperties\":{\"^[a-c]{4}$\":{\"type\":\"integer\"}},\"additionalProperties\":false}";
  check_masks(schema, tokens, {"{", "{\"", "{\"bb", "{\"bbbb\":1,\"", "{\"bbbb\":1,\"bb", "{\"aaaa\":1,\"bb", "{\"bbba\":1,\"bbbb"});
}

}  // namespace
}  // namespace tandem::test
