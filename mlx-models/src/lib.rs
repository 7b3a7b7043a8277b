//! Language model architectures on MLX
