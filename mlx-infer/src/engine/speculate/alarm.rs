//! A warning about drafters whose drafts are hardly ever accepted.

/// The number of drafts before the average is used.
const DRAFTS: usize = 200;
/// The warning is given if the share of accepted first tokens is below this.
const LEAST: f64 = 0.3;

/// A moving average of how often the first token of a draft is accepted. A head that gets features
/// or tokens in another order than in its training still drafts, but its tokens are rejected; the
/// average is the only sign of the mistake.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    drafts: usize,
    rate: f64,
    has_sounded: bool,
}

impl Alarm {
    /// Counts a draft whose first token was accepted or not. Returns the average if the warning is due, which is once.
    pub(crate) fn learn(&mut self, is_right: bool) -> Option<f64> {
        self.drafts += 1;
        let weight = 1.0 / self.drafts.min(DRAFTS) as f64;
        self.rate += weight * (f64::from(u8::from(is_right)) - self.rate);
        let is_due = self.drafts >= DRAFTS && self.rate < LEAST && !self.has_sounded;
        self.has_sounded |= is_due;
        is_due.then_some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sounds_once_for_a_bad_drafter() {
        let sounded = |good: usize| -> Vec<usize> {
            let mut alarm = Alarm::default();
            let sounds = |at: &usize| alarm.learn(at % 10 < good).is_some();
            (0..1000).filter(sounds).collect()
        };
        assert_eq!(sounded(0), [199]);
        assert_eq!(sounded(2), [199]);
        assert!(sounded(4).is_empty() && sounded(10).is_empty());
    }

    #[test]
    fn a_drafter_that_gets_bad_is_told() {
        let mut alarm = Alarm::default();
        assert!((0..500).all(|_| alarm.learn(true).is_none()));
        assert_eq!(
            (0..1000).filter(|_| alarm.learn(false).is_some()).count(),
            1
        );
    }
}
