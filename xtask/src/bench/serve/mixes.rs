//! Mixes of requests: what the prompts share, how long they are, and how many tokens answer them.
//!
//! Prompts are lists of token ids, so their lengths are exact on each server. All numbers come from
//! a seed, so every server gets the same requests.

use std::ops::RangeInclusive;

use anyhow::{Result, bail};
use clap::ValueEnum;

/// A mix of requests, or the measure of a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mix {
    /// Prompts of 32 to 256 tokens, answers of 32 to 128
    Chat,
    /// Prompts of 1,024 to 4,096 tokens, answers of 32 to 64
    Long,
    /// Conversations of 20 turns behind a common head of 1,024 tokens; each turn adds 64 to 256
    /// tokens and an answer of 32 to 64
    Agents,
    /// One request with a prompt of 4,096 tokens and an answer of 256, beside requests with prompts
    /// of 32 to 256 and answers of 32 to 64
    Beside,
    /// Prompts of 1,000 tokens whose first 900 are the same, answers of 32 to 64
    Shared,
    /// Rows that decode while a prompt of 4,000 tokens is computed
    Stall,
}

/// Requests that one client sends one after the other.
pub struct Task {
    pub turns: Vec<Turn>,
}

/// A request.
pub struct Turn {
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
}

/// The limits of the model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Rows of the embedding.
    pub vocab: u32,
    /// The most positions of a request.
    pub context: usize,
    /// A factor of all lengths.
    pub scale: f64,
}

const SHORT: RangeInclusive<usize> = 32..=256;
const LONG: RangeInclusive<usize> = 1024..=4096;
const ANSWER: RangeInclusive<usize> = 32..=64;
const CHAT_ANSWER: RangeInclusive<usize> = 32..=128;
const TURNS: usize = 20;
const HEAD: usize = 1024;
const MESSAGE: RangeInclusive<usize> = 64..=256;
const BESIDE: (usize, usize) = (4096, 256);
const SHARED: (usize, usize) = (900, 100);
/// The prompt that is computed while rows decode.
const STALL: usize = 4000;
/// The fewest tokens of an answer: fewer have no gaps to speak of.
const LEAST: usize = 4;
/// The seed of what all tasks of a run share.
const COMMON: u64 = 0x5ead;

impl Mix {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Long => "long prompts",
            Self::Agents => "agents",
            Self::Beside => "one long row",
            Self::Shared => "90 % shared",
            Self::Stall => "stall",
        }
    }

    /// The most positions of a request.
    fn positions(self) -> usize {
        match self {
            Self::Chat => SHORT.end() + CHAT_ANSWER.end(),
            Self::Long => LONG.end() + ANSWER.end(),
            Self::Agents => HEAD + TURNS * (MESSAGE.end() + ANSWER.end()),
            Self::Beside => BESIDE.0 + BESIDE.1,
            Self::Shared => SHARED.0 + SHARED.1 + ANSWER.end(),
            Self::Stall => STALL + LEAST,
        }
    }

    /// The factor of this mix's lengths: that of the sizes, or a smaller one with which its longest
    /// request fits into the context.
    pub fn factor(self, sizes: Sizes) -> f64 {
        sizes
            .scale
            .min(sizes.context as f64 / self.positions() as f64)
    }

    /// Tasks of this mix. Other numbers `run` give other tokens of the same lengths' distribution.
    ///
    /// # Errors
    /// The context is too small for the shortest answers.
    pub fn tasks(self, run: u64, count: usize, sizes: Sizes) -> Result<Vec<Task>> {
        let factor = self.factor(sizes);
        let mut common = Draws::new(run ^ COMMON, sizes.vocab, factor);
        let mut draws = Draws::new(run, sizes.vocab, factor);
        let head = match self {
            Self::Agents => common.ids(HEAD..=HEAD),
            Self::Shared => common.ids(SHARED.0..=SHARED.0),
            _ => Vec::new(),
        };
        let tasks: Vec<Task> = (0..count)
            .map(|at| {
                let turns = match self {
                    Self::Agents => draws.conversation(&head),
                    Self::Chat => vec![draws.turn(&[], SHORT, CHAT_ANSWER)],
                    Self::Long => vec![draws.turn(&[], LONG, ANSWER)],
                    Self::Beside if at == 0 => {
                        vec![draws.turn(&[], BESIDE.0..=BESIDE.0, BESIDE.1..=BESIDE.1)]
                    }
                    Self::Beside => vec![draws.turn(&[], SHORT, ANSWER)],
                    Self::Shared => vec![draws.turn(&head, SHARED.1..=SHARED.1, ANSWER)],
                    Self::Stall => vec![draws.turn(&[], STALL..=STALL, 1..=1)],
                };
                Task { turns }
            })
            .collect();
        let longest = tasks
            .iter()
            .flat_map(|task| &task.turns)
            .map(|turn| turn.prompt.len() + turn.max_tokens)
            .max();
        match longest {
            Some(most) if most > sizes.context => bail!(
                "mix {}: a request has {most} positions, more than the context of {}",
                self.name(),
                sizes.context
            ),
            _ => Ok(tasks),
        }
    }
}

/// Random lengths and token ids, by SplitMix64.
struct Draws {
    state: u64,
    vocab: u32,
    factor: f64,
}

impl Draws {
    fn new(seed: u64, vocab: u32, factor: f64) -> Self {
        Self {
            state: seed.wrapping_mul(0xd134_2543_de82_ef95),
            vocab,
            factor,
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// A length of the range, times the factor.
    fn length(&mut self, range: &RangeInclusive<usize>) -> usize {
        let drawn = range.start() + self.below((range.end() - range.start() + 1) as u64) as usize;
        (drawn as f64 * self.factor) as usize
    }

    /// As many ids. Those at both ends of a vocabulary are left out, where special tokens are.
    fn ids(&mut self, range: RangeInclusive<usize>) -> Vec<u32> {
        let len = self.length(&range).max(1);
        let edge = self.vocab / 8;
        let inner = u64::from(self.vocab - 2 * edge);
        (0..len).map(|_| edge + self.below(inner) as u32).collect()
    }

    fn turn(
        &mut self,
        head: &[u32],
        prompt: RangeInclusive<usize>,
        answer: RangeInclusive<usize>,
    ) -> Turn {
        Turn {
            prompt: [head, &self.ids(prompt)].concat(),
            max_tokens: self.length(&answer).max(LEAST.min(*answer.end())),
        }
    }

    /// A conversation. An earlier answer stands in it as other ids of the same length, so that the
    /// requests do not depend on what a server answers.
    fn conversation(&mut self, head: &[u32]) -> Vec<Turn> {
        let mut text = head.to_vec();
        let mut turns = Vec::with_capacity(TURNS);
        for _ in 0..TURNS {
            let turn = self.turn(&text, MESSAGE, ANSWER);
            text.clone_from(&turn.prompt);
            let factor = std::mem::replace(&mut self.factor, 1.0);
            text.extend(self.ids(turn.max_tokens..=turn.max_tokens));
            self.factor = factor;
            turns.push(turn);
        }
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Mix; 6] = [
        Mix::Chat,
        Mix::Long,
        Mix::Agents,
        Mix::Beside,
        Mix::Shared,
        Mix::Stall,
    ];

    fn sizes(context: usize) -> Sizes {
        Sizes {
            vocab: 2048,
            context,
            scale: 1.0,
        }
    }

    #[test]
    fn requests_fit_into_the_context_and_depend_on_the_run_only() {
        for mix in ALL {
            for context in [512, 4096, 40_960] {
                let tasks = |run| mix.tasks(run, 5, sizes(context)).unwrap();
                let prompts = |run| -> Vec<Vec<u32>> {
                    let turns = tasks(run).into_iter().flat_map(|task| task.turns);
                    turns.map(|turn| turn.prompt).collect()
                };
                assert_eq!(prompts(1), prompts(1));
                assert_ne!(prompts(1), prompts(2));
                for turn in tasks(1).iter().flat_map(|task| &task.turns) {
                    assert!(turn.prompt.len() + turn.max_tokens <= context, "{mix:?}");
                    assert!(turn.prompt.iter().all(|id| (256..1792).contains(id)));
                    assert!(turn.max_tokens > 1 || mix == Mix::Stall);
                }
            }
        }
        assert!(Mix::Agents.tasks(1, 1, sizes(40)).is_err());
    }

    #[test]
    fn lengths_are_those_of_the_mix() {
        let of = |mix: Mix| mix.tasks(3, 40, sizes(40_960)).unwrap();
        let chat = of(Mix::Chat);
        assert!(chat.iter().all(|task| {
            let turn = &task.turns[0];
            SHORT.contains(&turn.prompt.len()) && CHAT_ANSWER.contains(&turn.max_tokens)
        }));
        let shared = of(Mix::Shared);
        let (first, last) = (&shared[0].turns[0].prompt, &shared[39].turns[0].prompt);
        assert_eq!((first.len(), &first[..900]), (1000, &last[..900]));
        assert_ne!(first[900..], last[900..]);
        let beside = of(Mix::Beside);
        assert_eq!(beside[0].turns[0].prompt.len(), 4096);
        assert!(
            beside[1..]
                .iter()
                .all(|task| task.turns[0].prompt.len() <= 256)
        );
    }

    #[test]
    fn each_turn_of_a_conversation_begins_with_the_one_before() {
        let tasks = Mix::Agents.tasks(9, 2, sizes(40_960)).unwrap();
        for task in &tasks {
            assert_eq!(task.turns.len(), TURNS);
            for pair in task.turns.windows(2) {
                let grown = pair[1].prompt.len() - pair[0].prompt.len() - pair[0].max_tokens;
                assert!(pair[1].prompt.starts_with(&pair[0].prompt));
                assert!(MESSAGE.contains(&grown));
            }
        }
        let heads = tasks.iter().map(|task| &task.turns[0].prompt[..HEAD]);
        assert_eq!(heads.clone().next(), heads.clone().nth(1));
    }
}
