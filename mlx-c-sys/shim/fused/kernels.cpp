// See kernels.h. Each function is compiled for several instruction sets and chosen when the library is loaded; the
// compiler makes of 16 lanes as many registers as that takes.
#include "kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__)
#define FOR_EACH_ISA __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_ISA
#endif

namespace mlxrs::fused {
namespace {

constexpr long lanes = 16;

#define INLINE inline __attribute__((always_inline))

typedef float Lanes __attribute__((vector_size(64)));
typedef float Unaligned __attribute__((vector_size(64), aligned(4), may_alias));

INLINE Lanes load(const float* p) {
  return *reinterpret_cast<const Unaligned*>(p);
}
INLINE void store(float* p, Lanes v) {
  *reinterpret_cast<Unaligned*>(p) = v;
}

typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

// The lanes as a tree: l and l + 8, then l and l + 4, and so on.
INLINE float total(Lanes v) {
  Eight halves[2];
  std::memcpy(halves, &v, sizeof v);
  Eight eight = halves[0] + halves[1];
  Four quarters[2];
  std::memcpy(quarters, &eight, sizeof eight);
  Four four = quarters[0] + quarters[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

INLINE float dot(const float* a, const float* b, long n) {
  Lanes sum = {};
  long i = 0;
  for (; i + lanes <= n; i += lanes) {
    sum += load(a + i) * load(b + i);
  }
  for (long l = 0; i + l < n; l++) {
    sum[l] += a[i + l] * b[i + l];
  }
  return total(sum);
}

INLINE float dot_strided(const float* a, const float* b, long stride, long n) {
  Lanes sum = {};
  for (long i = 0; i < n; i++) {
    sum[i % lanes] += a[i] * b[i * stride];
  }
  return total(sum);
}

// e^x for x <= 0, within 2 units in the last place, and 0 below -87, where f32 ends. x = n ln 2 + r with |r| <=
// ln 2 / 2, ln 2 in two parts (Cody and Waite, Software Manual for the Elementary Functions, 1980), and the series of
// e^r to its eighth term.
INLINE float exp_below(float x) {
  float clamped = x < -87.0f ? -87.0f : x;
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  float shifted = clamped * 1.44269504f + 12582912.0f;
  float n = shifted - 12582912.0f;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float e = 1.0f / 5040;
  e = e * r + 1.0f / 720;
  e = e * r + 1.0f / 120;
  e = e * r + 1.0f / 24;
  e = e * r + 1.0f / 6;
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  int32_t power = static_cast<int32_t>(static_cast<uint32_t>(bits + 127) << 23);
  float scale;
  std::memcpy(&scale, &power, sizeof scale);
  return x < -87.0f ? 0.0f : e * scale;
}

} // namespace

FOR_EACH_ISA void rms_norm(const float* x, long stride, const float* weight, float eps, long n, float* y) {
  float squares = stride == 1 ? dot(x, x, n) : 0;
  if (stride != 1) {
    for (long i = 0; i < n; i++) {
      y[i] = x[i * stride];
    }
    x = y;
    squares = dot(x, x, n);
  }
  float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  if (weight == nullptr) {
    for (long i = 0; i < n; i++) {
      y[i] = x[i] * factor;
    }
  } else {
    for (long i = 0; i < n; i++) {
      y[i] = x[i] * factor * weight[i];
    }
  }
}

FOR_EACH_ISA void rotate(const Rotation& r, const float* x, long stride, float* y) {
  long first = r.traditional ? 2 : 1, second = r.traditional ? 1 : r.half;
  if (stride == 1 && !r.traditional) {
    const float *a = x, *b = x + r.half;
    for (long i = 0; i < r.half; i++) {
      float u = a[i] * r.cos[i] - b[i] * r.sin[i];
      float w = a[i] * r.sin[i] + b[i] * r.cos[i];
      y[i] = u;
      y[i + r.half] = w;
    }
  } else {
    for (long i = 0; i < r.half; i++) {
      float a = x[i * first * stride], b = x[(i * first + second) * stride];
      y[i * first] = a * r.cos[i] - b * r.sin[i];
      y[i * first + second] = a * r.sin[i] + b * r.cos[i];
    }
  }
  for (long i = 2 * r.half; i < r.n; i++) {
    y[i] = x[i * stride];
  }
}

FOR_EACH_ISA void swiglu(const float* gate, long gate_stride, const float* up, long up_stride, long n, float* y) {
  auto one = [](float g, float u) __attribute__((always_inline)) {
    // e^-|g| does not overflow.
    float e = exp_below(g < 0 ? g : -g);
    return g * ((g < 0 ? e : 1.0f) / (1.0f + e)) * u;
  };
  if (gate_stride == 1 && up_stride == 1) {
    for (long i = 0; i < n; i++) {
      y[i] = one(gate[i], up[i]);
    }
  } else {
    for (long i = 0; i < n; i++) {
      y[i] = one(gate[i * gate_stride], up[i * up_stride]);
    }
  }
}

FOR_EACH_ISA void attend(const Query& a, float* work, float* y) {
  constexpr float lowest = std::numeric_limits<float>::lowest();
  float *scores = work, *q = work + a.keys;
  for (long i = 0; i < a.dim; i++) {
    q[i] = a.q[i * a.q_stride] * a.scale;
  }
  float best = lowest;
  for (long s = 0; s < a.keys; s++) {
    const float* k = a.k + s * a.k_step;
    float score = a.k_stride == 1 ? dot(q, k, a.dim) : dot_strided(q, k, a.k_stride, a.dim);
    if (a.seen != nullptr) {
      score = a.seen[s * a.mask_step] ? score : lowest;
    } else if (a.added != nullptr) {
      score += a.added[s * a.mask_step];
    }
    scores[s] = score;
    best = score > best ? score : best;
  }
  Lanes sum = {};
  long s = 0;
  for (; s + lanes <= a.keys; s += lanes) {
    for (long l = 0; l < lanes; l++) {
      scores[s + l] = exp_below(scores[s + l] - best);
    }
    sum += load(scores + s);
  }
  for (long l = 0; s + l < a.keys; l++) {
    scores[s + l] = exp_below(scores[s + l] - best);
    sum[l] += scores[s + l];
  }
  float factor = 1.0f / total(sum);
  long d = 0;
  if (a.v_stride == 1) {
    // Four vectors at a time, kept while all values go by.
    for (; d + 4 * lanes <= a.value_dim; d += 4 * lanes) {
      Lanes out[4] = {};
      for (long s = 0; s < a.keys; s++) {
        const float* v = a.v + s * a.v_step + d;
        float p = scores[s];
        for (long l = 0; l < 4; l++) {
          out[l] += p * load(v + l * lanes);
        }
      }
      for (long l = 0; l < 4; l++) {
        store(y + d + l * lanes, out[l] * factor);
      }
    }
  }
  for (; d < a.value_dim; d++) {
    float out = 0;
    for (long s = 0; s < a.keys; s++) {
      out += scores[s] * a.v[s * a.v_step + d * a.v_stride];
    }
    y[d] = out * factor;
  }
}

} // namespace mlxrs::fused
