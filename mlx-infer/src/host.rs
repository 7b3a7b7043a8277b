//! Parts that a command needs and a library does not: console output, the files that are read and
//! written, conversions.

pub mod console;
pub mod convert;
pub mod input;
#[cfg(feature = "cli")]
pub mod launch;
pub mod output;
