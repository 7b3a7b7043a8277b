//! [`Axis`]: the axis of all tokens of a step.

use std::cell::OnceCell;
use std::ops::Range;
use std::rc::Rc;

use mlx_core::{Array, Result};

/// The tokens of all rows of a step on one axis, row after row, without padding.
///
/// A row has a place on the axis for each of its tokens. In
/// [steps of a fixed shape](crate::ModelCache::begin_slots) each row has a least number of places. The
/// tokens behind its own are kept nowhere.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// The number of tokens that each row brings.
    pub(crate) widths: Vec<usize>,
    /// The first place of each row, and the number of all places.
    places: Vec<usize>,
    /// I32 `[B + 1]`: the same numbers.
    pub(crate) starts: Array,
    /// I32 `[B]`: the number of positions that each row held before the step.
    pub(crate) lens: Array,
    /// I32 `[1, T]`: the position of each token.
    pub(crate) positions: Array,
    /// The same as `lens`.
    held: Vec<usize>,
    /// The least number of places of a row.
    least: usize,
    slots: OnceCell<(Option<Rc<[usize]>>, RowSlots)>,
}

/// The starts of rows in the last steps of a fixed shape. Steps of one shape share the array, so that
/// their graphs have that input in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Vec<(Vec<usize>, Array)>);

impl Starts {
    /// The number of shapes.
    const MOST: usize = 16;

    fn of(&mut self, places: &[usize]) -> Result<Array> {
        if let Some((_, starts)) = self.0.iter().find(|(of, _)| of == places) {
            return Ok(starts.clone());
        }
        let starts = numbers(places.iter().copied())?;
        if self.0.len() == Self::MOST {
            self.0.remove(0);
        }
        self.0.push((places.to_vec(), starts.clone()));
        Ok(starts)
    }
}

/// Which arrays of an [`Axis`] the layers of a step have read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AxisReads {
    pub(crate) lens: bool,
    pub(crate) positions: bool,
    pub(crate) slots: bool,
}

/// Where recurrent layers read and write the states of rows.
#[derive(Clone, Debug)]
pub(crate) struct RowSlots {
    /// I32 `[B]`: the state before the row's tokens; -1 for a row that begins or has no tokens.
    pub(crate) from: Array,
    /// I32 `[B]`: the state after them; -1 for a row without tokens.
    pub(crate) to: Array,
}

impl Axis {
    /// The axis of rows that held `lens` positions before the step, each with at least `least` places. If
    /// the axis `before` or one of the `fixed` shapes has the same places, both share `starts`, so that
    /// graphs of both steps have that input in common.
    pub(crate) fn new(
        lens: &[usize],
        widths: &[usize],
        least: usize,
        before: Option<&Self>,
        fixed: &mut Starts,
    ) -> Result<Self> {
        let mut places = vec![0];
        for &width in widths {
            places.push(places[places.len() - 1] + width.max(least));
        }
        let starts = match before {
            _ if least > 0 => fixed.of(&places)?,
            Some(before) if before.places == places => before.starts.clone(),
            _ => numbers(places.iter().copied())?,
        };
        Self::at(lens, widths.to_vec(), least, (places, starts))
    }

    /// The axis of a later step with the same places. `widths`: those that [fit](Self::fits).
    pub(crate) fn again(&self, lens: &[usize], widths: &[usize]) -> Result<Self> {
        let places = (self.places.clone(), self.starts.clone());
        Self::at(lens, widths.to_vec(), self.least, places)
    }

    /// Whether rows of these widths have the same places.
    pub(crate) fn fits(&self, widths: &[usize]) -> bool {
        let mut rows = self.each().zip(widths);
        widths.len() == self.rows()
            && rows.all(|(places, &width)| places.len() == width.max(self.least))
    }

    fn at(
        lens: &[usize],
        widths: Vec<usize>,
        least: usize,
        (places, starts): (Vec<usize>, Array),
    ) -> Result<Self> {
        let rows = places.windows(2).zip(lens);
        let positions = rows.flat_map(|(of, len)| (0..of[1] - of[0]).map(move |at| len + at));
        Ok(Self {
            positions: positions_of(positions)?,
            lens: numbers(lens.iter().copied())?,
            held: lens.to_vec(),
            slots: OnceCell::new(),
            least,
            starts,
            widths,
            places,
        })
    }

    /// The slots of the rows' states, made once for all layers whose rows have the same slots `own`.
    /// `None`: row b has slot b.
    pub(crate) fn slots(&self, own: Option<&Rc<[usize]>>) -> Result<RowSlots> {
        if let Some((_, made)) = self.slots.get().filter(|(of, _)| of.as_ref() == own) {
            return Ok(made.clone());
        }
        let slot = |row: usize| own.map_or(row, |own| own[row]) as i32;
        let of = |has: &dyn Fn(usize) -> bool| {
            let rows = 0..self.rows();
            let slots = rows.map(|row| if has(row) { slot(row) } else { -1 });
            Array::from_slice(&slots.collect::<Vec<i32>>(), &[self.rows() as i32])
        };
        let made = RowSlots {
            from: of(&|row| self.held[row] > 0 && self.widths[row] > 0)?,
            to: of(&|row| self.widths[row] > 0)?,
        };
        self.slots.get_or_init(|| (own.cloned(), made.clone()));
        Ok(made)
    }

    /// The arrays that differ between steps with the same places, as far as they are read. The
    /// [slots](Self::slots) are made before.
    pub(crate) fn inputs(&self, reads: AxisReads) -> Vec<Array> {
        let mut inputs = Vec::new();
        if reads.lens {
            inputs.push(self.lens.clone());
        }
        if reads.positions {
            inputs.push(self.positions.clone());
        }
        if let Some((_, slots)) = self.slots.get().filter(|_| reads.slots) {
            inputs.extend([slots.from.clone(), slots.to.clone()]);
        }
        inputs
    }

    /// The first place of each row, and the number of all places.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.widths.len()
    }

    /// The number of places.
    pub(crate) fn len(&self) -> usize {
        self.places[self.rows()]
    }

    /// The places of each row.
    pub(crate) fn each(&self) -> impl Iterator<Item = Range<usize>> {
        self.places.windows(2).map(|of| of[0]..of[1])
    }

    /// The places of each row, if it is given to all.
    pub(crate) fn fixed_places(&self) -> usize {
        self.least.max(1)
    }

    /// Whether rows have the number of places that they also have in the steps after this one: one, or that of a
    /// [fixed shape](crate::ModelCache::begin_slots).
    pub(crate) fn is_fixed(&self) -> bool {
        self.longest() == self.fixed_places()
    }

    /// Whether a row with tokens has places behind them.
    pub(crate) fn is_padded(&self) -> bool {
        let mut rows = self.each().zip(&self.widths);
        rows.any(|(places, &width)| width > 0 && width < places.len())
    }

    /// The most places of a row.
    pub(crate) fn longest(&self) -> usize {
        self.each().map(|places| places.len()).max().unwrap_or(0)
    }

    /// The places of the first `keep[b]` tokens of each row, in order.
    pub(crate) fn first_of(&self, keep: &[usize]) -> Vec<usize> {
        let rows = self.each().zip(keep);
        rows.flat_map(|(places, &keep)| places.start..places.start + keep)
            .collect()
    }
}

/// I32 `[n]`
fn numbers(all: impl Iterator<Item = usize>) -> Result<Array> {
    let all: Vec<i32> = all.map(|number| number as i32).collect();
    Array::from_slice(&all, &[all.len() as i32])
}

/// I32 `[1, n]`
fn positions_of(all: impl Iterator<Item = usize>) -> Result<Array> {
    let all: Vec<i32> = all.map(|position| position as i32).collect();
    Array::from_slice(&all, &[1, all.len() as i32])
}

/// The features `[1, T, ..]` at some places, in ascending order: `[1, places, ..]`.
pub(crate) fn features_at(features: &Array, places: &[usize]) -> Result<Array> {
    let all = features.dim(1)?;
    if places.len() as i32 == all {
        return Ok(features.clone());
    }
    if let [place] = *places {
        let place = place as i32;
        return features.slice_axis(1, place, place + 1);
    }
    let places: Vec<i32> = places.iter().map(|&place| place as i32).collect();
    features.take(&Array::from_slice(&places, &[places.len() as i32])?, 1)
}
