//! A faster `operator new` for programs that compute with MLX on Linux.
//!
//! ```
//! use mlx_alloc as _;
//! ```
//!
//! in `main.rs` replaces the allocation functions of all C++ in the program, MLX's and mlx-c's first of all, by those of a pool.
//! There is nothing to call. Nothing happens on other systems.
//!
//! A step of a language model is a graph of some hundred nodes, each of which is a dozen small C++ objects. One thread makes them
//! and another, which computes, destroys them; between two steps all weights are read, so that no free object is in a cache. Allocators
//! that keep free objects in linked lists wait for memory at each of them. The pool keeps tables, takes objects in the order in which
//! they lie, and fetches those that come next: the thread that builds graphs needs 0.7 of the time that it needs with mimalloc,
//! and tokens come 4 to 5 % faster, one at a time on two cores (jemalloc is as good, but cannot be built without `make`). Against glibc's
//! `malloc` mimalloc made them 6 to 9 % faster, and a quarter on an H100.
//!
//! Memory for results still comes from `malloc`, as do objects of more than 1 KB and Rust's: they are large, or stay with their thread.
//! What the pool has had it keeps for others of that size.
//!
//! # Only in programs
//!
//! C++ lets a *program* replace these functions. A library of yours should leave that to whoever builds the program, and a
//! `cdylib` that another program loads must not use this crate: memory would come from one allocator and go to the other.
#![forbid(unsafe_code)]
