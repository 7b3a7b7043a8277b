//! C++'s `operator new` by mimalloc, for programs on Linux.

use libmimalloc_sys as _;

unsafe extern "C" {
    /// Whether C++ allocates by mimalloc in this process. It does not in a process whose address space is limited. A program that
    /// calls this links `memory/operators.cpp`, which replaces `operator new` and `operator delete` for all C++ in it.
    pub safe fn mlxrs_operators_are_mimalloc() -> bool;
}
