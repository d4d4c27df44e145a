// What threads of an emulated kernel run on, one at a time by turns.
#pragma once
#include "emulation/gpu_emulation.h"

namespace tandem::gpu_emulation {

inline constexpr size_t kStack = 64 << 10;

// What a fiber runs on. Having run a thread of a kernel, it stays for one of a later block: the address sanitizer keeps memory of its own for
// every fiber, and to map that anew for each thread took most of the time of its run.
struct Stack {
  unsigned char* memory;
  void* pointer = nullptr;  // of the fiber while it does not run
  bool resting = false;     // it has run its thread to the end

  Stack();
  Stack(const Stack&) = delete;
  ~Stack();
};

// A fiber for that thread of the kernel; it runs on until it waits or ends: from the block's thread to it, and back.
void start(Fiber& f, Stack& stack, dim3 thread);
void to_fiber(Block& b, Fiber& f);
void to_main(Block& b, Fiber& f, bool dying);

// Of memory that no thread may touch, where the address sanitizer sees to it.
void forbid(const unsigned char* memory, size_t bytes);
void permit(const unsigned char* memory, size_t bytes);

}  // namespace tandem::gpu_emulation
