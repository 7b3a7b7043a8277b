//! The `muon` method.

use mlx_core::{Array, Result};
use serde::{Deserialize, Serialize};

use super::{Adam, Update, check_range};

/// Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon): the momentum of a matrix is
/// replaced by the nearest matrix whose singular values are about 1.
///
/// For a matrix, `b = momentum * b + (1 - momentum) * g`, with Nesterov's look ahead
/// `b' = (1 - momentum) * g + momentum * b`, and
/// `w = (1 - rate * weight_decay) * w - rate * sqrt(max(1, rows / columns)) * orthogonal(b')`, where
/// `orthogonal` is five rounds of a quintic Newton-Schulz iteration in F32. Parameters with another
/// number of dimensions (norms, biases) are left to AdamW, at `others_rate` times the rate. The
/// method was made for hidden layers: embeddings and heads are better trained otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// How slowly the momentum changes; in [0, 1).
    pub momentum: f64,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// What every step takes off a matrix, times the rate.
    pub weight_decay: f64,
    /// Rounds of the iteration.
    pub rounds: u32,
    /// AdamW for what is no matrix.
    pub others: Adam,
    /// The rate of AdamW as a multiple of Muon's.
    pub others_rate: f64,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            rounds: 5,
            others: Adam::default(),
            others_rate: 1.0,
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

    pub(super) fn update(&self, mut update: Update<'_>) -> Result<Array> {
        let &[rows, columns] = update.param.shape() else {
            update.rate *= self.others_rate;
            return self.others.update(update, true);
        };
        let grad = update.grad.clone();
        let momentum = update.average("momentum", self.momentum, &grad)?;
        let direction = if self.nesterov {
            grad.multiply(1.0 - self.momentum)?
                .add(momentum.multiply(self.momentum)?)?
        } else {
            momentum
        };
        let stretch = (f64::from(rows) / f64::from(columns)).max(1.0).sqrt();
        let step = self
            .orthogonal(&direction)?
            .multiply(update.rate * stretch)?;
        update
            .param
            .multiply(1.0 - update.rate * self.weight_decay)?
            .subtract(step)
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
