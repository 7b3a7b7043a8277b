// The C functions of sums over the GPUs of a machine.
#include "mlxrs_peers.h"
#include "ops/border.h"
#include "peers.h"

using namespace mlxrs;

#ifndef MLXRS_CUDA

namespace mlxrs::ops {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("this build has no CUDA kernels for sums over GPUs");
}

} // namespace

void offer_to_peers(unsigned char*) {
  refuse();
}
void open_peers(const unsigned char*, int, int) {
  refuse();
}
bool peers_take(const mx::array&, mx::Stream) {
  return false;
}
mx::array sum_of_peers(const mx::array&, mx::Stream) {
  refuse();
}

} // namespace mlxrs::ops

#endif

extern "C" int mlxrs_peers_offer(unsigned char* handle) {
  return guarded([&] { ops::offer_to_peers(handle); });
}

extern "C" int mlxrs_peers_open(const unsigned char* handles, int rank, int size) {
  return guarded([&] { ops::open_peers(handles, rank, size); });
}

extern "C" int mlxrs_peers_takes(bool* res, mlx_array x, mlx_stream s) {
  return guarded([&] { *res = ops::peers_take(mlx_array_get_(x), mlx_stream_get_(s)); });
}

extern "C" int mlxrs_peers_sum(mlx_array* res, mlx_array x, mlx_stream s) {
  return guarded([&] { mlx_array_set_(*res, ops::sum_of_peers(mlx_array_get_(x), mlx_stream_get_(s))); });
}
