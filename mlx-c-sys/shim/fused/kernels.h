// The arithmetic of the fused operations, on f32. Strides count elements.
//
// As in sgemm, results do not depend on who computes them: a sum is taken over 16 lanes in a fixed order, and elements
// that do not take part (masked keys) add exact zeros, so that keys behind the last visible one do not show.
#pragma once

namespace mlxrs::fused {

// y = x / sqrt(mean(x^2) + eps) * weight, over n elements; without weight when it is null.
void rms_norm(const float* x, long stride, const float* weight, float eps, long n, float* y);

// The rotation of the first 2 * half of n elements: pairs are (2i, 2i + 1) when `traditional`, else (i, i + half).
struct Rotation {
  long n, half;
  bool traditional;
  const float *cos, *sin;
};
void rotate(const Rotation& r, const float* x, long stride, float* y);

// y = gate * sigmoid(gate) * up, over n elements.
void swiglu(const float* gate, long gate_stride, const float* up, long up_stride, long n, float* y);

// One query against its keys.
struct Query {
  long keys, dim, value_dim;
  float scale;
  const float* q;
  long q_stride;
  const float* k;
  long k_step, k_stride;
  const float* v;
  long v_step, v_stride;
  // At most one of them: true where a key is seen, or what is added to the scores.
  const bool* seen;
  const float* added;
  long mask_step;
};
// y = softmax(scale q k^T + mask) v; `work` has keys + dim floats.
void attend(const Query& a, float* work, float* y);

} // namespace mlxrs::fused
