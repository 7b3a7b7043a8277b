//! The work of each side of `bench cuda`, and the goals.

use super::checkpoint::{Format, Model};
use crate::bench::record::Goal;
use crate::bench::roofline::{Amount, Shape};
use crate::bench::session::prompts;
use crate::bench::stats::{Row, Table};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// A prompt of this many tokens.
    Prefill(usize),
    /// Steps of this many rows.
    Decode(usize),
    /// 256 requests of different lengths, at most 64 at a time: rows join and leave.
    Serve,
    /// 512 texts at a time.
    Classify,
    /// A process that loads and generates one token.
    Fresh,
}

const WORKS: [Work; 9] = [
    Work::Prefill(512),
    Work::Prefill(2048),
    Work::Decode(1),
    Work::Decode(8),
    Work::Decode(32),
    Work::Decode(64),
    Work::Serve,
    Work::Classify,
    Work::Fresh,
];

/// Tokens of the prompts before a decode, and of a text that is classified.
pub const PROMPT: usize = 32;
const TEXT: usize = 24;
const TEXTS: usize = 512;

/// The rows of a batch that serves requests, and the number of requests.
pub const SERVED_ROWS: usize = 64;
const REQUESTS: usize = 256;

/// The works of a model.
pub fn works(model: Model) -> Vec<Work> {
    let of_8b = |work: &Work| matches!(work, Work::Decode(1 | 64));
    let all = WORKS.into_iter();
    all.filter(|work| model != Model::Llama3 || of_8b(work))
        .collect()
}

impl Work {
    /// The name of the measured quantity.
    pub fn measure(self) -> &'static str {
        match self {
            Self::Prefill(512) => "prompt of 512, tokens/s",
            Self::Prefill(_) => "prompt of 2048, tokens/s",
            Self::Decode(1) => "decode, 1 row, tokens/s",
            Self::Decode(8) => "decode, 8 rows, tokens/s",
            Self::Decode(32) => "decode, 32 rows, tokens/s",
            Self::Decode(_) => "decode, 64 rows, tokens/s",
            Self::Serve => "256 requests, at most 64 rows, tokens/s",
            Self::Classify => "classify 512 texts of 24, texts/s",
            Self::Fresh => "process start to first token, s",
        }
    }

    /// The prompts, and the number of tokens to generate for each (0: they are classified); for
    /// [`served`] it is the largest number.
    pub fn prompts(self, quick: bool) -> (Vec<Vec<u32>>, usize) {
        match self {
            Self::Prefill(length) => (prompts(1, if quick { 64 } else { length }), 1),
            Self::Decode(rows) => (prompts(rows, PROMPT), 1 + steps(quick)),
            Self::Serve => {
                let (prompts, tokens) = served(quick);
                (prompts, tokens.into_iter().max().unwrap_or(0))
            }
            Self::Classify => (prompts(if quick { 32 } else { TEXTS }, TEXT), 0),
            Self::Fresh => (prompts(1, PROMPT), 1),
        }
    }

    /// The bytes and operations of a prompt, of all texts or of a step. `None` for a process, and
    /// for steps of different sizes.
    pub fn amount(self, shape: &Shape, quick: bool) -> Option<Amount> {
        let (prompts, tokens) = self.prompts(quick);
        let amount = || shape.amount(prompts.len(), prompts[0].len(), tokens);
        (!matches!(self, Self::Fresh | Self::Serve)).then(amount)
    }

    /// The goal: how many times better than llama.cpp this project should be.
    pub fn goal(self) -> Option<f64> {
        match self {
            Self::Decode(_) => Some(1.5),
            Self::Prefill(2048) => Some(2.0),
            Self::Prefill(_) | Self::Serve | Self::Classify | Self::Fresh => None,
        }
    }

    /// The row of a table.
    pub fn row(self, model: Model, format: Format, values: Vec<Vec<f64>>) -> Row {
        // The other sides are mlx-lm, for which there is no goal, and llama.cpp.
        let goal = self.goal().filter(|_| model != Model::Llama3);
        Row {
            labels: vec![model.name().to_owned(), format.name().to_owned()],
            measure: self.measure(),
            more_is_better: self != Self::Fresh,
            values,
            goals: vec![None, goal],
        }
    }
}

/// Prompts of 16 to 128 tokens, and 32 to 224 tokens to generate for each.
pub fn served(quick: bool) -> (Vec<Vec<u32>>, Vec<usize>) {
    let requests = if quick { 16 } else { REQUESTS };
    let mut prompts = prompts(requests, 128);
    for (at, prompt) in prompts.iter_mut().enumerate() {
        prompt.truncate(16 + at * 37 % 113);
    }
    let tokens = (0..requests).map(|at| 32 + at * 101 % 193).collect();
    (prompts, tokens)
}

/// The number of steps after the first token.
pub fn steps(quick: bool) -> usize {
    if quick { 8 } else { 128 }
}

/// The goals without another side: rates, times, and the fraction of the memory's rate that one row
/// reaches. `copied` is the measured copy rate of the card, in GB/s.
pub fn goals(table: &Table, copied: Option<f64>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for row in &table.rows {
        let Some(found) = row.median(0) else { continue };
        let [model, format] = &row.labels[..] else {
            continue;
        };
        let mut goal = |measure: &str, wanted, found| {
            goals.push(Goal {
                what: format!("{model} {format}: {measure}"),
                wanted,
                found,
            });
        };
        let is = |work: Work| row.measure == work.measure();
        let of = |wanted: Model| model == wanted.name();
        if is(Work::Classify) && of(Model::Gemma3) {
            goal(row.measure, 15_000.0, found);
        }
        if is(Work::Fresh) && of(Model::Gemma3) {
            goal("3 s by process start to first token", 1.0, 3.0 / found);
        }
        if of(Model::Llama3) && is(Work::Decode(1)) {
            goal(row.measure, 300.0, found);
        }
        if of(Model::Llama3) && is(Work::Decode(64)) {
            goal(row.measure, 6_000.0, found);
        }
        let known = [Model::Gemma3, Model::Qwen3, Model::Llama3];
        let known = known.into_iter().find(|&model| of(model));
        let coding = [Format::Q4, Format::Bf16];
        let coding = coding.into_iter().find(|coding| format == coding.name());
        if let (true, Some(copied), Some(model), Some(format)) =
            (is(Work::Decode(1)), copied, known, coding)
        {
            let read = found * model.step_bytes(format) as f64 / 1e9;
            let what = "weights read by one row, share of the card's copy rate";
            goal(what, 0.5, read / copied);
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: Vec<Row>) -> Table {
        Table {
            labels: &["shape", "weights"],
            sides: vec!["ours", "mlx-lm", "llama.cpp"],
            rows,
        }
    }

    fn ours(work: Work, model: Model, format: Format, value: f64) -> Row {
        work.row(model, format, vec![vec![value], Vec::new(), Vec::new()])
    }

    #[test]
    fn decode_has_to_be_half_as_fast_again_as_llama_cpp() {
        let row = |ours: f64| {
            let values = vec![vec![ours], Vec::new(), vec![633.0]];
            Work::Decode(1).row(Model::Gemma3, Format::Q4, values)
        };
        assert_eq!(table(vec![row(950.0), row(949.0)]).reached(), (1, 2));
        let prompt = |length, ours: f64| {
            let values = vec![vec![ours], vec![1.0], vec![36_000.0]];
            Work::Prefill(length).row(Model::Gemma3, Format::Q4, values)
        };
        // There is no goal for 512 tokens.
        assert_eq!(
            table(vec![prompt(2048, 71_999.0), prompt(512, 1.0)]).reached(),
            (0, 1)
        );
    }

    #[test]
    fn other_goals_are_numbers() {
        let rows = vec![
            ours(Work::Classify, Model::Gemma3, Format::Bf16, 15_000.0),
            ours(Work::Classify, Model::Qwen3, Format::Bf16, 1.0),
            ours(Work::Fresh, Model::Gemma3, Format::Q4, 3.5),
            ours(Work::Decode(1), Model::Llama3, Format::Q4, 310.0),
            ours(Work::Decode(64), Model::Llama3, Format::Q4, 5_999.0),
        ];
        let found = goals(&table(rows), Some(3000.0));
        let verdicts: Vec<bool> = found.iter().map(Goal::is_reached).collect();
        // The fraction of the memory's rate comes after the rate of one row.
        assert_eq!(verdicts, [true, false, true, false, false]);
        assert_eq!(found[1].found, 3.0 / 3.5);
        let share = 310.0 * Model::Llama3.step_bytes(Format::Q4) as f64 / 3e12;
        assert!((found[3].found - share).abs() < 1e-9);
        assert!(found[3].what.contains("share"), "{}", found[3].what);
    }

    #[test]
    fn a_step_of_gemma_in_4_bits_reads_half_a_gigabyte() {
        // 999.8 million weights in matrices, at 4.5 bits, and norms.
        let bytes = Model::Gemma3.step_bytes(Format::Q4) as f64;
        assert!((0.55e9..0.57e9).contains(&bytes), "{bytes}");
        // The embedding of Llama-3.1-8B is not its head.
        let bytes = Model::Llama3.step_bytes(Format::Q4) as f64;
        assert!((4.1e9..4.3e9).contains(&bytes), "{bytes}");
    }

    #[test]
    fn an_8b_model_only_decodes() {
        let works = works(Model::Llama3);
        assert_eq!(works, [Work::Decode(1), Work::Decode(64)]);
        assert_eq!(super::works(Model::Qwen3).len(), 9);
    }
}
