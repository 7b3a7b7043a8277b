#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// `in` is {x, keys, numbers, counts} and `out` is {ids, checked}, as in draw (ops/sample/sample.h).
void draw_on_cuda(const Arrays& in, Arrays& out, mx::Stream s);
// log(sum(e^x)) of each row, or with `places` the index of the largest element.
void logsumexp_on_cuda(const mx::array& x, bool places, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
