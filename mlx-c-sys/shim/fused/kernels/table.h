// All kernels of the instruction set that a file is compiled for. Included once by each such file.
#pragma once

#include "attention.h"
#include "choose.h"
#include "gradients.h"
#include "packed.h"

namespace mlxrs::fused {
namespace {

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
};

} // namespace
} // namespace mlxrs::fused
