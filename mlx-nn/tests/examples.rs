//! Each example prints the text of the file next to it.

#[path = "../../mlx-core/tests/examples.rs"]
mod examples;
