// Whether what threads of a block do to the same shared memory is ordered, whatever the order in which they happened to do it: each thread
// has a clock, and knows others' as far as barriers, warps' meetings and mbarriers told it. Of two accesses, of which one writes, the later
// one's thread must know of the first. Asynchronous copies and products are accesses of their own, known to who waited for them. It sees
// every access of kernels that are compiled with -fsanitize=thread, whose callbacks it answers; shuffles and votes of a warp order nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tandem::gpu_emulation {

// Whether what they do by themselves counts from now on; copies and products always do.
void watch_accesses(bool on);
// As addr2line takes it.
std::string place_in_program(const void* where);

// What a thread knows of others' clocks, of asynchronous products of warps and of phases of mbarriers.
struct Knowledge {
  uint32_t generation = 0;  // of the block's barriers; what was before the last one all know
  std::vector<uint32_t> clocks;
  std::vector<uint32_t> phases;

  void take(const Knowledge& other, uint32_t now);
  void forget_before(uint32_t now, size_t agents);
};

enum class Access : uint8_t {
  kPlain,
  kAtomic,
  kPending,  // an asynchronous copy of which nobody knows yet
  kBulk,     // a bulk copy: known to who knows its mbarrier's phase
  kSame,     // of what others write there too (store_same): who reads it wrote it as well, or waited for one of them
};

class SharedRaces {
 public:
  // Another block, of which nothing has run, and all the memory that is kept for it.
  void begin(size_t threads, const unsigned char* memory, size_t bytes);
  // What it may touch of that.
  void asked(const unsigned char* from, size_t bytes);

  // Of threads, with where in the program.
  void read(int thread, const void* p, size_t bytes, const void* where);
  void write(int thread, const void* p, size_t bytes, const void* where, Access how = Access::kPlain);
  void atomic(int thread, const void* p, size_t bytes, const void* where);
  // cp.async: from its issue until its thread has waited for it.
  void copy_issued(int thread, const void* p, size_t bytes, const void* where);
  void copy_landed(int thread, const void* p, size_t bytes);
  // A bulk copy that completes a phase of the mbarrier.
  void bulk_issued(int thread, const void* p, size_t bytes, const void* barrier, int32_t phase);
  // A product of a warp has been waited for, the warp's so many-th: what it read.
  bool first_of_warp(int thread, uint32_t number) const { return number > recorded_[size_t(thread) / 32]; }
  void product_read(int thread, uint32_t number, const void* p, size_t bytes);
  void product_landed(int thread, uint32_t number);
  void fenced(int thread) { threads_[size_t(thread)].fenced = threads_[size_t(thread)].clock++; }

  // What orders them.
  void block_met();
  void warp_met(int first);
  void arrived(int thread, const void* barrier);
  void phase_ended(const void* barrier);
  void waited(int thread, const void* barrier, int32_t phase);

  // The first race; empty: none.
  const std::string& found() const { return found_; }

 private:
  struct Thread {
    uint32_t clock = 1, fenced = 0, products = 0;
    Knowledge known;
  };
  // The last one of two bytes.
  struct Write {
    uint32_t generation = 0, clock = 0;
    uint16_t agent = 0;
    Access how = Access::kPlain;
    const void* where = nullptr;
  };
  // Since the last barrier of the block, of a warp's threads at the same time of their clocks.
  struct Reads {
    uint32_t generation, clock, lanes;
    uint16_t warp;
    Access how;
    bool product;
    uint8_t halves;
    const void* where;
  };
  struct Word {
    Write writes[2];
    std::vector<Reads> reads;
  };
  struct Meeting {
    const void* barrier;
    Knowledge arriving, published;
  };

  void check_asked(int thread, const void* p, size_t bytes, const char* what, const void* where);
  template <class Touch>
  void each_word(const void* p, size_t bytes, const Touch& touch);
  bool knows(int thread, size_t agent, uint32_t generation, uint32_t clock) const;
  bool knows(int thread, const Write& write) const;
  bool knows(int thread, const Reads& reads) const;
  // As many as there are threads: it knows all of them.
  size_t unknown_reader(int thread, const Reads& reads) const;
  // Those of a kind do not matter, unless it is kPlain.
  void check_writes(int thread, const Word& word, int halves, const char* what, const void* where, Access but);
  void check_reads(int thread, const Word& word, int halves, const char* what, const void* where, bool atomics_only, bool plain_only);
  static bool repeats(const Reads& last, const Reads& own, int halves) {
    return last.warp == own.warp && (last.lanes & own.lanes) != 0 && last.clock == own.clock && last.halves == halves && !last.product &&
           last.how == own.how;
  }
  void add_read(Word& word, Reads reads, int halves);
  void set_write(Word& word, int halves, const Write& write);
  void touch_write(int thread, const void* p, size_t bytes, const void* where, const Write& write);
  void report(int thread, const Word& word, const char* what, const void* where, const char* other_what, size_t other,
              const void* other_where);
  size_t meeting_of(const void* barrier);
  void tell(Knowledge& to, int thread);
  uint32_t synced(size_t thread) const { return synced_generation_[thread / 32] == generation_ ? synced_[thread] : 0; }

  const unsigned char* memory_ = nullptr;
  uint32_t generation_ = 0, first_generation_ = 0;
  std::vector<Thread> threads_;
  std::vector<uint32_t> synced_, synced_generation_;  // clocks when the warp met last, and when that was
  std::vector<uint32_t> recorded_;                    // products of warps
  std::vector<Word> words_;
  std::vector<std::pair<size_t, size_t>> asked_;  // from byte to byte
  std::vector<Meeting> meetings_;
  std::string found_;
};

}  // namespace tandem::gpu_emulation
