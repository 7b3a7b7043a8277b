//! [`Lora`]: a low-rank correction of a linear layer (Hu et al., arXiv:2106.09685).

use mlx_core::{Array, Result};

use crate::module::{Module, Param, Path, Visit, VisitMut};

/// `scale * (x @ lora_a) @ lora_b`, with the names and layouts of mlx-lm's adapters.
#[derive(Clone, Debug)]
pub struct Lora {
    /// `[in, rank]`
    pub lora_a: Param,
    /// `[rank, out]`
    pub lora_b: Param,
    /// What the product is multiplied by: alpha / rank.
    pub scale: f32,
}

impl Lora {
    /// `[.., in] -> [.., out]`, in the dtype of `x`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn delta(&self, x: &Array) -> Result<Array> {
        let z = x.matmul(self.lora_a.value())?.matmul(self.lora_b.value())?;
        z.multiply(self.scale)?.astype(x.dtype())
    }
}

// The adapter's arrays stand beside the layer's own: `q_proj.lora_a`, not `q_proj.lora.lora_a`.
impl Module for Lora {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("lora_a", |path| self.lora_a.visit(path, v))?;
        path.scoped("lora_b", |path| self.lora_b.visit(path, v))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("lora_a", |path| self.lora_a.visit_mut(path, v))?;
        path.scoped("lora_b", |path| self.lora_b.visit_mut(path, v))
    }
}
