//! The angles of ropes whose base depends on the length of a text (dynamic NTK).

use mlx_core::{Array, Result};

use super::Step;
use crate::rope::Growing;

/// A rope, by the bits of its numbers.
pub(super) type Key = [u64; 4];

/// The rotation of a step's tokens.
#[derive(Clone)]
pub(crate) struct Turned {
    /// `[B, 1, L, dims / 2]`
    pub cosines: Array,
    /// `[B, 1, L, dims / 2]`
    pub sines: Array,
    /// Bool `[B, 1, L, 1]`: the tokens whose base has grown; `None` if all have.
    pub grown: Option<Array>,
}

impl Step<'_> {
    /// The rotation of the step's tokens, made once for all layers with this rope; `None` if no base has grown.
    pub(crate) fn turned(&self, rope: &Growing) -> Result<Option<Turned>> {
        if !self.beyond(rope.original()).contains(&true) {
            return Ok(None);
        }
        self.lasts_until(0);
        let key = rope.key();
        let held = self.turned.borrow();
        if let Some((_, made)) = held.iter().find(|(of, _)| *of == key) {
            return Ok(Some(made.clone()));
        }
        drop(held);
        let (rows, width) = (self.widths.len() as i32, self.width as i32);
        let (mut cosines, mut sines, mut grown) = (Vec::new(), Vec::new(), Vec::new());
        for (row, &begin) in self.cache.lens.iter().enumerate() {
            let mut frequencies = (0, Vec::new());
            for position in begin..begin + self.width {
                let length = self.length_at(row, position);
                grown.push(length > rope.original());
                if frequencies.0 != length {
                    frequencies = (length, rope.frequencies(length));
                }
                for frequency in &frequencies.1 {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    cosines.push(cosine as f32);
                    sines.push(sine as f32);
                }
            }
        }
        let shape = [rows, 1, width, rope.pairs() as i32];
        let made = Turned {
            cosines: Array::from_slice(&cosines, &shape)?,
            sines: Array::from_slice(&sines, &shape)?,
            grown: match grown.contains(&false) {
                true => Some(Array::from_slice(&grown, &[rows, 1, width, 1])?),
                false => None,
            },
        };
        self.turned.borrow_mut().push((key, made.clone()));
        Ok(Some(made))
    }

    /// The length of the text at the time when a position is computed: the whole prompt for its tokens, and one more
    /// for each token after it. In a row without an expected length each step counts as a prompt.
    fn length_at(&self, row: usize, position: usize) -> usize {
        match self.cache.expected[row] {
            0 => self.reach[row].max(position + 1),
            expected => expected.max(position + 1),
        }
    }
}
