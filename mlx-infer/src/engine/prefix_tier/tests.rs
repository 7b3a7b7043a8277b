//! Prefixes in the memory of the host: restored bits, and random schedules whose prefixes are dropped
//! from pages all the time.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use mlx_core::{DType, QuantMode, Scheme};

use super::tiered::Tiered;
use super::*;
use crate::engine::decode::Decode;
use crate::engine::prompt_cache::PromptCache;
use crate::engine::worker::Worker;
use crate::model::LoadOptions;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, GenerateOptions};
use crate::request::sampling::SamplingParams;

const CASES: [(&str, Option<i32>); 4] = [
    ("llama_llama3", None),
    ("gemma3_text", None),
    ("lfm2", None),
    ("q_qwen3_mixed", Some(4)),
];

fn load(case: &str, kv_bits: Option<i32>) -> LoadedModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case);
    let scheme = |bits| Scheme::new(32, bits, QuantMode::Affine).unwrap();
    let options = LoadOptions {
        dtype: Some(DType::F32),
        kv_quantization: kv_bits.map(scheme),
        ..LoadOptions::default()
    };
    LoadedModel::load(dir, options).unwrap()
}

/// Tokens that depend on `seed`.
fn text(n: usize, seed: usize) -> Vec<u32> {
    (0..n)
        .map(|at| 3 + ((at * 7 + seed * 13 + at * at * (seed + 1)) % 50) as u32)
        .collect()
}

/// The names and bytes of the arrays of a state.
fn bits(model: &LoadedModel, state: &PromptState) -> Vec<(String, Vec<u8>)> {
    let arrays = file::arrays(model, state).unwrap().into_iter();
    let bytes = |(name, array): (String, mlx_core::Array)| {
        let bytes = array.contiguous().unwrap().view(DType::U8).unwrap();
        (name, bytes.to_vec::<u8>().unwrap())
    };
    arrays.map(bytes).collect()
}

#[test]
fn restored_states_have_the_same_bits() {
    for (case, kv_bits) in CASES {
        let model = load(case, kv_bits);
        let limits = Limits {
            prefix_host_bytes: 64 << 20,
            ..Limits::default()
        };
        let tiers = PrefixTier::of(&model, &limits);
        let [tier] = &tiers[..] else {
            panic!("{} tiers", tiers.len());
        };
        let ids = text(150, 4);
        let mut state = None;
        // The second segment continues the first one.
        for (number, len) in [70, 150].into_iter().enumerate() {
            let own = ids[..len].to_vec();
            let options = GenerateOptions::default();
            let cache = PromptCache::compute(&model, own.clone().into(), &options).unwrap();
            state = Some(cache.state().clone());
            let prefix = Announced {
                ids: own,
                embedding: Embedding::Short,
                state: state.clone(),
            };
            tier.keep(&model, &prefix);
            let start = Instant::now();
            while tier.load().files <= number {
                assert!(start.elapsed().as_secs() < 60, "{case}: nothing is written");
                thread::sleep(Duration::from_millis(2));
            }
        }
        let longer = [&ids[..], &[5]].concat();
        let found = tier.find(&longer, Embedding::Short).unwrap();
        assert_eq!(found.len, ids.len(), "{case}");
        assert!(tier.begin(found.key));
        let loaded = tier.next(Duration::from_secs(60)).unwrap();
        let (name, image) = loaded.image.unwrap();
        let (restored, own) = tier.state(&model, name, image).unwrap();
        assert_eq!(restored, ids, "{case}");
        assert!(
            bits(&model, &own) == bits(&model, &state.unwrap()),
            "{case}"
        );
        let load = tier.load();
        assert_eq!((load.files, load.errors), (2, 0), "{case}");
    }
}

#[derive(Default)]
struct Told {
    tokens: Vec<u32>,
    has_ended: bool,
}

/// The prompts: a few long beginnings, each with several ends.
const KINDS: usize = 15;

fn submit<'s>(decode: &mut dyn Decode<'s>, model: &LoadedModel, of: usize) -> Rc<RefCell<Told>> {
    let prompt = [text(90 + of / 3 * 20, of / 3), text(3 + of, 40 + of)].concat();
    let options = GenerateOptions {
        max_tokens: 10 + of * 17 % 40,
        ignore_eos: true,
        sampling: SamplingParams {
            temperature: if of.is_multiple_of(2) { 0.0 } else { 1.2 },
            seed: Some(of as u64),
            ..Default::default()
        },
        ..Default::default()
    };
    let told = Rc::<RefCell<Told>>::default();
    let to = told.clone();
    let sink = Box::new(move |event: Result<Event>| {
        match event.unwrap() {
            Event::Token { choice, .. } => to.borrow_mut().tokens.push(choice.id),
            Event::Finish { .. } => to.borrow_mut().has_ended = true,
        }
        ControlFlow::Continue(())
    });
    let request = model.frontend().checked(Request::new(prompt, options));
    let dropped = CancelToken::new();
    decode.submit(request.unwrap(), Instant::now(), dropped, None, sink);
    told
}

#[test]
fn random_schedules_with_a_tier_give_the_same_tokens() {
    for (case, kv_bits) in CASES {
        let model = load(case, kv_bits);
        let alone = |of: usize| {
            let limits = Limits {
                prefix_bytes: 0,
                ..Limits::default()
            };
            let mut worker = Worker::new(&model, limits);
            let told = submit(&mut worker, &model, of);
            while !worker.is_idle() {
                worker.advance();
            }
            told.take().tokens
        };
        let expected: Vec<Vec<u32>> = (0..KINDS).map(alone).collect();
        let row: usize = model.state_costs().iter().map(|cost| cost.bytes(256)).sum();
        // The second memory of the host is too small for all prefixes.
        for (seed, host) in [(3, 64 << 20), (8, 6 * row)] {
            let limits = Limits {
                rows: 3,
                cache_bytes: Some(row + row / 2),
                prefix_bytes: row,
                prefix_host_bytes: host,
                ..Limits::default()
            };
            let mut tiered = Tiered::new(&model, limits, None);
            let mut told = Vec::new();
            let mut random: usize = seed;
            for tick in 0.. {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                if tick < 300 && (random >> 33).is_multiple_of(6) {
                    let of = (random >> 40) % KINDS;
                    told.push((of, submit(&mut tiered, &model, of)));
                }
                if tick >= 300 && tiered.is_idle() {
                    break;
                }
                assert!(tick < 20_000, "{case}: a request waits for ever");
                tiered.advance();
                let load = tiered.load();
                assert!(load.prefix_bytes <= row, "{case}: {load:?}");
                assert!(load.prefix_host.bytes <= host, "{case}: {load:?}");
            }
            for (of, told) in told {
                let told = told.take();
                assert!(
                    told.has_ended && told.tokens == expected[of],
                    "{case}: kind {of}"
                );
            }
            let load = tiered.load();
            assert!(load.pages.evicted > 0, "{case}: {load:?}");
            assert!(load.prefix_host.hits > 0, "{case}: {load:?}");
            assert_eq!(load.prefix_host.errors, 0, "{case}");
        }
    }
}
