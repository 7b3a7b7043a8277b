//! Training of language models on MLX: the library and the mlx-train command

#![forbid(unsafe_code)]
