// What this machine can do at most: DRAM read bandwidth and the arithmetic peaks of its vector units, for a number of threads.
// Usage: limits THREADS [read]. Prints one line of JSON; an operation that the CPU lacks is null. With `read` only the bandwidth is measured.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytesPerThread = size_t{1} << 29;  // Far more than any cache.
constexpr double kSecondsPerTry = 0.15;
constexpr int kTries = 5;

// Units per second of a few tries.
struct Rates {
  double best = 0, mean = 0;
};

// Runs work(thread) on all threads at once, again and again.
Rates rates(int threads, const std::function<double(int)>& work) {
  Rates found;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::atomic<int> ready{0};
    std::vector<double> units(threads, 0), seconds(threads, 0);
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t) {
      team.emplace_back([&, t] {
        ready.fetch_add(1);
        while (ready.load() < threads) std::this_thread::yield();
        auto begin = Clock::now();
        do {
          units[t] += work(t);
          seconds[t] = std::chrono::duration<double>(Clock::now() - begin).count();
        } while (seconds[t] < kSecondsPerTry);
      });
    }
    for (auto& thread : team) thread.join();
    double rate = 0;
    for (int t = 0; t < threads; ++t) rate += units[t] / seconds[t];
    if (rate > found.best) found.best = rate;
    found.mean += rate / kTries;
  }
  return found;
}

double best_rate(int threads, const std::function<double(int)>& work) { return rates(threads, work).best; }

volatile uint64_t g_sink;

__attribute__((target("avx2"))) uint64_t sum_avx2(const uint64_t* data, size_t words) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t i = 0; i < words; i += 16) {
    auto at = reinterpret_cast<const __m256i*>(data + i);
    a = _mm256_xor_si256(a, _mm256_load_si256(at));
    b = _mm256_xor_si256(b, _mm256_load_si256(at + 1));
    c = _mm256_xor_si256(c, _mm256_load_si256(at + 2));
    d = _mm256_xor_si256(d, _mm256_load_si256(at + 3));
  }
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d)));
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}

Rates read_bandwidth(int threads) {
  struct Free {
    void operator()(uint64_t* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<uint64_t, Free>> buffers(threads);
  for (auto& buffer : buffers) {
    buffer.reset(static_cast<uint64_t*>(std::aligned_alloc(64, kBytesPerThread)));
    if (!buffer) return {};
    madvise(buffer.get(), kBytesPerThread, MADV_HUGEPAGE);
    for (size_t i = 0; i < kBytesPerThread / 8; ++i) buffer.get()[i] = i;
  }
  return rates(threads, [&](int t) {
    g_sink = sum_avx2(buffers[t].get(), kBytesPerThread / 8);
    return double(kBytesPerThread);
  });
}

constexpr int kLoop = 200000;
constexpr int kChains = 12;  // Independent accumulators: more than latency times issue width.

// Assembly keeps every accumulator in a register of its own; a compiler given an array spills them.
#define TWELVE(op)                                                                                                      \
  op " %12, %12, %0\n\t" op " %12, %12, %1\n\t" op " %12, %12, %2\n\t" op " %12, %12, %3\n\t" op " %12, %12, %4\n\t" op \
     " %12, %12, %5\n\t" op " %12, %12, %6\n\t" op " %12, %12, %7\n\t" op " %12, %12, %8\n\t" op " %12, %12, %9\n\t" op \
     " %12, %12, %10\n\t" op " %12, %12, %11"

// Operations of kLoop rounds of twelve instructions, each worth `operations`.
#define PEAK_LOOP(name, isa, Vector, constraint, instruction, operations)                                                         \
  __attribute__((target(isa))) double name(int) {                                                                                 \
    Vector x = {}, a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {}, i = {}, j = {}, k = {}, l = {};                \
    for (int n = 0; n < kLoop; ++n) {                                                                                             \
      __asm__ volatile(TWELVE(instruction)                                                                                        \
                       : constraint(a), constraint(b), constraint(c), constraint(d), constraint(e), constraint(f), constraint(g), \
                         constraint(h), constraint(i), constraint(j), constraint(k), constraint(l)                                \
                       : "x"(x));                                                                                                 \
    }                                                                                                                             \
    return double(kLoop) * kChains * operations;                                                                                  \
  }

PEAK_LOOP(fma_avx2, "avx2,fma", __m256, "+x", "vfmadd231ps", 16)
PEAK_LOOP(fma_avx512, "avx512f", __m512, "+v", "vfmadd231ps", 32)
PEAK_LOOP(dot_bf16, "avx512f,avx512bf16", __m512, "+v", "vdpbf16ps", 64)
PEAK_LOOP(dot_int8, "avx512f,avx512vnni", __m512i, "+v", "vpdpbusd", 128)

// Four sums of 16 x 16, two tiles of rows and two of columns: the order in which a product uses them. Tiles of zeros would run no faster.
#define TILE_LOOP(name, isa, product, operations)                                       \
  __attribute__((target("amx-tile," isa))) double name(int) {                           \
    alignas(64) uint8_t shape[64] = {1}, numbers[1024];                                 \
    for (int tile = 0; tile < 8; ++tile) {                                              \
      shape[16 + 2 * tile] = 64;                                                        \
      shape[48 + tile] = 16;                                                            \
    }                                                                                   \
    for (int i = 0; i < 1024; ++i) numbers[i] = uint8_t(i % 2 ? 0x3f : i);              \
    __asm__ volatile("" ::: "memory"); /* GCC's tile loads do not say that they read */ \
    _tile_loadconfig(shape);                                                            \
    _tile_loadd(4, numbers, 64);                                                        \
    _tile_loadd(5, numbers, 64);                                                        \
    _tile_loadd(6, numbers, 64);                                                        \
    _tile_loadd(7, numbers, 64);                                                        \
    for (int n = 0; n < kLoop; ++n) {                                                   \
      product(0, 4, 6);                                                                 \
      product(1, 4, 7);                                                                 \
      product(2, 5, 6);                                                                 \
      product(3, 5, 7);                                                                 \
    }                                                                                   \
    _tile_release();                                                                    \
    return double(kLoop) * 4 * operations;                                              \
  }

TILE_LOOP(tile_bf16, "amx-bf16", _tile_dpbf16ps, 2 * 16 * 16 * 32)
TILE_LOOP(tile_int8, "amx-int8", _tile_dpbssd, 2 * 16 * 16 * 64)

// AMX with products of bf16 and of bytes, and Linux's leave to use it.
bool has_tiles() {
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kNeeded) != kNeeded) return false;
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

std::string number(bool has, double value, double scale) {
  if (!has) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value / scale);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  if (threads < 1 || threads > 1024) {
    std::fprintf(stderr, "usage: limits THREADS [read]\n");
    return 2;
  }
  if (!__builtin_cpu_supports("avx2")) {
    std::fprintf(stderr, "limits needs AVX2\n");
    return 1;
  }
  if (argc > 2 && std::string(argv[2]) == "read") {
    const Rates read = read_bandwidth(threads);
    std::printf("{\"threads\": %d, \"best\": %s, \"mean\": %s}\n", threads, number(true, read.best, 1e9).c_str(),
                number(true, read.mean, 1e9).c_str());
    return 0;
  }
  bool wide = __builtin_cpu_supports("avx512f"), bf16 = __builtin_cpu_supports("avx512bf16");
  bool vnni = __builtin_cpu_supports("avx512vnni"), tiles = has_tiles();
  std::printf("{\"threads\": %d, \"dram_read_gb_s\": %s, \"fp32_gflop_s\": %s, \"bf16_gflop_s\": %s, \"int8_gop_s\": %s}\n", threads,
              number(true, read_bandwidth(threads).best, 1e9).c_str(),
              number(true, best_rate(threads, wide ? fma_avx512 : fma_avx2), 1e9).c_str(),
              number(bf16 || tiles,
                     tiles  ? best_rate(threads, tile_bf16)
                     : bf16 ? best_rate(threads, dot_bf16)
                            : 0,
                     1e9)
                  .c_str(),
              number(vnni || tiles,
                     tiles  ? best_rate(threads, tile_int8)
                     : vnni ? best_rate(threads, dot_int8)
                            : 0,
                     1e9)
                  .c_str());
  return 0;
}
