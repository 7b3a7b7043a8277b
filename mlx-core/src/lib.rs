//! Safe, lazy MLX arrays for Rust
