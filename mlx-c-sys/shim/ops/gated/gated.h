// The gates of gated MLPs, gate(x) * up, alone and fused with the two matrix products; and soft caps.
#pragma once

#include <array>
#include <span>

#include "ops/derivative.h"
#include "ops/linear/linear.h"

namespace mlxrs::ops {

// gate * sigmoid(gate) * up, or gelu(gate) * up with the tanh approximation of gelu.
enum class Gate { silu = MLXRS_GATE_SILU, gelu_tanh = MLXRS_GATE_GELU_TANH };
std::optional<mx::array> gated(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
mx::array gated_plainly(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);
mx::array gate_in_form(Gate gate, const mx::array& x, const mx::array& up, mx::Stream s);

// gate(x a^T) * (x b^T) for two matrices a and b as one node. The products are never whole in memory. Returns nothing
// for f32, whose products are computed by sgemm, and for matrices of different codings.
std::optional<mx::array> gated_linear(Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, mx::Stream s);
mx::array gated_linear_in_form(Gate gate, const mx::array& x, const std::array<Parts, 2>& ws, mx::Stream s);

// The node of gated_linear, or null. Its inputs are x and the parts of both matrices.
class ProductNode;
std::shared_ptr<ProductNode> gated_products_node(Gate gate, const mx::array& x, std::span<const Parts, 2> ws, mx::Stream s);

// The gradients of `gated`. `of` is a copy of the operation's node, because MLX owns the node itself.
Arrays gated_vjp(std::shared_ptr<Node> of, Gate gate, const Arrays& primals, const mx::array& dy,
                 const std::vector<int>& argnums);

// The same for 16-bit arrays on a GPU.
Arrays gated_vjp_in_16_bits(std::shared_ptr<Node> of, Gate gate, const Arrays& primals, const mx::array& dy,
                            const std::vector<int>& argnums);

// cap tanh(x / cap)
std::optional<mx::array> soft_cap(const mx::array& x, float cap, mx::Stream s);
mx::array soft_cap_plainly(const mx::array& x, float cap, mx::Stream s);

} // namespace mlxrs::ops
