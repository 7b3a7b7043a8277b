// The C functions of the KV cache's buffers.
#include <algorithm>

#include "core/donate.h"
#include "paged.h"
#include "ops/rope/border.h"

using namespace mlxrs;

namespace {

// Calls `node` on CPUs. Returns nothing on GPUs, which have no kernel for it.
template <typename Node>
std::optional<mx::array> on_cpu(mx::Stream s, const Node& node) {
  return s.device == mx::Device::cpu ? std::make_optional(node()) : std::nullopt;
}

ops::Arrays store(
    mlx_array k_buffer, mlx_array v_buffer, ops::StoreInputs of, const mlxrs_store_options& options, mlx_stream s) {
  auto stream = mlx_stream_get_(s);
  if ((k_buffer.ctx == nullptr) != (v_buffer.ctx == nullptr) || (k_buffer.ctx == nullptr) != (options.slots > 0)) {
    throw std::invalid_argument("store: a cache has two buffers, or asks for two new ones of at least one slot");
  }
  if (k_buffer.ctx != nullptr) {
    of.buffers = {mlx_array_get_(k_buffer), mlx_array_get_(v_buffer)};
  }
  of.slots = options.slots;
  ops::StoreOptions how{ops::row_packing(options.bits, options.group_size), options.ring, options.in_place};
  return ops::run(
      MLXRS_OP_STORE, stream, [&] { return ops::store(of, how, stream); },
      [&] { return ops::store_plainly(of, how, stream); });
}

// The pools with the new tokens, after the heads of queries if there are any.
void paged_store(
    mlx_vector_array* res, mlx_array k_pool, mlx_array v_pool, ops::PagedStoreInputs of, const mlxrs_paged_store_options& options,
    mlx_stream s) {
  auto stream = mlx_stream_get_(s);
  of.pools.push_back(mlx_array_get_(k_pool));
  if (v_pool.ctx != nullptr) {
    of.pools.push_back(mlx_array_get_(v_pool));
  }
  ops::PagedStoreOptions how{ops::row_packing(options.bits, options.group_size), options.in_place};
  ops::check_paged_store(of, how.packing);
  auto plainly = [&] {
    auto stored = ops::paged_store_plainly(of, how, stream);
    for (size_t i = 0; how.in_place && i < of.pools.size(); i++) {
      stored[i] = update_in_place(stored[i], of.pools[i]);
    }
    return stored;
  };
  auto out = ops::run(
      MLXRS_OP_STORE, stream, [&] { return ops::paged_store(of, how, stream); }, plainly);
  std::rotate(out.begin(), out.begin() + static_cast<ptrdiff_t>(of.pools.size()), out.end());
  mlx_vector_array_set_(*res, out);
}

} // namespace

extern "C" int mlxrs_fast_store(
    mlx_array* first,
    mlx_array* second,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlx_array keys,
    mlx_array values,
    mlx_array offsets,
    mlxrs_store_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::StoreInputs of{
        std::nullopt, 0, mlx_array_get_(keys), std::nullopt, mlx_array_get_(values), mlx_array_get_(offsets)};
    auto out = store(k_buffer, v_buffer, std::move(of), options, s);
    mlx_array_set_(*first, out.at(0));
    mlx_array_set_(*second, out.at(1));
  });
}

extern "C" int mlxrs_fast_store_heads(
    mlx_array* first,
    mlx_array* second,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_store_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::StoreInputs of{
        std::nullopt, 0, std::nullopt, ops::projection_of(keys), mlx_array_get_(values), mlx_array_get_(keys.offsets)};
    auto out = store(k_buffer, v_buffer, std::move(of), options, s);
    mlx_array_set_(*first, out.at(0));
    mlx_array_set_(*second, out.at(1));
  });
}

extern "C" int mlxrs_fast_heads_and_store(
    mlx_vector_array* res,
    mlxrs_projection queries,
    mlx_array k_buffer,
    mlx_array v_buffer,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_store_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::StoreInputs of{
        std::nullopt, 0, std::nullopt, ops::projection_of(keys), mlx_array_get_(values), mlx_array_get_(keys.offsets),
        ops::projection_of(queries)};
    auto out = store(k_buffer, v_buffer, std::move(of), options, s);
    std::rotate(out.begin(), out.begin() + 2, out.end());
    mlx_vector_array_set_(*res, out);
  });
}

extern "C" int mlxrs_fast_paged_store(
    mlx_vector_array* res,
    mlx_array k_pool,
    mlx_array v_pool,
    mlx_array keys,
    mlx_array values,
    mlxrs_pages pages,
    mlxrs_paged_store_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::PagedStoreInputs of{{}, mlx_array_get_(keys), std::nullopt, ops::optional(values), ops::rows_of(pages)};
    paged_store(res, k_pool, v_pool, std::move(of), options, s);
  });
}

extern "C" int mlxrs_fast_paged_store_heads(
    mlx_vector_array* res,
    mlx_array k_pool,
    mlx_array v_pool,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_pages pages,
    mlxrs_paged_store_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::PagedStoreInputs of{{}, std::nullopt, ops::projection_of(keys), mlx_array_get_(values), ops::rows_of(pages)};
    paged_store(res, k_pool, v_pool, std::move(of), options, s);
  });
}

extern "C" int mlxrs_fast_paged_heads_and_store(
    mlx_vector_array* res,
    mlxrs_projection queries,
    mlx_array k_pool,
    mlx_array v_pool,
    mlxrs_projection keys,
    mlx_array values,
    mlxrs_pages pages,
    mlxrs_paged_store_options options,
    mlx_stream s) {
  return guarded([&] {
    ops::PagedStoreInputs of{{}, std::nullopt, ops::projection_of(keys), mlx_array_get_(values), ops::rows_of(pages),
                             ops::projection_of(queries)};
    paged_store(res, k_pool, v_pool, std::move(of), options, s);
  });
}

extern "C" int mlxrs_fast_pack(mlx_array* res, mlx_array x, int bits, int group_size, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    auto packing = ops::row_packing(bits, group_size);
    const auto& in = mlx_array_get_(x);
    auto y = ops::run(
        MLXRS_OP_STORE, stream, [&] { return on_cpu(stream, [&] { return ops::pack(in, packing, stream); }); },
        [&] { return ops::pack_plainly(in, packing, stream); });
    mlx_array_set_(*res, y);
  });
}

extern "C" int mlxrs_fast_unpack(
    mlx_array* res, mlx_array words, int bits, int group_size, mlx_dtype dtype, mlx_stream s) {
  return guarded([&] {
    auto packing = ops::row_packing(bits, group_size);
    mlx_array_set_(*res, ops::unpack_plainly(mlx_array_get_(words), packing, dtype_of(dtype), mlx_stream_get_(s)));
  });
}

extern "C" int mlxrs_fast_blank(mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, mlx_stream s) {
  return guarded([&] {
    auto stream = mlx_stream_get_(s);
    mx::Shape sizes(shape, shape + shape_num);
    auto type = dtype_of(dtype);
    auto y = ops::run(
        MLXRS_OP_STORE, stream, [&] { return on_cpu(stream, [&] { return ops::blank(sizes, type, stream); }); },
        [&] { return mx::zeros(sizes, type, stream); });
    mlx_array_set_(*res, y);
  });
}
