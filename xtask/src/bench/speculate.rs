//! `bench speculate`: decoding with drafts against decoding without, on shapes of Qwen3.5-0.8B in 4 bits.
//!
//! The checkpoint is constructed (`hybrid_checkpoint.py`): a known token follows each token, and
//! the model's head predicts it for 80 % of the tokens. All products have the published shapes, so
//! the times are those of a real model with this acceptance rate. A second head is always wrong.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::plot;
use super::record::Record;
use super::session::{Generated, Session, turns};
use super::stats::{Row, Table};
use super::{Shared, build_session, machine, scripts, work};
use crate::{cargo, python};

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Layers of the checkpoint, for a quick look: no record is written
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(4..))]
    layers: Option<u16>,
}

const SIDES: [&str; 2] = ["with drafts", "plain"];
/// The cycle of tokens: `next` of `hybrid_checkpoint.py`.
const CYCLE: u32 = 32_768;
/// Tokens of each prompt.
const PROMPT: usize = 16;
/// Tokens of the part of a prompt that the answer repeats.
const COPIED: usize = 160;

fn next(token: u32) -> u32 {
    (token * 20_077 + 12_345) % CYCLE
}

/// This many tokens of the cycle, starting at `token`.
fn text(token: u32, len: usize) -> Vec<u32> {
    std::iter::successors(Some(token), |&token| Some(next(token)))
        .take(len)
        .collect()
}

/// A comparison.
struct Case {
    name: &'static str,
    /// The head: `right` or `wrong`.
    head: &'static str,
    prompts: Vec<Vec<u32>>,
    speculative: Vec<Value>,
    /// The rows whose tokens per second are compared.
    counted: std::ops::Range<usize>,
    goal: Option<f64>,
}

fn cases() -> Vec<Case> {
    let rows = |n: usize| -> Vec<Vec<u32>> {
        (0..n)
            .map(|row| text(977 * row as u32 + 5, PROMPT))
            .collect()
    };
    let all = |value: Value, n: usize| vec![value; n];
    let case = |name, head, n: usize, setting: Value, goal| Case {
        name,
        head,
        prompts: rows(n),
        speculative: all(setting, n),
        counted: 0..n,
        goal,
    };
    // The answer continues where the prompt's text began.
    let copied = text(5, COPIED);
    let copy = [&copied[..], &copied[..4]].concat();
    let mut mixed = case(
        "plain rows beside 4 with auto",
        "right",
        8,
        json!("auto"),
        Some(0.95),
    );
    mixed.speculative[..4].fill(json!("off"));
    mixed.counted = 0..4;
    vec![
        case("head, auto", "right", 1, json!("auto"), Some(1.5)),
        case("head, 2 tokens", "right", 1, json!(2), None),
        case("head, auto", "right", 8, json!("auto"), Some(1.2)),
        mixed,
        Case {
            name: "own text, auto",
            head: "right",
            prompts: vec![copy],
            speculative: vec![json!("auto")],
            counted: 0..1,
            goal: Some(2.0),
        },
        case(
            "head always wrong, auto",
            "wrong",
            1,
            json!("auto"),
            Some(0.97),
        ),
    ]
}

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let python = shared.python()?;
    let layers = arguments.layers.unwrap_or(24);
    let folder = work()?.join(format!("hybrid-{layers}"));
    // This file is written last.
    if !folder.join("wrong").join("config.json").exists() {
        eprintln!("writing checkpoints");
        python::fresh(&folder)?;
        cargo::run(
            python::command(&python)
                .arg(scripts().join("hybrid_checkpoint.py"))
                .arg(&folder)
                .arg(layers.to_string()),
        )?;
    }
    let binary = build_session()?;
    let start = |name, folder: &str, max_draft: &str| {
        let mut command = std::process::Command::new(&binary);
        command.arg(folder).arg(max_draft);
        Session::start(name, command)
    };
    let load_before = machine::load_average();
    let at = |head: &str| folder.join(head).display().to_string();
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for case in cases() {
        let folder = at(case.head);
        let start = |side: usize| start(SIDES[side], &folder, ["8", "0"][side]);
        rows.push(measure(&case, &start, shared, &mut notes)?);
    }
    let quick = shared.quick || arguments.layers.is_some();
    let table = Table {
        labels: &["case", "rows"],
        sides: SIDES.to_vec(),
        rows,
    };
    let record = Record {
        kind: "speculate".to_owned(),
        method: format!(
            "Shapes of Qwen3.5-0.8B, {layers} layers, 4 bits (the head 8), vocabulary of 248,320. Behind a token follows a known one; the head says it for 80 % of \
             the tokens, or never. One side with speculation, one without and without a head, in turns. Each run is a new process, which answers once before: where \
             a process has its weights in memory changes its speed by up to 5 %. Greedy; prompts of {PROMPT} tokens, for the row's own text of {COPIED} that the answer repeats. Tokens a second of the counted rows, from each row's first token on."
        ),
        commit: machine::commit(),
        runs: shared.runs(),
        quick,
        load_before,
        peers: Vec::new(),
        facts: Vec::new(),
        plot: Some(plot::ratios(
            "Tokens a second with drafts, times those without",
            &table,
            1,
        )),
        table,
        goals: Vec::new(),
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes,
    };
    match arguments.layers {
        None => shared.finish(&record),
        Some(_) => {
            print!("{}", record.markdown());
            Ok(())
        }
    }
}

fn measure(
    case: &Case,
    start: &dyn Fn(usize) -> Result<Session>,
    shared: &Shared,
    notes: &mut Vec<String>,
) -> Result<Row> {
    let n = case.prompts.len();
    let tokens = match (shared.quick, n) {
        (true, _) => 12,
        (false, 1) => 128,
        (false, _) => 64,
    };
    let off = vec![json!("off"); n];
    let runs = turns(shared.runs(), 2, |side, number| {
        eprintln!(
            "{}, {n} rows: run {number} of {}, {}",
            case.name,
            shared.runs(),
            SIDES[side]
        );
        let settings = if side == 0 { &case.speculative } else { &off };
        let mut session = start(side)?;
        let mut ask = || session.speculate(&case.prompts, settings, tokens);
        // The first answer measures the cost of steps, for `auto`.
        ask()?;
        ask().map(Some)
    })?;
    ensure!(
        runs[0][0].tokens == runs[1][0].tokens,
        "{}: tokens differ with drafts",
        case.name
    );
    let [drafted, accepted] = runs[0][0].drafts;
    notes.push(format!(
        "{}, {n} rows: {accepted} of {drafted} drafted tokens accepted; tokens are those without drafts",
        case.name
    ));
    let rate = |run: &Generated| {
        let counted = &run.tokens_per_s[case.counted.clone()];
        counted.iter().sum::<f64>()
    };
    Ok(Row {
        labels: vec![case.name.to_owned(), n.to_string()],
        measure: "decode, tokens/s",
        more_is_better: true,
        values: runs
            .iter()
            .map(|runs| runs.iter().map(rate).collect())
            .collect(),
        goals: vec![case.goal],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cycle_goes_through_all_tokens() {
        let mut seen = vec![false; CYCLE as usize];
        for token in text(0, CYCLE as usize) {
            assert!(
                !std::mem::replace(&mut seen[token as usize], true),
                "{token}"
            );
        }
    }
}
