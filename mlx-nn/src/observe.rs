//! What the matrices of a module are multiplied by: the second moments of their inputs, and their magnitudes.
//!
//! Methods that pack a matrix in few bits (GPTQ, AWQ) choose its codes by them: the mean squared error of the outputs of
//! `W + D` is `trace(D H D^T)` divided by the number of inputs, where `H` is the sum of `x^T x` over the inputs `x`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use mlx_core::{Array, DType, Result};

use crate::module::{Module, Path, Visit};
use crate::weight::Weight;

thread_local! {
    static ACTIVE: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// What is summed of the inputs `[T, in]` of a product.
type Statistic = fn(&Array) -> Result<Array>;

/// The sums so far, by the address of the matrix.
struct Observer {
    statistic: Statistic,
    paths: HashMap<usize, String>,
    sums: BTreeMap<String, Array>,
}

/// Calls `run`, which builds a computation of `module` on this thread, and returns its result with the sum of `x^T x`,
/// F32 `[in, in]`, over the inputs `x` `[in]` of each matrix, by the matrix's path. All matrices of a stack of experts
/// share one sum. Matrices that are only looked up, or that a layer uses in another form, have none.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Linear, observe::second_moments};
///
/// # fn main() -> Result<()> {
/// let layer = Linear::new(2, 3, false)?;
/// let x = array![[1.0f32, 2.0], [0.0, 3.0]];
/// let (y, moments) = second_moments(&layer, || layer.forward(&x))?;
/// assert_eq!(y.shape(), [2, 3]);
/// assert_eq!(moments[""].to_vec::<f32>()?, [1.0, 2.0, 2.0, 13.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An error of `run`, or a sum cannot be computed.
pub fn second_moments<T>(
    module: &dyn Module,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, BTreeMap<String, Array>)> {
    observed(module, run, |x| x.t()?.matmul(x))
}

/// The same with the sum of `|x|`, F32 `[in]`.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Linear, observe::magnitudes};
///
/// # fn main() -> Result<()> {
/// let layer = Linear::new(2, 3, false)?;
/// let x = array![[1.0f32, -2.0], [0.0, 3.0]];
/// let (_, sums) = magnitudes(&layer, || layer.forward(&x))?;
/// assert_eq!(sums[""].to_vec::<f32>()?, [1.0, 5.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An error of `run`, or a sum cannot be computed.
pub fn magnitudes<T>(
    module: &dyn Module,
    run: impl FnOnce() -> Result<T>,
) -> Result<(T, BTreeMap<String, Array>)> {
    observed(module, run, |x| x.abs()?.sum(0, false))
}

fn observed<T>(
    module: &dyn Module,
    run: impl FnOnce() -> Result<T>,
    statistic: Statistic,
) -> Result<(T, BTreeMap<String, Array>)> {
    struct Find(HashMap<usize, String>);
    impl Visit for Find {
        fn weight(&mut self, path: &Path, weight: &Weight) -> Result<()> {
            self.0.insert(address(weight), path.as_str().to_owned());
            Ok(())
        }
    }
    /// Ends the observation also when `run` fails or panics.
    struct Restore(Option<Observer>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0.take());
        }
    }
    let mut find = Find(HashMap::new());
    module.visit(&mut Path::default(), &mut find)?;
    let observer = Observer {
        statistic,
        paths: find.0,
        sums: BTreeMap::new(),
    };
    let _restore = Restore(ACTIVE.replace(Some(observer)));
    let result = run()?;
    let sums =
        ACTIVE.with_borrow_mut(|active| active.as_mut().map(|own| std::mem::take(&mut own.sums)));
    Ok((result, sums.unwrap_or_default()))
}

/// Whether inputs are observed. Layers then compute their products one by one.
pub(crate) fn is_active() -> bool {
    ACTIVE.with_borrow(Option::is_some)
}

/// Adds the inputs `x`, `[.., in]`, of a product with `weight`, if they are observed.
pub(crate) fn see(weight: &Weight, x: &Array) -> Result<()> {
    ACTIVE.with_borrow_mut(|active| {
        let Some(observer) = active else {
            return Ok(());
        };
        let Some(path) = observer.paths.get(&address(weight)) else {
            return Ok(());
        };
        let x = x.reshape(&[-1, x.dim(-1)?])?.astype(DType::F32)?;
        let own = (observer.statistic)(&x)?;
        let sum = match observer.sums.get(path) {
            Some(sum) => sum.add(own)?,
            None => own,
        };
        observer.sums.insert(path.clone(), sum);
        Ok(())
    })
}

fn address(weight: &Weight) -> usize {
    std::ptr::from_ref(weight).addr()
}
