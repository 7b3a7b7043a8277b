//! What a training step of a small network costs, in turns with Python's MLX.
//!
//! ```text
//! cargo bench -p mlx-nn --bench small -- --python .venv/bin/python --turns 8
//! ```
//!
//! `small.py` beside this file does the same in Python.

use std::collections::BTreeMap;
use std::process::ExitCode;

use mlx_core::{DType, Result, eval, random};
use mlx_nn::{AdamW, Linear, Module, loss, relu, value_and_grad};

#[path = "../../../mlx-core/benches/small/turns.rs"]
mod turns;

use turns::time;

/// The names of what is measured, in the order of the table.
const NAMES: [&str; 2] = ["update by AdamW", "step by AdamW"];

/// A network of 32, 64 and 10 units.
#[derive(Module)]
struct Mlp {
    l1: Linear,
    l2: Linear,
}

impl Mlp {
    fn new() -> Result<Self> {
        let (l1, l2) = (Linear::new(32, 64, true)?, Linear::new(64, 10, true)?);
        Ok(Self { l1, l2 })
    }
}

fn measure() -> Result<BTreeMap<&'static str, f64>> {
    let x = random::normal(None, &[16, 32], DType::F32)?;
    let y = random::normal(None, &[16, 10], DType::F32)?;
    let mut model = Mlp::new()?;
    let mut optimizer = AdamW::new(1e-3);
    let gradients = |model: &mut Mlp| {
        value_and_grad(model, |m| {
            loss::mse(&m.l2.forward(&relu(&m.l1.forward(&x)?)?)?, &y)?.mean_all()
        })
    };
    let (_, fixed) = gradients(&mut model)?;
    eval(fixed.values())?;
    // `update` evaluates the new parameters.
    let times = [
        time(|| optimizer.update(&mut model, &fixed))?,
        time(|| {
            let (_, grads) = gradients(&mut model)?;
            optimizer.update(&mut model, &grads)
        })?,
    ];
    Ok(NAMES.into_iter().zip(times).collect())
}

fn main() -> ExitCode {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/small/small.py");
    turns::run(&NAMES, script, measure)
}
