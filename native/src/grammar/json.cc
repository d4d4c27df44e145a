#include "grammar/json.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/hash.h"
#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

// Members beyond which a name is looked for by halves.
constexpr size_t kFewMembers = 16;

uint64_t hash_of(std::string_view text, uint64_t seed) {
  return hash_bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size(), seed);
}

class JsonReader {
 public:
  JsonReader(std::string_view text, Budget& budget) : text_(text), budget_(budget) {}
  Json document() {
    Json out = value(0);
    space();
    if (at_ != text_.size()) fail();
    return out;
  }

 private:
  [[noreturn]] void fail() const { malformed("the schema is not valid JSON near byte " + std::to_string(at_)); }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void space() {
    while (at_ < text_.size() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
  }
  void expect(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail();
    at_ += word.size();
  }

  Json value(int depth) {
    space();
    size_t begin = at_;
    Json out = bare_value(depth);
    out.begin = begin, out.end = at_;
    return out;
  }
  Json bare_value(int depth) {
    if (depth > budget_.limits().nesting) throw Error(ErrorKind::kRange, "the schema is nested too deeply");
    budget_.tick();
    Json out;
    switch (peek()) {
      case 'n': return expect("null"), out;
      case 't': return expect("true"), out.kind = Json::kTrue, out;
      case 'f': return expect("false"), out.kind = Json::kFalse, out;
      case '"': return out.kind = Json::kString, out.text = string(), out;
      case '[': return array(depth);
      case '{': return object(depth);
      default: return number();
    }
  }

  Json number() {
    size_t end = at_;
    while (end < text_.size() && std::string_view("+-.0123456789eE").find(text_[end]) != std::string_view::npos) ++end;
    std::optional<Decimal> read = parse_decimal(text_.substr(at_, end - at_));
    if (!read) fail();
    at_ = end;
    Json out;
    out.kind = Json::kNumber;
    out.number = *read;
    return out;
  }

  Json array(int depth) {
    Json out;
    out.kind = Json::kArray;
    ++at_;
    space();
    if (peek() == ']') return ++at_, out;
    while (true) {
      out.items.push_back(value(depth + 1));
      space();
      if (peek() == ']') return ++at_, out;
      expect(",");
    }
  }

  Json object(int depth) {
    Json out;
    out.kind = Json::kObject;
    std::unordered_map<std::string, size_t> known;
    ++at_;
    space();
    if (peek() == '}') return ++at_, out;
    while (true) {
      space();
      std::string name = string();
      space();
      expect(":");
      Json item = value(depth + 1);
      auto [entry, fresh] = known.emplace(name, out.members.size());
      if (fresh) out.members.push_back({std::move(name), std::move(item)});
      else out.members[entry->second].value = std::move(item);
      space();
      if (peek() == '}') break;
      expect(",");
    }
    ++at_;
    if (out.members.size() > kFewMembers) sort_names(out);
    return out;
  }
  static void sort_names(Json& object) {
    object.by_name.resize(object.members.size());
    std::iota(object.by_name.begin(), object.by_name.end(), 0u);
    std::sort(object.by_name.begin(), object.by_name.end(),
              [&](uint32_t a, uint32_t b) { return object.members[a].name < object.members[b].name; });
  }

  std::string string() {
    expect("\"");
    std::string out;
    while (peek() != '"') {
      if (at_ >= text_.size() || uint8_t(peek()) < 0x20) fail();
      if (peek() == '\\') {
        ++at_;
        escape(out);
        continue;
      }
      size_t before = at_;
      read_utf8(text_, at_);
      out.append(text_.substr(before, at_ - before));
    }
    ++at_;
    return out;
  }

  void escape(std::string& out) {
    static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
    char letter = peek();
    ++at_;
    size_t index = kLetters.find(letter);
    if (letter != 'u' && index == std::string_view::npos) fail();
    if (letter != 'u') {
      out += kMeaning[index];
      return;
    }
    uint32_t code = hex();
    if (code >= 0xD800 && code <= 0xDBFF) {
      expect("\\u");
      uint32_t low = hex();
      if (low < 0xDC00 || low > 0xDFFF) malformed("the schema holds half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
      malformed("the schema holds half of a surrogate pair");
    }
    append_utf8(code, out);
  }

  uint32_t hex() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      uint8_t c = uint8_t(peek()), low = c | 32;
      if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f')) fail();
      value = value * 16 + (c <= '9' ? c - '0' : low - 'a' + 10);
    }
    return value;
  }

  std::string_view text_;
  Budget& budget_;
  size_t at_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  if (by_name.empty()) {
    auto found = std::find_if(members.begin(), members.end(), [&](const auto& member) { return member.name == name; });
    return found == members.end() ? nullptr : &found->value;
  }
  auto at = std::lower_bound(by_name.begin(), by_name.end(), name, [&](uint32_t i, std::string_view n) { return members[i].name < n; });
  return at == by_name.end() || members[*at].name != name ? nullptr : &members[*at].value;
}

Json parse_json(std::string_view text, Budget& budget) {
  if (text.size() > budget.limits().source_bytes) throw Error(ErrorKind::kRange, "the schema is too large");
  return JsonReader(text, budget).document();
}

uint64_t hash_of(const Json& value) {
  uint64_t hash = uint64_t(value.kind + 1) << 56;
  if (value.is(Json::kNumber)) hash = hash_of(value.number.digits, hash + uint64_t(value.number.exponent) * 4 + value.number.negative);
  if (value.is(Json::kString)) hash = hash_of(value.text, hash);
  for (const Json& item : value.items) hash = hash_of(std::string_view(reinterpret_cast<const char*>(&hash), sizeof hash), hash_of(item));
  uint64_t members = 0;  // a sum: their order does not matter
  for (const auto& [name, item] : value.members) members += hash_of(name, hash_of(item));
  return value.members.empty() ? hash : hash ^ members;
}

}  // namespace tandem::grammar
