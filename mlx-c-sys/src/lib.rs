//! Raw bindings to mlx-c, the C interface of Apple's MLX
