//! [`Lora`]: a low-rank correction of a layer's matrix (Hu et al., arXiv:2106.09685), and its variant
//! with a learned magnitude, DoRA (Liu et al., arXiv:2402.09353).
//!
//! Linear layers, embeddings and stacks of experts can have one; [`Layout`] describes the shapes for each. The visitors
//! in [`adapt`] attach, detach and fuse adapters.

use mlx_core::{Array, DType, Error, ErrorKind, Result, fast, linalg, random};

use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::weight::Weight;

pub mod adapt;
mod layout;
mod rows;

pub use adapt::{LoraConfig, attach, detach, fuse, set_dropout_key};
pub use layout::{Adaptable, AdaptableLayer, Layout};
pub use rows::{AdapterSlot, RowAdapter, TokenAdapters, set_row_adapters, with_adapters};

/// A correction of rank R of a layer's matrix, with the names and layouts of mlx-lm's adapters.
#[derive(Clone, Debug)]
pub struct Lora {
    /// The layout of the arrays, which follows from the layer's operation.
    pub layout: Layout,
    /// The first factor; its shape is [`Layout`]'s.
    pub lora_a: Param,
    /// The second factor, zero in a new adapter.
    pub lora_b: Param,
    /// DoRA's magnitude, F32: the length of each row of the adapted matrix.
    pub m: Option<Param>,
    /// The factor of the product: alpha / rank.
    pub scale: f32,
    /// The fraction of the inputs that training drops; for an embedding, the fraction of a row's correction.
    pub dropout: f32,
    /// The key for drawing which inputs are dropped. Without a key nothing is dropped.
    pub key: Option<random::Key>,
}

impl Lora {
    /// The output of the adapted layer, `[.., out]`, from its input `x [.., in]`, its output `y`
    /// without bias, and its matrix `[out, in]`. For an embedding, `x` and the output are those of
    /// the tied head.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, y: &Array, weight: &Weight) -> Result<Array> {
        let y = y.add(self.delta(x)?)?;
        let Some(m) = &self.m else {
            return Ok(y);
        };
        let length = row_lengths(&self.adapted(weight)?)?;
        y.multiply(quotient(m.value(), &length)?.astype(y.dtype())?)
    }

    /// `[.., in] -> [.., out]`, in the dtype of `x`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn delta(&self, x: &Array) -> Result<Array> {
        let (a, b) = (self.lora_a.value(), self.lora_b.value());
        // The factor is applied between the products, where the array is smallest.
        let z = match self.layout {
            Layout::Embedding => {
                // Lookups of an embedding use the key itself, so the product takes a key that is
                // split from it.
                let key = self.key.as_ref().map(random::Key::split).transpose()?;
                let key = key.map(|[_, head]| head);
                let inner = self.dropped(x, key.as_ref())?.matmul(&b.t()?)?;
                inner.multiply(self.scale)?.matmul(&a.t()?)?
            }
            Layout::Linear | Layout::Experts => {
                let inner = self.dropped(x, self.key.as_ref())?.matmul(a)?;
                inner.multiply(self.scale)?.matmul(b)?
            }
        };
        z.astype(x.dtype())
    }

    /// Rows of an adapted embedding, `[.., E]`, from their `tokens [..]`, the table's rows `y` and the
    /// table.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn apply_to_rows(&self, tokens: &Array, y: &Array, weight: &Weight) -> Result<Array> {
        let a = self.lora_a.value().take(tokens, 0)?;
        let z = a.matmul(self.lora_b.value())?.multiply(self.scale)?;
        let dropped = self.dropped(&z, self.key.as_ref())?;
        let y = y.add(dropped.astype(y.dtype())?)?;
        let Some(m) = &self.m else {
            return Ok(y);
        };
        let row = weight.rows(tokens, Some(DType::F32))?;
        let length = row_lengths(&row.add(z.astype(DType::F32)?)?)?;
        let factor = quotient(&m.value().take(tokens, 0)?, &length)?.expand_dims(-1)?;
        y.multiply(factor.astype(y.dtype())?)
    }

    /// The output of adapted experts, `[.., 1, out]`, from their input `x [.., 1, in]`, their output `y`, the expert of
    /// each row, and the stack.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn apply_to_experts(
        &self,
        x: &Array,
        y: &Array,
        experts: &Array,
        weight: &Weight,
    ) -> Result<Array> {
        let (a, b) = (self.lora_a.value(), self.lora_b.value());
        // The dtype of both products.
        let dtype = if x.dtype() == a.dtype() {
            x.dtype()
        } else {
            DType::F32
        };
        let x = self.dropped(x, self.key.as_ref())?.astype(dtype)?;
        let z = fast::experts_linear(&x, &a.astype(dtype)?, experts)?;
        let z = fast::experts_linear(&z, &b.astype(dtype)?, experts)?;
        let y = y.add(z.multiply(self.scale)?.astype(y.dtype())?)?;
        let Some(m) = &self.m else {
            return Ok(y);
        };
        let factor = quotient(m.value(), &row_lengths(&self.adapted(weight)?)?)?;
        let factor = factor.take(experts, 0)?.expand_dims(-2)?;
        y.multiply(factor.astype(y.dtype())?)
    }

    /// Inverted dropout: kept values are divided by the fraction that is kept.
    fn dropped(&self, x: &Array, key: Option<&random::Key>) -> Result<Array> {
        let Some(key) = key.filter(|_| self.dropout > 0.0) else {
            return Ok(x.clone());
        };
        let keep = 1.0 - self.dropout;
        let kept = random::bernoulli(key, keep, x.shape())?;
        kept.select(x.multiply(1.0 / keep)?, 0.0)
    }

    /// The matrix and its correction, F32 `[.., out, in]`.
    fn adapted(&self, weight: &Weight) -> Result<Array> {
        let wide = |param: &Param| param.value().astype(DType::F32);
        let (a, b) = (wide(&self.lora_a)?, wide(&self.lora_b)?);
        let delta = match self.layout {
            Layout::Linear => a.matmul(&b)?.multiply(self.scale)?.t()?,
            Layout::Embedding => a.matmul(&b)?.multiply(self.scale)?,
            Layout::Experts => b.matmul(&a)?.multiply(self.scale)?,
        };
        weight.dense(Some(DType::F32))?.add(delta)
    }

    /// The matrix that combines layer and adapter in one product, F32 `[.., out, in]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn fused(&self, weight: &Weight) -> Result<Array> {
        self.check(&weight.shape())?;
        let adapted = self.adapted(weight)?;
        match &self.m {
            None => Ok(adapted),
            Some(m) => {
                let factor = quotient(m.value(), &row_lengths(&adapted)?)?;
                adapted.multiply(factor.expand_dims(-1)?)
            }
        }
    }
}

impl Lora {
    /// The number of columns of A: its rank.
    pub fn rank(&self) -> Option<i32> {
        self.layout.rank(self.lora_a.shape())
    }

    /// # Errors
    /// A and B do not fit a matrix of this shape.
    fn check(&self, shape: &[i32]) -> Result<()> {
        let [a, b] = [self.lora_a.shape(), self.lora_b.shape()];
        let expected = self.rank().and_then(|rank| self.layout.shapes(shape, rank));
        if expected.is_some_and(|[of_a, of_b, _]| a == of_a && b == of_b) {
            return Ok(());
        }
        let message = format!("lora_a {a:?} and lora_b {b:?} do not fit a matrix {shape:?}");
        Err(Error::new(ErrorKind::Shape, message))
    }

    /// The dtype of both factors, F32 if they differ.
    fn dtype(&self) -> DType {
        let (a, b) = (self.lora_a.value().dtype(), self.lora_b.value().dtype());
        if a == b { a } else { DType::F32 }
    }
}

/// The length of each row: `[.., out, in] -> [.., out]`.
fn row_lengths(matrix: &Array) -> Result<Array> {
    linalg::norm_l2(matrix, -1, false)
}

/// The factors that give rows of these lengths the magnitudes `m`. The length is constant in the backward pass (section
/// 4.3 of the paper). A row of zeros, such as that of a padding token, has no direction and stays zero.
fn quotient(m: &Array, length: &Array) -> Result<Array> {
    m.divide(length.maximum(f32::MIN_POSITIVE)?.stop_gradient()?)
}

// The names of the adapter's arrays follow the layer's path directly: `q_proj.lora_a`, not `q_proj.lora.lora_a`.
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
