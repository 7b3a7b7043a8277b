//! [`Gru`]: gated recurrent units.

use mlx_core::ops::stack;
use mlx_core::{Array, Result};

use super::{drawn, steps};
use crate::init;
use crate::layer::layer;
use crate::module::Param;

/// Gated recurrent units (Cho et al., arXiv:1406.1078), with the reset gate after the product:
/// `r = sigmoid(..)`, `z = sigmoid(..)`, `n = tanh(Wn x + bn + r * (Un h + bhn))`, `h = (1 - z) * n + z * h`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::Gru;
///
/// # fn main() -> Result<()> {
/// let gru = Gru::new(4, 8)?;
/// let states = gru.forward(&ones(&[2, 5, 4], DType::F32)?)?;
/// assert_eq!(states.shape(), [2, 5, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "GRU")]
#[expect(non_snake_case, reason = "the names of the parameters in files")]
pub struct Gru {
    Wx: Param,
    Wh: Param,
    b: Option<Param>,
    bhn: Option<Param>,
}

crate::module!(Gru { Wx, Wh, b, bhn });
layer!(Gru;);

impl Gru {
    /// A layer from `inputs` features to a state of `hidden`. All values are uniform between `±1 / sqrt(hidden)`.
    ///
    /// # Errors
    /// `inputs` or `hidden` is below 1.
    pub fn new(inputs: i32, hidden: i32) -> Result<Self> {
        let [wx, wh, b] = drawn("gru", inputs, hidden, 3)?;
        let limit = 1.0 / f64::from(hidden).sqrt();
        Ok(Self {
            Wx: wx,
            Wh: wh,
            b: Some(b),
            bhn: Some(init::drawn_uniform(&[hidden], limit)?),
        })
    }

    /// The layer without its biases.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        (self.b, self.bhn) = (None, None);
        self
    }

    /// The states after each step, from a state of zeros: `[.., L, in] -> [.., L, hidden]`.
    ///
    /// # Errors
    /// The shapes do not fit, or L is 0.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        self.run(x, None)
    }

    /// [`forward`](Self::forward) from a state `[.., hidden]`.
    ///
    /// # Errors
    /// The shapes do not fit, or L is 0.
    pub fn forward_from(&self, x: &Array, hidden: &Array) -> Result<Array> {
        self.run(x, Some(hidden.clone()))
    }

    fn run(&self, x: &Array, mut hidden: Option<Array>) -> Result<Array> {
        let matrix = self.Wh.value().t()?;
        let size = self.Wh.value().dim(-1)?;
        let mut states = Vec::new();
        for x in steps("gru", x, &self.Wx, self.b.as_ref())? {
            let [mut gates, mut new] = halves(&x, 2 * size)?;
            let mut recurrent = None;
            if let Some(hidden) = &hidden {
                let [more, of_new] = halves(&hidden.matmul(&matrix)?, 2 * size)?;
                gates = gates.add(&more)?;
                recurrent = Some(match &self.bhn {
                    Some(bias) => of_new.add(bias.value())?,
                    None => of_new,
                });
            } else if let Some(bias) = &self.bhn {
                recurrent = Some(bias.value().clone());
            }
            let [reset, update] = halves(&gates.sigmoid()?, size)?;
            if let Some(recurrent) = recurrent {
                new = new.add(reset.multiply(&recurrent)?)?;
            }
            let new = new.tanh()?;
            let mut state = Array::scalar(1.0f32)?
                .astype(update.dtype())?
                .subtract(&update)?
                .multiply(&new)?;
            if let Some(hidden) = &hidden {
                state = state.add(update.multiply(hidden)?)?;
            }
            states.push(state.clone());
            hidden = Some(state);
        }
        stack(&states, -2)
    }
}

/// The first `at` features, and the features after them.
fn halves(x: &Array, at: i32) -> Result<[Array; 2]> {
    Ok([x.slice_axis(-1, 0, at)?, x.slice_axis(-1, at, x.dim(-1)?)?])
}
