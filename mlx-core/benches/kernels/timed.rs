//! Times a kernel, and compares it with the machine's limits.

use std::cell::Cell;
use std::time::{Duration, Instant};

use criterion::Criterion;
use mlx_core::{Array, Result};

pub use crate::inputs::Amount;
use crate::peaks::Peaks;

/// Times the evaluation of the graph that `prepare` makes. Only kernels that pass the command line's filter are
/// prepared. An error ends the program.
pub fn time<G>(c: &mut Criterion, id: &str, prepare: impl FnOnce() -> Result<(Amount, G)>)
where
    G: Fn() -> Result<Array>,
{
    let mut prepare = Some(prepare);
    let mut prepared = None;
    let best = Cell::new(f64::MAX);
    c.bench_function(id, |bencher| {
        if let Some(prepare) = prepare.take() {
            Peaks::get();
            // A first run, which shows errors and computes the inputs.
            let first = prepare().and_then(|(amount, graph)| {
                mlx_core::eval([&graph()?])?;
                Ok((amount, graph))
            });
            prepared = Some(first.unwrap_or_else(|error| {
                eprintln!("error: {id}: {error}");
                std::process::exit(1);
            }));
        }
        let (_, graph) = prepared.as_ref().expect("it is prepared above");
        bencher.iter_custom(|iterations| {
            let mut all = Duration::ZERO;
            for _ in 0..iterations {
                let started = Instant::now();
                let evaluated = graph().and_then(|array| mlx_core::eval([&array]));
                let time = started.elapsed();
                evaluated.expect("it was evaluated before");
                best.set(best.get().min(time.as_secs_f64()));
                all += time;
            }
            all
        });
    });
    if let Some((amount, _)) = prepared {
        println!("{}", Peaks::get().compare(amount, best.get()));
    }
}
