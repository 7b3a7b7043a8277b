//! Text generation on MLX: the library and the mlx-infer command
