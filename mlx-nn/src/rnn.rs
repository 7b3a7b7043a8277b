//! Classical recurrent layers: [`Rnn`], [`Gru`], [`Lstm`]. The names of their parameters are those
//! of MLX's Python.
//!
//! The recurrent layers of language models are in [`recurrence`](crate::recurrence).

use mlx_core::ops::stack;
use mlx_core::{Array, Error, ErrorKind, Result};

use crate::activation::Activation;
use crate::init;
use crate::layer::layer;
use crate::module::Param;
use crate::sizes::{check_positive, misshapen};

mod gru;
mod lstm;

pub use gru::Gru;
pub use lstm::Lstm;

/// `h[t] = tanh(Wxh x[t] + Whh h[t-1] + bias)` (Elman, 1990).
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::Rnn;
///
/// # fn main() -> Result<()> {
/// let rnn = Rnn::new(4, 8)?;
/// let states = rnn.forward(&ones(&[2, 5, 4], DType::F32)?)?;
/// assert_eq!(states.shape(), [2, 5, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "RNN")]
#[expect(non_snake_case, reason = "the names of the parameters in files")]
pub struct Rnn {
    Wxh: Param,
    Whh: Param,
    bias: Option<Param>,
    activation: Activation,
}

crate::module!(Rnn { Wxh, Whh, bias } plain { activation });
layer!(Rnn;);

impl Rnn {
    /// A layer from `inputs` features to a state of `hidden`. All values are uniform between `±1 / sqrt(hidden)`.
    ///
    /// # Errors
    /// `inputs` or `hidden` is below 1.
    pub fn new(inputs: i32, hidden: i32) -> Result<Self> {
        let [wx, wh, bias] = drawn("rnn", inputs, hidden, 1)?;
        Ok(Self {
            Wxh: wx,
            Whh: wh,
            bias: Some(bias),
            activation: Activation::Tanh,
        })
    }

    /// The layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// The activation of each step. Default: tanh.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
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
        let matrix = self.Whh.value().t()?;
        let mut states = Vec::new();
        for x in steps("rnn", x, &self.Wxh, self.bias.as_ref())? {
            let sum = match &hidden {
                Some(hidden) => x.addmm(hidden, &matrix)?,
                None => x,
            };
            let state = self.activation.forward(&sum)?;
            states.push(state.clone());
            hidden = Some(state);
        }
        stack(&states, -2)
    }
}

/// Matrices `[gates * hidden, inputs]` and `[gates * hidden, hidden]`, and a bias.
fn drawn(layer: &str, inputs: i32, hidden: i32, gates: i32) -> Result<[Param; 3]> {
    check_positive(layer, "features", &[inputs, hidden])?;
    let limit = 1.0 / f64::from(hidden).sqrt();
    let Some(rows) = hidden.checked_mul(gates) else {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("{layer}: {gates} times {hidden} features are more than an array has"),
        ));
    };
    Ok([
        init::drawn_uniform(&[rows, inputs], limit)?,
        init::drawn_uniform(&[rows, hidden], limit)?,
        init::drawn_uniform(&[rows], limit)?,
    ])
}

/// `matrix x + bias` for every step of `x [.., L, in]`: L arrays `[.., out]`.
fn steps(layer: &str, x: &Array, matrix: &Param, bias: Option<&Param>) -> Result<Vec<Array>> {
    let inputs = matrix.value().dim(-1)?;
    if !matches!(*x.shape(), [.., length, last] if length > 0 && last == inputs) {
        let expected = format!("[.., L, {inputs}] with L above 0");
        return Err(misshapen(layer, &expected, x.shape()));
    }
    let turned = matrix.value().t()?;
    let y = match bias {
        Some(bias) => bias.value().addmm(x, &turned)?,
        None => x.matmul(&turned)?,
    };
    y.unstack(-2)
}
