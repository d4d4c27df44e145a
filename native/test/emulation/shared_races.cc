#include "emulation/shared_races.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

namespace tandem::gpu_emulation {
namespace {

void take_larger(std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

std::string place_in_program(const void* where) {
  Dl_info info{};
  if (where == nullptr || dladdr(where, &info) == 0) return "?";
  char text[32];
  std::snprintf(text, sizeof text, "%#zx", size_t(static_cast<const char*>(where) - static_cast<const char*>(info.dli_fbase)) - 1);
  return text;
}

void Knowledge::forget_before(uint32_t now, size_t agents) {
  if (generation == now) return;
  generation = now;
  clocks.assign(agents, 0);
}

void Knowledge::take(const Knowledge& other, uint32_t now) {
  take_larger(phases, other.phases);
  if (other.generation != now) return;
  forget_before(now, other.clocks.size());
  take_larger(clocks, other.clocks);
}

void SharedRaces::begin(size_t threads, const unsigned char* memory, size_t bytes) {
  memory_ = memory;
  first_generation_ = ++generation_;
  threads_.resize(threads);
  for (Thread& t : threads_) {
    t.clock = 1, t.fenced = t.products = 0;
    t.known.phases.clear();
  }
  const size_t warps = (threads + 31) / 32;
  synced_.assign(warps * 32, 0);
  synced_generation_.assign(warps, 0);
  recorded_.assign(warps, 0);
  if (words_.size() < bytes / 4 + 1) words_.resize(bytes / 4 + 1);
  asked_.clear();
  meetings_.clear();
  found_.clear();
}

void SharedRaces::asked(const unsigned char* from, size_t bytes) {
  const size_t at = size_t(from - memory_);
  asked_.push_back({at, at + bytes});
}

void SharedRaces::check_asked(int thread, const void* p, size_t bytes, const char* what, const void* where) {
  const size_t at = size_t(static_cast<const unsigned char*>(p) - memory_);
  for (const auto& [from, to] : asked_) {
    if (at >= from && at + bytes <= to) return;
  }
  if (!found_.empty()) return;
  found_ = "thread " + std::to_string(thread) + " " + what + " byte " + std::to_string(at) + " of shared memory (" +
           place_in_program(where) + "), which is none that was asked for";
}

bool SharedRaces::knows(int thread, size_t agent, uint32_t generation, uint32_t clock) const {
  if (generation != generation_ || agent == size_t(thread)) return true;
  const size_t first = size_t(thread) / 32 * 32;
  if (agent >= first && agent < std::min(first + 32, threads_.size()) && synced(agent) >= clock) return true;
  const Knowledge& known = threads_[size_t(thread)].known;
  return known.generation == generation_ && known.clocks[agent] >= clock;
}

bool SharedRaces::knows(int thread, const Write& write) const {
  if (write.generation < first_generation_) return true;
  if (write.how == Access::kPending) return false;
  if (write.how == Access::kBulk) {
    const std::vector<uint32_t>& phases = threads_[size_t(thread)].known.phases;
    return write.agent < phases.size() && phases[write.agent] >= write.clock;
  }
  return knows(thread, write.agent, write.generation, write.clock);
}

bool SharedRaces::knows(int thread, const Reads& reads) const {
  if (reads.generation != generation_) return true;
  if (!reads.product) return unknown_reader(thread, reads) == threads_.size();
  if (thread / 32 == reads.warp && threads_[size_t(thread)].products >= reads.clock) return true;
  return knows(thread, threads_.size() + reads.warp, reads.generation, reads.clock);
}

size_t SharedRaces::unknown_reader(int thread, const Reads& reads) const {
  for (uint32_t lanes = reads.lanes; lanes != 0; lanes &= lanes - 1) {
    const size_t reader = size_t(reads.warp) * 32 + size_t(__builtin_ctz(lanes));
    if (!knows(thread, reader, reads.generation, reads.clock)) return reader;
  }
  return threads_.size();
}

template <class Touch>
void SharedRaces::each_word(const void* p, size_t bytes, const Touch& touch) {
  if (bytes == 0) return;
  const size_t at = size_t(static_cast<const unsigned char*>(p) - memory_), end = at + bytes;
  for (size_t word = at / 4; word * 4 < end; ++word) {
    const bool low = at<word * 4 + 2, high = end> word * 4 + 2;
    touch(words_[word], int(low) | int(high) << 1);
  }
}

void SharedRaces::report(int thread, const Word& word, const char* what, const void* where, const char* other_what, size_t other,
                         const void* other_where) {
  if (!found_.empty()) return;
  found_ = "a race at byte " + std::to_string((&word - words_.data()) * 4) + " of shared memory: thread " + std::to_string(thread) + " " +
           what + " (" + place_in_program(where) + ") what " + (other < threads_.size() ? "thread " : "agent ") + std::to_string(other) +
           " " + other_what + " (" + place_in_program(other_where) + ")";
}

void SharedRaces::check_writes(int thread, const Word& word, int halves, const char* what, const void* where, Access but) {
  for (int half = 0; half < 2; ++half) {
    const Write& write = word.writes[half];
    if (write.generation < generation_ && write.how == Access::kPlain) continue;
    if ((halves >> half & 1) == 0 || (but != Access::kPlain && write.how == but) || knows(thread, write)) continue;
    const char* const other = write.how == Access::kPending ? "copies there"
                              : write.how == Access::kBulk  ? "copies there in bulk"
                                                            : "wrote";
    return report(thread, word, what, where, other, write.agent, write.where);
  }
}

void SharedRaces::check_reads(int thread, const Word& word, int halves, const char* what, const void* where, bool atomics_only,
                              bool plain_only) {
  for (const Reads& reads : word.reads) {
    const bool atomic = reads.how == Access::kAtomic;
    if ((atomic && plain_only) || (!atomic && atomics_only) || (reads.halves & halves) == 0 || knows(thread, reads)) continue;
    const char* const other = atomic ? "changed" : reads.product ? "multiplies" : "read";
    return report(thread, word, what, where, other, reads.product ? threads_.size() + reads.warp : unknown_reader(thread, reads),
                  reads.where);
  }
}

void SharedRaces::add_read(Word& word, Reads reads, int halves) {
  reads.halves = uint8_t(halves);
  if (!word.reads.empty() && word.reads.front().generation != generation_) word.reads.clear();
  for (Reads& r : word.reads) {
    if (r.warp != reads.warp || r.product != reads.product || r.how != reads.how || r.halves != reads.halves) continue;
    if (r.product || r.clock == reads.clock) {
      r.clock = reads.clock, r.lanes |= reads.lanes, r.where = reads.where;
      return;
    }
    r.lanes &= ~reads.lanes;
    if (r.lanes == 0) {
      r = reads;
      return;
    }
  }
  word.reads.push_back(reads);
}

void SharedRaces::set_write(Word& word, int halves, const Write& write) {
  for (int half = 0; half < 2; ++half) {
    if (halves >> half & 1) word.writes[half] = write;
  }
  if (halves == 3) word.reads.clear();
}

void SharedRaces::read(int thread, const void* p, size_t bytes, const void* where) {
  check_asked(thread, p, bytes, "reads", where);
  const Reads own{generation_, threads_[size_t(thread)].clock, 1u << thread % 32, uint16_t(thread / 32), Access::kPlain, false, 0, where};
  each_word(p, bytes, [&](Word& word, int halves) {
    if (word.reads.empty() || word.reads.back().generation != generation_ || !repeats(word.reads.back(), own, halves)) {
      check_writes(thread, word, halves, "reads", where, Access::kSame);
      check_reads(thread, word, halves, "reads", where, true, false);
      add_read(word, own, halves);
    }
  });
}

void SharedRaces::touch_write(int thread, const void* p, size_t bytes, const void* where, const Write& write) {
  check_asked(thread, p, bytes, "writes", where);
  each_word(p, bytes, [&](Word& word, int halves) {
    check_writes(thread, word, halves, "writes", where, Access::kPlain);
    check_reads(thread, word, halves, "writes", where, false, false);
    set_write(word, halves, write);
  });
}

void SharedRaces::write(int thread, const void* p, size_t bytes, const void* where, Access how) {
  touch_write(thread, p, bytes, where, {generation_, threads_[size_t(thread)].clock, uint16_t(thread), how, where});
}

void SharedRaces::atomic(int thread, const void* p, size_t bytes, const void* where) {
  check_asked(thread, p, bytes, "changes", where);
  const uint32_t clock = threads_[size_t(thread)].clock;
  each_word(p, bytes, [&](Word& word, int halves) {
    check_writes(thread, word, halves, "changes", where, Access::kAtomic);
    check_reads(thread, word, halves, "changes", where, false, true);
    add_read(word, {generation_, clock, 1u << thread % 32, uint16_t(thread / 32), Access::kAtomic, false, 0, where}, halves);
  });
}

void SharedRaces::copy_issued(int thread, const void* p, size_t bytes, const void* where) {
  touch_write(thread, p, bytes, where, {generation_, threads_[size_t(thread)].clock, uint16_t(thread), Access::kPending, where});
}

void SharedRaces::copy_landed(int thread, const void* p, size_t bytes) {
  each_word(p, bytes, [&](Word& word, int halves) {
    Write write = word.writes[halves & 1 ? 0 : 1];
    if (write.how != Access::kPending || write.agent != thread) return;
    write.generation = generation_, write.clock = threads_[size_t(thread)].clock, write.how = Access::kPlain;
    for (int half = 0; half < 2; ++half) {
      if (halves >> half & 1) word.writes[half] = write;
    }
  });
}

size_t SharedRaces::meeting_of(const void* barrier) {
  for (size_t i = 0; i < meetings_.size(); ++i) {
    if (meetings_[i].barrier == barrier) return i;
  }
  meetings_.push_back({barrier, {}, {}});
  return meetings_.size() - 1;
}

void SharedRaces::bulk_issued(int thread, const void* p, size_t bytes, const void* barrier, int32_t phase) {
  touch_write(thread, p, bytes, nullptr, {generation_, uint32_t(phase) + 1, uint16_t(meeting_of(barrier)), Access::kBulk, nullptr});
}

void SharedRaces::product_read(int thread, uint32_t number, const void* p, size_t bytes) {
  const size_t warp = size_t(thread) / 32;
  each_word(p, bytes, [&](Word& word, int halves) {
    check_writes(thread, word, halves, "multiplies", nullptr, Access::kSame);
    for (int half = 0; half < 2; ++half) {
      const Write& write = word.writes[half];
      if ((halves >> half & 1) == 0 || write.how == Access::kBulk || write.how == Access::kSame) continue;
      if (write.generation < first_generation_) continue;
      if (threads_[write.agent].fenced < write.clock)
        report(thread, word, "multiplies", nullptr, "wrote without a fence", write.agent, write.where);
    }
    add_read(word, {generation_, number, 1, uint16_t(warp), Access::kPlain, true, 0, nullptr}, halves);
  });
}

void SharedRaces::product_landed(int thread, uint32_t number) {
  uint32_t& recorded = recorded_[size_t(thread) / 32];
  recorded = std::max(recorded, number);
  threads_[size_t(thread)].products = number;
}

void SharedRaces::block_met() {
  if (!meetings_.empty()) {
    std::vector<uint32_t> phases;
    for (const Thread& t : threads_) take_larger(phases, t.known.phases);
    for (Thread& t : threads_) t.known.phases = phases;
  }
  ++generation_;
}

void SharedRaces::warp_met(int first) {
  const size_t begin = size_t(first), end = std::min(begin + 32, threads_.size());
  synced_generation_[begin / 32] = generation_;
  Knowledge all;
  for (size_t t = begin; t < end; ++t) {
    synced_[t] = threads_[t].clock++;
    if (!meetings_.empty()) all.take(threads_[t].known, generation_);
  }
  if (meetings_.empty()) return;
  for (size_t t = begin; t < end; ++t) threads_[t].known = all;
}

// What the thread knows, and did.
void SharedRaces::tell(Knowledge& to, int thread) {
  const Thread& t = threads_[size_t(thread)];
  to.forget_before(generation_, threads_.size() + recorded_.size());
  to.take(t.known, generation_);
  const size_t first = size_t(thread) / 32 * 32, end = std::min(first + 32, threads_.size());
  for (size_t lane = first; lane < end; ++lane) to.clocks[lane] = std::max(to.clocks[lane], synced(lane));
  to.clocks[size_t(thread)] = t.clock;
  uint32_t& products = to.clocks[threads_.size() + size_t(thread) / 32];
  products = std::max(products, t.products);
}

void SharedRaces::arrived(int thread, const void* barrier) {
  tell(meetings_[meeting_of(barrier)].arriving, thread);
  ++threads_[size_t(thread)].clock;
}

void SharedRaces::phase_ended(const void* barrier) {
  Meeting& meeting = meetings_[meeting_of(barrier)];
  meeting.published.take(meeting.arriving, generation_);
}

void SharedRaces::waited(int thread, const void* barrier, int32_t phase) {
  const size_t index = meeting_of(barrier);
  Knowledge& known = threads_[size_t(thread)].known;
  known.take(meetings_[index].published, generation_);
  if (known.phases.size() <= index) known.phases.resize(index + 1);
  known.phases[index] = std::max(known.phases[index], uint32_t(phase));
}

}  // namespace tandem::gpu_emulation
