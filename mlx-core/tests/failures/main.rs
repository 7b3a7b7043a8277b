//! What goes wrong outside of the arithmetic: kernels that fail, memory and files that end, settings that are none.

mod allocator;
mod files;
#[path = "../failing/kernel.rs"]
mod kernel;
mod memory;
mod settings;
mod streams;
