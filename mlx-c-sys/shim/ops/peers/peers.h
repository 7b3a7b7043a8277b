// Sums of small arrays over the GPUs of one machine, through memory that all ranks write to.
#pragma once

#include "ops/node.h"

namespace mlxrs::ops {

// See mlxrs_peers.h.
void offer_to_peers(unsigned char* handle);
void open_peers(const unsigned char* handles, int rank, int size);
bool peers_take(const mx::array& x, mx::Stream s);
mx::array sum_of_peers(const mx::array& x, mx::Stream s);

} // namespace mlxrs::ops
