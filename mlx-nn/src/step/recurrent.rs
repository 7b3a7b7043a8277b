//! The part of [`Step`] that recurrent layers use.

use std::fmt;
use std::rc::Rc;

use mlx_core::{Array, DType, Error, ErrorKind, Result, ops::concat};

use super::Step;
use crate::cache::StatePart;
use crate::cache::in_layer;
use crate::cache::recurrent::{Handed, RecurrentCache, by_row, zero_state};
use crate::cache::state::refusal;

/// The state of a recurrent layer after a step.
///
/// ```
/// use mlx_core::{Array, DType, Result};
/// use mlx_nn::{
///     CacheOptions, LayerKind, ModelCache, RecurrentShape, StateAfter, StatePart, Step,
/// };
///
/// const WIDTH: i32 = 4;
/// const SUM: RecurrentShape = RecurrentShape::new(&[StatePart::Carry {
///     name: "sum",
///     shape: [1, 1, WIDTH],
///     dtype: DType::F32,
/// }]);
///
/// /// The sum of all tokens so far: `[B, L, 4] -> [B, L, 4]`.
/// fn running_sum(x: &Array, layer: usize, step: &mut Step) -> Result<Array> {
///     let before = step.state(layer, 0)?; // [B, 1, 1, 4]
///     let x = match step.real_tokens()? {
///         Some(real) => real.expand_dims(-1)?.select(x, 0.0f32)?, // padding adds nothing
///         None => x.clone(),
///     };
///     let sums = x.cumsum(1)?.add(&before.squeeze(1)?)?; // [B, L, 4]
///     let (b, l) = (x.dim(0)?, x.dim(1)?);
///     let after = match step.keeps_parts() {
///         true => StateAfter::Each(sums.reshape(&[b, l, 1, 1, WIDTH])?),
///         false => StateAfter::End(sums.slice_axis(1, l - 1, l)?.expand_dims(1)?),
///     };
///     step.set_state(layer, 0, after)?;
///     Ok(sums)
/// }
///
/// # fn main() -> Result<()> {
/// let options = CacheOptions { slack: 2, ..Default::default() };
/// let mut cache = ModelCache::new(&[LayerKind::Recurrent(SUM)], 1, options);
/// let ones = Array::from_slice(&[1.0f32; 12], &[1, 3, 4])?;
/// let mut step = cache.begin(&[3])?;
/// running_sum(&ones, 0, &mut step)?;
/// step.commit(&[2])?; // the third token is rejected
/// let mut step = cache.begin(&[3])?;
/// let sums = running_sum(&ones, 0, &mut step)?;
/// assert_eq!(sums.slice_axis(1, 0, 1)?.to_vec::<f32>()?, [3.0; 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub enum StateAfter {
    /// After each token: `[B, L, …]`. A row may keep any number of its tokens. States after its last real token do not
    /// matter.
    Each(Array),
    /// After the last real token of each row: `[B, …]`. A row of width 0 keeps its state. A row can
    /// keep all of its tokens or none.
    End(Array),
    /// `End`, and a function that computes the state again if a row keeps a part of its tokens. No
    /// state is stored for each token, and a rejected token costs a second run of the recurrence.
    Rerun {
        /// After the last real token of each row: `[B, …]`.
        end: Array,
        /// The recurrence.
        rerun: Rerun,
    },
}

/// A recurrence that can be run again over the first tokens of each row.
#[derive(Clone)]
pub struct Rerun {
    /// The inputs of `run`, with the state before the step.
    pub inputs: Vec<Array>,
    /// Returns the state `[B, …]` after the first `keep[b]` tokens of row b, from the inputs and `keep`, I32 `[B]`.
    pub run: Rc<Run>,
}

type Run = dyn Fn(&[Array], &Array) -> Result<Array>;

impl fmt::Debug for Rerun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rerun = &mut f.debug_struct("Rerun");
        rerun.field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl Step<'_> {
    /// Which tokens are real and not padding: Bool `[B, L]`. `None` where all are.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn real_tokens(&mut self) -> Result<Option<Array>> {
        if self.widths.iter().all(|&width| width == self.width) {
            return Ok(None);
        }
        if self.real.is_none() {
            let row = |&own: &usize| (0..self.width).map(move |token| token < own);
            let real: Vec<bool> = self.widths.iter().flat_map(row).collect();
            let shape = [self.widths.len() as i32, self.width as i32];
            self.real = Some(Array::from_slice(&real, &shape)?);
        }
        Ok(self.real.clone())
    }

    /// The number of tokens that each row brings: I32 `[B]`.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn real_widths(&mut self) -> Result<Array> {
        if self.real_widths.is_none() {
            let widths: Vec<i32> = self.widths.iter().map(|&width| width as i32).collect();
            self.real_widths = Some(Array::from_slice(&widths, &[widths.len() as i32])?);
        }
        Ok(self.real_widths.clone().expect("it was made"))
    }

    /// Whether rows may keep a part of several tokens
    /// ([`CacheOptions::slack`](crate::CacheOptions::slack)). Then recurrent layers should set the
    /// state after [each](StateAfter::Each) token. Wider steps, such as those of prompts, are kept
    /// whole, so the state at their [end](StateAfter::End) is enough.
    pub fn keeps_parts(&self) -> bool {
        1 < self.width && self.width <= self.cache.options.slack + 1
    }

    /// The input of a causal convolution whose window is part `part` of layer `layer`: the inputs before the step,
    /// followed by those of the step, `[B, L, width] -> [B, len + L, width]`. Output `t` of the convolution reads `t
    /// ..= t + len`. When the step commits, each row's window moves by the tokens that the row keeps.
    ///
    /// # Errors
    /// The part is not a window, or the inputs have another shape.
    pub fn window(&mut self, layer: usize, part: usize, inputs: &Array) -> Result<Array> {
        let found = self.state_part(layer, part)?;
        let rows = self.widths.len();
        let StatePart::Window { name, len, width } = found else {
            let message = format!("layer {layer}: {} is no window", found.name());
            return Err(refusal(message));
        };
        if inputs.shape() != [rows as i32, self.width as i32, width] {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "layer {layer}: inputs {:?} of {name} [{len}, {width}] in a step of {:?} tokens a row",
                    inputs.shape(),
                    self.widths
                ),
            ));
        }
        let before = self.before(layer, part, &found, inputs.dtype())?;
        let joined = concat(&[&before, inputs], 1)?;
        self.hand_over(layer, part, Handed::Inputs(joined.clone()))?;
        Ok(joined)
    }

    /// Part `part` of layer `layer`'s state before the step's tokens: `[B, heads, rows, columns]`.
    ///
    /// # Errors
    /// The layer has no such part, or it is a window.
    pub fn state(&mut self, layer: usize, part: usize) -> Result<Array> {
        let found = self.state_part(layer, part)?;
        match found {
            StatePart::Carry { dtype, .. } => self.before(layer, part, &found, dtype),
            StatePart::Window { name, .. } => Err(refusal(format!(
                "layer {layer}: {name} is a window of inputs, not a state"
            ))),
        }
    }

    /// Sets the state after the step's tokens, for part `part` of layer `layer`.
    ///
    /// # Errors
    /// The layer has no such part, or the array has another shape or dtype.
    pub fn set_state(&mut self, layer: usize, part: usize, after: StateAfter) -> Result<()> {
        let found = self.state_part(layer, part)?;
        let before = self.state(layer, part)?;
        let mut wanted = found.shape(self.widths.len());
        let array = match &after {
            StateAfter::Each(states) => {
                wanted.insert(1, self.width as i32);
                states
            }
            StateAfter::End(state) | StateAfter::Rerun { end: state, .. } => state,
        };
        if array.shape() != wanted || array.dtype() != before.dtype() {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "layer {layer}: {} is {} {:?} after the step, expected {} {wanted:?}",
                    found.name(),
                    array.dtype(),
                    array.shape(),
                    before.dtype()
                ),
            ));
        }
        let can_rerun = self.recurrent(layer)?.can_rerun();
        let handed = match after {
            StateAfter::Each(_) | StateAfter::End(_) if can_rerun => {
                let message = format!(
                    "layer {layer}: {} was handed over without a rerun, which its shape promises",
                    found.name()
                );
                return Err(refusal(message));
            }
            StateAfter::Each(states) => Handed::Each { before, states },
            StateAfter::End(state) => Handed::End { before, state },
            StateAfter::Rerun { end, rerun } => Handed::Rerun { end, rerun },
        };
        self.hand_over(layer, part, handed)
    }

    fn recurrent(&mut self, layer: usize) -> Result<&mut RecurrentCache> {
        // A step replaces the arrays of the state, so no later step can have its graph.
        self.lasts_until(0);
        let state = self.cache.layers.get_mut(layer);
        let state = state.ok_or_else(|| refusal(format!("there is no layer {layer}")))?;
        state.recurrent().ok_or_else(|| {
            refusal(format!(
                "layer {layer} keeps keys and values, not a recurrent state"
            ))
        })
    }

    fn state_part(&mut self, layer: usize, part: usize) -> Result<StatePart> {
        if self.documents.is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "layer {layer} is recurrent and cannot keep documents in one row apart; give each a row"
                ),
            ));
        }
        let found = self.recurrent(layer)?.part(part);
        found.map_err(|error| in_layer(layer, &error))
    }

    /// A part of the state before the step: the stored one, or zeros for rows of length 0.
    fn before(
        &mut self,
        layer: usize,
        part: usize,
        found: &StatePart,
        dtype: DType,
    ) -> Result<Array> {
        let rows = self.widths.len();
        let zeros = || zero_state(found, rows, dtype);
        let stored = self.recurrent(layer)?.stored(part).cloned();
        let Some(stored) = stored else {
            return zeros();
        };
        let lens = &self.cache.lens;
        if lens.iter().all(|&len| len == 0) {
            return zeros();
        }
        if lens
            .iter()
            .zip(&self.widths)
            .all(|(&len, &width)| len > 0 || width == 0)
        {
            return Ok(stored);
        }
        let goes_on: Vec<bool> = lens.iter().map(|&len| len > 0).collect();
        by_row(&goes_on, stored.ndim())?.select(&stored, &zeros()?)
    }

    fn hand_over(&mut self, layer: usize, part: usize, handed: Handed) -> Result<()> {
        if self.cache.options.store {
            self.recurrent(layer)?.hand_over(part, handed);
        }
        Ok(())
    }
}
