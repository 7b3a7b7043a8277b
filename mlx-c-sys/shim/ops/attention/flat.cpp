// What the operands of attention in a flat step must be.
#include "flat.h"

#include "ops/store/store.h"

namespace mlxrs::ops {

Arrays FlatInputs::all() const {
  Arrays all{q, k};
  if (v) {
    all.push_back(*v);
  }
  rows.append(all);
  for (const auto& more : {mask, slopes, sinks}) {
    if (more) {
      all.push_back(*more);
    }
  }
  return all;
}

int value_size(const FlatInputs& of, const FlatOptions& options) {
  return of.v ? unpacked_size(*of.v, options.packing, of.q.dtype()) : options.value_dim;
}

void check_flat(const FlatInputs& of, const FlatOptions& options) {
  auto require = [](bool holds, const char* text) {
    if (!holds) {
      throw std::invalid_argument(std::string("attention of a flat step: ") + text);
    }
  };
  const auto &q = of.q, &k = of.k;
  check_rows(of.rows, "attention of a flat step");
  bool is_paged = of.rows.has_pages();
  require(is_float(q.dtype()) && q.ndim() == 4 && q.shape(0) == 1, "queries must be F32, F16 or BF16 [1, H, T, D]");
  require(is_paged || options.packing.bits == 0, "keys that are not in pages cannot be packed");
  auto kept_as = options.packing.bits > 0 ? mx::uint32 : q.dtype();
  for (const auto* a : {&k, of.v ? &*of.v : &k}) {
    require(a->ndim() == 4 && a->dtype() == kept_as, "keys and values need the queries' dtype, or U32 if they are packed");
    if (is_paged) {
      check_pool(*a, "attention of a flat step");
      require(a->shape(0) == k.shape(0), "keys and values need the same number of pages");
    } else {
      require(a->shape(0) == 1 && a->shape(2) == q.shape(2), "there must be a key and a value for each query");
    }
    require(a->shape(1) == k.shape(1) && a->shape(2) == k.shape(2), "keys and values need the same heads and positions");
  }
  require(k.shape(1) > 0 && q.shape(1) > 0 && q.shape(1) % k.shape(1) == 0, "the query heads must be a multiple of the KV heads");
  int dim = q.shape(3);
  require(dim > 0 && unpacked_size(k, options.packing, q.dtype()) == dim, "keys need the queries' head size");
  require(of.v.has_value() == (options.value_dim == 0), "there are values, or the size of values in latents");
  require(of.v || (options.packing.bits == 0 && options.value_dim <= dim), "latents are not packed, and no shorter than values");
  require(value_size(of, options) > 0, "values must not be empty");
  require(options.window >= 0 && options.chunk >= 0, "a window or a chunk must not be negative");
  if (of.mask) {
    const auto& mask = *of.mask;
    bool fits = mask.ndim() == 3 && (mask.shape(0) == 1 || mask.shape(0) == q.shape(1)) &&
        (mask.shape(1) == 1 || mask.shape(1) == q.shape(2)) && mask.shape(2) > 0;
    require(fits, "a mask must be [1 or H, 1 or T, S]");
    bool is_short = !is_paged || mask.shape(2) <= int64_t(of.rows.tables->shape(1)) * k.shape(2);
    require(is_short, "a mask must not have more columns than the tables have positions");
  }
  auto is_of_heads = [&](const std::optional<mx::array>& a) {
    return !a || (a->ndim() == 1 && a->shape(0) == q.shape(1) && a->dtype() == mx::float32);
  };
  require(is_of_heads(of.slopes), "slopes must be F32, one for each query head");
  require(is_of_heads(of.sinks), "sinks must be one number for each query head");
}

} // namespace mlxrs::ops
