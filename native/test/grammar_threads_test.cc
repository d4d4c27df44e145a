// Masks of one grammar that several threads ask for at once: each is the one that a thread alone gets, whatever was made and forgotten before.
#include <algorithm>
#include <random>
#include <thread>

#include "grammar/ebnf.h"
#include "grammar/matcher.h"
#include "patient_budget.h"
#include "test.h"

namespace {

using namespace tandem;
using namespace tandem::grammar;

std::shared_ptr<const SharedMasks> vocabulary_of_words() {
  const std::vector<std::string> pieces = {"\"", "\"", ",", ":",  "{", "}",  "[",    "]",    " ",
                                           "a",  "bc", "1", "20", "-", ".5", "true", "null", "\\n"};
  std::mt19937 random(3);
  std::vector<std::string> tokens = {""};
  for (int byte = ' '; byte <= '~'; ++byte) tokens.push_back(std::string(1, char(byte)));
  for (int i = 0; i < 600; ++i) {
    std::string word;
    for (size_t left = 1 + random() % 4; left > 0; --left) word += pieces[random() % pieces.size()];
    tokens.push_back(word);
  }
  return std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{0}));
}

using Mask = std::vector<uint32_t>;

// Texts by tokens drawn at random, from the masks that were met on the way.
std::vector<Mask> draw(const std::shared_ptr<GrammarMasks>& masks, uint32_t seed, int texts, int steps) {
  std::mt19937 random(seed);
  std::vector<Mask> met;
  for (int text = 0; text < texts; ++text) {
    Matcher matcher(masks);
    for (int step = 0; step < steps && !matcher.ended(); ++step) {
      Mask mask(masks->vocabulary().words());
      matcher.fill_mask(mask.data(), mask.size());
      std::vector<int32_t> allowed;
      for (int32_t token = 0; size_t(token) < masks->vocabulary().size(); ++token) {
        if (mask[size_t(token) / 32] >> (token % 32) & 1) allowed.push_back(token);
      }
      met.push_back(std::move(mask));
      if (allowed.empty() || !matcher.advance(allowed[random() % allowed.size()])) return {};
    }
  }
  return met;
}

void same_on_threads(const GrammarRef& grammar, const std::shared_ptr<const SharedMasks>& shared, size_t most_bytes) {
  constexpr uint32_t kThreads = 5;
  auto masks = std::make_shared<GrammarMasks>(grammar, shared, most_bytes);
  std::vector<std::vector<Mask>> met(kThreads);
  std::vector<std::thread> threads;
  // Two of them draw the same texts.
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { met[i] = draw(masks, i / 2, 6, 20); });
  for (std::thread& thread : threads) thread.join();
  CHECK(masks->bytes() < most_bytes + (size_t(64) << 10));
  for (uint32_t i = 0; i < kThreads; ++i) {
    CHECK(met[i].size() > 6);
    CHECK(met[i] == draw(std::make_shared<GrammarMasks>(grammar, shared), i / 2, 6, 20));
  }
}

// With room for all masks, and with so little that they are forgotten while others are made.
TEST_ONCE(grammar_masks_are_the_same_on_threads) {
  const auto shared = vocabulary_of_words();
  for (const char* schema : {"true", "{\"type\":\"array\",\"items\":{},\"minItems\":20}",
                             "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\",\"maxLength\":9},\"minProperties\":9}",
                             "{\"type\":\"array\",\"items\":{\"type\":\"number\",\"minimum\":-3.5,\"maximum\":4000},\"minItems\":20}"}) {
    Budget budget = patient_budget();
    const GrammarRef grammar = compile_json_schema(schema, {}, budget);
    for (size_t most_bytes : {size_t(32) << 20, size_t(8) << 10}) same_on_threads(grammar, shared, most_bytes);
  }
}

// What is too much to be made is so whatever is known already.
TEST_ONCE(grammar_masks_are_too_much_whatever_was_made_before) {
  std::vector<std::string> tokens = {""};
  for (size_t length = 1; length <= 30; ++length) tokens.push_back(std::string(length, 'a'));
  const auto shared = std::make_shared<const SharedMasks>(std::make_shared<const Vocabulary>(tokens, std::vector<int32_t>{0}));
  Budget budget = patient_budget();
  auto masks = std::make_shared<GrammarMasks>(compile_ebnf("root ::= s\ns ::= \"a\" s \"a\" | \"a\" s | \"a\"", budget), shared);
  Mask mask(shared->vocabulary().words());
  auto refused = [&](size_t length) {
    Matcher matcher(masks);
    if (!matcher.advance_bytes(std::string(length, 'a'))) return false;
    try {
      matcher.fill_mask(mask.data(), mask.size());
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kRange;
    }
    return false;
  };
  // What is known of it is most of it the second time, and of what is not refused nothing the first time.
  CHECK(refused(100));
  for (size_t length : {60, 70, 60}) CHECK(!refused(length));
  for (size_t length : {90, 100}) CHECK(refused(length));
}

}  // namespace
