//! What small things cost: the bookkeeping of a graph, an evaluation and a read, in turns with
//! Python's MLX.
//!
//! ```text
//! cargo bench -p mlx-core --bench small                          # this crate alone
//! cargo bench -p mlx-core --bench small -- --python .venv/bin/python --turns 8
//! ```
//!
//! `small.py` beside this file does the same in Python. Both print the least time of the turns, in
//! nanoseconds, and the ratio is Python's time by this crate's.

use std::collections::BTreeMap;
use std::process::ExitCode;

use mlx_core::random::{Key, normal, normal_with};
use mlx_core::transforms::{Compiled, compile, value_and_grad_with};
use mlx_core::{Array, DType, Result, eval};

mod turns;

use turns::time;

/// The names of what is measured, in the order of the table.
const NAMES: [&str; 8] = [
    "graph",
    "small evaluation",
    "scalar of a new sum",
    "scalar of a ready array",
    "slice",
    "product of 64 x 64",
    "step of an MLP",
    "call of a compiled function",
];

/// A network of 32, 64 and 10 units: the loss and the gradients of 16 rows.
fn mlp_step() -> Result<impl FnMut() -> Result<()>> {
    let key = Key::new(1)?;
    let draw = |shape: &[i32]| normal_with(&key, shape, DType::F32, 0.0, 0.1);
    let (x, y) = (draw(&[16, 32])?, draw(&[16, 10])?);
    let mut weights = vec![
        draw(&[32, 64])?,
        draw(&[64])?,
        draw(&[64, 10])?,
        draw(&[10])?,
    ];
    eval(weights.iter().chain([&x, &y]))?;
    Ok(move || {
        let loss = |w: &[Array]| {
            let hidden = x.matmul(&w[0])?.add(&w[1])?.maximum(0.0)?;
            let error = hidden.matmul(&w[2])?.add(&w[3])?.subtract(&y)?;
            Ok(vec![error.square()?.mean(.., false)?])
        };
        let (_, grads) = value_and_grad_with(loss, &weights, &[0, 1, 2, 3])?;
        for (weight, grad) in weights.iter_mut().zip(&grads) {
            *weight = weight.subtract(grad.multiply(1e-3)?)?;
        }
        eval(&weights)
    })
}

fn measure() -> Result<BTreeMap<&'static str, f64>> {
    let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
    let ready = x.sum(.., false)?;
    let square = normal(&Key::new(2)?, &[64, 64], DType::F32)?;
    eval([&ready, &square])?;
    compile::set_enabled(true);
    let compiled = Compiled::new(
        |x| Ok(vec![x[0].multiply(&x[0])?.add(&x[0])?.exp()?]),
        false,
    );
    let inputs = [x.clone()];
    eval(compiled.call(&inputs)?)?;
    let times = [
        time(|| {
            let mut y = x.clone();
            for _ in 0..100 {
                y = y.add(&x)?;
            }
            Ok(())
        })? / 100.0,
        time(|| eval([x.add(&x)?]))?,
        time(|| x.sum(.., false)?.item::<f32>().map(drop))?,
        time(|| ready.item::<f32>().map(drop))?,
        time(|| eval([x.slice(&[1], &[3])?]))?,
        time(|| eval([square.matmul(&square)?]))?,
        time(mlp_step()?)?,
        time(|| eval(compiled.call(&inputs)?))?,
    ];
    Ok(NAMES.into_iter().zip(times).collect())
}

fn main() -> ExitCode {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/small/small.py");
    turns::run(&NAMES, script, measure)
}
