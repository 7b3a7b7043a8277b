#include "form.h"

#include "core/guard.h"
#include "core/settings.h"

#ifdef MLXRS_CUDA
#include "cuda/launch.h"
#endif

namespace mlxrs::ops {
namespace {

// The nesting depth of mlxrs_fast_use_plain_forms on this thread: calls with true less calls with false. If not 0, all
// operations use the plain form.
thread_local int plainly = 0;

// Whether there is a CPU kernel for the operation.
bool has_cpu_kernel(mlxrs_op op) {
#ifdef __APPLE__
  // MLX's own matrix products and gathers use Accelerate there.
  switch (op) {
    case MLXRS_OP_LINEAR:
    case MLXRS_OP_EXPERTS:
    case MLXRS_OP_LOOKUP:
      return false;
    default:
      return true;
  }
#else
  (void)op;
  return true;
#endif
}

// Whether there is a CUDA kernel for the operation.
bool has_cuda_kernel([[maybe_unused]] mlxrs_op op, [[maybe_unused]] mx::Stream s) {
#ifdef MLXRS_CUDA
  switch (op) {
    case MLXRS_OP_ATTENTION:
    case MLXRS_OP_CONV:
    case MLXRS_OP_DELTA:
    case MLXRS_OP_EXPERTS:
    case MLXRS_OP_GATED:
    case MLXRS_OP_LINEAR:
    case MLXRS_OP_LOOKUP:
    case MLXRS_OP_NORM:
    case MLXRS_OP_ROPE:
    case MLXRS_OP_SAMPLE:
    case MLXRS_OP_STORE:
      return cuda::is_usable(s);
    default:
      return false;
  }
#else
  return false;
#endif
}

} // namespace

Form form(mlxrs_op op, mx::Stream s) {
  static const bool wanted = kernels_wanted();
  if (plainly != 0) {
    return Form::plain;
  }
  if (s.device == mx::Device::cpu) {
    return wanted && has_cpu_kernel(op) ? Form::cpu : Form::plain;
  }
  return has_cuda_kernel(op, s) ? Form::cuda : Form::plain;
}

} // namespace mlxrs::ops

using namespace mlxrs;

extern "C" int mlxrs_fast_form(mlxrs_form* res, mlxrs_op op, mlx_stream s) {
  return guarded([&] { *res = static_cast<mlxrs_form>(ops::form(op, mlx_stream_get_(s))); });
}

extern "C" void mlxrs_fast_use_plain_forms(bool begin) {
  ops::plainly += begin ? 1 : -1;
}
