// The instruction sets that the kernels are compiled for, and the choice of one.
#pragma once

#include <string>

namespace mlxrs {

// Each instruction set includes those before it. Machines other than x86-64 have only `portable`, which uses the
// compiler's generic vectors (NEON on Arm).
enum class Isa {
  portable,
  // AVX2, FMA and F16C.
  avx2,
  // AVX-512 F, BW, DQ and VL.
  avx512,
  // VPDPBUSD and VPDPWSSD, and VBMI to unpack codes.
  avx512vnni,
  // VDPBF16PS. Chosen only on AMD CPUs, where it has twice the throughput of f32 FMA. On Intel CPUs it is slower than
  // f32 FMA.
  avx512bf16,
  // AMX tiles of bf16, and AVX-512 BF16 for its conversions.
  amx,
};

// The machine's best instruction set, or the one in MLX_CPU_ISA. Throws std::invalid_argument if the name is unknown,
// or if the machine or the compiler of this library does not support it.
Isa isa();

// Whether the machine reads two streams of memory at a time faster than four. Measured: Zen 4 reads 34 GB/s as two
// streams and 29 as four, Sapphire Rapids 26 and 27.
bool reads_best_in_two();

// The name for MLX_CPU_ISA.
const char* name_of(Isa isa);

} // namespace mlxrs
