// Kernels of a few lines that leave out what orders their accesses, for the emulation to find.
#pragma once

namespace tandem::test {

enum class LeftOut {
  kNothing,
  kBarrier,               // between writing and others' reading
  kBarrierBeforeReuse,    // between reading and others' writing
  kWarpMeeting,           // between threads of a warp, which write and read
  kWarpMemoryOrder,       // they meet in a shuffle, which orders nothing
  kMeetingBeforeArrival,  // one thread arrives at an mbarrier for its warp
  kWaitForCopy,           // of the thread that copies
  kWaitForBulkCopy,       // of those that read what it brings
  kReadersOfBulkCopy,     // of the thread that lets the next one come
  kFences,                // of all threads but one, before a wgmma reads what they wrote
  kWaitForInputs,         // of a launch that may begin early, before it reads
  kWaitForReaders,        // and before it writes
};

// Throws what the emulation finds.
void run_without(LeftOut what);

// Of four numbers in shared memory that the launch asks for, or, below zero, of the kernel's own four: one of them, or beyond. Throws too.
void read_at(int at);

}  // namespace tandem::test
