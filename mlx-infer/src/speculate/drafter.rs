//! One request's drafts: where they come from, and when it is time for one.

use super::Speculative;
use super::ngram::Ngrams;
use super::rate::Rate;

/// Longest pause after drafts that did not pay, and after texts without a draft, in steps.
const LONGEST_PAUSE: u32 = 256;
const LONGEST_SEARCH: u32 = 8;
/// Tokens that a head for multi-token prediction drafts where the length is not given: each takes time, and the later ones are
/// rarely kept.
const HEAD_MOST: usize = 2;

/// The drafts of one request.
///
/// To draft, the host has to know the row's last token, so a step waits for the one before. While there is nothing to draft, or drafts do not
/// pay, the drafter pauses, so that steps can be queued ahead.
#[derive(Debug)]
pub(crate) struct Drafter {
    setting: Speculative,
    ngrams: Ngrams,
    rate: Rate,
    /// Steps until the next draft.
    pause: u32,
    /// Length of the next pause.
    next_pause: u32,
    /// Tokens that were drafted, and those of them that were kept.
    pub(crate) drafted: usize,
    pub(crate) kept: usize,
}

impl Drafter {
    /// None where nothing is to be drafted.
    pub(crate) fn new(setting: Speculative) -> Option<Self> {
        (setting != Speculative::Off).then(|| Self {
            setting,
            ngrams: Ngrams::default(),
            rate: Rate::default(),
            pause: 0,
            next_pause: 1,
            drafted: 0,
            kept: 0,
        })
    }

    /// Whether a draft may be made for the step that comes. To be asked once a step.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    /// At most `room` tokens that may follow `ids`. Where there are none, the model's `head` may draft some.
    pub(crate) fn draft(&mut self, ids: &[u32], room: usize, head: bool) -> Vec<u32> {
        let draft = self.ngrams.draft(ids, room.min(self.setting.most()));
        if draft.is_empty() && !head {
            self.rest(LONGEST_SEARCH);
        }
        draft
    }

    /// How many tokens the model's head should draft.
    pub(crate) fn head_most(&self) -> usize {
        match self.setting {
            Speculative::Auto => HEAD_MOST,
            setting => setting.most(),
        }
    }

    /// Whether its drafts are taken whatever they cost.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.setting, Speculative::Tokens(_))
    }

    /// How often its drafts are right.
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// The draft was not taken, because it would not have paid.
    pub(crate) fn declined(&mut self) {
        self.rest(LONGEST_PAUSE);
    }

    /// Of a draft of `drafted` tokens the first `kept` were right.
    pub(crate) fn learn(&mut self, drafted: usize, kept: usize) {
        self.rate.learn(drafted, kept);
        self.drafted += drafted;
        self.kept += kept;
        if kept > 0 {
            self.next_pause = 1;
        }
    }

    fn rest(&mut self, longest: u32) {
        self.pause = self.next_pause.min(longest);
        self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_draft_is_kept() {
        let mut drafter = Drafter::new(Speculative::Auto).unwrap();
        let pause = |drafter: &mut Drafter| {
            drafter.declined();
            (0..).take_while(|_| !drafter.is_due()).count()
        };
        let pauses: Vec<usize> = (0..10).map(|_| pause(&mut drafter)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]);
        drafter.learn(2, 1);
        assert_eq!(pause(&mut drafter), 1);
        assert_eq!((drafter.drafted, drafter.kept), (2, 1));
    }

    #[test]
    fn a_setting_bounds_drafts() {
        let ids = [1, 2, 1, 2, 1, 2];
        let draft = |setting, room| {
            Drafter::new(setting)
                .unwrap()
                .draft(&ids, room, false)
                .len()
        };
        assert_eq!(draft(Speculative::Tokens(3), 100), 3);
        assert_eq!(draft(Speculative::Auto, 100), 8);
        assert_eq!(draft(Speculative::Auto, 2), 2);
        let head = |setting| Drafter::new(setting).unwrap().head_most();
        assert_eq!(
            [Speculative::Auto, Speculative::Tokens(5)].map(head),
            [2, 5]
        );
        assert!(Drafter::new(Speculative::Off).is_none());
    }
}
