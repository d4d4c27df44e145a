// What threads of an emulated kernel run on, one at a time by turns.
#pragma once
#include "emulation/gpu_emulation.h"

namespace tandem::gpu_emulation {

inline constexpr size_t kStack = 64 << 10;

// What a fiber runs on, and after it those of later blocks.
struct Stack {
  unsigned char* memory;
  void* pointer = nullptr;  // of the fiber while it does not run

  Stack();
  Stack(const Stack&) = delete;
  ~Stack();
};

// A fiber for that thread of the kernel; it runs on until it waits or ends: from the block's thread to it, and back.
void start(Fiber& f, Stack& stack, dim3 thread);
void to_fiber(Block& b, Fiber& f);
void to_main(Block& b, Fiber& f);

}  // namespace tandem::gpu_emulation
