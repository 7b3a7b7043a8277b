// Dequantisation in plain loops, which the compiler vectorises. Each instruction set's file includes this header.
#pragma once

#include "dequantize.h"
#include "convert.h"

namespace mlxrs::matmul {
namespace {

constexpr float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// Unpacks the codes of at most 64 elements, one to a byte. The codes of each eight elements begin at the first bit of a
// byte.
inline void unpack(const uint8_t* from, int bits, long n, uint8_t* codes) {
  if (bits == 8) {
    for (long i = 0; i < n; i++) {
      codes[i] = from[i];
    }
  } else if (bits == 4) {
    for (long i = 0; i < n / 2; i++) {
      codes[2 * i] = from[i] & 15;
      codes[2 * i + 1] = from[i] >> 4;
    }
  } else {
    for (long i = 0; i < n; i += 8, from += bits) {
      uint64_t eight = 0;
      for (int b = 0; b < bits; b++) {
        eight |= static_cast<uint64_t>(from[b]) << 8 * b;
      }
      for (int j = 0; j < 8; j++) {
        codes[i + j] = static_cast<uint8_t>(eight >> j * bits & ((1u << bits) - 1));
      }
    }
  }
}

// Elements [k, k + n) of row r, at most 64 and all of one group, as f32.
inline void part_to_f32(const Panel& p, long r, long k, long n, float* to) {
  const Weights& w = p.w;
  const uint8_t* row = static_cast<const uint8_t*>(w.data) + (p.row + r) * w.row_bytes() + k * w.bits / 8;
  uint8_t codes[64];
  if (w.group > 0) {
    unpack(row, w.bits, n, codes);
  }
  float scale = w.group > 0 ? p.scales[r * p.groups + k / w.group - p.group] : 1;
  switch (w.coding) {
    case Coding::f32:
      std::memcpy(to, row, n * sizeof(float));
      return;
    case Coding::bf16:
      for (long i = 0; i < n; i++) {
        uint16_t half;
        std::memcpy(&half, row + 2 * i, 2);
        to[i] = from_bf16(half);
      }
      return;
    case Coding::f16:
      for (long i = 0; i < n; i++) {
        uint16_t half;
        std::memcpy(&half, row + 2 * i, 2);
        to[i] = from_f16(half);
      }
      return;
    case Coding::affine: {
      float bias = p.biases[r * p.groups + k / w.group - p.group];
      for (long i = 0; i < n; i++) {
        to[i] = static_cast<float>(codes[i]) * scale + bias;
      }
      return;
    }
    case Coding::mxfp4:
    case Coding::nvfp4:
      for (long i = 0; i < n; i++) {
        to[i] = e2m1[codes[i]] * scale;
      }
      return;
    case Coding::mxfp8:
      for (long i = 0; i < n; i++) {
        to[i] = from_e4m3(codes[i]) * scale;
      }
      return;
  }
}

// Calls put(r, at, n, values) for each part of the rows: n elements from `at` on.
template <typename Put>
void each_part(const Panel& p, long k, long k_end, const Put& put) {
  long most = p.w.group > 0 && p.w.group < 64 ? p.w.group : 64;
  for (long r = 0; r < p.rows; r++) {
    for (long at = k; at < k_end; at += most) {
      float values[64];
      long n = k_end - at < most ? k_end - at : most;
      part_to_f32(p, r, at, n, values);
      put(r, at, n, values);
    }
  }
}

void rows_to_f32(const Panel& p, long k, long k_end, float* to, long ld) {
  each_part(p, k, k_end, [&](long r, long at, long n, const float* values) {
    std::memcpy(to + r * ld + at - k, values, n * sizeof(float));
  });
}

void rows_to_bf16(const Panel& p, long k, long k_end, uint16_t* to, long ld) {
  each_part(p, k, k_end, [&](long r, long at, long n, const float* values) {
    for (long i = 0; i < n; i++) {
      to[r * ld + at - k + i] = to_bf16(values[i]);
    }
  });
}

void scales_to_f32(Coding coding, Float type, const void* from, long at, long n, float* to) {
  auto bytes = static_cast<const uint8_t*>(from) + at;
  auto halves = static_cast<const uint16_t*>(from) + at;
  if (coding == Coding::nvfp4) {
    for (long i = 0; i < n; i++) {
      to[i] = from_e4m3(bytes[i]);
    }
  } else if (coding != Coding::affine) {
    for (long i = 0; i < n; i++) {
      to[i] = from_e8m0(bytes[i]);
    }
  } else if (type == Float::f32) {
    std::memcpy(to, static_cast<const float*>(from) + at, n * sizeof(float));
  } else if (type == Float::bf16) {
    for (long i = 0; i < n; i++) {
      to[i] = from_bf16(halves[i]);
    }
  } else {
    for (long i = 0; i < n; i++) {
      to[i] = from_f16(halves[i]);
    }
  }
}

constexpr Dequantizer plain{rows_to_f32, rows_to_bf16, [](const Weights&) { return 1; }, scales_to_f32};

} // namespace
} // namespace mlxrs::matmul
