//! The part of [`Step`] that recurrent layers use.

use std::rc::Rc;

use mlx_core::fast::{
    self, Form, Op, RaggedDelta, RaggedRows, RaggedScan, SlotsAfter, StatePool, StateSlots,
};
use mlx_core::{Array, DType, Error, ErrorKind, Result, ops::concat};

use super::Step;
use super::axis::{Axis, RowSlots, Starts, features_at};
use crate::activation::Activation;
use crate::cache::StatePart;
use crate::cache::in_layer;
use crate::cache::recurrent::{Handed, RecurrentCache, by_row, zero_state};
use crate::cache::state::refusal;

/// The state of a recurrent layer of a kind of its own after a step. The layers of this crate use
/// [`Step::convolve`], [`Step::gated_delta`] and [`Step::scan`] instead.
///
/// ```
/// use mlx_core::{Array, DType, Result, ops::concat};
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
/// /// The sum of all tokens so far: `[1, T, 4] -> [1, T, 4]`.
/// fn running_sum(x: &Array, layer: usize, step: &mut Step) -> Result<Array> {
///     let before = step.state(layer, 0)?; // [B, 1, 1, 4]
///     let mut sums = Vec::new();
///     for (row, places) in step.places().enumerate() {
///         let (row, begin, end) = (row as i32, places.start as i32, places.end as i32);
///         let before = before.slice_axis(0, row, row + 1)?.squeeze(1)?;
///         sums.push(x.slice_axis(1, begin, end)?.cumsum(1)?.add(&before)?);
///     }
///     let sums = concat(&sums, 1)?;
///     let each = sums.reshape(&[-1, 1, 1, WIDTH])?; // [T, 1, 1, 4]
///     step.set_state(layer, 0, StateAfter::Each(each))?;
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
    /// After each token: `[T, …]`. A row may keep any number of its tokens.
    Each(Array),
    /// After the last token of each row: `[B, …]`. A row without tokens keeps its state. A row can
    /// keep all of its tokens or none.
    End(Array),
}

/// A recurrence over the first `keep[b]` tokens of row b of a step. Returns the states `[B, …]`
/// after them.
pub(crate) type Rerun = dyn Fn(&Axis, &[usize]) -> Result<Array>;

/// A causal convolution: its taps `[J, C]`, its bias `[C]` and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Taps<'a> {
    /// `[J, C]`
    pub taps: &'a Array,
    /// `[C]`
    pub bias: Option<&'a Array>,
    /// The activation of the sums.
    pub activation: Option<Activation>,
}

/// The layers of this crate: operations over ragged rows.
impl Step<'_> {
    /// [`ragged_conv`](fast::ragged_conv) of inputs `[1, T, C]`, whose state is the window that is
    /// part `part` of layer `layer`: `[1, T, C]`.
    ///
    /// # Errors
    /// The part is not a window of such inputs.
    pub fn convolve(
        &mut self,
        layer: usize,
        part: usize,
        inputs: &Array,
        of: &Taps<'_>,
    ) -> Result<Array> {
        let found = self.window_part(layer, part, inputs)?;
        let is_silu = matches!(of.activation, Some(Activation::Silu));
        let other = of.activation.filter(|_| !is_silu);
        // Other activations see sums in F32.
        let x = match other {
            Some(_) => inputs.astype(DType::F32)?,
            None => inputs.clone(),
        };
        let own = match (&self.keeps, other) {
            (Keeps::All, Some(_)) => None,
            _ => self.own_state(layer, part, has_kernel(Op::Conv, x.dtype())?)?,
        };
        if let Some(own) = own {
            let pool = own.pool.astype(x.dtype())?;
            let (rows, states) = (self.ragged_rows(), own.states(pool));
            let (y, end) = fast::ragged_conv(&x, of.taps, of.bias, is_silu, &rows, Some(states))?;
            let end = end.ok_or_else(no_states)?.astype(inputs.dtype())?;
            self.hand_over_own(layer, part, &own, end)?;
            return match other {
                Some(activation) => activation.forward(&y)?.astype(inputs.dtype()),
                None => Ok(y),
            };
        }
        let before = self.pool_before(layer, part, &found, inputs.dtype())?;
        let slots = self.slots(None)?;
        let pool = before.map(|before| before.astype(x.dtype())).transpose()?;
        let states = pool.as_ref().map(|pool| of_rows(pool, &slots));
        let rows = self.ragged_rows();
        let (y, end) = fast::ragged_conv(&x, of.taps, of.bias, is_silu, &rows, states)?;
        if let Some(end) = end {
            let end = end.astype(inputs.dtype())?;
            self.hand_over_inputs(layer, part, &found, inputs, Some(end))?;
        }
        match other {
            Some(activation) => activation.forward(&y)?.astype(inputs.dtype()),
            None => Ok(y),
        }
    }

    /// [`ragged_delta`](fast::ragged_delta), whose state is part `part` of layer `layer`:
    /// `[1, T, H·V]`.
    ///
    /// # Errors
    /// The shapes do not fit each other or the part.
    pub fn gated_delta(
        &mut self,
        layer: usize,
        part: usize,
        of: &RaggedDelta<'_>,
    ) -> Result<Array> {
        let RaggedDelta {
            key_heads,
            key_dim,
            most,
            bound,
            ..
        } = *of;
        let tokens = [of.qkv, of.a, of.b].map(Array::clone);
        let fixed = [of.rate, of.bias].map(Array::clone);
        self.recur(layer, part, tokens, move |[qkv, a, b], rows, states| {
            let [rate, bias] = &fixed;
            let of = RaggedDelta {
                qkv,
                a,
                b,
                rate,
                bias,
                key_heads,
                key_dim,
                most,
                bound,
            };
            fast::ragged_delta(&of, rows, states)
        })
    }

    /// [`ragged_scan`](fast::ragged_scan), whose state is part `part` of layer `layer`:
    /// `[1, T, H·P]`.
    ///
    /// # Errors
    /// The shapes do not fit each other or the part.
    pub fn scan(&mut self, layer: usize, part: usize, of: &RaggedScan<'_>) -> Result<Array> {
        let RaggedScan {
            groups,
            key_dim,
            limits,
            ..
        } = *of;
        let tokens = [of.x, of.dt].map(Array::clone);
        let fixed = [of.rate, of.bias, of.skip].map(Array::clone);
        self.recur(layer, part, tokens, move |[x, dt], rows, states| {
            let [rate, bias, skip] = &fixed;
            let of = RaggedScan {
                x,
                dt,
                rate,
                bias,
                skip,
                groups,
                key_dim,
                limits,
            };
            fast::ragged_scan(&of, rows, states)
        })
    }

    /// A recurrence over arrays `[1, T, ..]`. If rows keep a part of the step, it runs again over
    /// the tokens that they keep.
    pub(crate) fn recur<const N: usize>(
        &mut self,
        layer: usize,
        part: usize,
        tokens: [Array; N],
        run: impl Fn(
            [&Array; N],
            &RaggedRows<'_>,
            Option<StateSlots<'_>>,
        ) -> Result<(Array, Option<Array>)>
        + 'static,
    ) -> Result<Array> {
        let found = self.carry_part(layer, part)?;
        let StatePart::Carry { dtype, .. } = found else {
            return Err(refusal(format!(
                "layer {layer}: {} is no state",
                found.name()
            )));
        };
        if !self.recurrent(layer)?.can_rerun() {
            return Err(refusal(format!(
                "layer {layer}: {} is computed by an operation that can run again, which its shape \
                 does not promise",
                found.name()
            )));
        }
        let has_kernel = has_kernel(Op::Delta, tokens[0].dtype())?;
        if let Some(own) = self.own_state(layer, part, has_kernel)? {
            let states = own.states(own.pool.clone());
            let (y, end) = run(tokens.each_ref(), &self.ragged_rows(), Some(states))?;
            self.hand_over_own(layer, part, &own, end.ok_or_else(no_states)?)?;
            return Ok(y);
        }
        let before = self.pool_before(layer, part, &found, dtype)?;
        let slots = self.slots(None)?;
        let states = before.as_ref().map(|pool| of_rows(pool, &slots));
        let (y, end) = run(tokens.each_ref(), &self.ragged_rows(), states)?;
        if let (Some(end), Some(pool)) = (end, before) {
            let rerun = move |axis: &Axis, keep: &[usize]| {
                let places = axis.first_of(keep);
                if places.is_empty() {
                    return Ok(pool.clone());
                }
                let mut of_kept = tokens.clone();
                for array in &mut of_kept {
                    *array = features_at(array, &places)?;
                }
                let kept = Axis::new(&vec![0; keep.len()], keep, 0, None, &mut Starts::default())?;
                // A row that keeps nothing has no tokens, so its slots are not used.
                let rows = RaggedRows {
                    starts: &kept.starts,
                    longest: kept.longest() as i32,
                };
                let (_, end) = run(of_kept.each_ref(), &rows, Some(of_rows(&pool, &slots)))?;
                end.ok_or_else(no_states)
            };
            let rerun = Rc::new(rerun);
            self.hand_over(layer, part, Handed::Rerun { end, rerun })?;
        }
        Ok(y)
    }

    /// The slots of the rows' states.
    fn slots(&self, own: Option<&Rc<[usize]>>) -> Result<RowSlots> {
        self.note_read(|reads| reads.slots = true);
        self.axis.slots(own)
    }

    fn ragged_rows(&self) -> RaggedRows<'_> {
        RaggedRows {
            starts: &self.axis.starts,
            longest: self.axis.longest() as i32,
        }
    }

    /// The stored states of all rows, if the step writes them in place. It has [declared](Step::keep_all)
    /// that it keeps all tokens, nothing else reads them, and the operation has a kernel; or they have
    /// [slots](Step::keep_any) for all tokens.
    fn own_state(
        &mut self,
        layer: usize,
        part: usize,
        has_kernel: bool,
    ) -> Result<Option<OwnStates>> {
        if matches!(self.keeps, Keeps::Unknown) || !self.stores() {
            return Ok(None);
        }
        if let Keeps::Any(of) = &self.keeps {
            let (from, to) = (of.from.clone(), of.to.clone());
            let pool = self.recurrent(layer)?.own(part)?;
            return Ok(Some(OwnStates {
                pool: pool.ok_or_else(|| refusal("the slots of a step are shared"))?,
                slots: RowSlots { from, to },
                by_token: true,
                has_kernel,
            }));
        }
        if !has_kernel {
            return Ok(None);
        }
        let state = self.recurrent(layer)?;
        let (pool, own) = (state.own(part)?, state.slots().cloned());
        let Some(pool) = pool else { return Ok(None) };
        Ok(Some(OwnStates {
            pool,
            slots: self.slots(own.as_ref())?,
            by_token: false,
            has_kernel,
        }))
    }

    /// Hands over the states of [`own_state`](Self::own_state) after the step.
    fn hand_over_own(
        &mut self,
        layer: usize,
        part: usize,
        own: &OwnStates,
        end: Array,
    ) -> Result<()> {
        // The plain form makes new arrays.
        if !own.has_kernel {
            self.lasts_until(0);
            self.replaces_states = true;
        }
        let handed = match own.by_token {
            true => Handed::Slots(end),
            false => Handed::InPlace(end),
        };
        self.hand_over(layer, part, handed)
    }

    /// The states of all rows before the step; without a store there are none.
    fn pool_before(
        &mut self,
        layer: usize,
        part: usize,
        found: &StatePart,
        dtype: DType,
    ) -> Result<Option<Array>> {
        let stored = self.recurrent(layer)?.lend(part)?.cloned();
        match (stored, self.stores()) {
            (_, false) => Ok(None),
            (Some(stored), true) => Ok(Some(stored)),
            (None, true) => zero_state(found, self.axis.rows(), dtype).map(Some),
        }
    }

    /// Hands over the inputs of a window.
    fn hand_over_inputs(
        &mut self,
        layer: usize,
        part: usize,
        found: &StatePart,
        inputs: &Array,
        end: Option<Array>,
    ) -> Result<()> {
        if !self.stores() {
            return Ok(());
        }
        let before = self.before(layer, part, found, inputs.dtype())?;
        let inputs = inputs.clone();
        self.hand_over(
            layer,
            part,
            Handed::Inputs {
                before,
                inputs,
                end,
            },
        )
    }
}

/// Whether an operation has a kernel for activations of this dtype.
fn has_kernel(op: Op, activations: DType) -> Result<bool> {
    Ok(match fast::form(op)? {
        Form::Plain => false,
        Form::Cuda => activations != DType::F32,
        _ => true,
    })
}

fn no_states() -> Error {
    refusal("a recurrence with states has returned none")
}

/// What a step knows about the tokens that its rows will keep.
pub(super) enum Keeps {
    /// Nothing.
    Unknown,
    /// [`Step::keep_all`]
    All,
    /// [`Step::keep_any`]
    Any(TokenSlots),
}

/// The slots of the states after each token.
pub(super) struct TokenSlots {
    /// I32 `[B]`: the slot of the state before each row's tokens; -1 for a row that begins or has no
    /// tokens.
    from: Array,
    /// I32 `[T]`: the slot of the state after each token; -1 for tokens of rows without tokens.
    to: Array,
    /// The slot of each row before the step.
    own: Rc<[usize]>,
    /// For each row, the slots of its tokens.
    after: Vec<Vec<usize>>,
}

impl TokenSlots {
    /// The slots of rows of which each has one for each place of the longest: row b has b, b + B, and so
    /// on. The last place has the slot from which the row's first token reads.
    pub(super) fn new(axis: &Axis, own: Rc<[usize]>) -> Result<Self> {
        let rows = axis.rows();
        let of_row = |(row, places): (usize, std::ops::Range<usize>)| {
            let all = (0..axis.longest()).map(|place| row + rows * place);
            let others = all.filter(|&slot| slot != own[row]);
            let others = others.take(places.len().saturating_sub(1));
            others
                .chain((!places.is_empty()).then_some(own[row]))
                .collect()
        };
        let after: Vec<Vec<usize>> = axis.each().enumerate().map(of_row).collect();
        let to = after.iter().zip(&axis.widths).flat_map(|(slots, &width)| {
            let slot = move |&slot: &usize| if width > 0 { slot as i32 } else { -1 };
            slots.iter().map(slot)
        });
        let to: Vec<i32> = to.collect();
        Ok(Self {
            from: axis.slots(Some(&own))?.from,
            to: Array::from_slice(&to, &[to.len() as i32])?,
            own,
            after,
        })
    }

    /// The arrays that differ between steps with the same places.
    pub(super) fn inputs(&self) -> [Array; 2] {
        [self.from.clone(), self.to.clone()]
    }

    /// The slot of each row after it has kept `keep[b]` tokens.
    pub(super) fn after(&self, keep: &[usize]) -> Rc<[usize]> {
        let rows = self.own.iter().zip(&self.after).zip(keep);
        rows.map(|((&own, after), &keep)| match keep {
            0 => own,
            keep => after[keep - 1],
        })
        .collect()
    }
}

/// The states of a layer that a step writes in place.
struct OwnStates {
    pool: Array,
    slots: RowSlots,
    /// Whether the states after each token are stored, and not only those after the last.
    by_token: bool,
    has_kernel: bool,
}

impl OwnStates {
    /// The states in `pool`, which is that of the layer in the dtype of an operation.
    fn states(&self, pool: Array) -> StateSlots<'_> {
        let to = &self.slots.to;
        StateSlots {
            pool: StatePool::Own(pool),
            from: &self.slots.from,
            to: match self.by_token {
                true => SlotsAfter::Tokens(to),
                false => SlotsAfter::Rows(to),
            },
        }
    }
}

/// The states of rows in a pool that is not written in place.
fn of_rows<'a>(pool: &'a Array, slots: &'a RowSlots) -> StateSlots<'a> {
    StateSlots {
        pool: StatePool::Shared(pool),
        from: &slots.from,
        to: SlotsAfter::Rows(&slots.to),
    }
}

/// Layers of other kinds.
impl Step<'_> {
    /// Whether rows may keep a part of several tokens
    /// ([`CacheOptions::slack`](crate::CacheOptions::slack)). Then recurrent layers should set the
    /// state after [each](StateAfter::Each) token. Wider steps, such as those of prompts, are kept
    /// whole, so the state at their [end](StateAfter::End) is enough.
    pub fn keeps_parts(&self) -> bool {
        let longest = self.axis.longest();
        1 < longest && longest <= self.cache.options.slack + 1
    }

    /// The inputs that each token of a causal convolution sees, if part `part` of layer `layer` is
    /// its window of `len` inputs: `[1, T, width] -> [1, T, len + 1, width]`, the token's own input
    /// last. When the step commits, each row's window moves by the tokens that the row keeps.
    ///
    /// # Errors
    /// The part is not a window, or the inputs have another shape.
    pub fn window(&mut self, layer: usize, part: usize, inputs: &Array) -> Result<Array> {
        let found = self.window_part(layer, part, inputs)?;
        let StatePart::Window { len, width, .. } = found else {
            return Err(refusal(format!(
                "layer {layer}: {} is no window",
                found.name()
            )));
        };
        let before = self.before(layer, part, &found, inputs.dtype())?;
        let (rows, tokens) = (self.axis.rows() as i32, self.tokens() as i32);
        let all = concat(
            &[
                before.reshape(&[rows * len, width])?,
                inputs.reshape(&[tokens, width])?,
            ],
            0,
        )?;
        let mut seen = Vec::with_capacity(self.tokens() * (len as usize + 1));
        for (row, places) in self.axis.each().enumerate() {
            let first = places.start as i32;
            for place in places {
                let own = place as i32 - first;
                // Inputs before the row's first token are in its window.
                seen.extend((own - len..=own).map(|at| match at < 0 {
                    true => row as i32 * len + len + at,
                    false => rows * len + first + at,
                }));
            }
        }
        let seen = Array::from_slice(&seen, &[1, tokens, len + 1])?;
        self.hand_over_inputs(layer, part, &found, inputs, None)?;
        all.take(&seen, 0)
    }

    /// A part that is a window of inputs `[1, T, width]`.
    fn window_part(&mut self, layer: usize, part: usize, inputs: &Array) -> Result<StatePart> {
        let found = self.state_part(layer, part)?;
        let StatePart::Window { name, len, width } = found else {
            let message = format!("layer {layer}: {} is no window", found.name());
            return Err(refusal(message));
        };
        if inputs.shape() != [1, self.tokens() as i32, width] {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "layer {layer}: inputs {:?} of {name} [{len}, {width}] in a step of {:?} tokens a row",
                    inputs.shape(),
                    self.axis.widths
                ),
            ));
        }
        Ok(found)
    }

    /// Part `part` of layer `layer`'s state before the step's tokens: `[B, heads, rows, columns]`.
    ///
    /// # Errors
    /// The layer has no such part, or it is a window.
    pub fn state(&mut self, layer: usize, part: usize) -> Result<Array> {
        let found = self.carry_part(layer, part)?;
        match found {
            StatePart::Carry { dtype, .. } => self.before(layer, part, &found, dtype),
            StatePart::Window { name, .. } => Err(refusal(format!(
                "layer {layer}: {name} is a window of inputs, not a state"
            ))),
        }
    }

    /// A part that is not a window.
    fn carry_part(&mut self, layer: usize, part: usize) -> Result<StatePart> {
        match self.state_part(layer, part)? {
            StatePart::Window { name, .. } => Err(refusal(format!(
                "layer {layer}: {name} is a window of inputs, not a state"
            ))),
            found @ StatePart::Carry { .. } => Ok(found),
        }
    }

    /// Sets the state after the step's tokens, for part `part` of layer `layer`.
    ///
    /// # Errors
    /// The layer has no such part, or the array has another shape or dtype.
    pub fn set_state(&mut self, layer: usize, part: usize, after: StateAfter) -> Result<()> {
        let found = self.state_part(layer, part)?;
        let before = self.state(layer, part)?;
        let mut wanted = found.shape(self.axis.rows());
        let array = match &after {
            StateAfter::Each(states) => {
                wanted[0] = self.tokens() as i32;
                states
            }
            StateAfter::End(state) => state,
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
        if self.recurrent(layer)?.can_rerun() {
            let message = format!(
                "layer {layer}: {} was handed over without a rerun, which its shape promises",
                found.name()
            );
            return Err(refusal(message));
        }
        let handed = match after {
            StateAfter::Each(states) => Handed::Each { before, states },
            StateAfter::End(state) => Handed::End { before, state },
        };
        self.hand_over(layer, part, handed)
    }

    fn recurrent(&mut self, layer: usize) -> Result<&mut RecurrentCache> {
        let state = self.cache.layers.get_mut(layer);
        let state = state.ok_or_else(|| refusal(format!("there is no layer {layer}")))?;
        state.recurrent().ok_or_else(|| {
            refusal(format!(
                "layer {layer} keeps keys and values, not a recurrent state"
            ))
        })
    }

    fn state_part(&mut self, layer: usize, part: usize) -> Result<StatePart> {
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
        let rows = self.axis.rows();
        let zeros = || zero_state(found, rows, dtype);
        let stored = self.recurrent(layer)?.lend(part)?.cloned();
        let Some(stored) = stored else {
            return zeros();
        };
        let lens = &self.cache.lens;
        if lens.iter().all(|&len| len == 0) {
            return zeros();
        }
        if lens
            .iter()
            .zip(&self.axis.widths)
            .all(|(&len, &width)| len > 0 || width == 0)
        {
            return Ok(stored);
        }
        let goes_on: Vec<bool> = lens.iter().map(|&len| len > 0).collect();
        by_row(&goes_on, stored.ndim())?.select(&stored, &zeros()?)
    }

    fn hand_over(&mut self, layer: usize, part: usize, handed: Handed) -> Result<()> {
        if self.cache.options.store {
            if !matches!(handed, Handed::InPlace(_) | Handed::Slots(_)) {
                // The arrays of the state are replaced, so no later step can have this graph.
                self.lasts_until(0);
                self.replaces_states = true;
            }
            self.recurrent(layer)?.hand_over(part, handed);
        }
        Ok(())
    }
}
