//! The `muon` method.

use crate::trainable::Patterns;
use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Adam, Form, Update, check_range};

/// Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon): the momentum of a matrix is
/// replaced by the nearest matrix whose singular values are about 1.
///
/// For a hidden matrix, `b = momentum * b + (1 - momentum) * g`, with Nesterov momentum
/// `b' = (1 - momentum) * g + momentum * b`, and `w = (1 - rate * weight_decay) * w - rate *
/// stretch * orthogonal(b')`. `orthogonal` is five rounds of a quintic Newton-Schulz iteration in
/// F32, and [`adjust_lr`](Self::adjust_lr) determines `stretch`. The method was made for hidden
/// layers. Parameters with another number of dimensions (norms, biases) and those that
/// [`others_of`](Self::others_of) names (embeddings, heads) are updated by AdamW, with
/// `others_rate` times the rate.
///
/// In MLX's [form](Form) the decay is added to the gradient, tensors of more dimensions are treated
/// as matrices `[d0, d1 * d2 * ..]`, parameters of fewer dimensions are changed by their momentum,
/// and `others` is not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// The decay of the momentum; in [0, 1).
    pub momentum: f64,
    /// Whether the step uses Nesterov momentum.
    pub nesterov: bool,
    /// Every step subtracts this times the rate times the matrix.
    pub weight_decay: f64,
    /// The number of rounds of the iteration.
    #[serde(alias = "ns_steps")]
    pub rounds: u32,
    /// The factor of a step, by the matrix's shape.
    pub adjust_lr: AdjustLr,
    /// Names of matrices that are not hidden layers, as patterns in which `*` matches any text.
    pub others_of: Vec<String>,
    /// AdamW, for these matrices and for parameters that are not matrices.
    pub others: Adam,
    /// The rate of AdamW as a multiple of Muon's.
    pub others_rate: f64,
    /// The formula.
    pub form: Form,
}

/// The length of a step of [`Muon`]; the names are those of PyTorch's `adjust_lr_fn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// `sqrt(max(1, rows / columns))`: the formula of Muon's author.
    #[default]
    Original,
    /// `0.2 * sqrt(max(rows, columns))`: steps have about the size of AdamW's, so that AdamW's rates fit (Liu et al.,
    /// arXiv:2502.16982).
    MatchRmsAdamw,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            rounds: 5,
            adjust_lr: AdjustLr::Original,
            others_of: ["*embed*", "*lm_head*"].map(str::to_owned).to_vec(),
            others: Adam::default(),
            others_rate: 1.0,
            form: Form::Pytorch,
        }
    }
}

impl Muon {
    pub(super) fn check(&self) -> Result<()> {
        check_range("momentum", self.momentum, 0.0, 1.0)?;
        check_range("weight_decay", self.weight_decay, 0.0, f64::INFINITY)?;
        check_range("rounds", f64::from(self.rounds), 1.0, 100.0)?;
        check_range("others_rate", self.others_rate, 0.0, f64::INFINITY)?;
        self.others.check()
    }

    /// Whether a parameter has a momentum. AdamW updates the others.
    pub(super) fn is_hidden(&self, name: &str, shape: &[i32]) -> bool {
        self.form == Form::Mlx
            || shape.len() == 2 && !Patterns::new(self.others_of.clone()).matches(name)
    }

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        if !self.is_hidden(update.name, update.param.shape()) {
            update.rate *= self.others_rate;
            return self.others.update(update, true);
        }
        let shape = update.param.shape().to_vec();
        let mut param = update.param.clone();
        let mut grad = update.grad.clone();
        match self.form {
            Form::Pytorch => param = param.multiply(1.0 - update.rate * self.weight_decay)?,
            Form::Mlx => grad = grad.add(param.multiply(self.weight_decay)?)?,
        }
        let momentum = update.average("momentum", self.momentum, &grad)?;
        let direction = if self.nesterov {
            grad.multiply(1.0 - self.momentum)?
                .add(momentum.multiply(self.momentum)?)?
        } else {
            momentum
        };
        let [.., rows, columns] = shape[..] else {
            return param.subtract(direction.multiply(update.rate)?);
        };
        let (rows, columns) = (f64::from(rows), f64::from(columns));
        let stretch = match self.adjust_lr {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamw => 0.2 * rows.max(columns).sqrt(),
        };
        let step = self
            .orthogonal(&direction.reshape(&[shape[0], -1])?)?
            .reshape(&shape)?
            .multiply(update.rate * stretch)?;
        param.subtract(step)
    }

    fn orthogonal(&self, matrix: &Array) -> Result<Array> {
        const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
        const EPS: f64 = 1e-7;

        let [a, b, c] = COEFFICIENTS;
        let tall = matrix.shape()[0] > matrix.shape()[1];
        let mut x = if tall { matrix.t()? } else { matrix.clone() };
        let length = x.square()?.sum(.., false)?.sqrt()?.maximum(EPS)?;
        x = x.divide(length)?;
        for _ in 0..self.rounds {
            let gram = x.matmul(&x.t()?)?;
            let square = gram.matmul(&gram)?;
            let factor = gram.multiply(b)?.add(square.multiply(c)?)?;
            x = x.multiply(a)?.add(factor.matmul(&x)?)?;
        }
        if tall { x.t() } else { Ok(x) }
    }
}
