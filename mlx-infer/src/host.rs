//! What a program needs and a library does not: its output, the files that it reads and writes, conversions.

pub mod console;
pub mod convert;
pub mod input;
pub mod output;
