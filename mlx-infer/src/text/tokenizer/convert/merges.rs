//! Merges of a vocabulary that has none: every way to split a token into two others.

use std::collections::HashMap;

/// The limit on the work of finding merges: the sum of the squares of the tokens' lengths.
/// Published vocabularies stay below 100 million.
const MAX_WORK: usize = 1 << 30;

/// The halves of a token, and its rank.
pub(super) type Merge<'t> = (&'t [u8], &'t [u8], u32);

/// The merges of all tokens, best first: in the order of the tokens' ranks, and for one token in
/// the order of the ranks of its halves. `cuts` returns the places at which a token may be split.
///
/// # Errors
/// The tokens are so long that the work exceeds its limit.
pub(super) fn of<'t, C: Iterator<Item = usize>>(
    tokens: impl Iterator<Item = (&'t [u8], u32)> + Clone,
    cuts: impl Fn(&'t [u8]) -> C,
) -> Result<Vec<Merge<'t>>, String> {
    let work = tokens
        .clone()
        .map(|(token, _)| token.len().saturating_mul(token.len()));
    if work.fold(0, usize::saturating_add) > MAX_WORK {
        return Err("the tokens are too long to find their merges".to_owned());
    }
    let ranks: HashMap<&[u8], u32> = tokens.clone().collect();
    let mut merges = Vec::new();
    for (token, _) in tokens {
        let rank = ranks[token];
        let halves = cuts(token).filter_map(|at| {
            let (left, right) = token.split_at(at);
            Some((left, right, *ranks.get(left)?, *ranks.get(right)?))
        });
        let mut halves: Vec<_> = halves.collect();
        halves.sort_by_key(|&(_, _, left, right)| (left, right));
        merges.extend(
            halves
                .into_iter()
                .map(|(left, right, ..)| (left, right, rank)),
        );
    }
    merges.sort_by_key(|&(_, _, rank)| rank);
    Ok(merges)
}
