//! Failures outside of the arithmetic: kernels that fail, memory that runs out, bad files, and wrong settings.

mod allocator;
mod files;
#[path = "../failing/kernel.rs"]
mod kernel;
mod memory;
mod settings;
mod streams;
