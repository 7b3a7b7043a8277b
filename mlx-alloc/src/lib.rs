//! A faster `operator new` for programs that compute with MLX on Linux.
//!
//! ```
//! use mlx_alloc as _;
//! ```
//!
//! in `main.rs` replaces the allocation functions of all C++ in the program by those of mimalloc, MLX's and mlx-c's first of all.
//! There is nothing to call. Nothing happens on other systems.
//!
//! A step of a language model is a graph of some hundred nodes, each of which is a dozen small C++ objects. One thread makes them
//! and another, which computes, destroys them. glibc's `malloc` is slow at that: the tokens of a small model come 6 to 9 % faster
//! without it, one at a time on two cores, and a quarter faster on an H100. Memory for results still comes from `malloc`, as does
//! Rust's, where nothing was to be gained: both are large, or stay with their thread.
//!
//! # Only in programs
//!
//! C++ lets a *program* replace these functions. A library of yours should leave that to whoever builds the program, and a
//! `cdylib` that another program loads must not use this crate: memory would come from one allocator and go to the other.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
use libmimalloc_sys as _;
