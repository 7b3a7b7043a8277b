// Packing, unpacking and storing as graphs of MLX's operations.
#include "store.h"

#include <algorithm>

namespace mlxrs::ops {

mx::array pack_plainly(const mx::array& x, const RowPacking& packing, mx::Stream s) {
  auto parts = mx::quantize(x, packing.group, packing.bits, "affine", std::nullopt, s);
  auto shape = parts[1].shape();
  shape.back() *= 2;
  auto factors = mx::reshape(mx::stack({parts[1], parts[2]}, -1, s), shape, s);
  return mx::concatenate({parts[0], mx::view(factors, mx::uint32, s)}, -1, s);
}

mx::array unpack_plainly(const mx::array& words, const RowPacking& packing, mx::Dtype dtype, mx::Stream s) {
  int n = unpacked_size(words, packing, dtype), codes = n * packing.bits / 32, groups = n / packing.group;
  if (words.dtype() != mx::uint32 || n == 0) {
    throw std::invalid_argument("unpack: these are no packed vectors of this type");
  }
  auto part = [&](const mx::array& a, int from, int to) {
    mx::Shape start(a.ndim(), 0), stop = a.shape();
    start.back() = from;
    stop.back() = to;
    return mx::slice(a, start, stop, s);
  };
  auto factors = mx::view(mx::contiguous(part(words, codes, words.shape(-1)), false, s), dtype, s);
  auto shape = factors.shape();
  shape.back() = groups;
  shape.push_back(2);
  // Products and sums are in f32, as in the kernels.
  factors = mx::astype(mx::reshape(factors, shape, s), mx::float32, s);
  auto of = [&](int i) { return mx::squeeze(part(factors, i, i + 1), -1, s); };
  return mx::dequantize(
      part(words, 0, codes), of(0), of(1), packing.group, packing.bits, "affine", std::nullopt, std::nullopt, s);
}

Arrays store_plainly(StoreInputs of, const StoreOptions& options, mx::Stream s) {
  if (!of.keys) {
    of.keys = heads_plainly(*of.projection, s);
  }
  buffer_shapes(of, options.packing);
  const auto& keys = *of.keys;
  int tokens = keys.shape(2), slots = of.buffers ? (*of.buffers)[0].shape(2) : of.slots;
  auto places = mx::add(
      mx::reshape(of.offsets, {-1, 1, 1, 1}, s),
      mx::reshape(mx::arange(0, tokens, 1, mx::int32, s), {1, 1, tokens, 1}, s), s);
  if (options.ring && slots > 0) {
    places = mx::remainder(places, mx::array(slots, mx::int32), s);
  }
  // As in the kernels, a token whose slot is outside of the buffer is not written. On CPUs it goes to a spare slot,
  // which is cut off at the end. On GPUs its slot is clamped instead, because copying the cache for the spare slot
  // would take longer than the step's matrix products.
  bool has_spare = s.device == mx::Device::cpu;
  auto zero = mx::array(0, mx::int32), end = mx::array(slots, mx::int32);
  if (has_spare) {
    auto is_inside = mx::logical_and(mx::greater_equal(places, zero, s), mx::less(places, end, s), s);
    places = mx::where(is_inside, places, end, s);
  } else {
    places = mx::clip(places, zero, mx::array(std::max(slots - 1, 0), mx::int32), s);
  }
  Arrays out;
  for (size_t i = 0; i < 2; i++) {
    const auto& given = i == 0 ? keys : of.values;
    auto fresh = options.packing.bits > 0 ? pack_plainly(given, options.packing, s) : given;
    auto shape = fresh.shape();
    shape[2] = slots;
    auto buffer = of.buffers ? (*of.buffers)[i] : mx::zeros(shape, fresh.dtype(), s);
    if (has_spare) {
      shape[2] = 1;
      buffer = mx::concatenate({buffer, mx::zeros(shape, buffer.dtype(), s)}, 2, s);
    }
    auto stored = mx::put_along_axis(buffer, mx::broadcast_to(places, fresh.shape(), s), fresh, 2, s);
    if (has_spare) {
      shape[2] = slots;
      stored = mx::slice(stored, mx::Shape(shape.size(), 0), shape, s);
    }
    out.push_back(stored);
  }
  if (of.queries) {
    out.push_back(heads_plainly(*of.queries, s));
  }
  return out;
}

} // namespace mlxrs::ops
