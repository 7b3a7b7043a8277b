//! Each example prints what the file beside it says.

#[path = "../../mlx-core/tests/examples.rs"]
mod examples;
