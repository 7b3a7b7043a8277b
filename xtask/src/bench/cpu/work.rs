//! The work of each side of `bench cpu`.

use std::cell::RefCell;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use crate::bench::profile::Profile;
use crate::bench::roofline::{Amount, Shape};
use crate::bench::session::{Session, prompts, turns};

pub const PREFILL: &str = "prefill of 512, tokens/s";
pub const DECODE_1: &str = "decode, 1 row, tokens/s";
pub const DECODE_8: &str = "decode, 8 rows, tokens/s";
pub const DECODE_32: &str = "decode, 32 rows, tokens/s";
pub const CLASSIFY: &str = "classify 32 texts of 24, texts/s";
pub const LOAD: &str = "load to first token, s";
pub const MEMORY: &str = "resident memory, MB";

/// A kind of work.
#[derive(Clone, Copy, PartialEq)]
pub enum Work {
    /// A new process that loads, answers and ends: times of the load, and memory.
    Fresh,
    Prefill,
    /// Decoding: the number of rows, and the tokens of each prompt.
    Decode(usize, usize),
    Classify,
}

pub const WORKS: [Work; 6] = [
    Work::Prefill,
    Work::Decode(1, 128),
    Work::Decode(8, 32),
    Work::Decode(32, 32),
    Work::Classify,
    Work::Fresh,
];

/// A description of the runs, in sentences.
pub fn method(threads: usize, layers: Option<u16>, sides: &[&str]) -> String {
    let slow = match sides.contains(&"mlx-lm") {
        true => " mlx-lm: one row, 2 steps behind 2 tokens, when the others have run.",
        false => "",
    };
    let layers = layers.map_or(String::new(), |n| format!(" Only {n} layers."));
    format!(
        "{threads} threads each. The sides stay loaded and answer in turns, each work once before it counts. Random \
         weights of the published shapes; 4-bit (groups of 64) stands against Q4_0, 8-bit against Q8_0. Decode: greedy, \
         32 steps (16 with 32 rows) after prompts of 128 tokens (32 with more than one row). Load to first token: a new \
         process behind another one like it, so that the file is in the page cache, from the start of the load to the \
         first token behind 32; resident \
         memory: of that process after 16 more steps.{layers}{slow}"
    )
}

/// A side: its name, and the command that starts it.
pub type Start = (&'static str, Box<dyn Fn() -> Command>);

/// A checkpoint on every side.
pub struct Case {
    pub name: String,
    pub runs: u32,
    pub quick: bool,
    /// The command of each side; this project's is the first.
    pub commands: Vec<Start>,
    /// Whether the sides agree.
    pub notes: RefCell<Vec<String>>,
    /// The versions of the other sides.
    pub versions: RefCell<Vec<(&'static str, Value)>>,
}

/// A measure, and its values on each side.
pub type Measured = (&'static str, Vec<Vec<f64>>);

impl Work {
    /// The prompts, and the number of tokens to generate for each (0: they are classified). `None`
    /// for a new process.
    fn prompts(self, quick: bool) -> Option<(Vec<Vec<u32>>, usize)> {
        match self {
            Self::Fresh => None,
            Self::Prefill => Some((prompts(1, if quick { 64 } else { 512 }), 1)),
            Self::Decode(rows, prompt) => {
                let steps = match (quick, rows) {
                    (true, _) => 4,
                    (false, ..=8) => 32,
                    (false, _) => 16,
                };
                Some((prompts(rows, prompt), steps + 1))
            }
            Self::Classify => Some((prompts(32, 24), 0)),
        }
    }

    /// The bytes and operations of one prompt, of all texts, or of a step in the middle. `None` for
    /// a new process.
    pub fn amount(self, shape: &Shape, quick: bool) -> Option<Amount> {
        let (prompts, tokens) = self.prompts(quick)?;
        // The embedding is also the head, so a step reads all weights.
        Some(shape.amount(prompts.len(), prompts[0].len(), tokens))
    }

    /// The measure.
    fn measure(self) -> &'static str {
        match self {
            Self::Fresh => LOAD,
            Self::Prefill => PREFILL,
            Self::Decode(1, _) => DECODE_1,
            Self::Decode(8, _) => DECODE_8,
            Self::Decode(..) => DECODE_32,
            Self::Classify => CLASSIFY,
        }
    }
}

impl Case {
    /// Does a work on all sides in turns.
    pub fn measure(&self, sessions: &mut [Session], work: Work) -> Result<Vec<Measured>> {
        let Some((prompts, tokens)) = work.prompts(self.quick) else {
            return self.fresh();
        };
        self.rates(sessions, work.measure(), |side| match tokens {
            0 => {
                let (seconds, tokens) = side.classify(&prompts, prompts.len())?;
                Ok((prompts.len() as f64 / seconds, vec![tokens]))
            }
            1 => {
                let run = side.generate(&prompts, 1)?;
                Ok((prompts[0].len() as f64 / run.prefill_s, run.tokens))
            }
            _ => {
                let run = side.generate(&prompts, tokens)?;
                let all = prompts.len() * (tokens - 1);
                Ok((all as f64 / run.decode_s, run.tokens))
            }
        })
    }

    /// The profile of this project's side for a kind of work.
    pub fn profile(
        &self,
        ours: &mut Session,
        labels: &[String],
        work: Work,
    ) -> Result<Option<Profile>> {
        let Some((prompts, tokens)) = work.prompts(self.quick) else {
            return Ok(None);
        };
        // The median of three runs, because a single run on a shared machine may be far off.
        let mut runs = Vec::new();
        for _ in 0..3 {
            runs.push(Profile {
                labels: labels.to_vec(),
                measure: work.measure(),
                steps: tokens.max(2) as f64 - 1.0,
                nodes: ours.profile(&prompts, tokens)?,
            });
        }
        runs.sort_by(|a, b| a.step_ms().total_cmp(&b.step_ms()));
        Ok(Some(runs.swap_remove(1)))
    }

    /// Starts every side.
    pub fn sessions(&self) -> Result<Vec<Session>> {
        let start = |(name, command): &Start| {
            let session = Session::start(name, command())?;
            if *name != "ours" {
                let versions = session.hello["versions"].clone();
                self.versions.borrow_mut().push((name, versions));
            }
            Ok(session)
        };
        self.commands.iter().map(start).collect()
    }

    /// Whether a side is too slow for all of the work.
    fn is_slow(&self, side: usize) -> bool {
        self.commands[side].0 == "mlx-lm"
    }

    fn say(&self, measure: &str, side: usize, number: u32) {
        let (name, side) = (&self.name, self.commands[side].0);
        eprintln!("{name}, {measure}: run {number} of {}, {side}", self.runs);
    }

    /// The rates of each side's loaded session.
    fn rates(
        &self,
        sessions: &mut [Session],
        measure: &'static str,
        run: impl Fn(&mut Session) -> Result<(f64, Vec<Vec<u32>>)>,
    ) -> Result<Vec<Measured>> {
        let mut tokens: Vec<Option<Vec<Vec<u32>>>> = vec![None; sessions.len()];
        for (side, session) in sessions.iter_mut().enumerate() {
            if !self.is_slow(side) {
                tokens[side] = Some(run(session)?.1);
            }
        }
        if let [Some(ours), Some(theirs), ..] = &tokens[..] {
            let same = ours
                .iter()
                .zip(theirs)
                .map(|(a, b)| a.iter().zip(b).take_while(|(a, b)| a == b).count());
            let all: usize = ours.iter().map(Vec::len).sum();
            self.notes.borrow_mut().push(format!(
                "{}: {measure}: {} of {all} tokens are {}'s up to a row's first other one",
                self.name,
                same.sum::<usize>(),
                self.commands[1].0
            ));
        }
        let mut values = turns(self.runs, sessions.len(), |side, number| {
            if self.is_slow(side) {
                return Ok(None);
            }
            self.say(measure, side, number);
            Ok(Some(run(&mut sessions[side])?.0))
        })?;
        // mlx-lm runs after the others, so that its many seconds on one core are not between
        // theirs.
        for (side, session) in sessions.iter_mut().enumerate() {
            if self.is_slow(side) && measure == DECODE_1 {
                for number in 1..=self.runs {
                    self.say(measure, side, number);
                    let run = session.generate(&prompts(1, 2), 3)?;
                    values[side].push(2.0 / run.decode_s);
                }
            }
        }
        Ok(vec![(measure, values)])
    }

    /// Load and memory of processes that do nothing else.
    fn fresh(&self) -> Result<Vec<Measured>> {
        let found = turns(self.runs, self.commands.len(), |side, number| {
            if self.is_slow(side) {
                return Ok(None);
            }
            self.say("load and memory", side, number);
            let (name, command) = &self.commands[side];
            let prompt = prompts(1, 32);
            // A run that is not counted brings the file into the page cache, from which the system
            // may have dropped it.
            Session::start(name, command())?.generate(&prompt, 1)?;
            let mut session = Session::start(name, command())?;
            let first = session.load_s()? + session.generate(&prompt, 1)?.prefill_s;
            session.generate(&prompt, 17)?;
            Ok(Some((
                first,
                session.resident().map(|bytes| bytes as f64 / 1e6),
            )))
        })?;
        let loads = found
            .iter()
            .map(|runs| runs.iter().map(|run| run.0).collect());
        let memory = found
            .iter()
            .map(|runs| runs.iter().filter_map(|run| run.1).collect());
        Ok(vec![(LOAD, loads.collect()), (MEMORY, memory.collect())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        bytes: 2_000,
        matrix_elements: 1_000,
        head_elements: 500,
        cache_bytes: 10,
        attention_products: 20,
    };

    #[test]
    fn a_step_reads_weights_once_and_the_cache_of_each_row() {
        // After 32 tokens, 33 more: 48.5 keys on average.
        let amount = Work::Decode(8, 32).amount(&SHAPE, false).unwrap();
        assert_eq!(amount.bytes, 2_000.0 + 8.0 * 48.5 * 10.0);
        assert_eq!(amount.flop, 2.0 * 8.0 * (1_500.0 + 48.5 * 20.0));
        assert_eq!(amount.units, 8.0);
    }

    #[test]
    fn a_prompt_sees_half_of_itself_and_has_one_head() {
        let prompt = Work::Prefill.amount(&SHAPE, false).unwrap();
        assert_eq!(prompt.bytes, 2_000.0);
        let seen = 512.0 * 513.0 / 2.0;
        let all = 512.0 * 1_000.0 + seen * 20.0 + 500.0;
        assert_eq!((prompt.flop, prompt.units), (2.0 * all, 512.0));
        let texts = Work::Classify.amount(&SHAPE, false).unwrap();
        let one = 24.0 * 1_000.0 + 300.0 * 20.0 + 500.0;
        assert_eq!((texts.flop, texts.units), (2.0 * 32.0 * one, 32.0));
        assert!(Work::Fresh.amount(&SHAPE, false).is_none());
    }
}
