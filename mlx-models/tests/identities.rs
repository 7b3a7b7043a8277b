//! Different ways of computing the same must have the same result.

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use checkpoints::checkpoint;
use mlx_core::{Array, DType, QuantMode, Result, Scheme};
use mlx_models::{LoadOptions, Loaded, load};
use mlx_nn::{CacheOptions, ModelCache, quantize};

fn model(case: &str) -> Loaded {
    load(
        checkpoint(case),
        LoadOptions {
            dtype: Some(DType::F32),
            ..LoadOptions::default()
        },
    )
    .unwrap()
}

fn tokens(n: usize, seed: u32) -> Vec<u32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % 60
        })
        .collect()
}

/// Logits of the last token of each row: `[B, V]`.
fn last_logits(model: &Loaded, cache: &mut ModelCache, rows: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
    let widths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let ids = rows.concat();
    let input = Array::from_slice(&ids, &[1, ids.len() as i32])?;
    let mut step = cache.begin(&widths)?;
    let hidden = model.model.hidden(&input, &mut step)?;
    step.commit_all()?;
    let logits = model.model.logits(&hidden)?;
    let mut end = 0;
    let last = widths.iter().map(|&width| {
        end += width as i32;
        logits.slice_axis(1, end - 1, end)?.to_vec::<f32>()
    });
    last.collect()
}

fn off(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Rows of other lengths in the same forward pass do not change a row's results, in prefill and in
/// ten decode steps, even past the windows.
#[test]
fn rows_of_a_batch_equal_single_rows() {
    for case in [
        "llama_llama3",
        "mistral",
        "qwen2_window",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "phi3",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_next",
        "baichuan_m1",
        "phi3small",
    ] {
        let model = model(case);
        let rows: Vec<Vec<u32>> = [1, 13, 4, 30]
            .iter()
            .zip(1..)
            .map(|(&n, seed)| tokens(n + 10, seed))
            .collect();
        let new = |rows| {
            ModelCache::new(
                model.model.states(),
                rows,
                CacheOptions {
                    ..CacheOptions::default()
                },
            )
        };
        let mut batch = new(rows.len());
        let mut singles: Vec<ModelCache> = rows.iter().map(|_| new(1)).collect();
        let split = |row: &[u32]| row.len() - 10;
        for step in 0..=10 {
            let parts: Vec<&[u32]> = rows
                .iter()
                .map(|row| match step {
                    0 => &row[..split(row)],
                    _ => &row[split(row) + step - 1..split(row) + step],
                })
                .collect();
            let together = last_logits(&model, &mut batch, &parts).unwrap();
            for (row, part) in parts.iter().enumerate() {
                let alone = last_logits(&model, &mut singles[row], &[part]).unwrap();
                let off = off(&alone[0], &together[row]);
                assert!(off < 2e-4, "{case}, step {step}, row {row}: off by {off}");
            }
        }
    }
}

/// A ring of the window's size gives the same as an unbounded buffer with a mask. A cache that stores nothing has only
/// the mask.
#[test]
fn a_ring_equals_the_whole_prompt_under_a_mask() {
    let usual = [
        "mistral",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "qwen2_window",
        "baichuan_m1",
        "phi3small",
    ]
    .map(|case| (case, None));
    let eight = Scheme::new(32, 8, QuantMode::Affine).unwrap();
    let packed = ["q_gemma3_text_b4_g32", "q_qwen3_mixed"].map(|case| (case, Some(eight)));
    for (case, quantized) in usual.into_iter().chain(packed) {
        let model = model(case);
        let prompt = tokens(37, 5);
        let options = CacheOptions {
            store: false,
            quantized,
            ..CacheOptions::default()
        };
        let mut whole = ModelCache::new(model.model.states(), 1, options);
        let expected = last_logits(&model, &mut whole, &[&prompt]).unwrap();
        for chunk in [1, 3, 11, 30] {
            for slack in [0, 2] {
                let options = CacheOptions {
                    slack,
                    quantized,
                    ..CacheOptions::default()
                };
                let mut ring = ModelCache::new(model.model.states(), 1, options);
                let mut found = Vec::new();
                for part in prompt.chunks(chunk) {
                    found = last_logits(&model, &mut ring, &[part]).unwrap();
                }
                let off = off(&expected[0], &found[0]);
                assert!(
                    off < 2e-4,
                    "{case}, chunks of {chunk}, slack {slack}: off by {off}"
                );
            }
        }
    }
}

/// Tokens that a step does not keep leave no trace.
#[test]
fn rejected_tokens_leave_no_trace() {
    for case in [
        "qwen3",
        "gemma3_text",
        "gemma4",
        "qwen3_5",
        "qwen3_next",
        "lfm2",
        "mamba2",
        "nemotron_h_moe",
        "falcon_h1",
        "minimax",
        "kimi_linear",
        "baichuan_m1",
    ] {
        let model = model(case);
        let prompt = tokens(21, 9);
        let options = CacheOptions {
            slack: 4,
            ..CacheOptions::default()
        };
        let run = |rejected: &[u32]| {
            let mut cache = ModelCache::new(model.model.states(), 1, options);
            last_logits(&model, &mut cache, &[&prompt[..20]]).unwrap();
            if !rejected.is_empty() {
                let input = Array::from_slice(rejected, &[1, rejected.len() as i32]).unwrap();
                let mut step = cache.begin(&[rejected.len()]).unwrap();
                let hidden = model.model.hidden(&input, &mut step).unwrap();
                step.commit(&[0]).unwrap();
                mlx_core::eval([&hidden]).unwrap();
            }
            last_logits(&model, &mut cache, &[&prompt[20..]])
                .unwrap()
                .remove(0)
        };
        assert_eq!(run(&[]), run(&[7, 8, 9, 10]), "{case}");
    }
}

#[test]
fn quantised_equals_dequantised() {
    for case in [
        "q_llama_b2_g32",
        "q_qwen3_b3_g64",
        "q_qwen3_mixed",
        "q_qwen3_moe_b4_g32",
        "q_gemma3_text_b4_g32",
        "q_llama_nvfp4",
        "q_qwen3_5_mixed",
        "q_qwen3_next_b4_g32",
    ] {
        let mut model = model(case);
        let prompt = tokens(12, 3);
        let logits = |model: &Loaded| {
            let mut cache = ModelCache::new(model.model.states(), 1, CacheOptions::default());
            last_logits(model, &mut cache, &[&prompt])
                .unwrap()
                .remove(0)
        };
        let packed = logits(&model);
        quantize::dequantize(model.model.as_mut(), None).unwrap();
        let off = off(&packed, &logits(&model));
        assert!(off < 2e-4, "{case}: off by {off}");
    }
}
