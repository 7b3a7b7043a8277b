//! The cost of steps and the best length of drafts, computed on plain numbers.
//!
//! A step has `r` rows, the widest with `w` tokens. Its usual time is the lower quartile of the last measured times:
//! noise makes steps slower and never faster, and the first steps of a process are slow. Before the first measurement it
//! is modelled by a straight line from the plain step through the widest measured step below, and the first measurements
//! move it from that line to their quartile: a single slow step does not rule out its width. Computed drafts and drafts
//! from a row's own text have separate times, because computing takes time, too.
//!
//! Other programs make the machine slower for minutes, in which only some sizes are measured. So a time is stored
//! relative to the machine's pace: the lower quartile, over the last steps, of a step's time divided by the usual time of
//! its size. Then the times of all sizes can be compared.
//!
//! The chosen length has the most expected tokens a second over all rows. A row brings fewer tokens if its draft has
//! fewer, or if the next one is hardly ever reached. While rows without drafts share the step, it may take 5 % longer
//! than without drafts.

use std::collections::{HashMap, VecDeque};

use super::rate::Rates;
use crate::request::speculative::MOST;

/// The number of stored times of a size.
const KEPT: usize = 15;
/// The number of times of a size from which their quartile is trusted. Drafts are not given up before.
const SURE: usize = 3;
/// The tokens of the first draft of each origin, with which the first step with drafts is measured.
/// Drafts from a row's own text take no time to make.
const FIRST: [usize; 2] = [3, 1];
/// The number of steps that show the machine's pace. As many of these ratios as of `KEPT` times are expected to be below
/// the lower quartile, a quarter, so that storing times relative to the pace does not change the usual times.
const PACE: usize = 7;
/// The factor by which drafts may lengthen a step that rows without drafts take part in.
const FAIR: f64 = 1.05;
/// The factor by which drafts must raise the tokens a second before a row begins to draft. Each
/// change between steps with and without drafts costs a gap in which no step is queued ahead.
const BEGIN: f64 = 1.1;
/// The factor by which drafts must raise the tokens a second for a row to continue to draft.
const GO_ON: f64 = 1.03;
/// Drafts that seem to change the tokens a second by no less than this factor are tried until their
/// size has `TRIED` times. On a noisy machine the first times may say that drafts do not pay
/// although they do.
const TRY: f64 = 0.95;
const TRIED: usize = 7;
/// A draft token with a smaller probability of being reached is left out.
const REACHED: f64 = 0.02;
/// Steps after which the time of a width that was not used is no longer trusted: it may have been measured while the machine was busy.
const STALE: usize = 1024;
/// The same for a width with fewer than `SURE` times.
const STALE_UNSURE: usize = 128;

/// The source of a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum DraftOrigin {
    /// The row's own text.
    #[default]
    Text,
    /// A head for multi-token prediction, or a second model.
    Model,
}

/// The times of steps, by their rows, the tokens of the widest row, and whether drafts were computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    times: HashMap<(usize, usize, DraftOrigin), Times>,
    /// The times of the last steps, divided by the usual times of their sizes.
    pace: VecDeque<f64>,
    /// Steps that were measured.
    steps: usize,
}

/// The times of one size, in seconds at the usual pace.
#[derive(Clone, Debug, Default)]
struct Times {
    last: VecDeque<f64>,
    /// The number of measured steps when the latest time was measured.
    step: usize,
}

/// The lower quartile: of 15 numbers the fourth, of 7 the second, of fewer the lowest.
fn quartile(numbers: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = numbers.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() + 1) / 4).saturating_sub(1);
    sorted.get(at).copied()
}

/// Appends a number, and drops the first one if there are more than `most`.
fn push(numbers: &mut VecDeque<f64>, number: f64, most: usize) {
    if numbers.len() == most {
        numbers.pop_front();
    }
    numbers.push_back(number);
}

impl Times {
    fn is_sure(&self) -> bool {
        self.last.len() >= SURE
    }
}

/// A row of the next step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Offer {
    /// The most tokens of its draft; 0 for a row without one.
    pub(crate) most: usize,
    /// Whether it brings this number of tokens whatever they cost.
    pub(crate) is_fixed: bool,
    /// Whether it brought its last draft to a step.
    pub(crate) goes_on: bool,
    pub(crate) origin: DraftOrigin,
    /// How often its drafts are accepted.
    pub(crate) rates: Rates,
}

impl Offer {
    /// The number of tokens of its draft if drafts have up to `draft` tokens.
    fn brings(&self, draft: usize) -> usize {
        let is_reached = |&len: &usize| self.rates.reach(len) >= REACHED;
        match self.is_fixed {
            true => self.most,
            false => (1..=self.most.min(draft)).take_while(is_reached).count(),
        }
    }
}

impl Costs {
    /// Records the time of a step of `rows` rows, the widest of `width` tokens.
    pub(crate) fn learn(&mut self, rows: usize, width: usize, origin: DraftOrigin, seconds: f64) {
        self.steps += 1;
        let origin = if width == 1 {
            DraftOrigin::Text
        } else {
            origin
        };
        let times = self.times.entry((rows, width, origin)).or_default();
        if self.steps - times.step >= STALE {
            times.last.clear();
        }
        times.step = self.steps;
        if times.is_sure()
            && let Some(usual) = quartile(&times.last)
        {
            push(&mut self.pace, seconds / usual, PACE);
        }
        let pace = quartile(&self.pace).unwrap_or(1.0);
        push(&mut times.last, seconds / pace, KEPT);
    }

    /// The number of steps that were measured.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// The tokens of each row's draft in a step of `slots` rows.
    pub(crate) fn plan(&self, slots: usize, rows: &[Offer]) -> Vec<usize> {
        let brought = |draft: usize| -> Vec<usize> {
            let each = rows.iter().map(|row| row.brings(draft));
            each.collect()
        };
        let most = rows.iter().map(|row| row.most).max().unwrap_or(0);
        let Some(plain) = self.of(slots, 1, DraftOrigin::Text) else {
            // Without a plain step there is nothing to compare with.
            return brought(0);
        };
        let tokens = |lens: &[usize]| -> f64 {
            let each = rows.iter().zip(lens);
            each.map(|(row, &len)| row.rates.expected(len)).sum()
        };
        let least = brought(0);
        let fixed = least.iter().copied().max().unwrap_or(0);
        let gain = match rows.iter().any(|row| row.goes_on) {
            _ if fixed > 0 => 0.0,
            true => GO_ON,
            false => BEGIN,
        };
        let mut best = (least, gain * rows.len() as f64 / plain);
        let mut trial = None;
        for draft in fixed.max(1)..=most {
            let lens = brought(draft);
            let width = 1 + lens.iter().copied().max().unwrap_or(0);
            if width <= draft {
                break;
            }
            let drawn = rows.iter().zip(&lens);
            let drawn = drawn.filter(|(row, len)| **len > 0 && row.origin == DraftOrigin::Model);
            let origin = match drawn.count() {
                0 => DraftOrigin::Text,
                _ => DraftOrigin::Model,
            };
            let Some(seconds) = self.guess(slots, width, origin, plain) else {
                // A size without a time is measured by a step of that size.
                let first = match lens.contains(&0) {
                    true => 1,
                    false => FIRST[origin as usize],
                };
                return brought(fixed.max(first));
            };
            if draft > fixed && seconds > FAIR * plain && lens.contains(&0) {
                break;
            }
            let gain = tokens(&lens) / seconds;
            if gain > best.1 {
                best = (lens, gain);
            } else if tokens(&lens) / plain > best.1
                && self.of(slots, width, origin).is_some()
                && !(2..=1 + MOST).any(|width| self.is_sure(slots, width, origin))
            {
                // A few slow steps are no evidence.
                return lens;
            } else if gain > TRY * rows.len() as f64 / plain
                && self.count(slots, width, origin) < TRIED
            {
                trial.get_or_insert(lens);
            }
        }
        match trial {
            Some(lens) if best.0.iter().all(|&len| len == 0) => lens,
            _ => best.0,
        }
    }

    /// Whether the time of a plain step of this number of rows is trusted.
    pub(crate) fn knows_plain(&self, rows: usize) -> bool {
        self.of(rows, 1, DraftOrigin::Text).is_some() && self.is_sure(rows, 1, DraftOrigin::Text)
    }

    /// Whether enough times of this size are stored to trust their quartile.
    fn is_sure(&self, rows: usize, width: usize, origin: DraftOrigin) -> bool {
        self.count(rows, width, origin) >= SURE
    }

    /// The number of stored times of this size.
    fn count(&self, rows: usize, width: usize, origin: DraftOrigin) -> usize {
        let times = self.times.get(&(rows, width, origin));
        times.map_or(0, |times| times.last.len())
    }

    /// The time of a step, measured or modelled; `None` if no step with drafts was measured.
    fn guess(&self, rows: usize, width: usize, origin: DraftOrigin, plain: f64) -> Option<f64> {
        let measured = self.of(rows, width, origin);
        let is_measured = |width: &usize| self.of(rows, *width, origin).is_some();
        let below = (2..width).rev().find(is_measured);
        let known = below.or_else(|| (width + 1..=1 + MOST).find(is_measured));
        let modelled = known.and_then(|known| {
            // The time of a narrower width may itself be partly modelled. That of a wider width is
            // a measured one.
            let seconds = match known < width {
                true => self.guess(rows, known, origin, plain),
                false => self.of(rows, known, origin),
            };
            let each = (seconds? - plain) / (known - 1) as f64;
            Some(plain + each * (width - 1) as f64)
        });
        let (Some(measured), Some(modelled)) = (measured, modelled) else {
            return measured.or(modelled);
        };
        let times = self.times.get(&(rows, width, origin))?;
        let share = times.last.len().min(SURE) as f64 / SURE as f64;
        Some(modelled + share * (measured - modelled))
    }

    /// The time of a step at the usual pace, if it was measured.
    fn of(&self, rows: usize, width: usize, origin: DraftOrigin) -> Option<f64> {
        let times = self.times.get(&(rows, width, origin))?;
        let stale = if times.is_sure() { STALE } else { STALE_UNSURE };
        (self.steps - times.step < stale).then(|| quartile(&times.last))?
    }
}

#[cfg(test)]
mod tests;
