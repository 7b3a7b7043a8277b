//! Settings from the environment.
//!
//! ```
//! use mlx_core::settings;
//!
//! # fn main() -> mlx_core::Result<()> {
//! if let Err(error) = settings::check() {
//!     eprintln!("{error}");
//! }
//! # Ok(())
//! # }
//! ```

use std::sync::OnceLock;

use mlx_c_sys as sys;

use crate::error::{Error, ErrorKind, Result};
use crate::ffi;

/// The most threads that a setting may ask for.
const MOST_THREADS: usize = 1024;

/// Checks the variables that set how this crate computes, and starts the threads that read files and text.
///
/// | variable | allowed |
/// |---|---|
/// | `MLX_CPU_THREADS` | the threads of the CPU kernels, from 1 to 1024; the default is one for each core |
/// | `MLX_CPU_ISA` | the instruction set of the CPU kernels, one that the machine has |
/// | `MLX_CPU_KERNELS` | `on`, or `off` for MLX's own operations |
/// | `RAYON_NUM_THREADS` | the threads that read files and text, from 0 (one for each core) to 1024 |
///
/// A program calls it at its start, so that a wrong setting is an error before any work. The first use of a stream
/// calls it too.
///
/// ```
/// use mlx_core::settings;
///
/// # fn main() -> mlx_core::Result<()> {
/// // At the start of a program: a wrong value of a variable is an error before any work.
/// settings::check()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A variable has a value that is not allowed; the message names the variable, the value and the allowed values. Or the
/// system cannot start threads.
pub fn check() -> Result<()> {
    // SAFETY: takes nothing.
    ffi::call(ErrorKind::Invalid, || unsafe {
        sys::mlxrs_check_settings()
    })?;
    static THREADS: OnceLock<Result<()>> = OnceLock::new();
    THREADS.get_or_init(start_threads).clone()
}

fn start_threads() -> Result<()> {
    let threads = match std::env::var_os("RAYON_NUM_THREADS") {
        None => 0,
        Some(text) => text
            .to_str()
            .and_then(|text| text.parse().ok())
            .filter(|&threads| threads <= MOST_THREADS)
            .ok_or_else(|| {
                let message = format!(
                    "RAYON_NUM_THREADS must be a whole number from 0 to {MOST_THREADS}, given {text:?}"
                );
                Error::new(ErrorKind::Invalid, message)
            })?,
    };
    let built = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global();
    match built {
        // The program may have started the threads itself. Then their number is its own choice.
        Err(error) if std::error::Error::source(&error).is_none() => Ok(()),
        Err(error) => Err(no_threads(&error)),
        Ok(()) => Ok(()),
    }
}

fn no_threads(error: &rayon::ThreadPoolBuildError) -> Error {
    Error::new(
        ErrorKind::Memory,
        format!("no threads to read files with: {error}; RAYON_NUM_THREADS sets how many"),
    )
}

/// The threads that read files, as many as those of the program. They are others: the threads of
/// rayon take no work from outside before they have ended theirs, and reading a model takes seconds.
///
/// # Errors
/// The system cannot start them.
pub(crate) fn readers() -> Result<&'static rayon::ThreadPool> {
    static READERS: OnceLock<Result<rayon::ThreadPool>> = OnceLock::new();
    let readers = READERS.get_or_init(|| {
        let built = rayon::ThreadPoolBuilder::new()
            .num_threads(rayon::current_num_threads())
            .thread_name(|index| format!("mlx-read-{index}"))
            .build();
        built.map_err(|error| no_threads(&error))
    });
    readers.as_ref().map_err(Clone::clone)
}
