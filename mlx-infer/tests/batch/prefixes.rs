//! Stored prefixes do not change tokens.

use std::ops::ControlFlow;

use crate::checkpoint::{dir, load};
use crate::independence::{CASES, alone, greedy, prompt, same, sampled};
use mlx_infer::{
    Choice, Engine, EngineOptions, GenerateOptions, Generated, Limits, LoadOptions, LoadedModel,
    Prompt, PromptCache, Request,
};
use mlx_nn::LayerKind;

fn engine(case: &'static str, limits: Limits) -> Engine {
    let options = EngineOptions {
        limits,
        ..EngineOptions::default()
    };
    Engine::start(move || Ok(load(dir(case))), options).unwrap()
}

fn ask(engine: &Engine, prompt: &[u32], options: &GenerateOptions) -> (Vec<Choice>, usize) {
    let request = Request::new(prompt.to_vec(), options.clone());
    let result = engine.submit(request).unwrap().wait();
    assert!(result.error.is_none(), "{:?}", result.error);
    (result.tokens, result.metrics.cached_tokens)
}

fn is_recurrent(kind: &LayerKind) -> bool {
    matches!(kind, LayerKind::Recurrent(_))
}

/// A length that no window of the tiny models exceeds.
const LONG: usize = 60;

#[test]
fn conversations_go_on_where_they_were() {
    for case in CASES {
        let model = load(dir(case));
        let engine = engine(case, Limits::default());
        let mut text = prompt(LONG, 3);
        let mut before = 0;
        for turn in 0..4 {
            let options = sampled(9, turn);
            let (tokens, cached) = ask(&engine, &text, &options);
            let expected = alone(&model, &text, &options);
            assert!(same(&tokens, &expected), "{case}, turn {turn}");
            // All tokens of the previous turn except the last one, which was not computed.
            assert_eq!(cached, before, "{case}, turn {turn}");
            text.extend(tokens.iter().map(|choice| choice.id));
            before = text.len() - 1;
            text.extend(prompt(7, 50 + turn));
        }
        let load = engine.load();
        assert_eq!(load.prefix_hits, 3, "{case}");
        assert!(load.prefix_bytes > 0);
        engine.finish().unwrap();
    }
}

#[test]
fn what_prompts_have_in_common_is_computed_once_and_does_not_show() {
    for case in CASES {
        let model = load(dir(case));
        let info = model.info();
        let recurrent = info.layers.iter().any(is_recurrent);
        let head = prompt(LONG, 9);
        let ends: Vec<Vec<u32>> = (0..6).map(|n| prompt(3 + 5 * n, 20 + n as u64)).collect();
        for chunk in [512, 7] {
            let engine = engine(case, Limits::default());
            let mut computed_once = 0;
            for (n, end) in ends.iter().enumerate() {
                let text = [&head[..], end].concat();
                let options = GenerateOptions {
                    prefill_chunk: chunk,
                    ..if n % 2 == 0 {
                        greedy(12)
                    } else {
                        sampled(12, n as u64)
                    }
                };
                let (tokens, cached) = ask(&engine, &text, &options);
                let expected = alone(&model, &text, &options);
                assert!(same(&tokens, &expected), "{case}, text {n}");
                // A recurrent layer continues from a length that was recorded for the previous
                // text. For a text that is computed in chunks that is 16 tokens before its end.
                let least = if recurrent { LONG - 15 } else { LONG };
                let is_shared = (least..=LONG).contains(&cached);
                computed_once += usize::from(is_shared);
                assert!(cached == 0 || is_shared, "{case}, text {n}: {cached}");
            }
            // A state that has advanced cannot be truncated. The second text stores the common
            // beginning for the later texts. Windows still hold the page of these positions.
            let is_cut = recurrent && chunk > LONG;
            let expected = if is_cut { 4 } else { 5 };
            assert_eq!(computed_once, expected, "{case}");
            engine.finish().unwrap();
        }
    }
}

/// Texts with a common beginning, all at once, in batches of every order. With little memory, rows
/// are preempted and return; with a small store, prefixes are stored and evicted.
#[test]
fn batches_with_common_beginnings_equal_the_single_runs() {
    for case in CASES {
        let model = load(dir(case));
        let info = model.info();
        let kv = info.geometry.kv().iter().flatten().next();
        let kv = kv.expect("some layer has attention");
        let row = info.layers.len() * 256 * 2 * (kv.heads * kv.key_dim * 4) as usize;
        let text = prompt(90, 5);
        let requests: Vec<(Vec<u32>, GenerateOptions)> = (0..10u64)
            .map(|n| {
                let cut = [90, 40, 16, 64, 15, 90, 70][n as usize % 7];
                let end = prompt(n as usize % 4, 70 + n);
                let options = match n % 3 {
                    0 => greedy(17),
                    _ => sampled(8 + n as usize, n),
                };
                let options = GenerateOptions {
                    prefill_chunk: [512, 10][n as usize % 2],
                    ..options
                };
                ([&text[..cut], &end].concat(), options)
            })
            .collect();
        let expected: Vec<Vec<Choice>> = requests
            .iter()
            .map(|(prompt, options)| alone(&model, prompt, options))
            .collect();
        for (rows, memory, prefix_bytes) in [
            (64, None, 512 << 20),
            (2, Some(2 * row), 512 << 20),
            (3, None, row),
        ] {
            let limits = Limits {
                rows,
                cache_bytes: memory,
                prefix_bytes,
                ..Limits::default()
            };
            let asked = requests
                .iter()
                .map(|(prompt, options)| Request::new(prompt.clone(), options.clone()));
            let results = model.batch_generate(asked.collect(), &limits).unwrap();
            let mut cached = 0;
            for (n, result) in results.into_iter().enumerate() {
                assert!(result.error.is_none(), "{case}: {:?}", result.error);
                assert!(
                    same(&result.tokens, &expected[n]),
                    "{case}, {rows} rows: text {n}"
                );
                cached += result.metrics.cached_tokens;
            }
            // A prompt shares what an earlier pass has computed. All prompts of 64 rows are one pass.
            assert!(cached > 0 || rows == 64, "{case}, {rows} rows");
        }
    }
}

/// Prompts on both sides of the limit of LongRoPE or dynamic NTK do not share their common
/// beginning.
#[test]
fn a_switch_of_embeddings_is_kept_apart() {
    for case in ["phi3_longrope", "llama_dynamic"] {
        let model = load(dir(case));
        let text = prompt(100, 8);
        let cached: Vec<Vec<usize>> = [[20, 30, 90, 95, 31], [90, 95, 20, 31, 94]]
            .into_iter()
            .map(|order| {
                let engine = engine(case, Limits::default());
                let ask = |n: usize| {
                    let options = greedy(20);
                    let (tokens, cached) = ask(&engine, &text[..n], &options);
                    let expected = alone(&model, &text[..n], &options);
                    assert!(same(&tokens, &expected), "{case}: {n} of {order:?}");
                    cached
                };
                order.into_iter().map(ask).collect()
            })
            .collect();
        assert!(
            cached.iter().flatten().any(|&n| n > 0),
            "{case}: {cached:?}"
        );
    }
}

#[test]
fn the_store_stays_within_its_bytes() {
    let limits = Limits {
        prefix_bytes: 100_000,
        ..Limits::default()
    };
    for case in ["qwen3", "gemma3_text"] {
        let engine = engine(case, limits.clone());
        let mut most = 0;
        for n in 0..30 {
            ask(&engine, &prompt(40, n), &greedy(2));
            let kept = engine.load().prefix_bytes;
            assert!(kept <= 100_000, "{case}: {kept}");
            most = most.max(kept);
        }
        assert!(most > 50_000, "{case}: {most}");
        // The first prefixes are evicted, and the last one is still stored.
        let again = ask(&engine, &prompt(40, 29), &greedy(2)).1;
        assert_eq!(again, 39, "{case}: {:?}", engine.load());
        assert_eq!(ask(&engine, &prompt(40, 0), &greedy(2)).1, 0);
        engine.finish().unwrap();
    }
}

#[test]
fn a_generation_leaves_what_the_next_turn_begins_with() {
    for case in CASES {
        let model = load(dir(case));
        let mut text = prompt(LONG, 3);
        let mut computed: Option<PromptCache> = None;
        for turn in 0..4 {
            let options = sampled(9, turn);
            let mut generation = model.generate(text.clone(), &options).unwrap();
            if let Some(computed) = &computed {
                generation = generation.with_prompt_cache(computed).unwrap();
            }
            // The third turn is cancelled, at a time when the next token may be in progress.
            let most = if turn == 2 { 4 } else { 9 };
            let mut told = 0;
            let generated = generation.run(|_| {
                told += 1;
                if told == most && turn == 2 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            let generated = generated.unwrap();
            let expected = alone(&model, &text, &options);
            let n = generated.tokens.len();
            assert_eq!(n, most);
            assert!(
                same(&generated.tokens, &expected[..n]),
                "{case}, turn {turn}"
            );
            let before = computed
                .as_ref()
                .map_or(0, |computed| computed.tokens().len());
            assert_eq!(
                generated.metrics.cached_tokens, before,
                "{case}, turn {turn}"
            );
            text.extend(generated.tokens.iter().map(|choice| choice.id));
            let left = generation.into_prompt_cache().unwrap().unwrap();
            // The last reported token of the generation may not have been computed by the layers.
            assert!(text.len() - left.tokens().len() <= 1, "{case}, turn {turn}");
            assert_eq!(left.tokens(), &text[..left.tokens().len()]);
            computed = Some(left);
            text.extend(prompt(7, 50 + turn));
        }
    }
    let model = load(dir("qwen3"));
    let mut generation = model.generate(prompt(5, 1), &greedy(2)).unwrap();
    let ended = generation.run(|_| ControlFlow::Continue(())).unwrap();
    assert_eq!(ended.tokens.len(), 2);
    let again = generation.run(|_| ControlFlow::Continue(())).unwrap_err();
    assert!(again.to_string().contains("has ended before"), "{again}");
    let unasked = model.generate(prompt(5, 1), &greedy(2)).unwrap();
    assert!(unasked.into_prompt_cache().unwrap().is_none());
}

fn run(model: &LoadedModel, prompt: Prompt, cache: &PromptCache) -> Generated {
    let generation = model.generate(prompt, &greedy(12)).unwrap();
    let mut generation = generation.with_prompt_cache(cache).unwrap();
    generation.run(|_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_prompt_cache_goes_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES
        .into_iter()
        .chain(["q_llama_b4_g64", "q_qwen3_b6_g64", "llama_head_dim"])
    {
        let model = load(dir(case));
        let path = folder.path().join(case);
        let text = prompt(LONG, 2);
        let made = model.prompt_cache(text.clone(), &greedy(1)).unwrap();
        model.save_prompt_cache(&made, &path).unwrap();
        // The file is read by a model that was loaded again, as another process would do it.
        let other = load(dir(case));
        let read = other.load_prompt_cache(&path).unwrap();
        assert_eq!((read.tokens(), read.nbytes()), (&text[..], made.nbytes()));
        let whole = read.followed_by(&other, prompt(9, 4)).unwrap();
        // A recurrent state exists for the whole prompt only, and not for one token less.
        let less = match other.info().layers.iter().any(is_recurrent) {
            true => 0,
            false => LONG - 1,
        };
        let Prompt::Tokens(ids) = &whole else {
            panic!("a prompt of ids");
        };
        for (prompt, cached) in [
            (whole.clone(), LONG),
            // The same prompt again: only its last token is computed.
            (text.clone().into(), less),
            (ids[3..].to_vec().into(), 0),
        ] {
            let Prompt::Tokens(ids) = &prompt else {
                panic!("a prompt of ids");
            };
            let expected = alone(&other, ids, &greedy(12));
            let found = run(&other, prompt.clone(), &read);
            let far = other.info().model_type == "phi3" && case.contains("longrope");
            assert!(
                found.metrics.cached_tokens == cached || far,
                "{case}: {:?}",
                found.metrics
            );
            assert!(same(&found.tokens, &expected), "{case}");
        }
        let error = other
            .generate(text, &greedy(1))
            .unwrap()
            .with_prompt_cache(&made);
        assert!(
            error
                .err()
                .unwrap()
                .to_string()
                .contains("of another model")
        );
    }
    let options = LoadOptions {
        context_len: Some(32),
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(dir("qwen3"), options).unwrap();
    let text = prompt(LONG, 2);
    let made = model.prompt_cache(text.clone(), &greedy(1)).unwrap();
    let path = folder.path().join("ring");
    model.save_prompt_cache(&made, &path).unwrap();
    let read = model.load_prompt_cache(&path).unwrap();
    let longer = [&text[..], &[5, 9]].concat();
    let found = run(&model, longer.clone().into(), &read);
    assert_eq!(found.metrics.cached_tokens, LONG);
    assert!(same(&found.tokens, &alone(&model, &longer, &greedy(12))));
    // The ring has overwritten tokens that a shorter beginning needs.
    let other = [&text[..40], &[5, 9]].concat();
    let found = run(&model, other.clone().into(), &read);
    assert_eq!(
        (found.tokens, found.metrics.cached_tokens),
        (alone(&model, &other, &greedy(12)), 0)
    );
}
