//! How often a row's drafts are accepted.

use super::MOST;

/// Weight of the latest draft.
const WEIGHT: f64 = 0.2;
/// The expected rate of each position before the first draft.
const PRIOR: [f64; 3] = [0.7, 0.65, 0.6];
/// How far a rate moves back to the initial rate after a long pause.
const FORGET: f64 = 0.25;

/// For each position of a draft, how often its token is accepted if all tokens before it are: moving averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates(pub(super) [f64; MOST]);

impl Default for Rates {
    /// Before the first draft.
    fn default() -> Self {
        Self(std::array::from_fn(prior))
    }
}

fn prior(at: usize) -> f64 {
    PRIOR[at.min(PRIOR.len() - 1)]
}

impl Rates {
    /// Records that the first `kept` of `drafted` tokens were accepted. Tokens after the first rejected one were not
    /// tried.
    pub(super) fn learn(&mut self, drafted: usize, kept: usize) {
        for at in 0..drafted.min(kept + 1).min(MOST) {
            let right = f64::from(u8::from(at < kept));
            self.0[at] += WEIGHT * (right - self.0[at]);
        }
    }

    /// A long time has passed without a draft.
    pub(super) fn forget(&mut self) {
        for (at, rate) in self.0.iter_mut().enumerate() {
            *rate += FORGET * (prior(at) - *rate);
        }
    }

    /// The probability that the first `drafted` tokens of a draft are all accepted.
    pub(super) fn reach(&self, drafted: usize) -> f64 {
        self.0[..drafted.min(MOST)].iter().product()
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
    fn each_position_has_its_own() {
        let mut rates = Rates::default();
        for _ in 0..100 {
            rates.learn(3, 1);
        }
        assert!(rates.0[0] > 0.99 && rates.0[1] < 0.01, "{rates:?}");
        assert_eq!(rates.0[2], prior(2));
        assert!((rates.reach(2) - rates.0[0] * rates.0[1]).abs() < 1e-12);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut rates = Rates([0.0; MOST]);
        for _ in 0..20 {
            rates.forget();
        }
        assert!(rates.expected(1) > 1.65, "{rates:?}");
    }
}
