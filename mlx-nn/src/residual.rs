//! [`Residual`]: the features that the layers of a decoder add to, with an addition that is not
//! computed yet.

use mlx_core::fast::{self, NormOf};
use mlx_core::{Array, DType, Result};

use crate::norm::{Norm, RmsNorm};

/// The residual stream `[1, T, E]` between two halves of a layer, or between two layers: a sum, and
/// a term that has not been added to it yet. The norm that reads the stream next computes the
/// addition and the norm in one operation ([`fast::add_norm`]). With [`Normed`](crate::Normed) that
/// operation also computes the projections that read the norm.
///
/// ```
/// use mlx_core::{Array, DType, Result, eval, graph_size, ones};
/// use mlx_nn::{Norm, NormConfig, Residual};
///
/// # fn main() -> Result<()> {
/// let norm = Norm::empty(4, &NormConfig::rms(1e-6))?;
/// # use mlx_nn::{Module, Param, Path, VisitMut};
/// # struct Ones;
/// # impl VisitMut for Ones {
/// #     fn param(&mut self, _: &Path, param: &mut Param) -> Result<()> {
/// #         param.set(ones(param.shape(), DType::F32)?);
/// #         Ok(())
/// #     }
/// # }
/// # let mut norm = norm;
/// # norm.visit_mut(&mut Path::default(), &mut Ones)?;
/// let (x, y) = (Array::from_slice(&[1.0f32; 8], &[1, 2, 4])?, Array::from_slice(&[2.0f32; 8], &[1, 2, 4])?);
/// let (sum, normed) = Residual::new(x, y).normed(&norm)?;
/// assert_eq!(sum.to_vec::<f32>()?, [3.0; 8]);
/// assert!((normed.to_vec::<f32>()?[0] - 1.0).abs() < 1e-5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Residual {
    sum: Array,
    pending: Option<Pending>,
}

/// The term that has not been added to a sum yet.
#[derive(Clone, Debug)]
struct Pending {
    x: Array,
    /// The scale and the epsilon of an RMS norm that `x` goes through first.
    norm: Option<(Array, f32)>,
}

/// A residual stream without a pending term.
impl From<Array> for Residual {
    fn from(sum: Array) -> Self {
        Self { sum, pending: None }
    }
}

impl Residual {
    /// The dtype of the sum.
    pub(crate) fn dtype(&self) -> DType {
        self.sum.dtype()
    }

    /// The sum `x + y`, not added yet. Both are `[1, T, E]`.
    pub fn new(x: Array, y: Array) -> Self {
        let pending = Pending { x: y, norm: None };
        Self {
            sum: x,
            pending: Some(pending),
        }
    }

    /// The sum `x + norm(y)`, not added yet. Both are `[1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn with_norm(x: Array, norm: &Norm, y: Array) -> Result<Self> {
        let Norm::Rms(norm) = norm else {
            return Ok(Self::new(x, norm.forward(&y)?));
        };
        let (scale, eps) = norm.parts();
        let pending = Pending {
            x: y,
            norm: Some((scale.clone(), eps)),
        };
        Ok(Self {
            sum: x,
            pending: Some(pending),
        })
    }

    /// The sum `[1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn sum(self) -> Result<Array> {
        match self.pending {
            None => Ok(self.sum),
            Some(Pending { x, norm: None }) => fast::add(&x, &self.sum),
            Some(Pending {
                x,
                norm: Some((scale, eps)),
            }) => fast::norm_add(&x, &scale, &self.sum, eps),
        }
    }

    /// The sum, and `norm(sum)`, both `[1, T, E]`. An RMS norm is computed with the sum, in one operation.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn normed(self, norm: &Norm) -> Result<(Array, Array)> {
        if let Norm::Rms(norm) = norm {
            return self.rms_normed(norm);
        }
        let sum = self.sum()?;
        let normed = norm.forward(&sum)?;
        Ok((sum, normed))
    }

    /// [`normed`](Self::normed) for an RMS norm.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn rms_normed(self, norm: &RmsNorm) -> Result<(Array, Array)> {
        let (scale, eps) = norm.parts();
        if let Some(of) = self.norm_of(norm)
            && let Some(residual) = of.residual
        {
            return fast::add_norm(of.x, residual, of.inner, scale, eps);
        }
        let sum = self.sum()?;
        let normed = norm.forward(&sum)?;
        Ok((sum, normed))
    }

    /// The input of an operation that computes the sum and its RMS norm together with projections.
    /// `None` if one operation cannot compute both.
    pub(crate) fn norm_of<'a>(&'a self, norm: &'a RmsNorm) -> Option<NormOf<'a>> {
        let (weight, eps) = norm.parts();
        let (x, residual, inner) = match &self.pending {
            None => (&self.sum, None, None),
            Some(Pending { x, norm: None }) => (x, Some(&self.sum), None),
            Some(Pending {
                x,
                norm: Some((inner, of_inner)),
            }) if *of_inner == eps => (x, Some(&self.sum), Some(inner)),
            // One operation has one epsilon.
            Some(_) => return None,
        };
        Some(NormOf {
            x,
            residual,
            inner,
            weight: Some(weight),
            eps,
        })
    }

    /// The arrays of the sum and of the pending term.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.sum]
            .into_iter()
            .chain(self.pending.as_ref().map(|pending| &pending.x))
    }

    /// The shape of the sum.
    pub fn shape(&self) -> &[i32] {
        self.sum.shape()
    }

    /// Applies `of` to the sum and to the pending term, to select tokens.
    pub(crate) fn map(self, of: impl Fn(&Array) -> Result<Array>) -> Result<Self> {
        let pending = match self.pending {
            None => None,
            Some(Pending { x, norm }) => Some(Pending { x: of(&x)?, norm }),
        };
        Ok(Self {
            sum: of(&self.sum)?,
            pending,
        })
    }
}
