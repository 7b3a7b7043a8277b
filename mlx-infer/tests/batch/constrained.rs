//! Rows with a grammar, a processor, penalties, bias, log probabilities or stops also speculate:
//! their tokens are those without speculation.

use std::ops::ControlFlow;

use mlx_core::DType;
use mlx_infer::{
    BatchResult, Constraint, GenerateOptions, Grammar, Limits, LoadOptions, LoadedModel, Request,
    SamplingParams, Speculative, default_model_files,
};

use crate::checkpoint::dir;
use crate::independence::{greedy, prompt};
use crate::speculation::same;

fn off(options: &GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        speculative: Speculative::Off,
        ..options.clone()
    }
}

fn options(sampling: SamplingParams, drafts: usize) -> GenerateOptions {
    GenerateOptions {
        speculative: Speculative::Tokens(drafts),
        logprobs: Some(2),
        sampling,
        ..greedy(40)
    }
}

/// Each setting alone, and all together. Few tokens are allowed, so each step has drafts, some
/// right and some wrong.
fn settings() -> Vec<SamplingParams> {
    let few = |id: u32| (id, if (5..12).contains(&id) { 0.0 } else { -1000.0 });
    let base = SamplingParams {
        logit_bias: (0..64).map(few).collect(),
        ..Default::default()
    };
    let repeat = SamplingParams {
        repeat_penalty: 1.3,
        repeat_context: 8,
        ..base.clone()
    };
    let presence = SamplingParams {
        presence_penalty: 0.7,
        ..base.clone()
    };
    let frequency = SamplingParams {
        frequency_penalty: 0.4,
        ..base.clone()
    };
    let all = SamplingParams {
        temperature: 1.1,
        top_k: 6,
        seed: Some(9),
        repeat_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        ..base.clone()
    };
    let dry = SamplingParams {
        dry_multiplier: 0.8,
        dry_allowed_length: 1,
        ..base.clone()
    };
    let cuts = SamplingParams {
        temperature: 0.9,
        seed: Some(4),
        top_n_sigma: 1.5,
        xtc_probability: 0.6,
        xtc_threshold: 0.05,
        ..base.clone()
    };
    let more = SamplingParams {
        dry_multiplier: 0.5,
        ..cuts.clone()
    };
    vec![base, repeat, presence, frequency, all, dry, cuts, more]
}

fn even(_: &[u32], logits: &mut [f32]) -> Result<(), mlx_infer::ProcessorError> {
    for odd in logits.iter_mut().skip(1).step_by(2) {
        *odd -= 3.0;
    }
    Ok(())
}

fn run(model: &LoadedModel, requests: Vec<Request>) -> Vec<BatchResult> {
    let results = model.batch_generate(requests, &Limits::default()).unwrap();
    for result in &results {
        assert!(result.error.is_none(), "{:?}", result.error);
    }
    results
}

#[test]
fn penalties_bias_and_processors_draft() {
    for (case, max_draft) in [("llama_llama3", 0), ("qwen3_5_text", 3)] {
        let load = |max_draft| {
            let options = LoadOptions {
                dtype: Some(DType::F32),
                max_draft,
                ..LoadOptions::default()
            };
            LoadedModel::load(dir(case), options).unwrap()
        };
        let (plain, model) = (load(0), load(max_draft));
        let rows: Vec<(Vec<u32>, GenerateOptions, bool)> = settings()
            .into_iter()
            .flat_map(|sampling| [(sampling.clone(), false), (sampling, true)])
            .enumerate()
            .map(|(row, (sampling, processed))| {
                let text = match max_draft {
                    0 => prompt(5, row as u64).repeat(3),
                    _ => prompt(6 + row, row as u64),
                };
                (text, options(sampling, 1 + row % 3), processed)
            })
            .collect();
        let request = |(text, options, processed): &(Vec<u32>, GenerateOptions, bool)| {
            let request = Request::new(text.clone(), options.clone());
            match processed {
                true => request.with_processor(even),
                false => request,
            }
        };
        let expected: Vec<_> = rows
            .iter()
            .map(|(text, options, processed)| {
                let row = (text.clone(), off(options), *processed);
                run(&plain, vec![request(&row)]).remove(0).tokens
            })
            .collect();
        let together = run(&model, rows.iter().map(request).collect());
        let mut counts = [0, 0];
        for (row, (result, expected)) in together.iter().zip(&expected).enumerate() {
            assert!(same(&result.tokens, expected), "{case}: row {row}");
            let alone = run(&model, vec![request(&rows[row])]).remove(0);
            assert!(same(&alone.tokens, expected), "{case}: row {row} alone");
            let metrics = result.metrics;
            // A penalty may keep a text from repeating itself, which leaves no drafts of its own; a
            // head drafts anyway.
            assert!(
                max_draft == 0 || metrics.drafted_tokens > 0,
                "{case}: row {row} drafts nothing"
            );
            let drafted = metrics.drafted_at.iter().sum::<u32>() as usize;
            let accepted = metrics.accepted_by_position().iter().sum::<u32>() as usize;
            assert_eq!(drafted, metrics.drafted_tokens);
            assert_eq!(accepted, metrics.accepted_draft_tokens);
            assert_eq!(metrics.decode_tokens, 40);
            assert!(metrics.decode_steps + accepted >= 40, "{case}: row {row}");
            counts[0] += drafted;
            counts[1] += accepted;
        }
        let [drafted, accepted] = counts;
        assert!(0 < accepted && accepted < drafted, "{case}: {counts:?}");
    }
}

/// Repetitive texts with grammars: the masks after drafts are those that the same tokens get one at
/// a time.
#[test]
fn grammars_draft() {
    let load = || {
        let options = LoadOptions {
            max_draft: 8,
            ..LoadOptions::default()
        };
        LoadedModel::load_files(default_model_files(), options, &mut |_, _| ()).unwrap()
    };
    let model = load();
    let words = "(red|fox|eats|berry| )+";
    let grammars = [
        Grammar::Regex(words.to_owned()),
        Grammar::Regex("((red|blue) (fox|hen)[.] )+END".to_owned()),
        Grammar::Choice(vec![
            "The red fox eats a ripe berry. The red fox eats a ripe berry.".to_owned(),
            "The red fox eats a ripe berry. The red hen sleeps.".to_owned(),
        ]),
        Grammar::JsonSchema(serde_json::json!({
            "type": "array", "items": {"enum": ["red fox", "red hen"]}, "minItems": 4, "maxItems": 6,
        })),
    ];
    let text = "The red fox eats a ripe berry. The red fox eats a ripe berry. [\"red fox\", \"red fox\", \"red fox\"] ";
    let rows: Vec<GenerateOptions> = grammars
        .into_iter()
        .flat_map(|grammar| [(grammar.clone(), 0.0), (grammar, 1.0)])
        .enumerate()
        .map(|(row, (grammar, temperature))| GenerateOptions {
            grammar: Some(Constraint {
                after: None,
                ..Constraint::from(grammar)
            }),
            sampling: SamplingParams {
                temperature,
                seed: Some(row as u64),
                repeat_penalty: if row % 4 == 1 { 1.1 } else { 1.0 },
                ..Default::default()
            },
            speculative: Speculative::Tokens(1 + row % 4),
            logprobs: Some(2),
            max_tokens: 60,
            ..Default::default()
        })
        .collect();
    let expected: Vec<_> = rows
        .iter()
        .map(|options| {
            let mut generation = model.generate(text, &off(options)).unwrap();
            generation.run(|_| ControlFlow::Continue(())).unwrap()
        })
        .collect();
    let requests = rows
        .iter()
        .map(|options| Request::new(text, options.clone()))
        .collect();
    let (mut drafted, mut accepted) = (0, 0);
    for (row, (result, expected)) in run(&model, requests).iter().zip(&expected).enumerate() {
        assert!(same(&result.tokens, &expected.tokens), "row {row}");
        assert_eq!(result.text, expected.text, "row {row}");
        drafted += result.metrics.drafted_tokens;
        accepted += result.metrics.accepted_draft_tokens;
    }
    assert!(
        0 < accepted && accepted < drafted,
        "{accepted} of {drafted}"
    );
}
