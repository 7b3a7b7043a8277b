//! Drafters of other folders that read the model: the tokens equal those without them, alone and in batches, and the drafts
//! in a batch are those that a drafter makes alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_core::{Array, DType};
use mlx_infer::{Files, Limits, LoadOptions, LoadedModel, Speculative};
use mlx_models::{Drafting, Loaded};
use serde_json::Value;

use crate::draft_model::{Row, plain, rows, run, speculating};
use crate::independence::{alone, greedy, prompt};
use crate::speculation::same;

#[path = "../../../mlx-models/tests/shared/checkpoints.rs"]
mod formulas;

const CASES: [&str; 6] = [
    "eagle3",
    "eagle3_speculators",
    "dflash",
    "muse_glimmer_assistant",
    "gemma4_assistant",
    "gemma4_unified_assistant",
];

fn dir(case: &str) -> PathBuf {
    formulas::checkpoint(&format!("../drafters/{case}"))
}

fn target(case: &str) -> PathBuf {
    let golden = std::fs::read(dir(case).join("golden.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    formulas::checkpoint(golden["target"].as_str().unwrap())
}

fn options() -> LoadOptions {
    LoadOptions {
        dtype: Some(DType::F32),
        max_draft: 8,
        ..LoadOptions::default()
    }
}

fn load(case: &str, options: LoadOptions) -> LoadedModel {
    LoadedModel::load(target(case), options).unwrap()
}

fn drafted(case: &str, options: LoadOptions) -> LoadedModel {
    let mut model = load(case, options);
    let files = Files::directory(dir(case)).unwrap();
    assert!(LoadedModel::reads_model(&files).unwrap());
    model.load_draft_model(files).unwrap();
    assert!(model.draft_model().is_none());
    model
}

#[test]
fn tokens_equal_those_without_a_drafter() {
    for case in CASES {
        let (without, model) = (load(case, options()), drafted(case, options()));
        let rows = rows();
        let expected: Vec<_> = rows.iter().map(|row| plain(&without, row)).collect();
        let costs = model.state_costs();
        let row: usize = costs.iter().map(|cost| cost.bytes(256)).sum();
        let mut all = [0, 0];
        for (at_once, cache_bytes) in [(10, None), (3, Some(6 * row))] {
            let limits = Limits {
                rows: at_once,
                cache_bytes,
                ..Limits::default()
            };
            for (row, result) in run(&model, &rows, &limits).iter().enumerate() {
                assert!(
                    same(&result.tokens, &expected[row]),
                    "{case}: row {row} of {at_once}"
                );
                all[0] += result.metrics.drafted_tokens;
                all[1] += result.metrics.accepted_draft_tokens;
            }
        }
        assert!(all[0] > 100 && all[1] > 0, "{case}: {all:?}");
        for row in [1, 2] {
            let found = alone(&model, &rows[row].0, &rows[row].1);
            assert!(same(&found, &expected[row]), "{case}: row {row} alone");
        }
    }
}

/// Whether no pair of tokens occurs twice, so that prompt lookup drafts nothing.
fn has_no_drafts(text: &[u32]) -> bool {
    let pairs: Vec<&[u32]> = text.windows(2).collect();
    (1..pairs.len()).all(|at| !pairs[..at].contains(&pairs[at]))
}

fn ids(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[1, tokens.len() as i32]).unwrap()
}

/// The greedy drafts after a text, computed alone from the beginning.
fn drafts(model: &Loaded, text: &[u32], number: usize) -> Vec<u32> {
    let head = model.model.drafting().unwrap();
    let (last, text) = text.split_last().unwrap();
    let mut cache = model.model.new_cache(1);
    let mut step = cache.begin(&[text.len()]).unwrap();
    model.model.hidden(&ids(text), &mut step).unwrap();
    step.commit_all().unwrap();
    let token = |features: &Array| -> u32 {
        let logits = head.logits(features, None).unwrap();
        logits.argmax(-1, false).unwrap().item().unwrap()
    };
    if let Drafting::Block(block) = head.manner() {
        let mut step = cache.begin_slots(head.states(), None, &[block]).unwrap();
        let features = head.block(&ids(&[*last]), &mut step).unwrap();
        let at = |place: usize| features.slice_axis(1, place as i32, place as i32 + 1);
        let places = 1..block.min(number + 1);
        return places.map(|place| token(&at(place).unwrap())).collect();
    }
    let mut step = cache.begin_part(head.states(), &[1]).unwrap();
    let mut features = head.follow(&ids(&[*last]), None, &mut step).unwrap();
    drop(step);
    let mut found = vec![token(&features)];
    while found.len() < number {
        let ahead = match head.manner() {
            Drafting::Held => 0,
            _ => found.len(),
        };
        let lens = [text.len() + ahead];
        let mut step = cache.begin_at(head.states(), &lens, &[1]).unwrap();
        let draft = ids(&found[found.len() - 1..]);
        features = head.draft(&draft, &features, &mut step).unwrap();
        found.push(token(&features));
    }
    found
}

/// The number of drafts that are accepted in a batch is that of rounds that are computed one by one: no position of a
/// drafter is read too late, twice, or with the features of another.
#[test]
fn drafts_of_a_batch_are_those_of_a_text_alone() {
    const DRAFTS: usize = 3;
    let mut right = 0;
    for case in CASES {
        let model = drafted(case, options());
        let reference = mlx_models::load(
            target(case),
            mlx_models::LoadOptions {
                dtype: Some(DType::F32),
                ..mlx_models::LoadOptions::default()
            },
        );
        let reference = reference.unwrap().with_drafter(dir(case), None).unwrap();
        let row = |seed: u64| {
            let options = speculating(Speculative::Tokens(DRAFTS), greedy(6));
            (prompt(2 + seed as usize % 9, seed), options)
        };
        let rows: Vec<Row> = (0..120).map(row).collect();
        let (mut accepted, mut expected, mut compared) = (0, 0, 0);
        for ((prompt, _), result) in rows.iter().zip(run(&model, &rows, &Limits::default())) {
            let said: Vec<u32> = result.tokens.iter().map(|choice| choice.id).collect();
            if !has_no_drafts(&[&prompt[..], &said].concat()) {
                continue;
            }
            compared += 1;
            accepted += result.metrics.accepted_draft_tokens;
            let mut at = 1;
            while at < said.len() {
                let text = [&prompt[..], &said[..at]].concat();
                let drafts = drafts(&reference, &text, DRAFTS);
                let agree = drafts.iter().zip(&said[at..]).take_while(|(a, b)| a == b);
                let agree = agree.count().min(said.len() - at - 1);
                expected += agree;
                at += agree + 1;
            }
        }
        assert!(compared > 10, "{case}: {compared} texts");
        assert_eq!(accepted, expected, "{case}");
        right += accepted;
    }
    assert!(right > 10, "{right}");
}

/// Drafters of random weights are hardly ever right, so `auto` stops drafting.
#[test]
fn a_drafter_that_does_not_pay_is_parked() {
    for case in ["eagle3", "dflash", "gemma4_assistant"] {
        let model = drafted(case, options());
        let drafted = |speculative| {
            let mut options = speculating(speculative, greedy(200));
            options.sampling.frequency_penalty = 1.0;
            let result = run(&model, &[(prompt(5, 1), options)], &Limits::default()).remove(0);
            result.metrics.drafted_tokens
        };
        let (fixed, parked) = (drafted(Speculative::Tokens(4)), drafted(Speculative::Auto));
        assert!(
            fixed > 300 && parked < fixed / 3,
            "{case}: {parked} and {fixed}"
        );
    }
}

#[test]
fn what_a_drafter_cannot_read_is_refused() {
    let refused = |case: &str, options: LoadOptions| {
        let mut model = load(case, options);
        let files = Files::directory(dir(case)).unwrap();
        model.load_draft_model(files).unwrap_err().to_string()
    };
    let windowed = LoadOptions {
        context_len: Some(64),
        ..options()
    };
    let error = refused("eagle3", windowed);
    assert!(error.contains("context_len"), "{error}");
    let without = LoadOptions {
        max_draft: 0,
        ..options()
    };
    let error = refused("eagle3", without);
    assert!(error.contains("max_draft"), "{error}");
    let mut model = load("eagle3", options());
    let files = Files::directory(dir("gemma4_assistant")).unwrap();
    let error = model.load_draft_model(files).unwrap_err().to_string();
    assert!(
        error.contains("reads keys and values of Gemma 4"),
        "{error}"
    );
    // The model is as before.
    assert!(!alone(&model, &[5, 9], &greedy(3)).is_empty());
}

fn generate(arguments: &[&str]) -> (bool, String, String) {
    let fixed = [
        "generate",
        "--tokens",
        "5,9,2",
        "--max-tokens",
        "20",
        "--ignore-eos",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args(fixed)
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_command_takes_a_drafter() {
    for case in ["eagle3", "dflash", "gemma4_assistant"] {
        let (model, drafter) = (target(case), dir(case));
        let base = ["--json", "--model", model.to_str().unwrap()];
        let tokens = |arguments: &[&str]| {
            let (is_success, said, complained) = generate(arguments);
            assert!(is_success, "{case}: {complained}");
            let json: Value = serde_json::from_str(&said).unwrap();
            (
                json["tokens"].clone(),
                json["usage"]["drafted_tokens"].as_u64(),
            )
        };
        let (expected, _) = tokens(&base);
        let drafts = [
            "--draft-model",
            drafter.to_str().unwrap(),
            "--speculative",
            "3",
        ];
        let (found, drafted) = tokens(&[&base[..], &drafts].concat());
        assert_eq!(found, expected, "{case}");
        assert!(drafted > Some(10), "{case}: {drafted:?}");
    }
    let head = |path: &Path| path.to_str().unwrap().to_owned();
    let (model, drafter) = (head(&target("eagle3")), head(&dir("eagle3")));
    let both = [
        "--model",
        &model,
        "--speculative",
        "3",
        "--draft-model",
        &drafter,
        "--mtp",
        &drafter,
    ];
    let (is_success, _, said) = generate(&both);
    assert!(!is_success && said.contains("give one of them"), "{said}");
}
