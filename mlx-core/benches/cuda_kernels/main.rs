//! The kernels for NVIDIA GPUs one by one: time, and what they have to read, write and compute.
//!
//! ```text
//! cargo bench -p mlx-core --bench cuda_kernels                      # all of it
//! cargo bench -p mlx-core --bench cuda_kernels -- --quick "linear"  # soon, what has this in its name
//! ```
//!
//! Each line is JSON: first the card's own limits, then a kernel in a case. `cargo xtask bench cuda` makes a table of them.

mod families;
#[path = "../shared/inputs.rs"]
mod inputs;
mod layers;
mod measure;
mod products;

use std::error::Error;
use std::process::ExitCode;

use mlx_core::Device;
use mlx_core::fast::{self, Form, Op};

use measure::Bench;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // Cargo adds a flag of its own.
    let words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (flags, filters): (Vec<String>, Vec<String>) = words.partition(|w| w.starts_with("--"));
    if let Some(flag) = flags.iter().find(|flag| *flag != "--quick") {
        return Err(format!("unknown flag {flag}; only --quick is known").into());
    }
    if !Device::GPU.is_available()? {
        return Err("there is no GPU".into());
    }
    Device::GPU.set_default()?;
    if fast::form(Op::Linear)? != Form::Cuda {
        return Err("this build has no CUDA kernels for this GPU".into());
    }
    let bench = Bench::new(!flags.is_empty(), filters)?;
    products::linear(&bench)?;
    products::other_codings(&bench)?;
    products::together(&bench)?;
    products::gated(&bench)?;
    layers::attention(&bench)?;
    layers::paged_attention(&bench)?;
    layers::norms(&bench)?;
    layers::heads(&bench)?;
    layers::activations(&bench)?;
    layers::embedding(&bench)?;
    layers::choose(&bench)?;
    families::experts(&bench)?;
    families::caches(&bench)?;
    families::recurrences(&bench)?;
    Ok(())
}
