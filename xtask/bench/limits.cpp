// The limits of this machine, on the given number of threads: bytes read from memory per second,
// and multiplications with additions per second. Prints JSON. Each rate is the best of several
// rounds, not their mean.
//
//     c++ -std=c++17 -O3 -march=native -pthread limits.cpp -o limits && ./limits 2

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int kRounds = 5;

double seconds_of(int threads, const std::function<void(int)>& work) {
  auto started = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) pool.emplace_back(work, t);
  for (auto& thread : pool) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

// The best rate of all threads together; a round does `amount` on each thread.
double rate(int threads, double amount, const std::function<void(int)>& work) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) best = std::max(best, amount * threads / seconds_of(threads, work));
  return best;
}

// Keeps the result of a loop, so that the compiler does not remove the loop.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

template <size_t kStretches>
double memory_read_in(int threads) {
  // More memory in total than the caches hold.
  const size_t words = (size_t(1) << 30) / threads / sizeof(uint64_t);
  std::vector<std::vector<uint64_t>> buffers(threads);
  seconds_of(threads, [&](int t) { buffers[t].assign(words, t + 1); });
  constexpr size_t kLine = 8, kAhead = 16 * kLine;
  const size_t stretch = words / kStretches / kLine * kLine;
  return rate(threads, double(kStretches * stretch) * sizeof(uint64_t), [&](int t) {
    uint64_t sums[kLine] = {};
    const uint64_t* at = buffers[t].data();
    for (size_t i = 0; i < stretch; i += kLine) {
      for (size_t s = 0; s < kStretches; ++s) {
        const uint64_t* line = at + s * stretch + i;
        // The hardware prefetcher stops at every page. (A prefetch of unmapped memory has no
        // effect.)
        __builtin_prefetch(line + kAhead, 0, 3);
        for (size_t lane = 0; lane < kLine; ++lane) sums[lane] += line[lane];
      }
    }
    keep(sums);
  });
}

double memory_read(int threads) {
  // Intel's machines read several streams side by side faster than one; for AMD's it is the other
  // way round.
  return std::max(memory_read_in<1>(threads), memory_read_in<4>(threads));
}

// The widest vectors of the machine.
#if defined(__AVX512F__)
typedef float Floats __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float Floats __attribute__((vector_size(32)));
#else
typedef float Floats __attribute__((vector_size(16)));
#endif

double f32(int threads) {
  constexpr int kChains = 12;
  constexpr long kSteps = 4000000;
  const double operations = 2.0 * kChains * kSteps * (sizeof(Floats) / sizeof(float));
  return rate(threads, operations, [](int t) {
    Floats sums[kChains] = {}, a = {}, b = {};
    for (auto& lane : {&a, &b}) *lane += 1e-9f * float(t + 1);
    // The compiler would merge chains that start with equal values.
    for (int chain = 0; chain < kChains; ++chain) sums[chain] += float(chain);
    for (long i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
      for (int chain = 0; chain < kChains; ++chain) sums[chain] = sums[chain] * a + b;
    }
    keep(sums);
  });
}

#if defined(__AVX2__)
// Chains of add(sum), each of which has this many operations. They start with different values,
// because the compiler would merge equal chains.
template <typename Vector, typename Start, typename Add>
double chains(int threads, double operations, const Start& start, const Add& add) {
  constexpr int kChains = 12;
  constexpr long kSteps = 4000000;
  return rate(threads, operations * kChains * kSteps, [&](int) {
    Vector s0 = start(0), s1 = start(1), s2 = start(2), s3 = start(3), s4 = start(4), s5 = start(5), s6 = start(6), s7 = start(7),
           s8 = start(8), s9 = start(9), s10 = start(10), s11 = start(11);
    // One after the other, each in a register of its own. Otherwise GCC spills sums to memory,
    // which halves the rate on machines with 16 registers.
    auto step = [&](Vector& sum) {
      sum = add(sum);
      asm volatile("" : "+x"(sum));
    };
    for (long i = 0; i < kSteps; ++i) {
      step(s0), step(s1), step(s2), step(s3), step(s4), step(s5);
      step(s6), step(s7), step(s8), step(s9), step(s10), step(s11);
    }
    const Vector sums[kChains] = {s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11};
    keep(sums);
  });
}
#endif

#if defined(__AVX512VNNI__)
double vnni(int threads) {
  const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(3);
  return chains<__m512i>(
      threads, 2.0 * 64, [](int chain) { return _mm512_set1_epi32(chain); },
      [=](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, b); });
}
#endif

#if defined(__AVX512BF16__)
double avx512_bf16(int threads) {
  const __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f80), b = (__m512bh)_mm512_set1_epi16(0x3f81);
  return chains<__m512>(
      threads, 2.0 * 32, [](int chain) { return _mm512_set1_ps(float(chain)); },
      [=](__m512 sum) { return _mm512_dpbf16_ps(sum, a, b); });
}
#endif

// Products of 16-bit integers, two of which are added into a lane.
#if defined(__AVX512VNNI__)
double int16(int threads) {
  const __m512i a = _mm512_set1_epi16(1), b = _mm512_set1_epi16(3);
  return chains<__m512i>(
      threads, 2.0 * 32, [](int chain) { return _mm512_set1_epi32(chain); },
      [=](__m512i sum) { return _mm512_dpwssd_epi32(sum, a, b); });
}
#elif defined(__AVX2__)
double int16(int threads) {
  const __m256i a = _mm256_set1_epi16(1), b = _mm256_set1_epi16(3);
  // The sum is an operand of the product: a product of constants would be computed only once.
  return chains<__m256i>(
      threads, 2.0 * 16, [](int chain) { return _mm256_set1_epi16(short(chain)); },
      [=](__m256i sum) { return _mm256_add_epi32(a, _mm256_madd_epi16(sum, b)); });
}
#endif

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
// Linux gives a process AMX tiles on request.
bool tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

void shape_tiles() {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.bytes[tile] = 64, shapes.rows[tile] = 16;
  // GCC 12 treats only the first bytes as used.
  keep(shapes);
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Two sets of four tiles with numbers of both signs around 1. Repeating one product, or multiplying
// zeros, takes less power than real work, and power can be the limit.
struct alignas(64) TileNumbers {
  uint16_t tiles[2][4][512];

  TileNumbers() {
    uint32_t state = 1;
    for (auto& set : tiles) {
      for (auto& tile : set) {
        for (auto& number : tile) {
          state = state * 1664525 + 1013904223;
          number = 0x3f00 | (state >> 16 & 0x80ff);
        }
      }
    }
    keep(tiles);
  }
};

inline __attribute__((always_inline)) void load_tiles(const uint16_t (&tiles)[4][512]) {
  _tile_loadd(4, tiles[0], 64);
  _tile_loadd(5, tiles[1], 64);
  _tile_loadd(6, tiles[2], 64);
  _tile_loadd(7, tiles[3], 64);
}

constexpr long kTileSteps = 1000000;

double amx_bf16(int threads) {
  const double operations = 2.0 * 16 * 16 * 32 * 4 * kTileSteps;
  return rate(threads, operations, [](int) {
    shape_tiles();
    const TileNumbers numbers;
    for (long i = 0; i < kTileSteps; ++i) {
      load_tiles(numbers.tiles[i % 2]);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
  });
}

double amx_int8(int threads) {
  const double operations = 2.0 * 16 * 16 * 64 * 4 * kTileSteps;
  return rate(threads, operations, [](int) {
    shape_tiles();
    const TileNumbers numbers;
    for (long i = 0; i < kTileSteps; ++i) {
      load_tiles(numbers.tiles[i % 2]);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
  });
}
#endif

}  // namespace

int main(int count, char** words) {
  const int threads = count > 1 ? std::max(1, std::atoi(words[1])) : 1;
  std::printf("{\"threads\": %d, \"memory_read_gb_s\": %.3g", threads, memory_read(threads) / 1e9);
  std::printf(", \"f32_gflop_s\": %.4g", f32(threads) / 1e9);
#if defined(__AVX512VNNI__)
  std::printf(", \"vnni_int8_gop_s\": %.4g", vnni(threads) / 1e9);
#endif
#if defined(__AVX512BF16__)
  std::printf(", \"avx512_bf16_gflop_s\": %.4g", avx512_bf16(threads) / 1e9);
#endif
#if defined(__AVX2__)
  std::printf(", \"int16_gop_s\": %.4g", int16(threads) / 1e9);
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
  if (tiles()) {
    std::printf(", \"amx_bf16_gflop_s\": %.4g", amx_bf16(threads) / 1e9);
    std::printf(", \"amx_int8_gop_s\": %.4g", amx_int8(threads) / 1e9);
  }
#endif
  std::printf("}\n");
}
