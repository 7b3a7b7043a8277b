//! The speculation of one request: its drafts, how often they were accepted, and when the next is due.

use super::cost::{DraftOrigin, Offer};
use super::ngram::Ngrams;
use super::rate::Rates;
use crate::request::speculative::{MOST, Speculative};

/// After a pause of this many steps the rates move towards their initial values: the first drafts
/// may have been rejected by chance.
const FORGIVING_PAUSE: u32 = 32;
/// The longest pause, in steps, after drafts that did not pay and after texts without a draft.
const LONGEST_PAUSE: u32 = 256;
const LONGEST_SEARCH: u32 = 8;
/// The most tokens that are computed for a draft if no length is given.
const MODEL_MOST: usize = 4;

/// The speculation of one request.
///
/// To draft, the host must know the row's last token, so a step waits for the previous one. If
/// there is nothing to draft, or if drafts do not pay, the row pauses, so that steps can be queued
/// ahead. Each pause is twice as long as the previous one, up to 256 steps. After a draft was kept,
/// pauses are short again.
#[derive(Debug)]
pub(crate) struct Speculation {
    setting: Speculative,
    ngrams: Ngrams,
    rates: [Rates; 2],
    /// Steps until the next draft.
    pause: u32,
    /// Length of the next pause.
    next_pause: u32,
    /// Whether the last possible draft was brought to a step.
    goes_on: bool,
    /// For each position of a draft, the number of tokens that were drafted there, and the number
    /// of those that were kept.
    pub(crate) drafted: [u32; MOST],
    pub(crate) kept: [u32; MOST],
}

impl Speculation {
    /// `None` if nothing is to be drafted.
    pub(crate) fn new(setting: Speculative) -> Option<Self> {
        (setting != Speculative::Off).then(|| Self {
            setting,
            ngrams: Ngrams::default(),
            rates: Default::default(),
            pause: 0,
            next_pause: 1,
            goes_on: false,
            drafted: [0; MOST],
            kept: [0; MOST],
        })
    }

    /// Sets the initial rates of computed drafts, which are those of other requests.
    pub(crate) fn expect(&mut self, usual: Rates) {
        self.rates[DraftOrigin::Model as usize] = usual.anew();
    }

    /// Whether drafts of a given length are made whatever they cost.
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.setting, Speculative::Tokens(_))
    }

    /// Whether a draft may be made for the next step. Call it once a step.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        due
    }

    /// At most `room` tokens that followed an earlier occurrence of the end of `ids`.
    pub(crate) fn look_up(&mut self, ids: &[u32], room: usize) -> Vec<u32> {
        self.ngrams.draft(ids, room.min(self.setting.most()))
    }

    /// The row's draft for a step with this `room`: the tokens `found` in its own text, or the drafts of a `model` if
    /// there are none.
    pub(crate) fn offer(&self, found: usize, room: usize, model: bool) -> Offer {
        let (origin, most) = match (found, self.setting) {
            (0, _) if !model => (DraftOrigin::Text, 0),
            (0, Speculative::Auto) => (DraftOrigin::Model, room.min(MODEL_MOST)),
            (0, setting) => (DraftOrigin::Model, room.min(setting.most())),
            (found, _) => (DraftOrigin::Text, found),
        };
        Offer {
            most,
            is_fixed: self.is_fixed(),
            goes_on: self.goes_on,
            origin,
            rates: self.rates[origin as usize],
        }
    }

    /// Records that the text gave no draft.
    pub(crate) fn found_none(&mut self) {
        self.rest(LONGEST_SEARCH);
    }

    /// Records that the draft was left out, because it would not have paid.
    pub(crate) fn declined(&mut self) {
        self.goes_on = false;
        self.rest(LONGEST_PAUSE);
        if self.pause >= FORGIVING_PAUSE {
            self.rates.iter_mut().for_each(Rates::fade);
        }
    }

    /// Records that the first `kept` tokens of a draft of `drafted` were accepted.
    pub(crate) fn learn(&mut self, origin: DraftOrigin, drafted: usize, kept: usize) {
        self.rates[origin as usize].learn(drafted, kept);
        self.goes_on = true;
        self.drafted[..drafted].iter_mut().for_each(|n| *n += 1);
        self.kept[..kept].iter_mut().for_each(|n| *n += 1);
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

    fn with(setting: Speculative) -> Speculation {
        Speculation::new(setting).unwrap()
    }

    #[test]
    fn pauses_grow_until_a_draft_is_kept() {
        let mut row = with(Speculative::Auto);
        let pause = |row: &mut Speculation| {
            row.declined();
            (0..).take_while(|_| !row.is_due()).count()
        };
        let pauses: Vec<usize> = (0..10).map(|_| pause(&mut row)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]);
        row.learn(DraftOrigin::Text, 2, 1);
        assert_eq!(pause(&mut row), 1);
        assert_eq!((row.drafted[..3].to_vec(), row.kept[0]), (vec![1, 1, 0], 1));
    }

    /// A row whose drafts were all rejected tries a draft again after long pauses.
    #[test]
    fn a_parked_row_comes_back() {
        let mut row = with(Speculative::Auto);
        for _ in 0..100 {
            row.learn(DraftOrigin::Model, 1, 0);
        }
        let expected = |row: &Speculation| row.offer(0, 8, true).rates.expected(1);
        assert!(expected(&row) < 1.01);
        (0..20).for_each(|_| row.declined());
        assert!(expected(&row) > 1.6);
    }

    #[test]
    fn a_setting_bounds_drafts() {
        let ids = [1, 2, 1, 2, 1, 2];
        let found = |setting, room| with(setting).look_up(&ids, room).len();
        assert_eq!(found(Speculative::Tokens(3), 100), 3);
        assert_eq!(found(Speculative::Auto, 100), 8);
        assert_eq!(found(Speculative::Auto, 2), 2);
        let most = |setting, found, room| {
            let offer = with(setting).offer(found, room, true);
            (offer.most, offer.origin)
        };
        assert_eq!(most(Speculative::Auto, 0, 8), (4, DraftOrigin::Model));
        assert_eq!(most(Speculative::Tokens(6), 0, 8), (6, DraftOrigin::Model));
        assert_eq!(most(Speculative::Tokens(6), 0, 3), (3, DraftOrigin::Model));
        assert_eq!(most(Speculative::Auto, 7, 8), (7, DraftOrigin::Text));
        let none = with(Speculative::Auto).offer(0, 8, false);
        assert_eq!((none.most, none.origin), (0, DraftOrigin::Text));
        assert!(Speculation::new(Speculative::Off).is_none());
    }
}
