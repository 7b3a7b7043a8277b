//! Tokens with speculation equal those without, alone and in batches.

use crate::checkpoint::dir;
use crate::independence::{CASES, alone, greedy, prompt, sampled};
use mlx_infer::{
    BatchResult, Choice, Engine, EngineOptions, GenerateOptions, Limits, LoadOptions, LoadedModel,
    Request, Speculative, default_model_files,
};

/// Whether these are the same tokens, with log probabilities to the bit. With MLX's own kernels the
/// last bits may differ, because their order of addition depends on the number of rows.
pub fn same(found: &[Choice], expected: &[Choice]) -> bool {
    match std::env::var("MLX_CPU_KERNELS").as_deref() {
        Ok("off") => crate::independence::same(found, expected),
        _ => found == expected,
    }
}

fn load(dir: std::path::PathBuf) -> LoadedModel {
    let options = LoadOptions {
        dtype: Some(mlx_core::DType::F32),
        max_draft: 8,
        ..LoadOptions::default()
    };
    LoadedModel::load(dir, options).unwrap()
}

/// A prompt that repeats itself, so that drafts are found in it.
fn repeated(times: usize, seed: u64) -> Vec<u32> {
    prompt(5, seed).repeat(times)
}

fn speculating(speculative: Speculative, options: GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        speculative,
        ..options
    }
}

/// Rows that draft 1 to 8 tokens, rows that choose the length themselves, and rows that do not
/// speculate; greedy and sampled ones.
fn rows(count: usize, max_tokens: usize) -> Vec<(Vec<u32>, GenerateOptions)> {
    (0..count)
        .map(|row| {
            let speculative = match row % 10 {
                0 => Speculative::Off,
                9 => Speculative::Auto,
                tokens => Speculative::Tokens(tokens),
            };
            let seed = row as u64;
            let options = match row % 3 {
                0 => sampled(max_tokens, seed),
                _ => greedy(max_tokens),
            };
            (
                repeated(1 + row % 4, seed),
                speculating(speculative, options),
            )
        })
        .collect()
}

fn plain(model: &LoadedModel, (prompt, options): &(Vec<u32>, GenerateOptions)) -> Vec<Choice> {
    let options = speculating(Speculative::Off, options.clone());
    alone(model, prompt, &options)
}

/// The results of a batch, and the drafted and accepted tokens of all rows.
fn run(
    model: &LoadedModel,
    requests: &[(Vec<u32>, GenerateOptions)],
    limits: &Limits,
) -> (Vec<Vec<Choice>>, [usize; 2]) {
    let batch = requests
        .iter()
        .map(|(prompt, options)| Request::new(prompt.clone(), options.clone()))
        .collect();
    let results = model.batch_generate(batch, limits).unwrap();
    let mut counts = [0, 0];
    let mut take = |result: BatchResult| {
        assert!(result.error.is_none(), "{:?}", result.error);
        let metrics = result.metrics;
        counts[0] += metrics.drafted_tokens;
        counts[1] += metrics.accepted_draft_tokens;
        result.tokens
    };
    let tokens = results.into_iter().map(&mut take).collect();
    (tokens, counts)
}

#[test]
fn tokens_equal_those_without_speculation() {
    for case in CASES {
        let model = load(dir(case));
        let requests = rows(20, 24);
        let expected: Vec<_> = requests
            .iter()
            .map(|request| plain(&model, request))
            .collect();
        for (row, (prompt, options)) in requests.iter().enumerate() {
            let found = alone(&model, prompt, options);
            assert!(same(&found, &expected[row]), "{case}, row {row} alone");
        }
        for count in [5, 20] {
            let (found, counts) = run(&model, &requests[..count], &Limits::default());
            for (row, found) in found.iter().enumerate() {
                assert!(same(found, &expected[row]), "{case}: row {row} of {count}");
            }
            let [drafted, accepted] = counts;
            assert!(accepted <= drafted, "{case}, {count}: {counts:?}");
            assert!(
                count < 20 || (0 < accepted && accepted < drafted),
                "{case}: {counts:?}"
            );
        }
    }
}

#[test]
fn tokens_survive_preemptions_and_small_caches() {
    for case in [
        "llama_llama3",
        "gemma3_text",
        "phi3_longrope",
        "llama_dynamic",
    ] {
        let model = load(dir(case));
        let requests = rows(12, 40);
        let expected: Vec<_> = requests
            .iter()
            .map(|request| plain(&model, request))
            .collect();
        let costs = model.state_costs();
        let row = 256 * costs.iter().map(|cost| cost.position_bytes).sum::<usize>();
        let limits = Limits {
            cache_bytes: Some(5 * row),
            ..Limits::default()
        };
        let (found, _) = run(&model, &requests, &limits);
        for (row, found) in found.iter().enumerate() {
            assert!(same(found, &expected[row]), "{case}: row {row}");
        }
    }
}

#[test]
fn quantised_caches_and_processors_go_with_it() {
    let options = LoadOptions {
        kv_quantization: Some(mlx_core::Scheme::new(32, 8, mlx_core::QuantMode::Affine).unwrap()),
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(dir("q_llama_b4_g64"), options).unwrap();
    let requests = rows(8, 30);
    let (found, [_, accepted]) = run(&model, &requests, &Limits::default());
    for (row, request) in requests.iter().enumerate() {
        let found: Vec<u32> = found[row].iter().map(|choice| choice.id).collect();
        let plain = plain(&model, request);
        let expected: Vec<u32> = plain.iter().map(|choice| choice.id).collect();
        assert_eq!(found, expected, "row {row}");
    }
    assert!(accepted > 0);

    // A window needs room for rejected tokens.
    let model = LoadedModel::load(dir("gemma3_text"), LoadOptions::default()).unwrap();
    let options = speculating(Speculative::Tokens(2), greedy(4));
    let error = model.generate(repeated(4, 1), &options).err().unwrap();
    assert!(
        error.to_string().contains("loaded with max_draft"),
        "{error}"
    );
    let options = speculating(Speculative::Auto, greedy(4));
    assert_eq!(alone(&model, &repeated(4, 1), &options).len(), 4);

    let model = load(dir("llama_llama3"));
    let even = |_: &[u32], logits: &mut [f32]| {
        logits
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|logit| *logit = f32::NEG_INFINITY);
        Ok(())
    };
    let options = speculating(Speculative::Tokens(4), greedy(30));
    let batch = vec![
        Request::new(repeated(4, 1), options.clone()).with_processor(even),
        Request::new(repeated(4, 2), options.clone()),
    ];
    let results: Vec<BatchResult> = model.batch_generate(batch, &Limits::default()).unwrap();
    assert!(results[0].tokens.iter().all(|choice| choice.id % 2 == 0));
    assert_eq!(results[0].tokens.len(), 30);
    let expected = plain(&model, &(repeated(4, 2), options));
    assert!(same(&results[1].tokens, &expected));
}

#[test]
fn stops_end_within_a_draft() {
    let model = load(dir("llama_llama3"));
    let prompt = repeated(6, 3);
    let all = plain(&model, &(prompt.clone(), greedy(40)));
    for at in [0, 1, 2, 3, 7, 20] {
        let end = all[at].id;
        let first = all.iter().position(|choice| choice.id == end).unwrap();
        let options = GenerateOptions {
            stop_ids: vec![end],
            ..speculating(Speculative::Tokens(8), greedy(40))
        };
        assert!(
            same(&alone(&model, &prompt, &options), &all[..=first]),
            "{at}"
        );
        let options = speculating(Speculative::Tokens(8), greedy(at + 1));
        assert!(
            same(&alone(&model, &prompt, &options), &all[..=at]),
            "{at} at most"
        );
    }
}

#[test]
fn an_engine_takes_fewer_steps_for_a_text_that_repeats() {
    let steps = |speculative| {
        let load = || {
            let options = LoadOptions {
                max_draft: 8,
                ..LoadOptions::default()
            };
            LoadedModel::load_files(default_model_files(), options, &mut |_, _| ())
        };
        let engine = Engine::start(load, EngineOptions::default()).unwrap();
        let text = "The red fox eats a ripe berry. The red fox eats a ripe berry. ".repeat(3);
        let options = GenerateOptions {
            max_tokens: 48,
            speculative,
            ignore_eos: true,
            ..Default::default()
        };
        let result = engine.submit(Request::new(text, options)).unwrap().wait();
        assert!(result.error.is_none(), "{:?}", result.error);
        let tokens: Vec<u32> = result.tokens.iter().map(|choice| choice.id).collect();
        (tokens, engine.load().forwards)
    };
    let (expected, plain) = steps(Speculative::Off);
    let (found, fewer) = steps(Speculative::Tokens(8));
    assert_eq!(found, expected);
    assert!(2 * fewer < plain, "{fewer} steps, {plain} without");
}

/// Recurrent layers compute their state again after drafts are rejected: no room is needed for
/// drafts, and rejected tokens leave no trace.
#[test]
fn recurrent_layers_speculate_without_room() {
    for case in ["qwen3_5_text", "qwen3_5_moe", "qwen3_next"] {
        let options = LoadOptions {
            dtype: Some(mlx_core::DType::F32),
            ..LoadOptions::default()
        };
        let model = LoadedModel::load(dir(case), options).unwrap();
        let requests: Vec<_> = rows(10, 40)
            .into_iter()
            .map(|(prompt, mut options)| {
                // The prompts have few different tokens, so that each step has drafts, some right
                // and some wrong.
                let few = 5..10;
                let bias = |id: u32| (id, if few.contains(&id) { 0.0 } else { -1000.0 });
                options.sampling.logit_bias = (0..64).map(bias).collect();
                (prompt, options)
            })
            .collect();
        let expected: Vec<_> = requests
            .iter()
            .map(|request| plain(&model, request))
            .collect();
        for rows in [10, 3] {
            let limits = Limits {
                rows,
                ..Limits::default()
            };
            let (found, [drafted, accepted]) = run(&model, &requests, &limits);
            for (row, found) in found.iter().enumerate() {
                assert!(same(found, &expected[row]), "{case}: row {row} of {rows}");
            }
            let rejected = drafted - accepted;
            assert!(
                accepted > 30 && rejected > 30,
                "{case}: {accepted} and {rejected}"
            );
        }
    }
}

/// Rows with recurrent states and quantised keys and values are preempted and return, others
/// continue from lengths that were recorded for an earlier text, and drafts are rejected in the
/// meantime.
#[test]
fn quantised_caches_of_recurrent_models_are_preempted_and_resumed() {
    let options = LoadOptions {
        kv_quantization: Some(mlx_core::Scheme::new(32, 8, mlx_core::QuantMode::Affine).unwrap()),
        ..LoadOptions::default()
    };
    for case in ["q_qwen3_5_mixed", "q_qwen3_next_b4_g32"] {
        let model = LoadedModel::load(dir(case), options).unwrap();
        let requests = rows(9, 40);
        let expected: Vec<_> = requests
            .iter()
            .map(|request| plain(&model, request))
            .collect();
        let costs = model.state_costs();
        let row: usize = costs.iter().map(|cost| cost.bytes(64)).sum();
        let limits = Limits {
            cache_bytes: Some(4 * row),
            ..Limits::default()
        };
        let (found, _) = run(&model, &requests, &limits);
        for (row, found) in found.iter().enumerate() {
            assert!(
                crate::independence::same(found, &expected[row]),
                "{case}: row {row}"
            );
        }
    }
}

/// A head for multi-token prediction drafts where the text does not repeat itself. The tokens are
/// those of a model without the head, also for rows that are preempted and return and for prompts
/// with a common beginning.
#[test]
fn a_head_drafts_and_does_not_show() {
    for case in ["qwen3_5_text", "qwen3_5_moe", "glm4_moe", "deepseek_v3"] {
        let load = |max_draft| {
            let options = LoadOptions {
                dtype: Some(mlx_core::DType::F32),
                max_draft,
                ..LoadOptions::default()
            };
            LoadedModel::load(dir(case), options).unwrap()
        };
        let without = load(0);
        let with = load(3);
        let requests: Vec<_> = (0..8)
            .map(|row| {
                let speculative = match row % 4 {
                    0 => Speculative::Off,
                    3 => Speculative::Auto,
                    tokens => Speculative::Tokens(tokens),
                };
                let options = match row % 3 {
                    0 => greedy(30),
                    _ => sampled(30, row as u64),
                };
                let text = [prompt(20, 1), prompt(1 + row, row as u64)].concat();
                (text, speculating(speculative, options))
            })
            .collect();
        let expected: Vec<_> = requests
            .iter()
            .map(|request| plain(&without, request))
            .collect();
        let costs = with.state_costs();
        let row: usize = costs.iter().map(|cost| cost.bytes(256)).sum();
        for (rows, cache_bytes) in [(8, None), (3, None), (8, Some(3 * row))] {
            let limits = Limits {
                rows,
                cache_bytes,
                ..Limits::default()
            };
            let (found, [drafted, accepted]) = run(&with, &requests, &limits);
            for (row, found) in found.iter().enumerate() {
                assert!(same(found, &expected[row]), "{case}: row {row} of {rows}");
            }
            assert!(
                drafted > 100 && accepted > 0,
                "{case}: {accepted} of {drafted}"
            );
        }
    }
}
