//! [`Lora`]: a low-rank correction of a linear layer (Hu et al., arXiv:2106.09685), and its variant
//! with a learned magnitude, DoRA (Liu et al., arXiv:2402.09353).
//!
//! The visitors that put adapters on a module, take them off and fuse them are in [`adapt`].

use mlx_core::{Array, DType, Error, ErrorKind, Result, linalg, random};

use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::weight::Weight;

pub mod adapt;

pub use adapt::{LoraConfig, attach, detach, fuse, set_dropout_key};

/// `scale * (dropout(x) @ lora_a) @ lora_b`, with the names and layouts of mlx-lm's adapters.
#[derive(Clone, Debug)]
pub struct Lora {
    /// `[in, rank]`
    pub lora_a: Param,
    /// `[rank, out]`
    pub lora_b: Param,
    /// DoRA's magnitude, F32 `[out]`: the length that each row of the adapted matrix has.
    pub m: Option<Param>,
    /// What the product is multiplied by: alpha / rank.
    pub scale: f32,
    /// The part of the inputs that training drops.
    pub dropout: f32,
    /// What the dropped inputs are drawn from; without a key nothing is dropped.
    pub key: Option<random::Key>,
}

impl Lora {
    /// The output of the adapted layer, `[.., out]`, from its input `x [.., in]`, its output `y`
    /// without bias, and its matrix.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn apply(&self, x: &Array, y: &Array, weight: &Weight) -> Result<Array> {
        let y = y.add(self.delta(x)?)?;
        let Some(m) = &self.m else {
            return Ok(y);
        };
        // The length is held constant in the backward pass (section 4.3 of the paper).
        let length = row_lengths(&self.adapted(weight)?)?.stop_gradient()?;
        y.multiply(m.value().divide(length)?.astype(y.dtype())?)
    }

    /// `[.., in] -> [.., out]`, in the dtype of `x`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn delta(&self, x: &Array) -> Result<Array> {
        let z = self.dropped(x)?.matmul(self.lora_a.value())?;
        let z = z.matmul(self.lora_b.value())?;
        z.multiply(self.scale)?.astype(x.dtype())
    }

    /// Inverted dropout: what is kept grows by what is dropped.
    fn dropped(&self, x: &Array) -> Result<Array> {
        let Some(key) = self.key.as_ref().filter(|_| self.dropout > 0.0) else {
            return Ok(x.clone());
        };
        let keep = 1.0 - self.dropout;
        let kept = random::bernoulli(key, x.shape(), keep)?;
        kept.select(x.multiply(1.0 / keep)?, 0.0)
    }

    /// The matrix and its correction, F32 `[out, in]`.
    fn adapted(&self, weight: &Weight) -> Result<Array> {
        let wide = |param: &Param| param.value().astype(DType::F32);
        let product = wide(&self.lora_a)?.matmul(&wide(&self.lora_b)?)?;
        let delta = product.multiply(self.scale)?.t()?;
        weight.dense(Some(DType::F32))?.add(delta)
    }

    /// The matrix that does in one product what layer and adapter do in three, F32 `[out, in]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn fused(&self, weight: &Weight) -> Result<Array> {
        let shape = weight.shape();
        let [a, b] = [self.lora_a.shape(), self.lora_b.shape()];
        if a.len() != 2 || b.len() != 2 || a[1] != b[0] || shape != [b[1], a[0]] {
            let message = format!("lora_a {a:?} and lora_b {b:?} do not fit a matrix {shape:?}");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let adapted = self.adapted(weight)?;
        match &self.m {
            None => Ok(adapted),
            Some(m) => {
                let factor = m.value().divide(row_lengths(&adapted)?)?;
                adapted.multiply(factor.expand_dims(-1)?)
            }
        }
    }
}

/// The length of each row: `[out, in] -> [out]`.
fn row_lengths(matrix: &Array) -> Result<Array> {
    linalg::norm_l2(matrix, -1, false)
}

// The adapter's arrays stand beside the layer's own: `q_proj.lora_a`, not `q_proj.lora.lora_a`.
impl Module for Lora {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("lora_a", |path| self.lora_a.visit(path, v))?;
        path.scoped("lora_b", |path| self.lora_b.visit(path, v))?;
        path.scoped("m", |path| self.m.visit(path, v))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("lora_a", |path| self.lora_a.visit_mut(path, v))?;
        path.scoped("lora_b", |path| self.lora_b.visit_mut(path, v))?;
        path.scoped("m", |path| self.m.visit_mut(path, v))
    }
}
