// The stack machine. A thread reads one lexeme on top of a stack of frames; when the lexeme ends, the frame below says what may follow.
// A state is the set of all threads that agree with the text so far, closed under "the lexeme may end here".
// Stacks are immutable and shared, so states copy cheaply and roll back by keeping the old one.
#pragma once
#include <atomic>
#include <memory>
#include <unordered_set>
#include <vector>

#include "grammar/lexer.h"
#include "grammar/used_values.h"

namespace tandem::grammar {

class Frame;

// What a frame asks to know of the text of the lexeme on top of it.
enum class Reading : uint8_t { kNothing, kHash, kText };

// Decoded text, for property names and different items. The hash is wide enough that a collision (a name wrongly taken for a repeated one)
// does not occur.
struct Text {
  uint64_t a = 0x243F6A8885A308D3ull, b = 0x13198A2E03707344ull;
  std::string whole{};  // only with Reading::kText
  bool operator==(const Text&) const = default;
  void add(std::string_view bytes, Reading reading);
};

struct Node;
using NodeRef = std::shared_ptr<const Node>;

struct Node {
  Node(const Frame* frame, NodeRef parent, uint64_t a, uint64_t b, std::vector<uint64_t> extra, UsedRef used, uint64_t hash, uint32_t depth)
      : frame(frame), parent(std::move(parent)), a(a), b(b), extra(std::move(extra)), used(std::move(used)), hash(hash), depth(depth) {}

  const Frame* frame;
  NodeRef parent;
  uint64_t a, b;  // meaning given by the frame
  std::vector<uint64_t> extra;
  UsedRef used;   // of lists of different items
  uint64_t hash;  // of the whole stack
  uint32_t depth;
  // Fewest bytes from the end of an inner frame on top of this one to the end of the text; -1 until asked for.
  mutable std::atomic<int64_t> to_end{-1};
};
NodeRef make_node(const Frame* frame, NodeRef parent, uint64_t a = 0, uint64_t b = 0, std::vector<uint64_t> extra = {}, UsedRef used = {});
bool same_stack(const Node* x, const Node* y);

struct Thread {
  const Lexer* lexer;
  LexState state;
  NodeRef parent;
  Text text{};  // of the lexeme so far, as much as the frame asks for

  bool same(const Thread& other) const {
    return lexer == other.lexer && state == other.state && text == other.text && same_stack(parent.get(), other.parent.get());
  }
  uint64_t hash() const;
};

struct State {
  std::vector<Thread> threads;
  bool can_end = false;

  bool alive() const { return can_end || !threads.empty(); }
  bool same(const State& other) const;
  uint64_t hash() const;
};

constexpr size_t kMostThreads = 2048;
// Threads, rules and ends of frames that one byte may lead to, however often to the same.
constexpr size_t kMostExpansions = 50'000;

class Sink;

// What has rules to begin.
class RuleSource {
 public:
  // Adds what the rule's alternatives begin with; where one has ended, `parent` resumes.
  virtual void begin(int32_t rule, const NodeRef& parent, Sink& sink) const = 0;

 protected:
  ~RuleSource() = default;
};

// Collects what may follow in a state, each thread once. Rules that begin and frames that resume are put off and done once each, one after the
// other: many ways may lead to the same one, and through as many others as the grammar likes.
class Sink {
 public:
  explicit Sink(State& state) : state_(state) {}
  // A lexeme on `parent` ended: adds all that may follow.
  void end_lexeme(const NodeRef& parent, int32_t label, const Text& text);
  // Starts a lexeme whose end resumes `parent`.
  void add(const Lexer& lexer, const NodeRef& parent);
  void begin(const RuleSource& rules, int32_t rule, const NodeRef& parent) { put_off({&rules, rule, parent}); }
  // An inner frame on `node` ended.
  void resume(const NodeRef& node) { put_off({nullptr, 0, node}); }
  // Ends the frame of `node`: its parent resumes.
  void pop(const Node& node) { resume(node.parent); }
  // The whole text may end here.
  void accept() { state_.can_end = true; }
  // Does what was put off.
  void settle();
  size_t expansions() const { return expansions_; }

 private:
  struct Job {
    const RuleSource* rules;  // null: the node resumes
    int32_t rule;
    NodeRef node;
    bool operator==(const Job& other) const;
  };
  struct JobHash {
    size_t operator()(const Job& job) const;
  };
  void put_off(Job job);
  void count();

  State& state_;
  std::unordered_set<Job, JobHash> known_;
  std::vector<const Job*> waiting_;
  size_t expansions_ = 0;
};

class Frame {
 public:
  virtual ~Frame() = default;
  // A lexeme or an inner frame ended with `label` (inner frames: 0).
  virtual void resume(const NodeRef& node, int32_t label, const Text& text, Sink& sink) const = 0;
  // Fewest bytes from there until this frame itself has ended.
  virtual int64_t distance(const Node& node, int32_t label) const = 0;
  // Fewest bytes from within the lexeme on top of it until this frame has ended; `most` and more are all alike.
  virtual int64_t rest(const Thread& thread, int64_t most) const;
  virtual Reading reading(const Thread&) const { return Reading::kNothing; }
  // False where the lexeme is refused by its text, whatever follows: it is a property name or an item met before, or can only become one.
  virtual bool admits(const Thread&) const { return true; }
  // False where the lexeme may not end by its text, though it may go on.
  virtual bool ends(const Thread&) const { return true; }
  // Whether what may follow the lexeme depends on its text beyond whole strings.
  virtual bool recalls(const Node&) const { return false; }
  // Whether some text would be refused.
  virtual bool remembers(const Node&) const { return false; }
  // With Reading::kText: whether some text that is refused begins like that of the thread.
  virtual bool begins_refused(const Thread&) const { return false; }
};

// Adds the threads that follow where lexemes may end; returns the expansions that took. Throws where the grammar is too ambiguous.
size_t close(State& state);
// The same after a byte; returns how many threads and expansions it went through.
size_t step(const State& from, uint8_t byte, State& to);
// Moves a thread by a byte: not where the lexer refuses it, nor where the frame does.
enum class Move : uint8_t { kMoved, kDead, kRefused };
Move move_thread(Thread& thread, uint8_t byte);
void step_thread(const Thread& thread, uint8_t byte, std::vector<Thread>& out);
// What follows when a lexeme ends with `label`.
State after_lexeme(const NodeRef& parent, int32_t label, const Text& text);
// Fewest bytes to the end of the text: an estimate that shrinks along some path.
int64_t distance(const State& state);

}  // namespace tandem::grammar
