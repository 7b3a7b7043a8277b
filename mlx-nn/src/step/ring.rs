//! Layers that keep a window of positions in a ring buffer, once the ring is full.

use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, Result};

use super::{Attended, Layout, Step};
use crate::attend::Fresh;
use crate::mask::position;

/// Index arrays for a step that is wider than a ring's slack, made once for each step and size of ring.
#[derive(Clone)]
pub(super) struct Turn {
    /// For each slot of the ring after the step, the number of the step's token that it holds:
    /// I32 `[B, 1, cap, 1]`.
    from: Array,
    /// Whether the slot holds one of the step's tokens: Bool, same shape.
    is_new: Array,
    /// The slots of the ring before the step, oldest position first: I32, same shape.
    in_order: Array,
}

impl Step<'_> {
    /// Writes to a layer that keeps the last `window` positions.
    pub(super) fn ring(
        &mut self,
        layer: usize,
        k: &Fresh<'_>,
        v: Option<&Array>,
        window: usize,
        slack: usize,
        by: usize,
    ) -> Result<Attended> {
        let cap = window + slack;
        let is_narrow = self.width <= slack + 1;
        // Once the buffer has all slots of the ring, narrow steps have one graph, whatever the lengths of rows.
        let is_whole = self.by_position && is_narrow && self.kv(layer)?.capacity() == cap;
        if !self.cache.options.store || (self.end() <= cap && !is_whole) {
            return self.straight(layer, k, v, by, Some((window, cap)));
        }
        let window = Some(window);
        if is_narrow {
            let slots = self.slots(cap, v.is_some())?;
            let arrays = self.write(layer, k, v, &slots, cap)?;
            return Ok((arrays, window, Layout::Wrapped { cap }));
        }
        self.lasts_until(0);
        // The step is wider than the slack: its last tokens may overwrite positions that its first tokens see. So the
        // queries attend to the old ring and the new tokens, side by side.
        let cache = self.kv(layer)?;
        let new = cache.kept_both(&k.keys, v)?;
        let old = cache.read(cap)?;
        let turn = self.turn(cap)?;
        let staged = |new: &Array, old: Option<&Array>| -> Result<Array> {
            let [b, heads, _, d] = new.dims()?;
            let shape = [b, heads, cap as i32, d];
            let taken = new.take_along_axis(&turn.from.broadcast_to(&shape)?, 2)?;
            let old = match old {
                Some(old) => old.clone(),
                None => zeros(&shape, new.dtype())?,
            };
            turn.is_new.select(&taken, &old)
        };
        let of = |at: usize| old.as_ref().and_then(|old| old.get(at));
        let ring = new.iter().enumerate().map(|(at, new)| staged(new, of(at)));
        let ring = ring.collect::<Result<_>>()?;
        self.kv(layer)?.stage(ring);
        match old {
            Some(old) if self.cache.lens.iter().any(|&len| len > 0) => {
                // In the order of positions: so sums have the same bits as in one wide step, and the chunks of a prompt
                // do not change its result.
                let beside = |old: &Array, new: &Array| {
                    let order = turn.in_order.broadcast_to(old.shape())?;
                    concat(&[&old.take_along_axis(&order, 2)?, new], 2)
                };
                let arrays = old.iter().zip(&new).map(|(old, new)| beside(old, new));
                let arrays = arrays.collect::<Result<_>>()?;
                Ok((arrays, window, Layout::Chunk { cap }))
            }
            _ => Ok((new, window, Layout::Straight { slots: self.width })),
        }
    }

    fn turn(&mut self, cap: usize) -> Result<Turn> {
        if let Some(turn) = self.turns.get(&cap) {
            return Ok(turn.clone());
        }
        let n = self.widths.len() * cap;
        let (mut from, mut is_new) = (Vec::with_capacity(n), Vec::with_capacity(n));
        let mut in_order = Vec::with_capacity(n);
        for (&len, &width) in self.cache.lens.iter().zip(&self.widths) {
            for slot in 0..cap {
                let token = position(slot, len + width, cap) - len as i64;
                is_new.push(token >= 0);
                from.push(token.max(0) as i32);
                in_order.push(((len + slot) % cap) as i32);
            }
        }
        let shape = [self.widths.len() as i32, 1, cap as i32, 1];
        let turn = Turn {
            from: Array::from_slice(&from, &shape)?,
            is_new: Array::from_slice(&is_new, &shape)?,
            in_order: Array::from_slice(&in_order, &shape)?,
        };
        self.turns.insert(cap, turn.clone());
        Ok(turn)
    }
}
