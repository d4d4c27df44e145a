// Code points and their UTF-8 spellings.
#include <algorithm>

#include "grammar/regex.h"

namespace tandem::grammar {
namespace {

constexpr uint32_t kLastCode = 0x10FFFF;

// The byte ranges of one block of code points whose UTF-8 spellings have the same length, split until each is a product of ranges.
void add_block(Nfa& nfa, int32_t from, int32_t to, uint32_t low, uint32_t high) {
  std::string first, last;
  append_utf8(low, first);
  append_utf8(high, last);
  for (size_t tail = first.size() - 1; tail > 0; --tail) {
    uint32_t mask = (1u << (6 * tail)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_block(nfa, from, to, low, low | mask);
      add_block(nfa, from, to, (low | mask) + 1, high);
      return;
    }
    if ((high & mask) != mask) {
      add_block(nfa, from, to, low, (high & ~mask) - 1);
      add_block(nfa, from, to, high & ~mask, high);
      return;
    }
  }
  int32_t at = from;
  for (size_t i = 0; i < first.size(); ++i) {
    int32_t next = i + 1 == first.size() ? to : nfa.add_state();
    nfa.add_bytes(at, next, uint8_t(first[i]), uint8_t(last[i]));
    at = next;
  }
}

}  // namespace

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += char(code);
  } else if (code < 0x800) {
    out += char(0xC0 | (code >> 6));
    out += char(0x80 | (code & 63));
  } else if (code < 0x10000) {
    out += char(0xE0 | (code >> 12));
    out += char(0x80 | ((code >> 6) & 63));
    out += char(0x80 | (code & 63));
  } else {
    out += char(0xF0 | (code >> 18));
    out += char(0x80 | ((code >> 12) & 63));
    out += char(0x80 | ((code >> 6) & 63));
    out += char(0x80 | (code & 63));
  }
}

uint32_t read_utf8(std::string_view text, size_t& at) {
  auto byte = [&](size_t i) -> uint32_t {
    if (i >= text.size()) malformed("the text is not valid UTF-8");
    return uint8_t(text[i]);
  };
  uint32_t lead = byte(at);
  size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4) malformed("the text is not valid UTF-8");
  uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    uint32_t next = byte(at + i);
    if ((next & 0xC0) != 0x80) malformed("the text is not valid UTF-8");
    code = (code << 6) | (next & 63);
  }
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[length] || code > kLastCode || (code >= 0xD800 && code <= 0xDFFF)) malformed("the text is not valid UTF-8");
  at += length;
  return code;
}

std::vector<CodeRange> normalised(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> split;
  for (CodeRange range : ranges) {
    if (range.low < 0xD800) split.push_back({range.low, std::min(range.high, 0xD7FFu)});
    if (range.high > 0xDFFF) split.push_back({std::max(range.low, 0xE000u), std::min(range.high, kLastCode)});
  }
  std::sort(split.begin(), split.end(), [](CodeRange a, CodeRange b) { return a.low < b.low; });
  std::vector<CodeRange> out;
  for (CodeRange range : split) {
    if (!out.empty() && range.low <= out.back().high + 1) {
      out.back().high = std::max(out.back().high, range.high);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

std::vector<CodeRange> negated(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> out;
  uint32_t next = 0;
  for (CodeRange range : normalised(ranges)) {
    if (range.low > next) out.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCode) out.push_back({next, kLastCode});
  return normalised(out);
}

void add_code_points(Nfa& nfa, int32_t from, int32_t to, const std::vector<CodeRange>& ranges) {
  static constexpr uint32_t kLast[] = {0x7F, 0x7FF, 0xFFFF, kLastCode};
  for (CodeRange range : normalised(ranges)) {
    for (uint32_t last : kLast) {
      if (range.low > last) continue;
      uint32_t high = std::min(range.high, last);
      add_block(nfa, from, to, range.low, high);
      if (range.high <= last) break;
      range.low = last + 1;
    }
  }
}

}  // namespace tandem::grammar
