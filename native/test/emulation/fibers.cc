#include "emulation/fibers.h"

#include <cstdlib>

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

void to_fiber(Block& b, Fiber& f) { tandem_fiber_switch(&b.main_stack_pointer, f.stack->pointer); }
void to_main(Block& b, Fiber& f) { tandem_fiber_switch(&f.stack->pointer, b.main_stack_pointer); }

static void fiber_entry() {
  (*block().body)();
  fiber().done = true;
  to_main(block(), fiber());
  std::abort();  // a fiber that ended is never resumed
}

void start(Fiber& f, Stack& stack, dim3 thread) {
  f = Fiber{};
  f.stack = &stack;
  f.stack_memory = stack.memory;
  f.done = false;
  f.thread = thread;
  void** top = reinterpret_cast<void**>(stack.memory + kStack) - 1;
  *top-- = nullptr;
  *top = reinterpret_cast<void*>(&fiber_entry);
  stack.pointer = top - 6;
}

Stack::Stack() : memory(static_cast<unsigned char*>(std::aligned_alloc(64, kStack))) {}

Stack::~Stack() { std::free(memory); }

}  // namespace tandem::gpu_emulation
