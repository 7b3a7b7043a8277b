//! How often a row's drafts are right.

/// Weight of the latest step.
const WEIGHT: f64 = 0.1;

/// The share of drafted tokens that were kept, of those that were tried: the ones up to the first that was wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate(pub(super) f64);

impl Default for Rate {
    /// Before the first draft.
    fn default() -> Self {
        Self(0.7)
    }
}

impl Rate {
    /// Of `drafted` tokens the first `kept` were right.
    pub(super) fn learn(&mut self, drafted: usize, kept: usize) {
        for at in 0..drafted.min(kept + 1) {
            let right = f64::from(u8::from(at < kept));
            self.0 += WEIGHT * (right - self.0);
        }
    }

    /// Tokens that a step with a draft of `drafted` is expected to give: one, and each drafted one if all before it are right.
    pub(super) fn expected(self, drafted: usize) -> f64 {
        (0..=drafted).map(|at| self.0.powi(at as i32)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_nears_the_share_of_right_tokens() {
        let (mut good, mut bad) = (Rate::default(), Rate::default());
        for _ in 0..60 {
            good.learn(4, 4);
            bad.learn(4, 0);
        }
        assert!(good.expected(4) > 4.9, "{good:?}");
        assert!(bad.expected(4) < 1.01, "{bad:?}");
        // Tokens behind the first wrong one were not tried.
        let (mut one, mut many) = (Rate::default(), Rate::default());
        one.learn(1, 0);
        many.learn(8, 0);
        assert_eq!(one.expected(8), many.expected(8));
    }
}
