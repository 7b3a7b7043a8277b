// Which instructions the kernels use.
#pragma once

#include <string>

namespace mlxrs {

// Each has what those before it have. On machines that are not x86-64 there is only `portable`: vectors as the compiler
// makes them, NEON on Arm.
enum class Isa {
  portable,
  // AVX2, FMA and F16C.
  avx2,
  // AVX-512 F, BW, DQ and VL.
  avx512,
  // VPDPBUSD and VPDPWSSD, and VBMI to unpack.
  avx512vnni,
  // VDPBF16PS. Wanted only where it is faster than f32 FMA: twice on AMD's machines, not on Intel's.
  avx512bf16,
  // Tiles of bf16, and AVX-512 BF16 for its conversions.
  amx,
};

// The machine's best, or the one that MLX_CPU_ISA names. Throws std::invalid_argument when that is no name, or when the
// machine or the compiler that built this does not have it.
Isa isa();

// Whether memory comes faster in two stretches side by side than in four. Measured: Zen 4 reads 34 and 29 GB/s, Sapphire Rapids 26 and 27.
bool reads_best_in_two();

// The name that MLX_CPU_ISA has for it.
const char* name_of(Isa isa);

} // namespace mlxrs
