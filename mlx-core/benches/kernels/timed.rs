//! Timing a kernel, and saying what part of the machine's limits it reaches.

use std::cell::Cell;
use std::time::{Duration, Instant};

use criterion::Criterion;
use mlx_core::{Array, Result};

use crate::peaks::Peaks;

/// What one run of a kernel has to do.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes that it has to read and to write, each once.
    pub bytes: f64,
}

/// Criterion, with the machine's limits.
pub struct Bench<'a> {
    criterion: &'a mut Criterion,
    peaks: &'static Peaks,
}

impl<'a> Bench<'a> {
    pub fn new(criterion: &'a mut Criterion, peaks: &'static Peaks) -> Self {
        Self { criterion, peaks }
    }

    /// Times what `graph` gives, evaluation included.
    pub fn time(
        &mut self,
        id: &str,
        amount: Amount,
        graph: impl Fn() -> Result<Array>,
    ) -> Result<()> {
        // What is wrong with it shows here, where it can be told.
        mlx_core::eval([&graph()?])?;
        let best = Cell::new(f64::MAX);
        self.criterion.bench_function(id, |bencher| {
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
        // Left out by the filter of the command line.
        if best.get() < f64::MAX {
            println!("{}", self.peaks.compare(amount, best.get()));
        }
        Ok(())
    }
}
