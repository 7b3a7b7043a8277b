//! Generation with the library, compared with transformers' tokens.

use std::ops::ControlFlow;

use crate::checkpoint::{self, goldens, load, load_ring, log_softmax};
use mlx_infer::{
    CancelToken, ErrorKind, Event, FinishReason, GenerateOptions, Generated, LoadOptions,
    LoadedModel, Metrics, ModelInfo, Prompt, SamplingParams, TextModel,
};
use serde_json::json;

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    }
}

fn run(model: &LoadedModel, prompt: &[u32], options: &GenerateOptions) -> Generated {
    let mut generation = model.generate(prompt.to_vec(), options).unwrap();
    generation.run(|_| ControlFlow::Continue(())).unwrap()
}

fn ids(generated: &Generated) -> Vec<u32> {
    generated.tokens.iter().map(|choice| choice.id).collect()
}

#[test]
fn every_way_gives_the_tokens_of_the_reference() {
    // One growing cache, one of rings, and two that cross the length of LongRoPE or dynamic NTK in decode (prompt 2).
    for case in [
        "qwen3",
        "gemma3_text",
        "mistral",
        "phi3_longrope",
        "llama_dynamic",
        "q_qwen3_mixed",
    ] {
        let model = load(checkpoint::dir(case));
        for golden in goldens(case) {
            let called = run(&model, &golden.prompt, &options(24));
            assert_eq!(ids(&called), golden.tokens, "{case}");
            assert_eq!(called.reason, FinishReason::Length);
            assert_eq!(called.text, None);
            let mut iterated = Vec::new();
            let mut finished = false;
            for event in model.generate(golden.prompt.clone(), &options(24)).unwrap() {
                assert!(!finished, "{case}: an event after the end");
                match event.unwrap() {
                    Event::Token { choice, .. } => iterated.push(choice),
                    Event::Finish { .. } => finished = true,
                }
            }
            assert!(finished && iterated == called.tokens, "{case}");
        }
    }
}

#[test]
fn chunks_of_the_prompt_make_no_difference() {
    for case in ["gemma3_text", "mistral", "phi3_longrope", "llama_dynamic"] {
        let model = load(checkpoint::dir(case));
        for golden in goldens(case) {
            for prefill_chunk in [1, 3, 7, 20] {
                let options = GenerateOptions {
                    prefill_chunk,
                    ..options(24)
                };
                let generated = run(&model, &golden.prompt, &options);
                assert_eq!(
                    ids(&generated),
                    golden.tokens,
                    "{case} in chunks of {prefill_chunk}"
                );
            }
        }
    }
}

#[test]
fn a_context_length_makes_rings_of_all_caches() {
    // A model with a window of eight tokens equals one without a window with caches of eight
    // tokens.
    let dir = checkpoint::with_config("mistral", |config| config["sliding_window"] = json!(null));
    let whole = load(dir.path());
    let ring = load_ring(dir.path(), Some(8));
    for golden in goldens("mistral") {
        assert_eq!(
            ids(&run(&ring, &golden.prompt, &options(24))),
            golden.tokens
        );
        assert_ne!(
            ids(&run(&whole, &golden.prompt, &options(24))),
            golden.tokens
        );
    }
    let large = load_ring(checkpoint::dir("mistral"), Some(400));
    for golden in goldens("mistral") {
        assert_eq!(
            ids(&run(&large, &golden.prompt, &options(24))),
            golden.tokens
        );
    }
    let none = LoadOptions {
        context_len: Some(0),
        ..Default::default()
    };
    let error = LoadedModel::load(checkpoint::dir("mistral"), none)
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "context_len must be at least 1, given 0");
}

#[test]
fn nothing_comes_after_a_stop_token() {
    let model = load(checkpoint::dir("qwen2"));
    let golden = &goldens("qwen2")[1];
    let stop = golden.tokens[7];
    let at = golden.tokens.iter().position(|&id| id == stop).unwrap();
    let options = GenerateOptions {
        stop_ids: vec![stop],
        ..options(24)
    };
    let generated = run(&model, &golden.prompt, &options);
    assert_eq!(ids(&generated), golden.tokens[..=at]);
    assert_eq!(generated.reason, FinishReason::Stop);
    let events = model.generate(golden.prompt.clone(), &options).unwrap();
    assert_eq!(events.count(), at + 2);
}

#[test]
fn the_end_tokens_of_the_checkpoint_end_a_text() {
    let golden = &goldens("qwen2")[1];
    let eos = golden.tokens[5];
    let at = golden.tokens.iter().position(|&id| id == eos).unwrap();
    let dir = checkpoint::with_config("qwen2", |config| config["eos_token_id"] = json!([eos, 63]));
    let model = load(dir.path());
    assert_eq!(model.eos_ids(), [eos, 63]);
    let ending = GenerateOptions {
        ignore_eos: false,
        ..options(24)
    };
    let generated = run(&model, &golden.prompt, &ending);
    assert_eq!(ids(&generated), golden.tokens[..=at]);
    assert_eq!(generated.reason, FinishReason::Stop);
    assert_eq!(
        ids(&run(&model, &golden.prompt, &options(24))),
        golden.tokens
    );
}

#[test]
fn texts_are_streamed_and_stop_strings_cut_them() {
    let dir = checkpoint::with_tokenizer("llama_tied", "qwen");
    let model = load(dir.path());
    let prompt = &goldens("llama_tied")[0].prompt;
    let whole = run(&model, prompt, &options(24));
    let text = whole.text.clone().unwrap();
    assert_eq!(
        text,
        model
            .tokenizer()
            .unwrap()
            .decode(&ids(&whole), true)
            .unwrap()
    );
    // A stop string from the middle of the text that does not occur before.
    let chars: Vec<char> = text.chars().collect();
    let (start, end) = (chars.len() / 2, chars.len() / 2 + 3);
    let stop: String = chars[start..end].iter().collect();
    let options = GenerateOptions {
        stop: vec!["not there at all".to_owned(), stop.clone()],
        ..options(24)
    };
    let mut streamed = String::new();
    let mut generation = model.generate(prompt.clone(), &options).unwrap();
    let generated = generation.run(|event| {
        streamed.push_str(event.text());
        ControlFlow::Continue(())
    });
    let generated = generated.unwrap();
    assert_eq!(generated.reason, FinishReason::Stop);
    assert_eq!(Some(&streamed), generated.text.as_ref());
    assert_eq!(streamed, text.split(&stop).next().unwrap());
    assert!(generated.tokens.len() < whole.tokens.len());
    assert!(ids(&whole).starts_with(&ids(&generated)));
}

#[test]
fn cancelling_ends_it() {
    let model = load(checkpoint::dir("qwen3"));
    let golden = &goldens("qwen3")[0];
    let cancel = CancelToken::new();
    let options = GenerateOptions {
        cancel: cancel.clone(),
        ..options(24)
    };
    let mut generation = model.generate(golden.prompt.clone(), &options).unwrap();
    let mut seen = 0;
    let generated = generation.run(|_| {
        seen += 1;
        if seen == 3 {
            cancel.cancel();
        }
        ControlFlow::Continue(())
    });
    let generated = generated.unwrap();
    assert_eq!(ids(&generated), golden.tokens[..3]);
    assert_eq!(generated.reason, FinishReason::Cancelled);
    // Cancelled before it begins: no tokens.
    assert!(run(&model, &golden.prompt, &options).tokens.is_empty());
    cancel.reset();
    assert_eq!(ids(&run(&model, &golden.prompt, &options)), golden.tokens);
    let mut generation = model.generate(golden.prompt.clone(), &options).unwrap();
    let broken = generation.run(|_| ControlFlow::Break(())).unwrap();
    assert_eq!(ids(&broken), golden.tokens[..1]);
    assert_eq!(broken.reason, FinishReason::Cancelled);
}

#[test]
fn a_seed_gives_its_tokens() {
    let model = load(checkpoint::dir("qwen3"));
    let prompt = &goldens("qwen3")[0].prompt;
    let drawn = |seed, prefill_chunk| {
        let sampling = SamplingParams {
            temperature: 1.5,
            top_p: 0.95,
            seed,
            frequency_penalty: 0.1,
            ..Default::default()
        };
        let options = GenerateOptions {
            sampling,
            prefill_chunk,
            ..options(24)
        };
        ids(&run(&model, prompt, &options))
    };
    assert_eq!(drawn(Some(7), 512), drawn(Some(7), 2));
    assert_ne!(drawn(Some(7), 512), drawn(Some(8), 512));
    assert_ne!(drawn(None, 512), drawn(None, 512));
}

#[test]
fn a_top_k_of_one_is_greedy() {
    let model = load(checkpoint::dir("qwen3"));
    let golden = &goldens("qwen3")[1];
    let options = GenerateOptions {
        sampling: SamplingParams {
            temperature: 2.0,
            top_k: 1,
            ..Default::default()
        },
        ..options(24)
    };
    assert_eq!(ids(&run(&model, &golden.prompt, &options)), golden.tokens);
}

#[test]
fn penalties_and_bias_change_the_tokens() {
    let model = load(checkpoint::dir("qwen3"));
    let golden = &goldens("qwen3")[0];
    let with = |change: fn(&mut SamplingParams)| {
        let mut options = options(24);
        change(&mut options.sampling);
        ids(&run(&model, &golden.prompt, &options))
    };
    // Each token counts at once, also one that is queued and not read yet.
    let ranked = with(|sampling| {
        sampling.logit_bias = [(10, 9000.0), (20, 6000.0), (30, 3000.0)].into();
        sampling.presence_penalty = 10_000.0;
    });
    assert_eq!(ranked[..3], [10, 20, 30]);
    let repeated = with(|sampling| {
        sampling.logit_bias = [(10, 9000.0), (20, 6000.0)].into();
        sampling.repeat_penalty = 10_000.0;
        sampling.repeat_context = 1;
    });
    assert_eq!(repeated[..4], [10, 20, 10, 20]);
    let forbidden =
        with(|sampling| sampling.logit_bias = (0..63).map(|id| (id, f32::NEG_INFINITY)).collect());
    assert_eq!(forbidden, [63; 24]);
    assert_ne!(
        with(|sampling| sampling.repeat_penalty = 3.0),
        golden.tokens
    );
}

#[test]
fn log_probabilities_are_those_of_the_reference() {
    let model = load(checkpoint::dir("gemma3_text"));
    for golden in goldens("gemma3_text") {
        let options = GenerateOptions {
            logprobs: Some(3),
            ..options(24)
        };
        let generated = run(&model, &golden.prompt, &options);
        for (choice, logits) in generated.tokens.iter().zip(&golden.step_logits) {
            let expected = log_softmax(logits);
            let near =
                |id: u32, logprob: f32| (f64::from(logprob) - expected[id as usize]).abs() < 1e-4;
            assert!(near(choice.id, choice.logprob.unwrap()));
            assert_eq!(choice.top.len(), 3);
            assert_eq!(choice.top[0].0, choice.id);
            assert!(choice.top.iter().all(|&(id, logprob)| near(id, logprob)));
        }
    }
}

#[test]
fn the_positions_of_the_model_are_its_limit() {
    let model = load(checkpoint::dir("phi3_longrope"));
    let prompt: Vec<u32> = (0..150).map(|i| i % 60).collect();
    let generated = run(&model, &prompt, &options(usize::MAX));
    assert_eq!(
        (generated.tokens.len(), generated.reason),
        (10, FinishReason::Length)
    );
    let error = model.generate(vec![1; 160], &options(1)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.to_string().contains("160 positions"), "{error}");
}

#[test]
fn requests_that_cannot_be_are_refused_by_name() {
    let model = load(checkpoint::dir("qwen3"));
    let refuse = |prompt: Vec<u32>, change: fn(&mut GenerateOptions)| {
        let mut options = options(4);
        change(&mut options);
        let error = model.generate(prompt, &options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        error.to_string()
    };
    assert_eq!(
        refuse(vec![1, 64], |_| ()),
        "token id 64 at index 1 is outside the model's vocabulary of 64"
    );
    assert_eq!(
        refuse(vec![], |_| ()),
        "the prompt is empty; expected at least one token"
    );
    assert!(refuse(vec![1], |o| o.max_tokens = 0).contains("max_tokens"));
    assert!(refuse(vec![1], |o| o.prefill_chunk = 0).contains("prefill_chunk"));
    assert!(refuse(vec![1], |o| o.sampling.top_p = 1.7).contains("given 1.7"));
    assert!(refuse(vec![1], |o| o.sampling.logit_bias.extend([(64, 1.0)])).contains("64"));
    assert!(refuse(vec![1], |o| o.stop.push("x".to_owned())).contains("tokenizer"));
    let error = model.generate("text", &options(4)).err().unwrap();
    assert!(
        error.to_string().contains("has no tokenizer.json"),
        "{error}"
    );
}

#[test]
fn a_back_end_says_what_it_lacks() {
    let model = load(checkpoint::dir("qwen3"));
    let golden = &goldens("qwen3")[0];
    let backend: &dyn TextModel = &model;
    let mut events = 0;
    let prompt = Prompt::Tokens(golden.prompt.clone());
    let generated = backend.generate(&prompt, &options(6), &mut |_| {
        events += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(ids(&generated.unwrap()), golden.tokens[..6]);
    assert_eq!(events, 7);
    assert_eq!(backend.info().model_type, "qwen3");
    let metrics = backend.metrics();
    assert_eq!(
        (metrics.prompt_tokens, metrics.decode_tokens),
        (golden.prompt.len(), 6)
    );
    assert!(metrics.decode_tokens_per_s() > 0.0 && metrics.peak_memory_bytes > 0);
    assert!(metrics.total >= metrics.prefill + metrics.decode);
    let requests = [(prompt, options(6))];
    let mut together = backend.batch_generate(&requests).unwrap();
    assert_eq!(
        ids(&together.remove(0).unwrap()),
        golden.tokens[..6].to_vec()
    );

    struct Bare<'m>(&'m LoadedModel);
    impl TextModel for Bare<'_> {
        fn info(&self) -> &ModelInfo {
            self.0.info()
        }

        fn metrics(&self) -> Metrics {
            self.0.metrics()
        }
    }
    let bare = Bare(&model);
    let error = bare.classify(&[], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = bare.batch_generate(&requests).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
