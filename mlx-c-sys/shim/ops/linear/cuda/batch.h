// Products by warp groups (Hopper): what the host and the kernels of batch.cuh share.
#pragma once

#include <cuda.h>

namespace mlxrs::cuda {

// A tile of w has this many rows and, as one copy, this many of its columns.
constexpr int tile_of_w = 64, columns_of_copy = 64;

// Dense matrices as the copies of tiles describe them.
struct Tiles {
  CUtensorMap of[3];
};

// The stages of blocks of columns in shared memory, for `rows` rows of x a block.
constexpr int batch_stages(int rows) {
  return rows <= 64 ? 4 : 3;
}
// The bytes of w in a stage: two parts of 128 rows of 128 bytes, the second after a gap of 256 bytes. Packed weights go
// from memory to registers.
constexpr int part_of_w = 128 * 128, second_of_w = part_of_w + 256, bytes_of_w = 2 * part_of_w + 1024;
constexpr int batch_stage_bytes(bool is_packed, int rows) {
  return (is_packed ? 0 : bytes_of_w) + rows * 256;
}
// The sums that a block keeps apart: those of the warps of `product` that it stands for, if several blocks divide them.
constexpr int sums_of_block(int parts) {
  return parts == 1 ? 1 : 8 / parts;
}
// Elements of a row of sums in shared memory; the padding avoids bank conflicts.
constexpr int padded_sums = 128 + 4;
// The bytes of shared memory of a block. Sums take the place of the stages.
constexpr int batch_shared(bool is_packed, int rows, int parts) {
  int stages = batch_stages(rows) * batch_stage_bytes(is_packed, rows), sums = sums_of_block(parts) * rows * padded_sums * 4;
  return (stages > sums ? stages : sums) + 1024;
}
// A block's threads: 8 warps that multiply, and for dense weights one that fetches.
constexpr int batch_threads(bool is_packed) {
  return is_packed ? 256 : 288;
}

} // namespace mlxrs::cuda
