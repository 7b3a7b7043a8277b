//! How often a row's drafts are accepted.

use crate::request::speculative::MOST;

/// Weight of the latest draft. The first drafts weigh more: the initial rate counts as `EXPECTED` drafts, or as
/// `EXPERIENCED` if it is that of at least `MANY` drafts of other requests.
const WEIGHT: f64 = 0.2;
const EXPECTED: f64 = 2.0;
const EXPERIENCED: f64 = 5.0;
const MANY: u32 = 16;
/// The expected rate of each position before the first draft.
const PRIOR: [f64; 3] = [0.7, 0.65, 0.6];
/// How far a rate moves back to the initial rate after a long pause.
const FORGET: f64 = 0.25;

/// For each position of a draft, how often its token is accepted if all tokens before it are: moving averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    rates: [f64; MOST],
    /// The rates before the first draft.
    initial: [f64; MOST],
    /// Drafts that tried each position.
    tried: [u32; MOST],
    /// The number of drafts that the initial rates count as.
    expected: f64,
}

impl Default for Rates {
    /// Before the first draft.
    fn default() -> Self {
        Self::of(std::array::from_fn(prior))
    }
}

fn prior(at: usize) -> f64 {
    PRIOR[at.min(PRIOR.len() - 1)]
}

impl Rates {
    /// Rates with these initial values.
    pub(super) fn of(rates: [f64; MOST]) -> Self {
        Self {
            rates,
            initial: rates,
            tried: [0; MOST],
            expected: EXPECTED,
        }
    }

    /// The current rates as initial rates.
    pub(super) fn anew(self) -> Self {
        Self {
            expected: match self.tried[0] {
                ..MANY => EXPECTED,
                _ => EXPERIENCED,
            },
            ..Self::of(std::array::from_fn(|at| self.rate(at)))
        }
    }

    /// The rate of a position. Until a draft reached it, it is as much below or above the rate of the position before
    /// as it was initially: a row whose drafts of three tokens are all accepted accepts a fourth one as often.
    fn rate(&self, at: usize) -> f64 {
        if at == 0 || self.tried[at] > 0 || self.initial[at - 1] <= 0.0 {
            return self.rates[at];
        }
        let ratio = self.initial[at] / self.initial[at - 1];
        (ratio * self.rate(at - 1)).min(1.0)
    }

    /// Records that the first `kept` of `drafted` tokens were accepted. Tokens after the first rejected one were not
    /// tried.
    pub(crate) fn learn(&mut self, drafted: usize, kept: usize) {
        for at in 0..drafted.min(kept + 1).min(MOST) {
            let right = f64::from(u8::from(at < kept));
            self.rates[at] = self.rate(at);
            self.tried[at] = self.tried[at].saturating_add(1);
            let weight = WEIGHT.max(1.0 / (self.expected + f64::from(self.tried[at])));
            self.rates[at] += weight * (right - self.rates[at]);
        }
    }

    /// Moves the rates towards the initial rates, after a long pause or for another request.
    pub(crate) fn fade(&mut self) {
        for (at, rate) in self.rates.iter_mut().enumerate() {
            *rate += FORGET * (prior(at) - *rate);
        }
    }

    /// The probability that the first `drafted` tokens of a draft are all accepted.
    pub(super) fn reach(&self, drafted: usize) -> f64 {
        (0..drafted.min(MOST)).map(|at| self.rate(at)).product()
    }

    /// The expected number of tokens of a step with a draft of `drafted`: one, and each drafted token if all before it
    /// are accepted.
    pub(super) fn expected(&self, drafted: usize) -> f64 {
        (0..=drafted.min(MOST)).map(|at| self.reach(at)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_near_the_share_of_right_tokens() {
        let (mut good, mut bad) = (Rates::default(), Rates::default());
        for _ in 0..60 {
            good.learn(4, 4);
            bad.learn(4, 0);
        }
        assert!(good.expected(4) > 4.9, "{good:?}");
        assert!(bad.expected(4) < 1.01, "{bad:?}");
        // Tokens behind the first wrong one were not tried.
        let (mut one, mut many) = (Rates::default(), Rates::default());
        one.learn(1, 0);
        many.learn(8, 0);
        assert_eq!(one, many);
    }

    #[test]
    fn the_first_drafts_weigh_more() {
        let mut bad = Rates::default();
        let after = |drafts: usize, bad: &mut Rates| {
            (0..drafts).for_each(|_| bad.learn(1, 0));
            bad.reach(1)
        };
        assert!((after(2, &mut bad) - 0.35).abs() < 1e-9, "{bad:?}");
        assert!((after(1, &mut bad) - 0.28).abs() < 1e-9, "{bad:?}");
        assert!((after(1, &mut bad) - 0.224).abs() < 1e-9, "{bad:?}");
    }

    /// Two wrong drafts do not outweigh those of many requests.
    #[test]
    fn experience_outweighs_the_first_drafts() {
        let mut usual = Rates::default();
        (0..100).for_each(|at| usual.learn(1, usize::from(at % 5 > 0)));
        let after = |mut rates: Rates| {
            (0..2).for_each(|_| rates.learn(1, 0));
            rates.reach(1) / usual.reach(1)
        };
        assert!((after(usual.anew()) - 0.64).abs() < 1e-9);
        assert!((after(Rates::of(usual.rates)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn each_position_has_its_own() {
        let mut rates = Rates::default();
        for _ in 0..100 {
            rates.learn(3, 1);
        }
        assert!(rates.rates[0] > 0.99 && rates.rates[1] < 0.01, "{rates:?}");
        assert_eq!(rates.rates[2], prior(2));
        assert!((rates.reach(2) - rates.rates[0] * rates.rates[1]).abs() < 1e-12);
        // No draft reached the third position: it is expected to be as bad as the second.
        assert!(rates.rate(2) < rates.rates[1]);
    }

    /// Drafts are short until wider steps are measured; their tokens are evidence for longer ones.
    #[test]
    fn positions_that_were_not_tried_follow_those_before() {
        let mut rates = Rates::default();
        for _ in 0..40 {
            rates.learn(3, 3);
        }
        assert!(rates.expected(8) > 8.9, "{rates:?}");
        rates.learn(5, 3);
        assert!(
            rates.rate(3) > 0.6 && rates.rate(4) == rates.rate(3),
            "{rates:?}"
        );
        assert_eq!(rates.anew().expected(8), rates.expected(8));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut rates = Rates::of([0.0; MOST]);
        for _ in 0..20 {
            rates.fade();
        }
        assert!(rates.expected(1) > 1.65, "{rates:?}");
    }
}
