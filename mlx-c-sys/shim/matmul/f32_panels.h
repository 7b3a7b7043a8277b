// Products in f32: panels of weights are dequantised and multiplied by sgemm's kernels.
#pragma once

#include "dequantize.h"
#include "job.h"
#include "matmul/sgemm/product.h"

namespace mlxrs::matmul {

void by_f32_panels(const Product& p, const Job& job, const sgemm::Kernels& kernels, const Dequantizer& dequantizer);

} // namespace mlxrs::matmul
