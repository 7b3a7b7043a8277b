//! What steps cost, and how long drafts should be.

use std::collections::HashMap;

use super::rate::Rate;

/// Weight of the latest time. The first times of a size are those of a machine that warms up, so they are forgotten soon.
const WEIGHT: f64 = 0.25;
/// How much longer than without drafts a step may take while other rows share it.
const FAIR: f64 = 1.05;

/// Steps after which the time of a width that was not used is no longer trusted: it may have been measured while the machine was busy.
const STALE: usize = 1024;

/// The times of steps, by their rows and by the tokens of the widest row.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    times: HashMap<(usize, usize), Time>,
    /// Steps that were measured.
    steps: usize,
}

#[derive(Clone, Copy, Debug)]
struct Time {
    seconds: f64,
    /// When it was measured, in steps.
    step: usize,
}

/// A row of the step that comes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Offer {
    /// Tokens of its draft; 0 of a row without one.
    pub(crate) drafted: usize,
    /// How often its drafts are right.
    pub(crate) rate: Rate,
}

impl Costs {
    /// A step of `rows` rows, the widest of `width` tokens, took so long.
    pub(crate) fn learn(&mut self, rows: usize, width: usize, seconds: f64) {
        self.steps += 1;
        let step = self.steps;
        let first = Time { seconds, step };
        let time = self.times.entry((rows, width)).or_insert(first);
        time.seconds += WEIGHT * (seconds - time.seconds);
        time.step = step;
    }

    /// The longest draft that rows of a step of `slots` rows should bring, 0 for none: the one that gives the most tokens a second. A width
    /// without a time is tried, so that it is measured. Where rows without drafts share the step, it may take 5 % longer for them.
    pub(crate) fn best(&self, slots: usize, rows: &[Offer]) -> usize {
        let most = rows.iter().map(|row| row.drafted).max().unwrap_or(0);
        let Some(plain) = self.of(slots, 0) else {
            return 0;
        };
        let is_shared = rows.iter().any(|row| row.drafted == 0);
        let gain = |draft: usize, seconds: f64| {
            let tokens = rows
                .iter()
                .map(|row| row.rate.expected(draft.min(row.drafted)));
            tokens.sum::<f64>() / seconds
        };
        let mut best = (0, gain(0, plain));
        for draft in 1..=most {
            let Some(seconds) = self.of(slots, draft) else {
                return draft;
            };
            if is_shared && seconds > FAIR * plain {
                break;
            }
            let gain = gain(draft, seconds);
            if gain > best.1 {
                best = (draft, gain);
            }
        }
        best.0
    }

    fn of(&self, rows: usize, draft: usize) -> Option<f64> {
        let time = self.times.get(&(rows, draft + 1))?;
        (self.steps - time.step < STALE).then_some(time.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(rows: usize, seconds: &[f64]) -> Costs {
        let mut costs = Costs::default();
        for (at, &seconds) in seconds.iter().enumerate() {
            costs.learn(rows, at + 1, seconds);
        }
        costs
    }

    fn offer(drafted: usize, rate: f64) -> Offer {
        Offer {
            drafted,
            rate: Rate(rate),
        }
    }

    #[test]
    fn the_draft_with_the_most_tokens_a_second_is_taken() {
        let costs = costs(1, &[1.0, 1.1, 1.2, 2.9, 3.0]);
        assert_eq!(costs.best(1, &[offer(4, 1.0)]), 2);
        assert_eq!(costs.best(1, &[offer(4, 0.5)]), 2);
        assert_eq!(costs.best(1, &[offer(4, 0.0)]), 0);
    }

    #[test]
    fn widths_without_a_time_are_tried_after_a_plain_step() {
        let rows = [offer(3, 1.0)];
        assert_eq!(Costs::default().best(1, &rows), 0);
        assert_eq!(costs(1, &[1.0]).best(1, &rows), 1);
        assert_eq!(costs(1, &[1.0, 1.5]).best(1, &rows), 2);
    }

    #[test]
    fn rows_without_drafts_lose_little() {
        let rows = [offer(2, 1.0), Offer::default()];
        assert_eq!(costs(2, &[1.0, 1.04, 1.2]).best(2, &rows), 1);
        assert_eq!(costs(2, &[1.0, 1.2, 1.2]).best(2, &rows), 0);
        assert_eq!(costs(2, &[1.0, 1.2, 1.25]).best(2, &[rows[0]; 2]), 2);
    }

    #[test]
    fn times_follow_the_latest() {
        let mut costs = costs(1, &[9.0]);
        for _ in 0..20 {
            costs.learn(1, 1, 1.0);
        }
        assert!(costs.of(1, 0).unwrap() < 1.1);
        costs.learn(1, 2, 9.0);
        assert_eq!(costs.best(1, &[offer(1, 1.0)]), 0);
        // A time that is old is measured again.
        for _ in 0..STALE {
            costs.learn(1, 1, 1.0);
        }
        assert_eq!(costs.best(1, &[offer(1, 1.0)]), 1);
    }
}
