//! Heads for multi-token prediction that draft: the drafted tokens, and that rejected tokens leave no trace in the
//! head's cache.

use std::path::{Path, PathBuf};

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, DType, Safetensors};
use mlx_models::{LoadOptions, Loaded, load};
use mlx_nn::{CacheOptions, LayerKind, ModelCache};
use serde_json::Value;

const CASES: [&str; 3] = ["qwen3_5_text", "qwen3_5", "qwen3_5_moe"];

/// Cases whose heads are layers after the model's last layer: with KV heads, and with latent
/// attention.
const LAYERS: [&str; 3] = ["glm4_moe", "deepseek_v3", "glm4_moe_lite"];

fn dir(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case)
}

fn model(case: &str, drafts: bool) -> Loaded {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        drafts,
        ..LoadOptions::default()
    };
    load(dir(case), options).unwrap()
}

fn cache(model: &Loaded, rows: usize) -> ModelCache {
    ModelCache::new(model.model.states(), rows, CacheOptions::default())
}

fn ids(rows: &[&[u32]]) -> Array {
    let flat = rows.concat();
    Array::from_slice(&flat, &[1, flat.len() as i32]).unwrap()
}

/// Runs the rows' tokens, and commits the first `keep` of each row. Returns the bits of the
/// features `[1, T, E]`.
fn read(model: &Loaded, cache: &mut ModelCache, rows: &[&[u32]], keep: &[usize]) -> Vec<u32> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let mut step = cache.begin(&widths).unwrap();
    let hidden = model.model.hidden(&ids(rows), &mut step).unwrap();
    step.commit(keep).unwrap();
    bits(&hidden)
}

fn bits(array: &Array) -> Vec<u32> {
    let values: Vec<f32> = array.to_vec().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// The head's features `[1, 1, E]` after the row's next token.
fn next_features(model: &Loaded, cache: &mut ModelCache, next: u32) -> Array {
    let head = model.model.drafting().unwrap();
    let mut step = cache.begin_part(head.states(), &[1]).unwrap();
    let next = ids(&[&[next]]);
    head.follow(&next, None, &mut step).unwrap()
}

/// The bits of the head's features of the row's next token, and of this number of greedy drafts.
fn chain(model: &Loaded, cache: &mut ModelCache, next: u32, drafts: usize) -> Vec<Vec<u32>> {
    let head = model.model.drafting().unwrap();
    let len = cache.lens()[0];
    let mut features = next_features(model, cache, next);
    let mut found = vec![bits(&features)];
    for number in 1..=drafts {
        let logits = head.logits(&features, None).unwrap();
        let token: u32 = logits.argmax(-1, false).unwrap().item().unwrap();
        let mut step = cache
            .begin_at(head.states(), &[len + number], &[1])
            .unwrap();
        let draft = ids(&[&[token]]);
        features = head.draft(&draft, &features, &mut step).unwrap();
        drop(step);
        found.push(bits(&features));
    }
    found
}

#[test]
fn drafts_equal_the_reference() {
    for case in CASES.into_iter().chain(LAYERS) {
        let model = model(case, true);
        assert!(model.model.draft_head().is_some());
        let head = model.model.drafting().unwrap();
        let golden = Safetensors::open(dir(case).join("golden.safetensors")).unwrap();
        let facts: Value =
            serde_json::from_slice(&std::fs::read(dir(case).join("golden.json")).unwrap()).unwrap();
        let prompts: Vec<Vec<u32>> = serde_json::from_value(facts["prompts"].clone()).unwrap();
        for (index, prompt) in prompts.iter().enumerate() {
            let expected = golden.array(&format!("draft_logits.{index}")).unwrap();
            for n in 1..prompt.len() {
                let mut cache = cache(&model, 1);
                for part in prompt[..n].chunks(7) {
                    read(&model, &mut cache, &[part], &[part.len()]);
                }
                let behind = next_features(&model, &mut cache, prompt[n])
                    .squeeze(1)
                    .unwrap();
                let logits = head.logits(&behind, None).unwrap();
                let expected = expected.slice_axis(0, n as i32 - 1, n as i32).unwrap();
                let off = logits.subtract(&expected).unwrap().abs().unwrap();
                let off: f32 = off.max(.., false).unwrap().item().unwrap();
                assert!(
                    off < 1e-4,
                    "{case}, prompt {index}, token {n}: off by {off}"
                );
            }
        }
    }
}

/// A head changes no result of the model. Its states are the keys and values of one layer, and the
/// features of one position.
#[test]
fn a_head_follows_and_does_not_show() {
    for case in CASES {
        let (with, without) = (model(case, true), model(case, false));
        assert!(without.model.draft_head().is_none());
        let prompt: Vec<u32> = (3..40).collect();
        let [found, expected] = [&with, &without].map(|model| {
            let mut cache = cache(model, 1);
            read(model, &mut cache, &[&prompt], &[prompt.len()])
        });
        assert_eq!(found, expected, "{case}");
        let layers = without.model.states().len();
        let states = with.model.states();
        assert_eq!(states[..layers], *without.model.states());
        assert!(
            matches!(states[layers..], [LayerKind::Full, LayerKind::Recurrent(_)]),
            "{case}"
        );
        let options = CacheOptions::default();
        let costs = with.model.geometry().costs(DType::F32, &options).unwrap();
        let kv = 2 * 16 * 4;
        assert_eq!(
            (costs[layers].position_bytes, costs[layers + 1].row_bytes),
            (kv, 32 * 4)
        );
        let mut cache = cache(&without, 1);
        let mut step = cache.begin(&[1]).unwrap();
        let error = without
            .model
            .drafting()
            .and_then(|head| head.follow(&ids(&[&[3]]), None, &mut step))
            .unwrap_err();
        assert!(error.to_string().contains("drafts nothing"), "{error}");
    }
    assert!(model("qwen3_next", true).model.draft_head().is_none());
    assert!(model("qwen3", true).model.draft_head().is_none());
}

/// Rows of any widths, of which any number of tokens is kept, draft the same as single rows that
/// never had the other tokens. Drafts do not change the cache either.
#[test]
fn rejected_tokens_leave_no_trace() {
    const ROWS: usize = 3;
    let to_the_bit = fast::form(Op::Delta).unwrap() == Form::Cpu;
    let mut state = 7u64;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for case in CASES.into_iter().chain(LAYERS) {
        let model = model(case, true);
        for round in 0..4 {
            let mut batch = cache(&model, ROWS);
            let mut texts = vec![Vec::new(); ROWS];
            for turn in 0..5 {
                let most = if turn == 0 { 20 } else { 5 };
                let rows: Vec<Vec<u32>> = (0..ROWS)
                    .map(|_| (0..1 + draw(most)).map(|_| draw(60) as u32).collect())
                    .collect();
                let keep: Vec<usize> = rows.iter().map(|row| 1 + draw(row.len())).collect();
                let slices: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
                read(&model, &mut batch, &slices, &keep);
                for ((text, row), &keep) in texts.iter_mut().zip(&rows).zip(&keep) {
                    text.extend_from_slice(&row[..keep]);
                }
                if turn == 2 {
                    // A freed slot is used again.
                    batch.clear(1);
                    texts[1].clear();
                    continue;
                }
                for (row, text) in texts.iter().enumerate() {
                    let mut alone = cache(&model, 1);
                    read(&model, &mut alone, &[text], &[text.len()]);
                    let expected = chain(&model, &mut alone, 11, 2);
                    let mut own = batch.prefix(row, text.len()).unwrap();
                    let found = chain(&model, &mut own, 11, 2);
                    let place = format!("{case}, round {round}, turn {turn}, row {row}");
                    if to_the_bit {
                        assert_eq!(found, expected, "{place}");
                    } else {
                        let near = |a: &u32, b: &u32| {
                            (f32::from_bits(*a) - f32::from_bits(*b)).abs() < 1e-3
                        };
                        let mut pairs = found[0].iter().zip(&expected[0]);
                        assert!(pairs.all(|(a, b)| near(a, b)), "{place}");
                    }
                }
            }
        }
    }
}
