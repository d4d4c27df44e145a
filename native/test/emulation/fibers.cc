#include "emulation/fibers.h"

#include <cstdlib>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers of the System V ABI on the old stack and takes the new one's.
asm(R"(.text
.globl tandem_fiber_switch
tandem_fiber_switch:
 pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
 ret)");
extern "C" void tandem_fiber_switch(void** save, void* load);

namespace tandem::gpu_emulation {

#if defined(__SANITIZE_ADDRESS__)
// Each time from a thread of the host, which need not be the one before.
static void arrived(void* fake = nullptr) { __sanitizer_finish_switch_fiber(fake, &block().main_stack, &block().main_stack_size); }
void to_fiber(Block& b, Fiber& f) {
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, f.stack->memory, kStack);
  tandem_fiber_switch(&b.main_stack_pointer, f.stack->pointer);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}
void to_main(Block& b, Fiber& f, bool dying) {
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(dying ? nullptr : &fake, b.main_stack, b.main_stack_size);
  tandem_fiber_switch(&f.stack->pointer, b.main_stack_pointer);
  arrived(fake);
}
// The frames of a fiber that was left where it stood never returned: their marks are still there.
static void forget_frames(const unsigned char* stack) { __asan_unpoison_memory_region(stack, kStack); }
void forbid(const unsigned char* memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
void permit(const unsigned char* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
void to_fiber(Block& b, Fiber& f) { tandem_fiber_switch(&b.main_stack_pointer, f.stack->pointer); }
void to_main(Block& b, Fiber& f, bool) { tandem_fiber_switch(&f.stack->pointer, b.main_stack_pointer); }
static void arrived() {}
static void forget_frames(const unsigned char*) {}
void forbid(const unsigned char*, size_t) {}
void permit(const unsigned char*, size_t) {}
#endif

static void fiber_entry() {
  arrived();
  while (const std::function<void()>* body = block().body) {
    (*body)();
    Fiber& f = fiber();
    f.done = true;
    f.stack->resting = true;
    to_main(block(), f, false);
  }
  to_main(block(), fiber(), true);
  std::abort();  // a fiber that ended is never resumed
}

void start(Fiber& f, Stack& stack, dim3 thread) {
  f = Fiber{};
  f.stack = &stack;
  f.stack_memory = stack.memory;
  f.done = false;
  f.thread = thread;
  if (!stack.resting) {
    forget_frames(stack.memory);
    void** top = reinterpret_cast<void**>(stack.memory + kStack) - 1;
    *top-- = nullptr;
    *top = reinterpret_cast<void*>(&fiber_entry);
    stack.pointer = top - 6;
  }
  stack.resting = false;
}

Stack::Stack() : memory(static_cast<unsigned char*>(std::aligned_alloc(64, kStack))) {}

Stack::~Stack() {
  if (resting) {
    Block b;
    b.fibers.resize(1);
    b.fibers[0].stack = this;
    run_within(b, [&] { to_fiber(b, b.fibers[0]); });
  }
  std::free(memory);
}

}  // namespace tandem::gpu_emulation
