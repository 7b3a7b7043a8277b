//! `min_tokens`: the first tokens are not end tokens, and stop strings within them do not end the text.

use std::ops::ControlFlow;

use mlx_infer::{
    Constraint, FinishReason, GenerateOptions, Generated, Grammar, Limits, LoadOptions,
    LoadedModel, Request, SamplingParams, Speculative, default_model_files,
};

use crate::command::run as command;

const PROMPT: &str = "The red fox";

/// Sampling that would end early: end tokens are made likely.
fn options(model: &LoadedModel, min_tokens: usize, seed: u64) -> GenerateOptions {
    let bias = model.eos_ids().iter().map(|&id| (id, 12.0));
    GenerateOptions {
        sampling: SamplingParams {
            temperature: 1.0,
            seed: Some(seed),
            logit_bias: bias.collect(),
            ..Default::default()
        },
        max_tokens: 30,
        min_tokens,
        ..Default::default()
    }
}

fn run(model: &LoadedModel, options: &GenerateOptions) -> Generated {
    let mut generation = model.generate(PROMPT, options).unwrap();
    generation.run(|_| ControlFlow::Continue(())).unwrap()
}

/// The same without `min_tokens`: a processor forbids these ids among the first tokens.
fn forbidden(model: &LoadedModel, options: &GenerateOptions, ids: &[u32]) -> Generated {
    let plain = GenerateOptions {
        min_tokens: 0,
        ..options.clone()
    };
    let (ids, least) = (ids.to_vec(), options.min_tokens);
    let prompt = model.tokenizer().unwrap().encode(PROMPT, true).unwrap();
    let generation = model.generate(prompt.clone(), &plain).unwrap();
    let mut generation = generation.with_processor(move |all, logits| {
        if all.len() < prompt.len() + least {
            ids.iter()
                .for_each(|&id| logits[id as usize] = f32::NEG_INFINITY);
        }
        Ok(())
    });
    generation.run(|_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn no_end_comes_among_the_first_tokens() {
    let load = LoadOptions {
        max_draft: 3,
        ..Default::default()
    };
    let model = LoadedModel::load_files(default_model_files(), load, &mut |_, _| ()).unwrap();
    let stop_ids = vec![run(&model, &options(&model, 20, 1)).tokens[9].id];
    let mut ended = 0;
    for stop_ids in [Vec::new(), stop_ids] {
        let cases: Vec<GenerateOptions> = (0..24)
            .map(|seed| GenerateOptions {
                stop_ids: stop_ids.clone(),
                speculative: [Speculative::Off, Speculative::Tokens(3)][seed as usize % 2],
                ..options(&model, seed as usize % 12, seed)
            })
            .collect();
        let ends = [model.eos_ids(), &stop_ids].concat();
        let requests = cases.iter().map(|case| Request::new(PROMPT, case.clone()));
        let batch = model.batch_generate(requests.collect(), &Limits::default());
        for (case, beside) in cases.iter().zip(batch.unwrap()) {
            let alone = run(&model, case);
            let expected = forbidden(&model, case, &ends);
            let ids = |tokens: &[mlx_infer::Choice]| -> Vec<u32> {
                tokens.iter().map(|choice| choice.id).collect()
            };
            assert_eq!(ids(&alone.tokens), ids(&expected.tokens));
            assert_eq!(ids(&beside.tokens), ids(&expected.tokens));
            assert_eq!(alone.reason, expected.reason);
            assert!(alone.tokens.len() > case.min_tokens);
            ended += usize::from(alone.tokens.len() == case.min_tokens + 1);
        }
    }
    assert!(ended > 12, "ends are likely: {ended}");
}

#[test]
fn stop_strings_among_the_first_tokens_are_text() {
    let model = LoadedModel::load_default().unwrap();
    let free = GenerateOptions {
        max_tokens: 30,
        ignore_eos: true,
        ..Default::default()
    };
    let text = run(&model, &free).text.unwrap();
    let stopped = |min_tokens| {
        let stop = vec!["e".to_owned()];
        run(
            &model,
            &GenerateOptions {
                stop,
                min_tokens,
                ..free.clone()
            },
        )
    };
    let places: Vec<usize> = text.match_indices('e').map(|(at, _)| at).collect();
    for min_tokens in 0..12 {
        let stopped = stopped(min_tokens);
        let said = stopped.text.unwrap();
        // The text ends with the first stop string after the first tokens.
        let first = match min_tokens {
            0 => String::new(),
            max_tokens => run(
                &model,
                &GenerateOptions {
                    max_tokens,
                    ..free.clone()
                },
            )
            .text
            .unwrap(),
        };
        let expected = places.iter().find(|&&at| at >= first.len());
        assert_eq!(stopped.reason, FinishReason::Stop);
        assert!(stopped.tokens.len() > min_tokens);
        assert_eq!(said, text[..*expected.unwrap()], "{min_tokens}");
    }
}

#[test]
fn a_grammar_goes_on_where_it_may_and_ends_where_it_must() {
    let model = LoadedModel::load_default().unwrap();
    for (regex, least, is_held) in [("[a-z ]+", 12, true), ("abc", 12, false)] {
        let options = GenerateOptions {
            grammar: Some(Constraint::from(Grammar::Regex(regex.to_owned()))),
            ..options(&model, least, 5)
        };
        let generated = run(&model, &options);
        assert_eq!(generated.tokens.len() > least, is_held, "{generated:?}");
        assert!(is_held || generated.text.as_deref() == Some("abc"));
    }
}

#[test]
fn it_is_at_most_max_tokens() {
    let message = "min_tokens must be at most max_tokens, 4, given 5";
    let refused = GenerateOptions {
        max_tokens: 4,
        min_tokens: 5,
        ..Default::default()
    };
    assert_eq!(refused.check().unwrap_err().to_string(), message);
    let line = r#"{"messages": [{"role": "user", "content": "What is 20 + 22?"}], "min_tokens": 9}
{"prompt": "x", "max_tokens": 4, "min_tokens": 5}"#;
    let (code, documents, stderr) = command(&["batch", "--max-tokens", "20"], line);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(documents[0]["tokens"].as_array().unwrap().len() > 9);
    assert!(documents[0]["text"].as_str().unwrap().starts_with("42"));
    assert_eq!(documents[1]["error"], message);
    let end = LoadedModel::load_default().unwrap().eos_ids()[0];
    let bias = format!("{end}=100");
    let args = [
        "generate",
        "--json",
        "--prompt",
        PROMPT,
        "--logit-bias",
        &bias,
        "--min-tokens",
    ];
    let tokens = |least: &str| {
        let (code, documents, stderr) = command(&[&args[..], &[least]].concat(), "");
        assert_eq!(code, Some(0), "{stderr}");
        documents[0]["tokens"].as_array().unwrap().len()
    };
    assert_eq!(["0", "7"].map(tokens), [1, 8]);
    let (code, _, stderr) = command(&[&args[..], &["7", "--max-tokens", "6"]].concat(), "");
    assert!(
        code == Some(2) && stderr.contains("min_tokens must be at most"),
        "{stderr}"
    );
}
