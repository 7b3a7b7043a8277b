//! The output of each example is the text of the file beside it.

#[path = "../../mlx-core/tests/examples.rs"]
mod examples;
