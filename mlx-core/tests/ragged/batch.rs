//! Steps of ragged rows, and the same rows alone.

use mlx_core::fast::{SlotsAfter, StatePool, StateSlots};
use mlx_core::{Array, DType, Result, full, ops::concat};

use super::layers::Layer;
use super::reference::SIZES;

/// Rows of a step, in a pool of `SLOTS` slots.
pub struct Batch {
    pub widths: Vec<i32>,
    pub from: Vec<i32>,
    pub to: To,
}

pub enum To {
    Rows(Vec<i32>),
    Tokens(Vec<i32>),
}

pub const SLOTS: i32 = 9;

pub fn ints(numbers: &[i32]) -> Result<Array> {
    Array::from_slice(numbers, &[numbers.len() as i32])
}

impl Batch {
    pub fn starts(&self) -> Vec<i32> {
        let ends = self.widths.iter().scan(0, |end, width| {
            *end += width;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    pub fn run(&self, layer: &Layer, pool: &Array) -> Result<(Array, Array)> {
        let longest = *self.widths.iter().max().unwrap();
        let (from, to) = match &self.to {
            To::Rows(to) | To::Tokens(to) => (ints(&self.from)?, ints(to)?),
        };
        let states = StateSlots {
            pool: StatePool::Shared(pool),
            from: &from,
            to: match self.to {
                To::Rows(_) => SlotsAfter::Rows(&to),
                To::Tokens(_) => SlotsAfter::Tokens(&to),
            },
        };
        let (y, pool) = layer.ragged(&ints(&self.starts())?, longest.max(1), Some(states))?;
        Ok((y, pool.expect("there is a pool")))
    }

    /// The same from each row alone.
    pub fn expected(&self, layer: &Layer, pool: &Array) -> Result<(Array, Array)> {
        let starts = self.starts();
        let slot = |pool: &Array, slot: i32| pool.slice_axis(0, slot, slot + 1);
        let (mut ys, mut after) = (Vec::new(), (0..SLOTS).collect::<Vec<_>>());
        let mut states: Vec<Array> = after
            .iter()
            .map(|&i| slot(pool, i))
            .collect::<Result<_>>()?;
        for (row, &width) in self.widths.iter().enumerate() {
            let (first, from) = (starts[row], self.from[row]);
            let before = (from >= 0).then(|| slot(pool, from)).transpose()?;
            if width > 0 {
                ys.push(layer.alone(first, first + width, before.as_ref())?.0);
            }
            for token in 0..width {
                let to = match &self.to {
                    To::Rows(to) if token + 1 == width => to[row],
                    To::Rows(_) => -1,
                    To::Tokens(to) => to[(first + token) as usize],
                };
                if to >= 0 {
                    let (_, state) = layer.alone(first, first + token + 1, before.as_ref())?;
                    after[to as usize] = states.len() as i32;
                    states.push(state);
                }
            }
        }
        let rest = layer.tokens() - starts.last().unwrap();
        if rest > 0 {
            let (y, _) = layer.alone(0, rest, None)?;
            ys.push(full(y.shape(), 0.0, y.dtype())?);
        }
        let after = after.iter().map(|&at| &states[at as usize]);
        Ok((concat(&ys, 1)?, concat(&after.collect::<Vec<_>>(), 0)?))
    }
}

/// Steps of all kinds: rows that begin, go on in place or in another slot, share a state, are not stored, bring no
/// token, and tokens of no row.
pub fn batches() -> Vec<(Batch, i32)> {
    let rows = |widths: &[i32], from: &[i32], to: &[i32]| Batch {
        widths: widths.to_vec(),
        from: from.to_vec(),
        to: To::Rows(to.to_vec()),
    };
    let each = |widths: &[i32], from: &[i32], to: &[i32]| Batch {
        widths: widths.to_vec(),
        from: from.to_vec(),
        to: To::Tokens(to.to_vec()),
    };
    vec![
        (rows(&[1], &[4], &[4]), 1),
        (rows(&[1], &[-1], &[0]), 2),
        (rows(&[1, 1, 1, 1], &[3, -1, 8, 0], &[3, 5, 8, 1]), 4),
        (rows(&[2, 0, 37, 1], &[7, 2, -1, 0], &[7, 2, 4, -1]), 41),
        (rows(&[0, 3, 5], &[-1, 6, 6], &[5, 1, 2]), 8),
        (rows(&[70, 1, 1], &[1, 2, 3], &[1, 2, 3]), 72),
        (each(&[3, 1], &[2, 5], &[2, 0, 1, 5, 3]), 5),
        (each(&[4, 0, 2], &[-1, 8, 6], &[-1, 0, -1, 3, 6, -1]), 6),
        (
            each(
                &[20, 3],
                &[4, 1],
                &(0..23)
                    .map(|t| match t {
                        16 => 3,
                        18 => 4,
                        22 => 7,
                        _ => -1,
                    })
                    .collect::<Vec<_>>(),
            ),
            23,
        ),
    ]
}

pub fn layers(tokens: i32, dtype: DType) -> Result<Vec<(String, Layer)>> {
    let mut all = Vec::new();
    for (channels, taps, bias) in [(70, 4, true), (4100, 2, false), (21, 3, false)] {
        let what = format!("{channels} channels, {taps} taps, {dtype}");
        all.push((what, Layer::conv(tokens, channels, taps, bias, dtype)?));
    }
    for sizes in SIZES {
        all.push((
            format!("{sizes:?}, {dtype}"),
            Layer::rule(sizes, tokens, dtype)?,
        ));
    }
    Ok(all)
}
