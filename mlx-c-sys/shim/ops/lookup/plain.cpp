// Rows of a matrix as a graph of MLX's operations.
#include "core/checked.h"
#include "lookup.h"

namespace mlxrs::ops {

mx::array lookup_plainly(const mx::array& indices, const Parts& w, mx::Dtype dtype, mx::Stream s) {
  auto inside = check_indices("rows", indices, w.weight, {0}, {1}, true, s);
  auto taken = [&](const mx::array& a) { return mx::take(a, inside, 0, s); };
  if (!w.scales) {
    return mx::astype(taken(w.weight), dtype, s);
  }
  auto biases = w.biases ? std::make_optional(taken(*w.biases)) : std::nullopt;
  return dequantized({taken(w.weight), taken(*w.scales), biases, w.packing}, dtype, s);
}

} // namespace mlxrs::ops
