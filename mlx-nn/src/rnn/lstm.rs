//! [`Lstm`]: long short-term memory.

use mlx_core::ops::stack;
use mlx_core::{Array, Result};

use super::{drawn, steps};
use crate::module::Param;

/// Long short-term memory (Hochreiter and Schmidhuber, 1997): input gate `i`, forget gate `f`, new
/// values `g` and output gate `o` of `Wx x + Wh h + bias`, then `c = f * c + i * g`,
/// `h = o * tanh(c)`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::Lstm;
///
/// # fn main() -> Result<()> {
/// let lstm = Lstm::new(4, 8)?;
/// let (states, cells) = lstm.forward(&ones(&[2, 5, 4], DType::F32)?)?;
/// assert_eq!((states.shape(), cells.shape()), (&[2, 5, 8][..], &[2, 5, 8][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "LSTM")]
#[expect(non_snake_case, reason = "the names of the parameters in files")]
pub struct Lstm {
    Wx: Param,
    Wh: Param,
    bias: Option<Param>,
}

crate::module!(Lstm { Wx, Wh, bias });

impl Lstm {
    /// A layer from `inputs` features to a state of `hidden`. All values are uniform between `±1 / sqrt(hidden)`.
    ///
    /// # Errors
    /// `inputs` or `hidden` is below 1.
    pub fn new(inputs: i32, hidden: i32) -> Result<Self> {
        let [wx, wh, bias] = drawn("lstm", inputs, hidden, 4)?;
        Ok(Self {
            Wx: wx,
            Wh: wh,
            bias: Some(bias),
        })
    }

    /// The layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// States and cells after each step, from zeros: `[.., L, in] -> [.., L, hidden], [.., L, hidden]`.
    ///
    /// # Errors
    /// The shapes do not fit, or L is 0.
    pub fn forward(&self, x: &Array) -> Result<(Array, Array)> {
        self.run(x, None)
    }

    /// [`forward`](Self::forward) from a state and a cell `[.., hidden]`.
    ///
    /// # Errors
    /// The shapes do not fit, or L is 0.
    pub fn forward_from(&self, x: &Array, hidden: &Array, cell: &Array) -> Result<(Array, Array)> {
        self.run(x, Some((hidden.clone(), cell.clone())))
    }

    fn run(&self, x: &Array, mut last: Option<(Array, Array)>) -> Result<(Array, Array)> {
        let matrix = self.Wh.value().t()?;
        let (mut states, mut cells) = (Vec::new(), Vec::new());
        for x in steps("lstm", x, &self.Wx, self.bias.as_ref())? {
            let sum = match &last {
                Some((hidden, _)) => x.addmm(hidden, &matrix)?,
                None => x,
            };
            let gates = sum.split(4, -1)?;
            let [input, forget, new, output] = &gates[..] else {
                unreachable!("four parts were asked for");
            };
            let mut cell = input.sigmoid()?.multiply(new.tanh()?)?;
            if let Some((_, old)) = &last {
                cell = forget.sigmoid()?.multiply(old)?.add(&cell)?;
            }
            let hidden = output.sigmoid()?.multiply(cell.tanh()?)?;
            states.push(hidden.clone());
            cells.push(cell.clone());
            last = Some((hidden, cell));
        }
        Ok((stack(&states, -2)?, stack(&cells, -2)?))
    }
}
