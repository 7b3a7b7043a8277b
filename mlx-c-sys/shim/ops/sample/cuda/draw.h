#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

void draw_on_cuda(const Arrays& in, Arrays& out, mx::Stream s);
// log(sum(e^x)) of each row, or where `places` the index of the largest.
void logsumexp_on_cuda(const mx::array& x, bool places, mx::array& y, mx::Stream s);

} // namespace mlxrs::ops
