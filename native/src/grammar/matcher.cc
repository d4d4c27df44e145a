#include "grammar/matcher.h"

#include <array>

namespace tandem::grammar {
namespace {

constexpr size_t kMostPoints = 257;
constexpr size_t kMostSteps = 8'000'000;  // of threads, and expansions, in search of one ending

// All bytes, those first by which texts end.
constexpr std::array<uint8_t, 256> kLikelyBytes = [] {
  std::array<uint8_t, 256> bytes{};
  std::array<bool, 256> taken{};
  size_t count = 0;
  auto add = [&](int first, int last) {
    for (int byte = first; byte <= last; ++byte) {
      if (taken[size_t(byte)]) continue;
      taken[size_t(byte)] = true;
      bytes[count++] = uint8_t(byte);
    }
  };
  for (char byte : std::string_view("\"}],:")) add(byte, byte);
  add('0', '9');
  add('a', 'z');
  add(0, 255);
  return bytes;
}();

// The only byte that may come; -1 where there are several or none, or where the text may end instead.
int only_byte(const State& state) {
  if (state.can_end) return -1;
  int only = -1;
  std::vector<Thread> moved;
  for (int byte = 0; byte < 256; ++byte) {
    moved.clear();
    for (const Thread& thread : state.threads) step_thread(thread, uint8_t(byte), moved);
    if (moved.empty()) continue;
    if (only >= 0) return -1;
    only = byte;
  }
  return only;
}

// Two bytes after which the end is at most `near` bytes away; false where there are none, and nothing changes.
bool take_two(State& state, int64_t near, std::string& bytes, size_t& steps) {
  State one, two;
  for (uint8_t first : kLikelyBytes) {
    steps += step(state, first, one);
    for (size_t i = 0; i < 256 && one.alive() && steps <= kMostSteps; ++i) {
      steps += step(one, kLikelyBytes[i], two);
      if (!two.alive() || distance(two) > near) continue;
      bytes += {char(first), char(kLikelyBytes[i])};
      state = std::move(two);
      return true;
    }
  }
  return false;
}

}  // namespace

Matcher::Matcher(std::shared_ptr<GrammarMasks> masks) : masks_(std::move(masks)) { points_.push_back({masks_->grammar().start()}); }

void Matcher::push(Point point) {
  if (points_.size() == kMostPoints) points_.pop_front();
  points_.push_back(std::move(point));
}

bool Matcher::advance_bytes(std::string_view bytes) {
  if (current().ended) return false;
  State state = current().state, next;
  for (char byte : bytes) {
    step(state, uint8_t(byte), next);
    std::swap(state, next);
    if (!state.alive()) return false;
  }
  push({std::move(state), false});
  return true;
}

bool Matcher::advance(int32_t token) {
  const Vocabulary& vocabulary = masks_->vocabulary();
  if (token < 0 || size_t(token) >= vocabulary.size() || current().ended) return false;
  if (vocabulary.ends(token)) {
    if (!can_end()) return false;
    push({current().state, true});
    return true;
  }
  const std::string& bytes = vocabulary.bytes(token);
  return !bytes.empty() && advance_bytes(bytes);
}

void Matcher::rollback(size_t count) {
  require(count < points_.size(), ErrorKind::kRange, "rollback: that many steps are not kept");
  points_.resize(points_.size() - count);
}

void Matcher::fill_mask(uint32_t* mask, size_t words) const {
  require(words == masks_->vocabulary().words(), ErrorKind::kRange, "mask: its size is not that of the vocabulary");
  if (current().ended) {
    std::fill(mask, mask + words, 0u);
    for (int32_t token : masks_->vocabulary().end_tokens()) mask[size_t(token) / 32] |= 1u << (token % 32);
    return;
  }
  masks_->fill(current().state, mask);
}

bool Matcher::complete() const {
  if (current().ended) return true;
  if (!can_end()) return false;
  std::vector<Thread> moved;
  for (int byte = 0; byte < 256; ++byte) {
    for (const Thread& thread : current().state.threads) step_thread(thread, uint8_t(byte), moved);
    if (!moved.empty()) return false;
  }
  return true;
}

std::string Matcher::forced(size_t most) const {
  std::string out;
  if (current().ended) return out;
  State state = current().state, next;
  while (out.size() < most) {
    int byte = only_byte(state);
    if (byte < 0) break;
    step(state, uint8_t(byte), next);
    if (!next.alive()) break;
    std::swap(state, next);
    out += char(byte);
  }
  return out;
}

bool Matcher::completion(std::string& bytes, size_t most, const Budget* budget) const {
  bytes.clear();
  size_t steps = 0;
  bool pairs = true;  // two bytes at once have led nearer whenever they were looked at, which takes long
  State state = current().state, next;
  // The estimate is a few bytes off at most; far beyond the bound there is nothing to look for.
  if (distance(state) > 2 * int64_t(most) + 64) return false;
  while (!state.can_end) {
    if (bytes.size() >= most || state.threads.empty() || steps > kMostSteps) return false;
    if (budget) budget->check_clock();
    State best;
    int64_t best_distance = kNever, nearer = distance(state) - 1;
    int chosen = -1;
    // One byte nearer is as near as it gets, but where the estimate is off.
    for (size_t i = 0; i < 256 && best_distance != nearer; ++i) {
      steps += step(state, kLikelyBytes[i], next);
      if (!next.alive()) continue;
      int64_t found = distance(next);
      if (chosen >= 0 && found >= best_distance) continue;
      best_distance = found;
      chosen = kLikelyBytes[i];
      std::swap(best, next);
    }
    if (chosen < 0) return false;
    // An escape is two bytes where one is counted: the first of them is no nearer.
    if (best_distance > nearer && pairs) {
      pairs = take_two(state, nearer, bytes, steps);
      if (pairs) continue;
    }
    bytes += char(chosen);
    state = std::move(best);
  }
  return true;
}

bool Matcher::completion_tokens(std::vector<int32_t>& tokens) const {
  std::string bytes;
  tokens.clear();
  if (!completion(bytes)) return false;
  tokens = masks_->vocabulary().spell(bytes);
  return bytes.empty() || !tokens.empty();
}

}  // namespace tandem::grammar
