//! Dropout: in training, numbers are replaced by zeros at random.

use mlx_core::{Array, Error, ErrorKind, Result, random};

use crate::layer::layer;
use crate::module::{Module, Path, Visit, VisitMut};
use crate::sizes::misshapen;
use crate::training::Mode;

/// In training, each number is 0 with probability `p`, and otherwise divided by `1 - p` (Srivastava
/// et al., JMLR 2014). With `N` above 0, the numbers of a channel over `N` spatial dimensions are
/// kept or dropped together (Tompson et al., arXiv:1411.4280): `[.., ..spatial, C]`.
///
/// The random keys are the thread's ([`random::seed`]). In evaluation mode ([`Module::train`]) the
/// output is the input.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones, random};
/// use mlx_nn::{Dropout, Module};
///
/// # fn main() -> Result<()> {
/// random::seed(7);
/// let mut dropout = Dropout::new(0.25)?;
/// let x = ones(&[1000], DType::F32)?;
/// let mean = dropout.forward(&x)?.mean(.., false)?.item::<f32>()?;
/// assert!((mean - 1.0).abs() < 0.1);
/// dropout.train(false)?;
/// assert_eq!(dropout.forward(&x)?.to_vec::<f32>()?, [1.0; 1000]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DropoutNd<const N: usize> {
    /// The probability to keep a number.
    keep: f64,
    mode: Mode,
}

/// Drops single numbers. See [`DropoutNd`].
pub type Dropout = DropoutNd<0>;
/// Drops whole channels of images, `[B, H, W, C]` or `[H, W, C]`. See [`DropoutNd`].
pub type Dropout2d = DropoutNd<2>;
/// Drops whole channels of volumes, `[B, D, H, W, C]` or `[D, H, W, C]`. See [`DropoutNd`].
pub type Dropout3d = DropoutNd<3>;

impl<const N: usize> DropoutNd<N> {
    /// A dropout with probability `p`.
    ///
    /// # Errors
    /// `p` is not in [0, 1).
    pub fn new(p: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("dropout: p must be in [0, 1), given {p}"),
            ));
        }
        Ok(Self {
            keep: 1.0 - p,
            mode: Mode::default(),
        })
    }

    /// `[..] -> [..]`
    ///
    /// # Errors
    /// `N` is above 0, and the input does not have `N + 1` or `N + 2` dimensions.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let ndim = x.ndim();
        if N > 0 && ndim != N + 1 && ndim != N + 2 {
            let expected = format!("of {} or {} dimensions", N + 1, N + 2);
            return Err(misshapen("dropout", &expected, x.shape()));
        }
        if self.keep == 1.0 || !self.mode.is_training() {
            return Ok(x.clone());
        }
        let mut shape = x.shape().to_vec();
        if N > 0 {
            shape[ndim - 1 - N..ndim - 1].fill(1);
        }
        let kept = random::bernoulli(None, self.keep as f32, &shape)?;
        x.multiply(&kept)?.multiply(1.0 / self.keep)
    }
}

impl<const N: usize> Module for DropoutNd<N> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.mode.visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        self.mode.visit_mut(path, v)
    }

    crate::known_type!();
}

layer! { [const N: usize] DropoutNd<N> }
