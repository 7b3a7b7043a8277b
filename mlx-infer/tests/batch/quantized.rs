//! Caches with quantised keys and values: the same guarantees as without quantisation, in fewer
//! bytes.

use crate::checkpoint::{dir, load};
use crate::independence::{alone, greedy, mixed, prompt, same, together};
use mlx_core::{DType, QuantMode, Scheme};
use mlx_infer::{
    Choice, Engine, EngineOptions, ErrorKind, Limits, LoadOptions, LoadedModel, Request,
};

/// Growing caches, alone and with rings; heads of 32.
const CASES: [&str; 3] = ["q_qwen3_mixed", "q_llama_b4_g64", "q_gemma3_text_b4_g32"];

fn options(bits: i32, group_size: i32) -> LoadOptions {
    LoadOptions {
        dtype: Some(DType::F32),
        kv_quantization: Some(Scheme::new(group_size, bits, QuantMode::Affine).unwrap()),
        ..LoadOptions::default()
    }
}

fn quantized(case: &str, bits: i32) -> LoadedModel {
    LoadedModel::load(dir(case), options(bits, 32)).unwrap()
}

#[test]
fn batches_equal_single_runs_and_chunks_do_not_show() {
    for (case, bits) in CASES.into_iter().zip([4, 8, 4]) {
        let model = quantized(case, bits);
        let requests = mixed(&model, &[1, 3, 17, 40, 255, 257]);
        let found = together(&model, &requests, &Limits::default());
        for (row, (prompt, options)) in requests.iter().enumerate() {
            let expected = alone(&model, prompt, options);
            assert_eq!(found[row], expected, "{case}, {bits} bits: row {row}");
        }
        let (prompt, whole) = &requests[4];
        let expected = alone(&model, prompt, whole);
        let mut cut = whole.clone();
        cut.prefill_chunk = 7;
        assert!(
            same(&alone(&model, prompt, &cut), &expected),
            "{case}, {bits} bits"
        );
    }
}

/// Results are close to the unquantised one, closer with more bits, and never equal, which shows
/// that the setting has an effect.
#[test]
fn eight_bits_are_nearer_than_four() {
    for case in CASES {
        let exact = load(dir(case));
        let off = |bits| -> f32 {
            let model = quantized(case, bits);
            let off = |n| {
                let first = |model| alone(model, &prompt(40, n), &greedy(1))[0].logprob.unwrap();
                (first(&model) - first(&exact)).abs()
            };
            (0..8).map(off).sum()
        };
        let (four, eight) = (off(4), off(8));
        assert!(
            eight > 0.0 && 4.0 * eight < four && four < 4.0,
            "{case}: {eight}, {four}"
        );
    }
}

#[test]
fn bytes_are_those_of_codes_and_scales() {
    // For 32 numbers: 128 bytes in f32, and 16 or 32 bytes of codes with a scale and a bias.
    for (bits, bytes) in [(None, 128), (Some(4), 16 + 8), (Some(8), 32 + 8)] {
        let model = match bits {
            Some(bits) => quantized(CASES[0], bits),
            None => load(dir(CASES[0])),
        };
        let kv = model.info().geometry.kv()[0].expect("the layers have attention");
        let heads = kv.heads as usize;
        for cost in model.state_costs() {
            assert_eq!(cost.position_bytes, 2 * heads * bytes, "{bits:?} bits");
        }
        let cache = model.prompt_cache(prompt(50, 1), &greedy(1)).unwrap();
        let layers = model.info().layers.len();
        // 50 positions take one page of 64.
        assert_eq!(
            cache.nbytes(),
            64 * layers * 2 * heads * bytes,
            "{bits:?} bits"
        );
    }
}

/// Requests that do not fit into memory unquantised fit when quantised, and preempted rows return.
#[test]
fn an_engine_counts_quantised_bytes() {
    let exact = load(dir(CASES[0]));
    let costs = exact.state_costs();
    // Rows of 60 to 130 positions take two or three pages of 64, of which exact ones have one.
    let page = 64 * costs.iter().map(|cost| cost.position_bytes).sum::<usize>();
    let limits = Limits {
        cache_bytes: Some(page),
        ..Limits::default()
    };
    let engine = |options: LoadOptions| {
        let start = move || LoadedModel::load(dir(CASES[0]), options);
        let limits = limits.clone();
        Engine::start(
            start,
            EngineOptions {
                limits,
                ..EngineOptions::default()
            },
        )
        .unwrap()
    };
    let ask = |engine: &Engine, text: &[u32]| {
        let request = Request::new(text.to_vec(), greedy(12));
        engine.submit(request).unwrap().wait()
    };
    let wide = engine(LoadOptions {
        kv_quantization: None,
        ..options(4, 32)
    });
    let error = ask(&wide, &prompt(60, 3)).error.expect("it does not fit");
    assert_eq!(error.kind(), ErrorKind::Memory);
    let (narrow, model) = (engine(options(4, 32)), quantized(CASES[0], 4));
    let mut text = prompt(60, 3);
    for turn in 0..3 {
        let result = ask(&narrow, &text);
        assert!(result.error.is_none(), "{:?}", result.error);
        // The beginning was computed earlier by different products, so the quantised numbers may
        // differ by one step.
        let expected = alone(&model, &text, &greedy(12));
        let ids = |tokens: &[Choice]| tokens.iter().map(|choice| choice.id).collect::<Vec<_>>();
        assert_eq!(ids(&result.tokens), ids(&expected), "turn {turn}");
        assert_eq!(result.metrics.cached_tokens > 0, turn > 0, "turn {turn}");
        text.extend(ids(&result.tokens));
        text.extend(prompt(5, turn));
    }
}

#[test]
fn a_prompt_cache_in_a_file_is_of_one_kind() {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES {
        let models = [load(dir(case)), quantized(case, 4), quantized(case, 8)];
        let text = prompt(40, 3);
        let longer = [&text[..], &[5, 9]].concat();
        for (n, model) in models.iter().enumerate() {
            let path = folder.path().join(format!("{case}-{n}"));
            let made = model.prompt_cache(text.clone(), &greedy(1)).unwrap();
            model.save_prompt_cache(&made, &path).unwrap();
            let read = model.load_prompt_cache(&path).unwrap();
            assert_eq!(read.nbytes(), made.nbytes());
            let run = |cache| {
                let generation = model.generate(longer.clone(), &greedy(12)).unwrap();
                let mut generation = generation.with_prompt_cache(cache).unwrap();
                generation
                    .run(|_| std::ops::ControlFlow::Continue(()))
                    .unwrap()
            };
            let found = run(&read);
            assert_eq!(found.metrics.cached_tokens, text.len(), "{case}");
            assert_eq!(found.tokens, run(&made).tokens, "{case}");
            assert!(
                same(&found.tokens, &alone(model, &longer, &greedy(12))),
                "{case}"
            );
            let other = &models[(n + 1) % 3];
            let error = other.load_prompt_cache(&path).unwrap_err().to_string();
            let kinds = [
                "the model's dtype",
                "affine, 4 bits in groups of 32",
                "affine, 8 bits in groups of 32",
            ];
            let said = format!(
                "kept in {}, those of this model in {}",
                kinds[n],
                kinds[(n + 1) % 3]
            );
            assert!(error.contains(&said), "{error}");
        }
    }
}

#[test]
fn heads_that_do_not_divide_into_groups_are_refused() {
    let refused = |case: &str, options| match LoadedModel::load(dir(case), options) {
        Ok(_) => panic!("{case} was loaded"),
        Err(error) => error.to_string(),
    };
    let message = refused("qwen3", options(4, 32));
    assert!(
        message.contains("keys and values of qwen3, head_dim"),
        "{message}"
    );
    let message = refused(CASES[0], options(8, 64));
    assert!(
        message.contains("rows of 32 do not divide into groups of 64"),
        "{message}"
    );
    let message = refused(CASES[0], options(3, 32));
    assert!(
        message.contains("4 or 8 bits, given affine, 3 bits"),
        "{message}"
    );
}
