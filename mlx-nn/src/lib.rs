//! Neural network layers, quantised linears and caches on MLX
