//! A row's tokens and log probabilities are the same to the bit alone and in every batch, and whether its prompt is
//! computed in one chunk or in several.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::correct::{Check, Verdict};
use crate::bench::session::{Session, prompts};

/// The most prompt tokens of a small step. The products of a larger step are computed by several
/// kernels.
const SMALL: usize = 128;
const LARGE: usize = 2048;

/// A way of computing a set of prompts.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Rows of a step.
    batch: usize,
    /// Most tokens of prompts that are computed together.
    together: usize,
    /// Tokens of a prompt that are computed at a time.
    chunk: usize,
}

/// Prompts, and ways of computing them that must give the same bits.
struct Setting {
    what: &'static str,
    prompts: Vec<Vec<u32>>,
    tokens: usize,
    /// The way with which the others are compared.
    first: Way,
    others: Vec<(&'static str, Way)>,
}

/// `rows` prompts of different lengths, from `shortest` on.
fn mixed(rows: usize, shortest: usize, spread: usize) -> Vec<Vec<u32>> {
    let mut all = prompts(rows, shortest + spread);
    for (row, prompt) in all.iter_mut().enumerate() {
        prompt.truncate(shortest + row * 7 % spread);
    }
    all
}

fn settings(quick: bool) -> Vec<Setting> {
    let tokens = if quick { 4 } else { 24 };
    let alone = Way {
        batch: 1,
        together: SMALL,
        chunk: 512,
    };
    let batch = |batch, together| Way {
        batch,
        together,
        ..alone
    };
    let chunks = |together, chunk| Way {
        batch: 4,
        together,
        chunk,
    };
    vec![
        Setting {
            what: "64 rows alone",
            prompts: mixed(64, 5, 57),
            tokens,
            first: alone,
            others: vec![
                ("8 at a time", batch(8, SMALL)),
                ("32 at a time", batch(32, SMALL)),
                ("64 at a time", batch(64, SMALL)),
                (
                    "64 at a time, 2,048 tokens of prompts in a step",
                    batch(64, LARGE),
                ),
            ],
        },
        Setting {
            what: "prompts of 100 to 121 tokens in one chunk",
            prompts: mixed(4, 100, 28),
            tokens,
            first: chunks(SMALL, SMALL),
            others: vec![("chunks of 37", chunks(SMALL, 37))],
        },
        Setting {
            what: "prompts of 600 to 621 tokens in one chunk",
            prompts: mixed(4, 600, 50),
            tokens,
            first: chunks(LARGE, LARGE),
            others: vec![
                ("chunks of 256", chunks(LARGE, 256)),
                // A multiple of 64, because of Gemma's windows (docs/design/cuda.md).
                ("chunks of 192", chunks(LARGE, 192)),
            ],
        },
    ]
}

/// A row: its tokens and the bits of their log probabilities.
type Exact = (Vec<u32>, Vec<u32>);

/// Checks a checkpoint. Every other row is sampled; the others are greedy.
pub fn checks(name: &str, session: &mut Session, quick: bool) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for setting in settings(quick) {
        let mut rows = |way: Way| -> Result<Vec<Exact>> {
            let answer = session.exact(&question(&setting, way))?;
            let rows: Vec<Exact> = serde_json::from_value(answer)?;
            ensure!(
                rows.len() == setting.prompts.len(),
                "{} rows of an answer",
                rows.len()
            );
            Ok(rows)
        };
        let first = rows(setting.first)?;
        for &(what, way) in &setting.others {
            let what = format!("{name}: {} and {what}", setting.what);
            eprintln!("{what}");
            checks.push(judged(what, &first, &rows(way)?));
        }
    }
    Ok(checks)
}

fn question(setting: &Setting, way: Way) -> Value {
    json!({
        "op": "exact",
        "prompts": setting.prompts,
        "max_tokens": setting.tokens,
        "batch": way.batch,
        "step_tokens": way.together,
        "prefill_chunk": way.chunk,
    })
}

fn judged(what: String, first: &[Exact], other: &[Exact]) -> Check {
    let rows = first.iter().zip(other);
    let different = rows.clone().filter(|(a, b)| a != b).count();
    let tokens = rows.filter(|(a, b)| a.0 != b.0).count();
    let verdict = match different {
        0 => Verdict::Passed,
        _ => Verdict::Failed,
    };
    let found = match different {
        0 => format!("{} rows are the same to the bit", first.len()),
        n => format!(
            "{n} of {} rows differ, {tokens} of them in tokens",
            first.len()
        ),
    };
    Check {
        what,
        verdict,
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_the_lengths_that_the_settings_name() {
        let settings = settings(false);
        let lengths = settings.iter().map(|setting| {
            let lengths = setting.prompts.iter().map(Vec::len);
            (lengths.clone().min().unwrap(), lengths.max().unwrap())
        });
        assert_eq!(
            lengths.collect::<Vec<_>>(),
            [(5, 61), (100, 121), (600, 621)]
        );
    }

    #[test]
    fn a_bit_is_a_difference() {
        let row = |logprob: f32| (vec![7, 8], vec![(-1.0f32).to_bits(), logprob.to_bits()]);
        let judge = |other: f32| {
            let (a, b) = (vec![row(-2.0), row(-2.0)], vec![row(-2.0), row(other)]);
            judged("it".to_owned(), &a, &b)
        };
        assert_eq!(judge(-2.0).verdict, Verdict::Passed);
        let differs = judge(f32::from_bits((-2.0f32).to_bits() + 1));
        assert_eq!(differs.verdict, Verdict::Failed);
        assert_eq!(differs.found, "1 of 2 rows differ, 0 of them in tokens");
    }
}
