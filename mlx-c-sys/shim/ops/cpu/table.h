// The table of kernels, compiled for the instruction set of the file that includes it.
#pragma once

#include "ops/attention/cpu/packed.h"
#include "ops/attention/cpu/softmax.h"
#include "ops/conv/cpu/conv.h"
#include "ops/delta/cpu/delta.h"
#include "ops/gated/cpu/gated.h"
#include "ops/loss/cpu/loss.h"
#include "ops/norm/cpu/norm.h"
#include "ops/rope/cpu/rope.h"
#include "ops/sample/cpu/choose.h"
#include "ops/store/cpu/packed_row.h"

namespace mlxrs::ops {
namespace {

template <class T>
constexpr RowKernels rows_of() {
  return {rms_norm<T>, add_norm<T>, rotate<T>, swiglu<T>, geglu<T>, soft_cap<T>, pack<T>};
}

template <class T>
constexpr RecurrentKernels recurrent_of() {
  return {conv<T>, delta_size, delta<T>};
}

constexpr Kernels table = {
    {rows_of<float>(), rows_of<f16>(), rows_of<bf16>()},
    {attention_of<float>(), attention_of<f16>(), attention_of<bf16>()},
    {packed_attention_of<float>(), packed_attention_of<f16>(), packed_attention_of<bf16>()},
    merge,
    angles,
    {choose_of<float>(), choose_of<f16>(), choose_of<bf16>()},
    above,
    between,
    {rms_norm_vjp, swiglu_vjp, geglu_vjp, softmax_vjp, cross_entropy, cross_entropy_vjp},
    {recurrent_of<float>(), recurrent_of<f16>(), recurrent_of<bf16>()},
};

} // namespace
} // namespace mlxrs::ops
