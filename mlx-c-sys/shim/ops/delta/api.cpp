// The C functions of linear attention.
#include "delta.h"
#include "ops/border.h"

using namespace mlxrs;

namespace {

void run(mlx_array* y, mlx_array* after, const ops::DeltaInputs& in, const ops::DeltaSettings& settings, mx::Stream s) {
  auto out = ops::run(
      MLXRS_OP_DELTA, s, [&] { return ops::delta(in, settings, s); },
      [&] { return ops::delta_plainly(in, settings, s); });
  mlx_array_set_(*y, out.at(0));
  mlx_array_set_(*after, out.at(1));
}

void run_ragged(
    mlx_vector_array* res, const ops::RaggedDeltaInputs& in, const ops::DeltaSettings& settings, mx::Stream s) {
  auto out = ops::run(
      MLXRS_OP_DELTA, s, [&] { return ops::ragged_delta(in, settings, s); },
      [&] { return in.rows.stored(ops::ragged_delta_plainly(in, settings, s), s); });
  mlx_vector_array_set_(*res, out);
}

} // namespace

extern "C" int mlxrs_fast_gated_delta(mlx_array* y, mlx_array* after, mlxrs_gated_delta of, mlx_stream s) {
  return guarded([&] {
    ops::DeltaInputs in{
        mlx_array_get_(of.qkv), mlx_array_get_(of.a),     mlx_array_get_(of.b),     mlx_array_get_(of.rate),
        mlx_array_get_(of.bias), mlx_array_get_(of.state), mlx_array_get_(of.widths)};
    bool one = in.a.shape(2) == in.state.shape(1);
    run(y, after, in, {one ? ops::Rule::delta : ops::Rule::channels, of.key_heads, 0, of.most, of.bound}, mlx_stream_get_(s));
  });
}

extern "C" int mlxrs_fast_scan(mlx_array* y, mlx_array* after, mlxrs_scan of, mlx_stream s) {
  return guarded([&] {
    ops::DeltaInputs in{
        mlx_array_get_(of.x),    mlx_array_get_(of.dt),    mlx_array_get_(of.skip),  mlx_array_get_(of.rate),
        mlx_array_get_(of.bias), mlx_array_get_(of.state), mlx_array_get_(of.widths)};
    run(y, after, in, {ops::Rule::scan, of.groups, of.least, of.most}, mlx_stream_get_(s));
  });
}

extern "C" int mlxrs_fast_ragged_delta(
    mlx_vector_array* res, mlxrs_gated_delta of, int key_dim, mlxrs_ragged rows, mlx_stream s) {
  return guarded([&] {
    const auto &a = mlx_array_get_(of.a), &b = mlx_array_get_(of.b);
    ops::RaggedDeltaInputs in{
        mlx_array_get_(of.qkv), a, b, mlx_array_get_(of.rate), mlx_array_get_(of.bias), b.shape(2), key_dim, ops::Ragged::of(rows)};
    auto rule = a.shape(2) == b.shape(2) ? ops::Rule::delta : ops::Rule::channels;
    run_ragged(res, in, {rule, of.key_heads, 0, of.most, of.bound}, mlx_stream_get_(s));
  });
}

extern "C" int mlxrs_fast_ragged_scan(mlx_vector_array* res, mlxrs_scan of, int key_dim, mlxrs_ragged rows, mlx_stream s) {
  return guarded([&] {
    const auto& dt = mlx_array_get_(of.dt);
    ops::RaggedDeltaInputs in{
        mlx_array_get_(of.x), dt, mlx_array_get_(of.skip), mlx_array_get_(of.rate), mlx_array_get_(of.bias), dt.shape(2), key_dim,
        ops::Ragged::of(rows)};
    run_ragged(res, in, {ops::Rule::scan, of.groups, of.least, of.most}, mlx_stream_get_(s));
  });
}
