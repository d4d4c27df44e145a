// Which instruction set the kernels use. Chosen once per process from cpuid; TANDEM_ISA=<name> forces one.
#pragma once
#include <vector>

namespace tandem::simd {

enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };

const char* isa_name(Isa isa);

// All that this build, this CPU and its operating system support, fastest first; never empty (scalar is always there). Asks Linux to let this
// process use AMX's tiles, where the CPU has them: threads begun before and after may.
std::vector<Isa> supported_isas();

// Whether this process may use AMX's tiles; asks Linux for leave, where the CPU has them. Only on x86-64.
bool has_tiles();

// Throws Error(kUnsupported) when TANDEM_ISA names an unknown set or one this machine lacks.
Isa selected_isa();

}  // namespace tandem::simd
