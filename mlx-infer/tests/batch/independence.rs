//! A request's tokens depend only on its prompt, parameters and seed.

use std::ops::ControlFlow;

use crate::checkpoint::{dir, load};
use mlx_core::DType;
use mlx_infer::{
    Choice, GenerateOptions, Limits, LoadOptions, LoadedModel, Request, SamplingParams,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Growing caches, rings, both, recurrent states; soft caps, experts, fused projections; a model that switches its
/// rotary embeddings.
pub const CASES: [&str; 9] = [
    "llama_llama3",
    "mistral",
    "qwen2_window",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi3_longrope",
    "qwen3_5",
];

pub fn prompt(n: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 33) % 61 + 3) as u32
        })
        .collect()
}

pub fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignore_eos: true,
        logprobs: Some(0),
        ..Default::default()
    }
}

pub fn sampled(max_tokens: usize, seed: u64) -> GenerateOptions {
    let sampling = SamplingParams {
        temperature: 1.5,
        top_p: 0.95,
        top_k: 50,
        repeat_penalty: 1.1,
        presence_penalty: 0.2,
        seed: Some(seed),
        ..Default::default()
    };
    GenerateOptions {
        sampling,
        ..greedy(max_tokens)
    }
}

/// The tokens of a request that runs alone, with log probabilities to the bit.
pub fn alone(model: &LoadedModel, prompt: &[u32], options: &GenerateOptions) -> Vec<Choice> {
    let mut generation = model.generate(prompt.to_vec(), options).unwrap();
    let generated = generation.run(|_| ControlFlow::Continue(())).unwrap();
    generated.tokens
}

/// Whether these are the expected tokens. Their log probabilities may differ in the last bits if
/// they were computed in different chunks.
pub fn same(found: &[Choice], expected: &[Choice]) -> bool {
    let same = |(a, b): (&Choice, &Choice)| {
        let off = a.logprob.unwrap_or(0.0) - b.logprob.unwrap_or(0.0);
        a.id == b.id && off.abs() < 1e-4
    };
    found.len() == expected.len() && found.iter().zip(expected).all(same)
}

/// Prompts of these lengths, within the model's positions; every second one is sampled.
pub fn mixed(model: &LoadedModel, lengths: &[usize]) -> Vec<(Vec<u32>, GenerateOptions)> {
    let room = model.info().max_positions.unwrap() - 25;
    let request = |(row, &n): (usize, &usize)| {
        let options = match row % 2 {
            0 => greedy(24),
            _ => sampled(24, row as u64),
        };
        (prompt(n.min(room), row as u64), options)
    };
    lengths.iter().enumerate().map(request).collect()
}

/// The results of requests that share batches.
pub fn together(
    model: &LoadedModel,
    requests: &[(Vec<u32>, GenerateOptions)],
    limits: &Limits,
) -> Vec<Vec<Choice>> {
    let requests = requests
        .iter()
        .map(|(prompt, options)| Request::new(prompt.clone(), options.clone()))
        .collect();
    let results = model.batch_generate(requests, limits).unwrap();
    let ids = |result: mlx_infer::BatchResult| {
        assert!(result.error.is_none(), "{:?}", result.error);
        result.tokens
    };
    results.into_iter().map(ids).collect()
}

/// Affine weights for every way of reading codes, mxfp4, and experts. (With mxfp8 and nvfp4, few rows use another
/// kernel.)
const PACKED: [&str; 10] = [
    "q_gemma3_text_b4_g32",
    "q_llama_b2_g32",
    "q_llama_b4_g64",
    "q_llama_b8_g128",
    "q_llama_mxfp4",
    "q_phi3_b4_g64",
    "q_qwen3_b3_g64",
    "q_qwen3_b5_g32",
    "q_qwen3_b6_g64",
    "q_qwen3_moe_b4_g32",
];

/// Whether products of a few rows of x in 16 bits have the same bits as those of many rows. They do
/// not on AMX tiles, and not always with MLX's own kernels.
fn rows_are_one_in_16_bits() -> bool {
    let set = |name| std::env::var(name).ok();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has_tiles = set("MLX_CPU_ISA").map_or_else(|| cpu.contains("amx_tile"), |isa| isa == "amx");
    !has_tiles && set("MLX_CPU_KERNELS").as_deref() != Some("off")
}

#[test]
fn rows_of_packed_weights_in_16_bits_equal_the_single_run() {
    if !rows_are_one_in_16_bits() {
        println!("skipped: this machine multiplies few rows in another way than many");
        return;
    }
    for case in PACKED {
        for dtype in [DType::BF16, DType::F16] {
            let options = LoadOptions {
                dtype: Some(dtype),
                ..LoadOptions::default()
            };
            let model = LoadedModel::load(dir(case), options).unwrap();
            let requests: Vec<_> = (0..21)
                .map(|row| match row % 2 {
                    0 => (prompt(3 + row, row as u64), greedy(24)),
                    _ => (prompt(3 + row, row as u64), sampled(24, row as u64)),
                })
                .collect();
            let expected: Vec<_> = requests
                .iter()
                .map(|(prompt, options)| alone(&model, prompt, options))
                .collect();
            for rows in [2, 5, 9, 21] {
                let found = together(&model, &requests[..rows], &Limits::default());
                for (row, found) in found.iter().enumerate() {
                    assert_eq!(
                        found, &expected[row],
                        "{case} in {dtype}, row {row} of {rows}"
                    );
                }
            }
        }
    }
}

fn distinct(tokens: &[Choice]) -> usize {
    let mut sorted: Vec<u32> = tokens.iter().map(|choice| choice.id).collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.len()
}

#[test]
fn identical_rows_of_every_batch_size_equal_the_single_run() {
    for case in CASES {
        let model = load(dir(case));
        let prompt = prompt(11, 7);
        let expected = alone(&model, &prompt, &greedy(64));
        assert_eq!(expected.len(), 64);
        let check = |lengths: Vec<usize>| {
            let rows = lengths.len();
            // Each row has another chunk size, and each is longer than the prompt: every row computes the prompt
            // itself.
            let of_row = |(row, &n): (usize, &usize)| GenerateOptions {
                prefill_chunk: 512 + row,
                ..greedy(n)
            };
            let of_rows = lengths.iter().enumerate();
            let requests: Vec<_> = of_rows.map(|row| (prompt.clone(), of_row(row))).collect();
            let found = together(&model, &requests, &Limits::default());
            for ((row, tokens), n) in found.iter().enumerate().zip(lengths) {
                assert_eq!(tokens, &expected[..n], "{case}: row {row} of {rows}");
            }
        };
        // In the first check one row leaves in each step, so every batch size occurs. In the others
        // all rows stay to the last token.
        check((1..=64).collect());
        for rows in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64] {
            check(vec![48; rows]);
        }
    }
}

/// With dynamic NTK the base of the rotary embeddings depends on each row's own length, and not on
/// that of the batch.
#[test]
fn a_rope_that_grows_follows_each_row() {
    let model = load(dir("llama_dynamic"));
    let requests = mixed(&model, &[1, 3, 17, 39, 40, 41, 120, 20]);
    let found = together(&model, &requests, &Limits::default());
    for (row, (prompt, options)) in requests.iter().enumerate() {
        assert_eq!(found[row], alone(&model, prompt, options), "row {row}");
    }
}

#[test]
fn mixed_lengths_and_parameters_equal_the_single_runs() {
    for case in CASES {
        let model = load(dir(case));
        let mut variety = 0;
        let requests = mixed(&model, &[1, 3, 17, 40, 255, 256, 257, 40]);
        let found = together(&model, &requests, &Limits::default());
        for (row, (prompt, options)) in requests.iter().enumerate() {
            let expected = alone(&model, prompt, options);
            assert_eq!(found[row], expected, "{case}: row {row}");
            variety = variety.max(distinct(&expected));
        }
        assert!(
            variety > 12,
            "{case}: tokens that all look alike prove little"
        );
    }
}

/// A request, and the limits of its batch.
#[derive(Clone, Debug)]
struct Asked {
    prompt: usize,
    seed: u64,
    max_tokens: usize,
    is_greedy: bool,
    chunk: usize,
}

fn asked() -> impl Strategy<Value = Asked> {
    let prompt = prop_oneof![4 => 1..20usize, 1 => 20..70usize];
    let chunk = prop_oneof![Just(512usize), 2..9usize];
    (prompt, any::<u64>(), 1..30usize, any::<bool>(), chunk).prop_map(
        |(prompt, seed, max_tokens, is_greedy, chunk)| Asked {
            prompt,
            seed,
            max_tokens,
            is_greedy,
            chunk,
        },
    )
}

impl Asked {
    fn request(&self) -> (Vec<u32>, GenerateOptions) {
        let options = match self.is_greedy {
            true => greedy(self.max_tokens),
            false => sampled(self.max_tokens, self.seed),
        };
        let options = GenerateOptions {
            prefill_chunk: self.chunk,
            ..options
        };
        (prompt(self.prompt, self.seed), options)
    }
}

/// Rows join when others leave, at steps that depend on all lengths. With little memory some rows
/// are preempted and return. The tokens of all requests stay the same.
#[test]
fn neighbours_memory_and_order_do_not_show() {
    // Schedules do not depend on the kernels.
    let cases = match std::env::var("MLX_CPU_KERNELS").as_deref() {
        Ok("off") => 2,
        _ => 12,
    };
    for case in CASES {
        let model = load(dir(case));
        let config = Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        };
        // The bytes of the caches of one row, for the longest request.
        let info = model.info();
        let kv = info.geometry.kv().iter().flatten().next();
        let kv = kv.expect("some layer has attention");
        let row = info.layers.len() * 256 * 2 * (kv.heads * kv.key_dim * 4) as usize;
        let limits = (
            1..9usize,
            1..80usize,
            prop_oneof![Just(None), (1..4usize).prop_map(Some)],
        );
        let requests = proptest::collection::vec(asked(), 2..12);
        TestRunner::new(config)
            .run(
                &(requests, limits),
                |(asked, (rows, step_tokens, memory))| {
                    let requests: Vec<_> = asked.iter().map(Asked::request).collect();
                    let limits = Limits {
                        rows,
                        step_tokens: Some(step_tokens),
                        cache_bytes: memory.map(|rows| rows * row),
                        ..Limits::default()
                    };
                    let found = together(&model, &requests, &limits);
                    for (index, (prompt, options)) in requests.iter().enumerate() {
                        let expected = alone(&model, prompt, options);
                        // The chunks of a prompt depend on the rows beside it.
                        let is_same = crate::speculation::same(&found[index], &expected);
                        prop_assert!(is_same, "{case}: request {index}: {:?}", found[index]);
                    }
                    Ok(())
                },
            )
            .unwrap();
    }
}
