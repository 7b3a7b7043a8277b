// Counts failed checks, and prints the first ones.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>

inline int checked = 0, wrong = 0;

__attribute__((format(printf, 2, 3))) inline void check(bool right, const char* format, ...) {
  checked++;
  if (right || wrong++ >= 10) {
    return;
  }
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

// The last line of a test.
inline int verdict() {
  std::printf("%d checked, %d wrong\n", checked, wrong);
  return wrong == 0 && checked > 0 ? 0 : 1;
}

// Numbers of a linear congruence, the same everywhere.
struct Random {
  uint64_t state;

  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 32);
  }
};
