// Finds the instruction sets of the CPU, and chooses one.
#include "isa.h"

#include <stdexcept>

#include "core/settings.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mlxrs {
namespace {

constexpr Isa all[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512vnni, Isa::avx512bf16,
                       Isa::amx};

#ifdef __x86_64__

bool is_amd() {
  static const bool amd = __builtin_cpu_is("amd");
  return amd;
}

// Linux grants the tile registers only on request. Without the request, their first use kills the process.
// https://docs.kernel.org/arch/x86/xstate.html
bool may_use_tiles() {
#if defined(__linux__) && defined(HAVE_AMX)
  constexpr int request_permission = 0x1023, tile_data = 18;
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
#else
  return false;
#endif
}

bool has(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case Isa::avx512:
      return has(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Isa::avx512vnni:
#ifdef HAVE_AVX512VNNI
      return has(Isa::avx512) && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
#else
      return false;
#endif
    case Isa::avx512bf16:
#ifdef HAVE_AVX512BF16
      return has(Isa::avx512vnni) && __builtin_cpu_supports("avx512bf16");
#else
      return false;
#endif
    case Isa::amx:
#ifdef HAVE_AMX
      return has(Isa::avx512bf16) && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
          __builtin_cpu_supports("amx-int8") && may_use_tiles();
#else
      return false;
#endif
  }
  return false;
}

Isa best() {
  if (has(Isa::amx)) {
    return Isa::amx;
  }
  // Measured on Sapphire Rapids: VDPBF16PS has 0.6 of the throughput of f32 FMA.
  if (has(Isa::avx512bf16) && is_amd()) {
    return Isa::avx512bf16;
  }
  return has(Isa::avx512vnni) ? Isa::avx512vnni : has(Isa::avx512) ? Isa::avx512 : has(Isa::avx2) ? Isa::avx2 : Isa::portable;
}

#else

bool is_amd() {
  return false;
}
bool has(Isa isa) {
  return isa == Isa::portable;
}
Isa best() {
  return Isa::portable;
}

#endif

Isa choose() {
  std::string wanted = setting("MLX_CPU_ISA");
  if (wanted.empty()) {
    return best();
  }
  std::string known;
  for (Isa isa : all) {
    if (!has(isa)) {
      continue;
    }
    if (wanted == name_of(isa)) {
      return isa;
    }
    known += (known.empty() ? "" : ", ") + std::string(name_of(isa));
  }
  throw std::invalid_argument(
      "MLX_CPU_ISA must be one that this machine has (" + known + "), given \"" + wanted + "\"");
}

} // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::portable:
#ifdef __aarch64__
      return "neon"; // vectors of four with FMA, on all aarch64 CPUs
#else
      return "portable";
#endif
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512vnni:
      return "avx512vnni";
    case Isa::avx512bf16:
      return "avx512bf16";
    case Isa::amx:
      return "amx";
  }
  return "";
}

bool reads_best_in_two() {
  return is_amd();
}

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

} // namespace mlxrs
