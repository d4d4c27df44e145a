#include "grammar/frame.h"

#include <algorithm>

namespace tandem::grammar {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  hash *= 0xFF51AFD7ED558CCDull;
  return hash ^ (hash >> 32);
}

bool contains(const std::vector<Thread>& threads, const Thread& thread) {
  return std::any_of(threads.begin(), threads.end(), [&](const Thread& other) { return other.same(thread); });
}

}  // namespace

void Text::add(std::string_view bytes, Reading reading) {
  if (reading == Reading::kText) whole += bytes;
  for (char byte : bytes) {
    a = (a ^ uint8_t(byte)) * 0x100000001B3ull;
    a ^= a >> 31;
    b = mix(b, uint8_t(byte));
  }
}

NodeRef make_node(const Frame* frame, NodeRef parent, uint64_t a, uint64_t b, std::vector<uint64_t> extra, UsedRef used) {
  uint64_t hash = mix(mix(mix(parent ? parent->hash : 0, reinterpret_cast<uintptr_t>(frame)), a), b);
  for (uint64_t word : extra) hash = mix(hash, word);
  if (used) hash = mix(hash, used->hash());
  uint32_t depth = parent ? parent->depth + 1 : 0;
  return std::make_shared<const Node>(frame, std::move(parent), a, b, std::move(extra), std::move(used), hash, depth);
}

bool same_stack(const Node* x, const Node* y) {
  while (x != y) {
    if (!x || !y || x->hash != y->hash || x->frame != y->frame || x->a != y->a || x->b != y->b || x->extra != y->extra) return false;
    if (x->used != y->used && (!x->used || !y->used || !x->used->same(*y->used))) return false;
    x = x->parent.get();
    y = y->parent.get();
  }
  return true;
}

uint64_t Thread::hash() const { return mix(mix(mix(parent->hash, reinterpret_cast<uintptr_t>(lexer)), state), text.a ^ text.b); }

bool State::same(const State& other) const {
  if (can_end != other.can_end || threads.size() != other.threads.size()) return false;
  for (size_t i = 0; i < threads.size(); ++i) {
    if (!threads[i].same(other.threads[i])) return false;
  }
  return true;
}

uint64_t State::hash() const {
  uint64_t hash = can_end;
  for (const Thread& thread : threads) hash = mix(hash, thread.hash());
  return hash;
}

bool Sink::Job::operator==(const Job& other) const {
  return rules == other.rules && rule == other.rule && same_stack(node.get(), other.node.get());
}

size_t Sink::JobHash::operator()(const Job& job) const {
  return size_t(mix(mix(job.node->hash, reinterpret_cast<uintptr_t>(job.rules)), uint64_t(job.rule)));
}

void Sink::count() {
  if (++expansions_ > kMostExpansions || state_.threads.size() > kMostThreads)
    throw Error(ErrorKind::kRange, "the grammar is too ambiguous here");
}

void Sink::put_off(Job job) {
  count();
  auto [known, fresh] = known_.insert(std::move(job));
  if (fresh) waiting_.push_back(&*known);
}

void Sink::settle() {
  while (!waiting_.empty()) {
    const Job& job = *waiting_.back();
    waiting_.pop_back();
    if (job.rules) job.rules->begin(job.rule, job.node, *this);
    else job.node->frame->resume(job.node, 0, {}, *this);
  }
}

void Sink::end_lexeme(const NodeRef& parent, int32_t label, const Text& text) {
  parent->frame->resume(parent, label, text, *this);
  settle();
}

void Sink::add(const Lexer& lexer, const NodeRef& parent) {
  count();
  LexState state = lexer.start();
  if (state == kDead) return;
  Thread thread{&lexer, state, parent, {}};
  if (!contains(state_.threads, thread)) state_.threads.push_back(std::move(thread));
}

size_t close(State& state) {
  Sink sink(state);
  for (size_t i = 0; i < state.threads.size(); ++i) {
    int32_t label = state.threads[i].lexer->label(state.threads[i].state);
    if (label == kNone || !state.threads[i].parent->frame->ends(state.threads[i])) continue;
    const NodeRef parent = state.threads[i].parent;
    const Text text = state.threads[i].text;
    sink.end_lexeme(parent, label, text);
  }
  return sink.expansions();
}

namespace {

// The lexer goes to `next`; false where the frame refuses that.
bool enter(Thread& thread, LexState next, uint8_t byte) {
  const Frame& frame = *thread.parent->frame;
  Reading reading = frame.reading(thread);
  if (reading != Reading::kNothing) {
    std::string decoded;
    thread.lexer->decode(thread.state, byte, decoded);
    thread.text.add(decoded, reading);
  }
  thread.state = next;
  return reading == Reading::kNothing || frame.admits(thread);
}

}  // namespace

Move move_thread(Thread& thread, uint8_t byte) {
  LexState next = thread.lexer->next(thread.state, byte);
  if (next == kDead) return Move::kDead;
  return enter(thread, next, byte) ? Move::kMoved : Move::kRefused;
}

void step_thread(const Thread& thread, uint8_t byte, std::vector<Thread>& out) {
  LexState next = thread.lexer->next(thread.state, byte);
  if (next == kDead) return;
  Thread moved = thread;
  if (enter(moved, next, byte) && !contains(out, moved)) out.push_back(std::move(moved));
}

size_t step(const State& from, uint8_t byte, State& to) {
  to.threads.clear();
  to.can_end = false;
  for (const Thread& thread : from.threads) step_thread(thread, byte, to.threads);
  return from.threads.size() + close(to);
}

int64_t Frame::rest(const Thread& thread, int64_t most) const {
  for (int32_t label : thread.lexer->labels()) {
    int64_t inner = thread.lexer->distance(thread.state, label);
    if (inner < most) most = std::min(most, inner + distance(*thread.parent, label));
  }
  return most;
}

State after_lexeme(const NodeRef& parent, int32_t label, const Text& text) {
  State out;
  Sink(out).end_lexeme(parent, label, text);
  close(out);
  return out;
}

namespace {

// Computed once per node: states along one text share most of their stacks.
int64_t to_end(const Node* top) {
  std::vector<const Node*> unknown;
  const Node* node = top;
  for (; node && node->to_end.load(std::memory_order_relaxed) < 0; node = node->parent.get()) unknown.push_back(node);
  int64_t total = node ? node->to_end.load(std::memory_order_relaxed) : 0;
  for (size_t i = unknown.size(); i-- > 0;) {
    total = std::min(kNever, total + unknown[i]->frame->distance(*unknown[i], 0));
    unknown[i]->to_end.store(total, std::memory_order_relaxed);
  }
  return total;
}

}  // namespace

int64_t distance(const State& state) {
  if (state.can_end) return 0;
  int64_t best = kNever;
  for (const Thread& thread : state.threads) {
    int64_t outer = to_end(thread.parent->parent.get());
    if (outer < best) best = outer + thread.parent->frame->rest(thread, best - outer);
  }
  return best;
}

}  // namespace tandem::grammar
