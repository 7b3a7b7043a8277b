//! Constraints on the next token of a row.

use mlx_core::{Array, fast};

use crate::error::Result;
use crate::grammar::{Demand, Mask, When};

/// A constraint: the row must choose one of a set of tokens.
#[derive(Clone, Copy)]
pub(crate) struct TokenConstraint<'a> {
    /// The tokens that a grammar allows; `None` for all.
    pub(crate) grammar: Option<&'a Mask>,
    /// The number of tokens before one that may end the row, and the tokens that do not end it.
    pub(crate) least: Option<(usize, &'a Mask)>,
    /// The tokens that are forced. If the demand depends on an unread token, the graph decides.
    pub(crate) demand: Option<Demand<'a>>,
}

#[cfg(test)]
impl<'a> TokenConstraint<'a> {
    /// A constraint to these tokens.
    pub(super) fn to(mask: &'a Mask) -> Self {
        Self {
            grammar: Some(mask),
            least: None,
            demand: None,
        }
    }
}

impl TokenConstraint<'_> {
    /// Whether only tokens with the property `is_such` may follow after `generated` tokens.
    pub(crate) fn allows_only(self, generated: usize, is_such: impl Fn(u32) -> bool) -> bool {
        let Some(mask) = self.allowed(generated) else {
            return false;
        };
        let mut bits = (0..).zip(mask.iter()).flat_map(|(at, &word)| {
            let is_set = move |bit: &u32| word >> bit & 1 == 1;
            (0..32).filter(is_set).map(move |bit| at * 32 + bit)
        });
        bits.all(is_such)
    }

    /// The tokens that may follow after `generated` tokens; `None` for all. If a grammar allows
    /// only end tokens, they are allowed even before the least number of tokens is reached.
    pub(super) fn allowed(self, generated: usize) -> Option<Mask> {
        let demand = self.demand.filter(|demand| demand.when == When::Always);
        match (self.free(generated), demand) {
            (Some(mask), Some(demand)) => Some(both(&mask, demand.allowed)),
            (mask, demand) => mask.or(demand.map(|demand| demand.allowed.clone())),
        }
    }

    /// The same without the demand.
    fn free(self, generated: usize) -> Option<Mask> {
        let going_on = self.least.filter(|(least, _)| generated < *least);
        match (self.grammar, going_on.map(|(_, mask)| mask)) {
            (Some(grammar), Some(going_on)) => {
                let both = both(grammar, going_on);
                let is_empty = both.iter().all(|&word| word == 0);
                Some(if is_empty { grammar.clone() } else { both })
            }
            (grammar, going_on) => grammar.or(going_on).cloned(),
        }
    }
}

fn both(a: &Mask, b: &Mask) -> Mask {
    a.iter().zip(b.iter()).map(|(a, b)| a & b).collect()
}

/// Applies the demands of rows that depend on their last tokens, `pending` U32 `[B]`, to logits `x`
/// `[B, V]`.
///
/// # Errors
/// MLX refuses.
pub(super) fn demanded(
    x: &Array,
    demands: &[Option<Demand<'_>>],
    pending: &Array,
) -> Result<Array> {
    let lists = demands
        .iter()
        .map(|demand| match demand.map(|demand| demand.when) {
            Some(When::Behind(ids) | When::NotBehind(ids)) => ids,
            _ => &[],
        });
    let width = lists.clone().map(<[u32]>::len).max().unwrap_or(0).max(1);
    // No token has this id.
    let padded = |ids: &[u32]| {
        let fill = std::iter::repeat_n(u32::MAX, width - ids.len());
        ids.iter().copied().chain(fill).collect::<Vec<_>>()
    };
    let ids: Vec<u32> = lists.flat_map(padded).collect();
    let b = demands.len() as i32;
    let ids = Array::from_slice(&ids, &[b, width as i32])?;
    let is_listed = ids.equal(&pending.expand_dims(-1)?)?.any(-1, true)?;
    // A row without such a demand has no list, so its token is not listed.
    let is_behind = |demand: &Option<Demand<'_>>| {
        !matches!(demand.map(|demand| demand.when), Some(When::NotBehind(_)))
    };
    let wanted: Vec<bool> = demands.iter().map(is_behind).collect();
    let holds = is_listed.equal(&Array::from_slice(&wanted, &[b, 1])?)?;
    let masks: Vec<Option<Mask>> = demands
        .iter()
        .map(|demand| demand.map(|demand| demand.allowed.clone()))
        .collect();
    Ok(holds.select(&fast::allow(x, &masks)?, x)?)
}

/// A mask of all tokens of a vocabulary except these.
pub(crate) fn without(vocab: usize, ids: &[u32]) -> Mask {
    let mut words = vec![u32::MAX; vocab.div_ceil(32)];
    if let Some(last) = words.last_mut() {
        *last >>= vocab.next_multiple_of(32) - vocab;
    }
    for &id in ids {
        if let Some(word) = words.get_mut(id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_waits_unless_a_grammar_wants_nothing_else() {
        let going_on = without(40, &[3, 33, 99]);
        assert_eq!(going_on[..], [!(1 << 3), 0xff & !(1 << 1)]);
        let [both, end]: [Mask; 2] = [vec![0b1100, 0].into(), vec![0b1000, 0].into()];
        let allowed = |grammar, generated| {
            let constraint = TokenConstraint {
                grammar,
                least: Some((2, &going_on)),
                demand: None,
            };
            constraint.allowed(generated).map(|mask| mask.to_vec())
        };
        assert_eq!(allowed(None, 1), Some(going_on.to_vec()));
        assert_eq!(allowed(None, 2), None);
        assert_eq!(allowed(Some(&both), 0), Some(vec![0b100, 0]));
        assert_eq!(allowed(Some(&both), 2), Some(vec![0b1100, 0]));
        assert_eq!(allowed(Some(&end), 0), Some(vec![0b1000, 0]));
        let constraint = TokenConstraint {
            grammar: Some(&both),
            least: Some((2, &going_on)),
            demand: None,
        };
        assert!(
            constraint.allows_only(0, |id| id == 2) && !constraint.allows_only(2, |id| id == 2)
        );
    }
}
