//! A second model drafts: the tokens equal those without it, and drafts are kept as far as both
//! models agree.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mlx_core::DType;
use mlx_infer::{
    BatchResult, Choice, Constraint, Files, GenerateOptions, Grammar, Limits, LoadOptions,
    LoadedModel, Request, SamplingParams, Speculative, default_model_files,
};

use crate::checkpoint::{dir, with_config, with_tokenizer};
use crate::heads::{self, Head};
use crate::independence::{alone, greedy, prompt, sampled};
use crate::speculation::same;

fn load(dir: impl AsRef<Path>) -> LoadedModel {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        max_draft: 8,
        ..LoadOptions::default()
    };
    LoadedModel::load(dir, options).unwrap()
}

fn with_draft(model: impl AsRef<Path>, draft: impl Into<PathBuf>) -> LoadedModel {
    let mut model = load(model);
    model
        .load_draft_model(Files::directory(draft).unwrap())
        .unwrap();
    assert!(model.draft_model().is_some());
    model
}

/// A prompt and its options.
pub type Row = (Vec<u32>, GenerateOptions);

pub fn run(model: &LoadedModel, rows: &[Row], limits: &Limits) -> Vec<BatchResult> {
    let request = |(prompt, options): &Row| Request::new(prompt.clone(), options.clone());
    let results = model.batch_generate(rows.iter().map(request).collect(), limits);
    let results = results.unwrap();
    for result in &results {
        assert!(result.error.is_none(), "{:?}", result.error);
    }
    results
}

pub fn speculating(speculative: Speculative, options: GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        speculative,
        ..options
    }
}

pub fn plain(model: &LoadedModel, (prompt, options): &Row) -> Vec<Choice> {
    let options = speculating(Speculative::Off, options.clone());
    alone(model, prompt, &options)
}

/// Rows with and without drafts, greedy, sampled with penalties, and biased; some prompts are longer than a chunk. Some
/// begin alike, so that prefixes are used.
pub fn rows() -> Vec<Row> {
    let row = |row: usize| {
        let speculative = match row % 5 {
            0 => Speculative::Off,
            4 => Speculative::Auto,
            tokens => Speculative::Tokens(2 * tokens - 1),
        };
        let mut options = match row % 3 {
            0 => greedy(18),
            _ => sampled(18, row as u64),
        };
        options.prefill_chunk = 16;
        if row.is_multiple_of(4) {
            options.sampling.logit_bias = (0..30).map(|id| (id, 2.0)).collect();
        }
        let text = [prompt(20, 1), prompt(1 + 7 * row, row as u64)].concat();
        (text, speculating(speculative, options))
    };
    (0..10).map(row).collect()
}

/// Models whose caches can be rolled back, models with windows, and models with recurrent layers.
/// The vocabulary of the draft model has the same size or another one.
#[test]
fn tokens_equal_those_without_a_draft_model() {
    for (case, draft) in [
        ("llama_llama3", "qwen3"),
        ("gemma3_text", "llama_llama3"),
        ("qwen3_5_text", "qwen3_5_text"),
        ("llama_llama3", "gemma3_text"),
        ("llama_llama3", "deepseek_v3"),
        ("llama_llama3", "mamba2"),
        ("phi3_longrope", "phi3_longrope"),
    ] {
        let without = load(dir(case));
        let model = with_draft(dir(case), dir(draft));
        let room = without.info().max_positions.unwrap() - 30;
        let rows: Vec<Row> = rows()
            .into_iter()
            .map(|(mut text, options)| {
                text.truncate(room);
                (text, options)
            })
            .collect();
        let expected: Vec<_> = rows.iter().map(|row| plain(&without, row)).collect();
        let costs = model.state_costs();
        let row: usize = costs.iter().map(|cost| cost.bytes(256)).sum();
        for (at_once, cache_bytes) in [(10, None), (3, Some(6 * row))] {
            let limits = Limits {
                rows: at_once,
                cache_bytes,
                ..Limits::default()
            };
            let (mut drafted, mut accepted) = (0, 0);
            for (row, result) in run(&model, &rows, &limits).iter().enumerate() {
                let place = format!("{case} with {draft}: row {row} of {at_once}");
                assert!(same(&result.tokens, &expected[row]), "{place}");
                drafted += result.metrics.drafted_tokens;
                accepted += result.metrics.accepted_draft_tokens;
            }
            assert!(
                drafted > 50 && accepted > 0,
                "{case} with {draft}: {accepted} of {drafted}"
            );
        }
        let found = alone(&model, &rows[1].0, &rows[1].1);
        assert!(same(&found, &expected[1]), "{case} with {draft} alone");
    }
}

/// Whether no pair of tokens occurs twice, so that prompt lookup drafts nothing.
fn has_no_drafts(text: &[u32]) -> bool {
    let pairs: Vec<&[u32]> = text.windows(2).collect();
    (1..pairs.len()).all(|at| !pairs[..at].contains(&pairs[at]))
}

/// A model that drafts for itself is always right, greedy or sampled, whether or not its caches can
/// be rolled back.
#[test]
fn a_model_drafts_for_itself_without_a_fault() {
    for case in ["llama_llama3", "gemma3_text", "qwen3_5_text"] {
        let (without, model) = (load(dir(case)), with_draft(dir(case), dir(case)));
        let row = |seed: u64| {
            let mut options = sampled(14, seed);
            options.sampling.repeat_penalty = 1.0;
            options.sampling.presence_penalty = 0.0;
            let speculative = Speculative::Tokens(1 + seed as usize % 5);
            let text = prompt(2 + seed as usize % 7, seed);
            (text, speculating(speculative, options))
        };
        let rows = (0..40).map(row).filter(|row| {
            let said = plain(&without, row).into_iter().map(|choice| choice.id);
            has_no_drafts(&[&row.0[..], &said.collect::<Vec<_>>()].concat())
        });
        let rows: Vec<Row> = rows.take(8).collect();
        assert!(rows.len() > 3, "{case}: {} texts", rows.len());
        for result in run(&model, &rows, &Limits::default()) {
            let metrics = result.metrics;
            assert!(metrics.drafted_tokens > 4, "{case}: {metrics:?}");
            assert_eq!(
                metrics.accepted_draft_tokens, metrics.drafted_tokens,
                "{case}"
            );
        }
    }
}

/// A draft model of random weights is hardly ever right. A fixed number of drafts is verified all
/// the same; with `auto` the row stops drafting.
#[test]
fn a_wrong_draft_model_is_parked() {
    let cycle = tempfile::tempdir().unwrap();
    heads::write(cycle.path(), Head::Wrong);
    let model = with_draft(cycle.path(), dir("llama_llama3"));
    let run = |speculative, tokens| {
        let row = (vec![5], speculating(speculative, greedy(tokens)));
        let result = run(&model, &[row], &Limits::default()).remove(0);
        [
            result.metrics.drafted_tokens,
            result.metrics.accepted_draft_tokens,
        ]
    };
    let [drafted, accepted] = run(Speculative::Tokens(3), 50);
    assert!(drafted > 100 && accepted < 5, "{accepted} of {drafted}");

    // A penalty keeps the text from repeating itself, which leaves prompt lookup no drafts.
    let model = with_draft(dir("llama_llama3"), dir("qwen3"));
    let drafted = |speculative| {
        let mut options = speculating(speculative, greedy(200));
        options.sampling.frequency_penalty = 1.0;
        let row = (prompt(5, 1), options);
        let result = self::run(&model, &[row], &Limits::default()).remove(0);
        result.metrics.drafted_tokens
    };
    let (fixed, parked) = (drafted(Speculative::Tokens(4)), drafted(Speculative::Auto));
    assert!(fixed > 400 && parked < fixed / 3, "{parked} and {fixed}");
}

/// Rows with a grammar draft with the masks of the grammar, also if the vocabularies are padded to
/// different sizes.
#[test]
fn grammars_hold_with_a_draft_model() {
    let options = LoadOptions {
        max_draft: 8,
        ..LoadOptions::default()
    };
    let load = || LoadedModel::load_files(default_model_files(), options, &mut |_, _| ()).unwrap();
    let small = with_default_tokenizer("llama_llama3");
    for draft in [
        default_model_files(),
        Files::directory(small.path()).unwrap(),
    ] {
        let (without, mut model) = (load(), load());
        model.load_draft_model(draft).unwrap();
        for (row, grammar) in [
            Grammar::Regex("[a-z]{3,9} (fox|hen)[.] [0-9]+".to_owned()),
            Grammar::Choice(vec!["a hen sleeps".to_owned(), "a fox eats".to_owned()]),
        ]
        .into_iter()
        .enumerate()
        {
            let options = |speculative| GenerateOptions {
                grammar: Some(Constraint::from(grammar.clone())),
                sampling: SamplingParams {
                    temperature: row as f32,
                    seed: Some(3),
                    ..Default::default()
                },
                speculative,
                max_tokens: 30,
                ..Default::default()
            };
            let ask = |model: &LoadedModel, speculative| {
                let request = Request::new("The red fox eats", options(speculative));
                let results = model.batch_generate(vec![request], &Limits::default());
                results.unwrap().remove(0)
            };
            let expected = ask(&without, Speculative::Off);
            let found = ask(&model, Speculative::Tokens(3));
            assert!(found.error.is_none(), "{:?}", found.error);
            assert_eq!(found.text, expected.text);
            assert!(found.metrics.drafted_tokens > 0);
        }
    }
}

/// A model with fewer tokens than the built-in one, and its tokenizer.
fn with_default_tokenizer(case: &str) -> tempfile::TempDir {
    let copy = with_config(case, |_| ());
    let files = default_model_files();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        if let Some(bytes) = files.read(name).unwrap() {
            std::fs::write(copy.path().join(name), bytes).unwrap();
        }
    }
    copy
}

#[test]
fn other_vocabularies_are_refused_by_name() {
    let refused = |model: &Path, draft: &Path| {
        let mut model = load(model);
        let error = model.load_draft_model(Files::directory(draft).unwrap());
        assert!(model.draft_model().is_none());
        error.unwrap_err().to_string()
    };
    let [own, other] = ["llama3", "gemma"].map(|name| with_tokenizer("llama_llama3", name));
    let error = refused(own.path(), other.path());
    let place = format!(
        "draft model {}: its vocabulary is not",
        other.path().display()
    );
    assert!(error.starts_with(&place), "{error}");
    assert!(
        error.contains("token ") && error.contains("more differ"),
        "{error}"
    );
    let bare = dir("llama_llama3");
    let error = refused(own.path(), &bare);
    assert!(error.contains("it has no supported tokenizer"), "{error}");
    let error = refused(&bare, own.path());
    assert!(
        error.contains("the model has no supported tokenizer"),
        "{error}"
    );
    let mut model = load(own.path());
    let same = with_tokenizer("qwen3", "llama3");
    model
        .load_draft_model(Files::directory(same.path()).unwrap())
        .unwrap();
}

/// An adapter of the model changes the model's tokens, and not those of the draft model; rows of
/// every adapter draft.
#[test]
fn adapters_speculate() {
    let adapter = crate::checkpoint::testdata("train/adapters/peft-qwen3");
    let mut without = load(dir("qwen3"));
    without.load_adapter(&adapter).unwrap();
    for draft in [None, Some(dir("qwen3"))] {
        let mut model = load(dir("qwen3"));
        if let Some(draft) = draft {
            model
                .load_draft_model(Files::directory(draft).unwrap())
                .unwrap();
        }
        let adapted = model.with_adapter(&adapter).unwrap();
        // Few tokens are allowed, so the texts repeat themselves and prompt lookup drafts too.
        let rows: Vec<Row> = rows()
            .into_iter()
            .map(|(text, mut options)| {
                let bias = |id: u32| (id, if (5..10).contains(&id) { 0.0 } else { -1000.0 });
                options.sampling.logit_bias = (0..64).map(bias).collect();
                (text, options)
            })
            .collect();
        let mut drafted = 0;
        for (row, result) in rows.iter().zip(run(&adapted, &rows, &Limits::default())) {
            assert!(same(&result.tokens, &plain(&without, row)));
            drafted += result.metrics.drafted_tokens;
        }
        assert!(drafted > 20, "{drafted}");
    }
}

fn generate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mlx-infer"))
        .args([
            "generate",
            "--tokens",
            "5,9,2",
            "--max-tokens",
            "20",
            "--ignore-eos",
        ])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_command_takes_a_draft_model() {
    let (model, draft) = (dir("llama_llama3"), dir("qwen3"));
    let (model, draft) = (model.to_str().unwrap(), draft.to_str().unwrap());
    let tokens = |arguments: &[&str]| {
        let output = generate(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (
            json["tokens"].clone(),
            json["usage"]["drafted_tokens"].clone(),
        )
    };
    let base = ["--json", "--model", model];
    let (expected, _) = tokens(&base);
    let drafts = ["--draft-model", draft, "--speculative", "3"];
    let (found, drafted) = tokens(&[&base[..], &drafts].concat());
    assert_eq!(found, expected);
    assert!(drafted.as_u64() > Some(10), "{drafted}");
    for (arguments, status, message) in [
        (
            &["--draft-model", draft][..],
            2,
            "--draft-model drafts only with --speculative auto or a number",
        ),
        (
            &["--mtp", draft],
            2,
            "--mtp drafts only with --speculative auto or a number",
        ),
        (
            &["--draft-model", "nowhere", "--speculative", "2"],
            1,
            "nowhere does not exist as a folder",
        ),
        (
            &["--mtp", draft, "--speculative", "2"],
            1,
            "no tensor here belongs to a head for multi-token prediction",
        ),
        (
            &["--draft-model", draft, "--backend", "mlx-lm"],
            2,
            "--draft-model is not supported with --backend mlx-lm",
        ),
    ] {
        let output = generate(&[&base[1..], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(message), "{said}");
    }
}
