//! The end of a step: its rows keep some of their tokens, or it is dropped.

use mlx_core::{Error, ErrorKind, Result};

use super::Step;
use super::repeat::Last;
use crate::cache::in_layer;
use crate::cache::state::Kept;

impl Step<'_> {
    /// Ends the step: row b keeps its first `keep[b]` tokens.
    ///
    /// # Errors
    /// A row would keep more tokens than it brought, or only a part of a step that is wider than the slack of a ring or
    /// recurrent layer, or a recurrent layer has not handed over its state. The rows are then as before the step.
    pub fn commit(mut self, keep: &[usize]) -> Result<()> {
        if keep.len() != self.widths.len()
            || keep
                .iter()
                .zip(&self.widths)
                .any(|(keep, width)| keep > width)
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("rows of {:?} tokens cannot keep {keep:?}", self.widths),
            ));
        }
        let kept = Kept {
            keep,
            widths: &self.widths,
            width: self.width,
            slack: self.cache.options.slack,
        };
        if self.cache.options.store {
            for index in self.states.clone() {
                let prepared = self.cache.layers[index].state_mut().prepare(&kept);
                prepared.map_err(|error| in_layer(index, &error))?;
            }
        }
        self.committed = true;
        self.cache.last = match kept.is_whole() {
            true => Some(Last {
                widths: self.widths.clone(),
                until: self.lasts.get(),
            }),
            false => None,
        };
        for layer in &mut self.cache.layers[self.states.clone()] {
            layer.state_mut().settle(true);
        }
        if self.own_lens.is_none() {
            for (len, keep) in self.cache.lens.iter_mut().zip(keep) {
                *len += keep;
            }
        }
        Ok(())
    }

    /// [`commit`](Self::commit) of every token.
    ///
    /// # Errors
    /// None.
    pub fn commit_all(self) -> Result<()> {
        let keep = self.widths.clone();
        self.commit(&keep)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if !self.committed {
            for layer in &mut self.cache.layers[self.states.clone()] {
                layer.state_mut().settle(false);
            }
        }
        if let Some(lens) = self.own_lens.take() {
            self.cache.lens = lens;
        }
    }
}
