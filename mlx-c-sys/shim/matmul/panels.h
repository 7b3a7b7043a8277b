// Products by panels: rows of weights are written out in f32, or as pairs of bf16, and multiplied by the kernels of sgemm.
#pragma once

#include "../sgemm/product.h"
#include "expand.h"
#include "job.h"

namespace mlxrs::matmul {

// By kernels for f32, for which pairs of bf16 are elements too where `pairs` is set.
void by_panels(const Product& p, const Job& job, const sgemm::Kernels& kernels, const Expander& expander, bool pairs);

} // namespace mlxrs::matmul
