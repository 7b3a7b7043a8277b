//! DRY, a penalty on tokens that would go on with a repetition (Weidmann 2024, "Don't Repeat
//! Yourself").

use std::collections::BTreeMap;

use crate::request::sampling::SamplingParams;

/// The longest repetition that is measured.
const LONGEST: usize = 50;
/// The largest penalty. Logits are far smaller.
const MOST: f32 = 1e4;

/// The tokens that would lengthen a repetition after `ids`, and the penalty of each. For the
/// longest earlier occurrence of the last n tokens that the token followed, it is
/// `multiplier * base ^ (n - allowed_length)` if n is at least `allowed_length`. A repetition does not reach over a
/// breaker, and breakers have no penalty.
pub(super) fn penalties(ids: &[u32], params: &SamplingParams) -> Vec<(u32, f32)> {
    if params.dry_multiplier == 0.0 {
        return Vec::new();
    }
    let ids = &ids[ids.len().saturating_sub(params.dry_last_n)..];
    let is_breaker = |id: u32| params.dry_breakers.contains(&id);
    let Some((&last, before)) = ids.split_last() else {
        return Vec::new();
    };
    if is_breaker(last) {
        return Vec::new();
    }
    let mut lengths = BTreeMap::new();
    for (at, _) in before.iter().enumerate().filter(|(_, id)| **id == last) {
        let next = ids[at + 1];
        if is_breaker(next) {
            continue;
        }
        let goes_on = |n: &usize| {
            let id = before[before.len() - n];
            *n <= at && before[at - n] == id && !is_breaker(id)
        };
        let length = 1 + (1..LONGEST).take_while(goes_on).count();
        let longest = lengths.entry(next).or_insert(0);
        *longest = length.max(*longest);
    }
    let long = lengths
        .into_iter()
        .filter(|(_, n)| *n >= params.dry_allowed_length);
    let penalty = |n: usize| {
        let beyond = (n - params.dry_allowed_length) as i32;
        (params.dry_multiplier * params.dry_base.powi(beyond)).min(MOST)
    };
    long.map(|(id, n)| (id, penalty(n))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_go_on_with_a_repetition_are_penalised() {
        let params = |breakers: &[u32], last_n: usize| SamplingParams {
            dry_multiplier: 0.5,
            dry_base: 2.0,
            dry_allowed_length: 2,
            dry_last_n: last_n,
            dry_breakers: breakers.iter().copied().collect(),
            ..Default::default()
        };
        let all = params(&[], usize::MAX);
        // 1 2 3 came before 4, and 2 3 before 5.
        let ids = [1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3];
        assert_eq!(penalties(&ids, &all), [(4, 1.0), (5, 0.5)]);
        assert_eq!(penalties(&ids[..10], &all), []);
        assert_eq!(penalties(&ids, &params(&[2], usize::MAX)), []);
        assert_eq!(
            penalties(&ids, &params(&[1], usize::MAX)),
            [(4, 0.5), (5, 0.5)]
        );
        assert_eq!(penalties(&ids, &params(&[3], usize::MAX)), []);
        assert_eq!(penalties(&ids, &params(&[4], usize::MAX)), [(5, 0.5)]);
        assert_eq!(penalties(&ids, &params(&[], 8)), [(5, 0.5)]);
        assert_eq!(penalties(&[7; 200], &all), [(7, 1e4)]);
        assert_eq!(penalties(&[], &all), []);
        assert_eq!(penalties(&[7], &all), []);
    }
}
