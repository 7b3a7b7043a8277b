//! Timing kernels without events: the GPU first gets a large product. While it computes that, the host queues the runs of
//! a kernel, which then follow each other as fast as the GPU is. The product's own time is subtracted.

use std::time::Instant;

use mlx_core::{Array, DType, Result, async_eval, eval, fast, synchronize};

use crate::inputs::{Amount, normal};

/// Rows and columns of the large product.
const SIZE: i32 = 8192;
/// The inputs of all runs together are larger than the L2 cache.
const COLD: f64 = 256e6;

/// The bench.
pub struct Bench {
    quick: bool,
    filters: Vec<String>,
    product: (Array, Array),
    product_s: f64,
}

/// Seconds of a run, and whether they are the host's.
type Time = (f64, bool);

impl Bench {
    /// Prints the card's limits.
    pub fn new(quick: bool, filters: Vec<String>) -> Result<Self> {
        let square = || normal(&[SIZE, SIZE], DType::BF16);
        let mut bench = Self {
            quick,
            filters,
            product: (square()?, square()?),
            product_s: 0.0,
        };
        // The first product loads libraries.
        bench.once(1, &[])?;
        let best = |products| -> Result<f64> {
            let runs = (0..5).map(|_| bench.once(products, &[]));
            let times: Result<Vec<_>> = runs.collect();
            Ok(times?
                .into_iter()
                .map(|time| time.0)
                .fold(f64::MAX, f64::min))
        };
        let product_s = best(5)? / 4.0 - best(1)? / 4.0;
        bench.product_s = product_s;
        let matmul = 2.0 * f64::from(SIZE).powi(3) / product_s / 1e12;
        let elements = if quick { 1 << 24 } else { 1 << 28 };
        let (a, b) = (
            fast::blank(&[elements], DType::BF16)?,
            fast::blank(&[elements], DType::BF16)?,
        );
        eval([&a, &b])?;
        // A number is two bytes, read from one or two arrays and written to one.
        let bytes = 2.0 * f64::from(elements);
        let copy = 2.0 * bytes / bench.seconds(8, &|_| a.astype(DType::F16))?.0;
        let add = 3.0 * bytes / bench.seconds(8, &|_| fast::add(&a, &b))?.0;
        let x = normal(&[8], DType::BF16)?;
        let kernel = bench.seconds(64, &|_| fast::add(&x, &x))?.0;
        println!(
            r#"{{"limits": {{"copy_gb_s": {:.1}, "matmul_tflop_s": {matmul:.1}, "kernel_us": {:.2}}}}}"#,
            copy.max(add) / 1e9,
            1e6 * kernel
        );
        Ok(bench)
    }

    /// How many inputs of so many bytes are larger than the L2 cache, within reason.
    pub fn copies(&self, bytes: usize) -> usize {
        let most = if self.quick { 8 } else { 64 };
        ((COLD / bytes.max(1) as f64).ceil() as usize).clamp(8, most)
    }

    /// Times a kernel and prints the line. `prepare` gives what a run has to do, the number of runs, and the graph of each.
    /// It is called only if the kernel was asked for.
    pub fn time<G>(
        &self,
        kernel: &str,
        case: &str,
        rows: i32,
        prepare: impl FnOnce() -> Result<(Amount, usize, G)>,
    ) -> Result<()>
    where
        G: Fn(usize) -> Result<Array>,
    {
        let name = format!("{kernel} {case}");
        if !self.filters.is_empty() && !self.filters.iter().any(|filter| name.contains(filter)) {
            return Ok(());
        }
        let (amount, runs, graph) = prepare()?;
        let (seconds, host_bound) = self.seconds(runs, &graph)?;
        println!(
            r#"{{"kernel": "{kernel}", "case": "{case}", "rows": {rows}, "us": {:.3}, "bytes": {}, "flop": {}, "host_bound": {host_bound}}}"#,
            1e6 * seconds,
            amount.bytes,
            amount.operations,
        );
        Ok(())
    }

    /// Seconds of each of `runs` runs.
    fn seconds(&self, runs: usize, graph: &dyn Fn(usize) -> Result<Array>) -> Result<Time> {
        let graphs = || (0..runs).map(graph).collect::<Result<Vec<_>>>();
        // Modules are loaded and memory is allocated by runs that do not count.
        eval(&graphs()?)?;
        let mut products = 1;
        loop {
            let (mut all, mut alone, mut host) = (f64::MAX, f64::MAX, f64::MAX);
            for _ in 0..if self.quick { 2 } else { 5 } {
                let (time, queued) = self.once(products, &graphs()?)?;
                all = all.min(time);
                host = host.min(queued);
                alone = alone.min(self.once(products, &[])?.0);
            }
            let host_bound = host > alone;
            let enough = (host / self.product_s) as usize + 2;
            if !host_bound || enough <= products || enough > 16 {
                return Ok(((all - alone).max(0.0) / runs as f64, host_bound));
            }
            products = enough;
        }
    }

    /// Seconds until so many products and the graphs behind them are computed, and until they are queued.
    fn once(&self, products: usize, graphs: &[Array]) -> Result<(f64, f64)> {
        let (a, b) = &self.product;
        let products: Result<Vec<Array>> = (0..products).map(|_| a.matmul(b)).collect();
        let products = products?;
        let started = Instant::now();
        async_eval(&products)?;
        async_eval(graphs)?;
        let queued = started.elapsed().as_secs_f64();
        synchronize()?;
        Ok((started.elapsed().as_secs_f64(), queued))
    }
}
