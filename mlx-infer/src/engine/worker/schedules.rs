//! Random schedules with little memory, on every kind of layer state: requests join, share prompts, draft,
//! leave, are preempted and come back, prefixes come from files, and forward passes fail. After each
//! tick every page that belongs to nobody is overwritten. The tokens are those of requests that run alone,
//! memory stays within its limits, and at the end no page is in use.
//!
//! A soak at four times the capacity takes two seconds here, and ten minutes with
//! `MLX_INFER_SOAK=600 cargo test --release -p mlx-infer --lib soak -- --nocapture`. Of the test models that have no test
//! here every 40th has a schedule; `MLX_INFER_SCHEDULES=0/1` runs all, and `K/N` every Nth from the Kth on.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use mlx_core::{DType, QuantMode, Scheme};
use mlx_nn::PAGE;

use super::tests::{Random, poison};
use super::*;
use crate::engine::prompt_cache::PromptCache;
use crate::engine::tests::{Fault, Faulty};
use crate::model::{LoadOptions, memory};
use crate::request::Request;
use crate::request::generation::GenerateOptions;
use crate::request::sampling::SamplingParams;
use crate::request::speculative::Speculative;
use crate::text::files::Files;

/// The number of kinds of requests, and of schedules of each model.
const KINDS: usize = 8;
const SCHEDULES: u64 = 3;
/// Ticks in which requests arrive.
const BUSY: usize = 60;

fn load(case: &str, kv_bits: Option<i32>) -> LoadedModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case);
    let scheme = |bits| Scheme::new(32, bits, QuantMode::Affine).unwrap();
    let options = LoadOptions {
        dtype: Some(DType::F32),
        max_draft: 4,
        kv_quantization: kv_bits.map(scheme),
        ..LoadOptions::default()
    };
    LoadedModel::load(dir, options).unwrap()
}

/// Prompts of up to four pages, most of which begin like another one.
fn kind(of: usize) -> (Vec<u32>, GenerateOptions) {
    let text = |n: usize, seed: u64| {
        let mut random = Random(seed);
        (0..n).map(move |_| random.below(50) as u32 + 3)
    };
    let common = [130, 0, 64, 100, 20, 130, 63, 129][of];
    let own = [5, 20, 1, 40, 90, 60, 2, 3][of];
    let prompt = text(common, 1).chain(text(own, 10 + of as u64)).collect();
    let options = GenerateOptions {
        max_tokens: 4 + of * 29 % 90,
        ignore_eos: true,
        prefill_chunk: [512, 24, 64][of % 3],
        sampling: SamplingParams {
            temperature: if of.is_multiple_of(2) { 0.0 } else { 1.2 },
            seed: Some(of as u64),
            ..Default::default()
        },
        ..Default::default()
    };
    (prompt, options)
}

#[derive(Default)]
struct Told {
    tokens: Vec<u32>,
    error: Option<ErrorKind>,
    has_ended: bool,
}

fn submit<'s>(
    worker: &mut Worker<'_, 's>,
    of: usize,
    drafts: usize,
    dropped: &CancelToken,
) -> Rc<RefCell<Told>> {
    let (prompt, options) = kind(of);
    let options = GenerateOptions {
        speculative: match drafts {
            0 => Speculative::Off,
            tokens => Speculative::Tokens(tokens),
        },
        ..options
    };
    let told = Rc::<RefCell<Told>>::default();
    let to = told.clone();
    let sink = Box::new(move |event: Result<Event>| {
        match event {
            Ok(Event::Token { choice, .. }) => to.borrow_mut().tokens.push(choice.id),
            Ok(Event::Finish { .. }) => to.borrow_mut().has_ended = true,
            Err(error) => {
                let mut to = to.borrow_mut();
                (to.error, to.has_ended) = (Some(error.kind()), true);
            }
        }
        ControlFlow::Continue(())
    });
    let request = worker
        .model
        .frontend()
        .checked(Request::new(prompt, options));
    worker.submit(
        request.unwrap(),
        Instant::now(),
        dropped.clone(),
        None,
        sink,
    );
    told
}

fn alone(model: &LoadedModel, of: usize) -> Vec<u32> {
    let limits = Limits {
        prefix_bytes: 0,
        ..Limits::default()
    };
    let mut worker = Worker::new(model, limits);
    let told = submit(&mut worker, of, 0, &CancelToken::new());
    while !worker.is_idle() {
        worker.tick();
    }
    told.take().tokens
}

/// What happened in a schedule.
#[derive(Default)]
struct Seen {
    preemptions: usize,
    hits: usize,
    evicted: usize,
    shared: usize,
    failures: usize,
    errors: usize,
    resumed: usize,
}

/// The most ticks in a row in which the oldest admitted request may make no progress: its step is
/// queued, and its draft or its file is awaited.
const PATIENCE: usize = 8;

/// The oldest admitted request, and the ticks in which nothing of it was computed.
#[derive(Default)]
struct Oldest {
    seen: Option<(Id, usize, usize)>,
    ticks: usize,
}

impl Oldest {
    fn check(&mut self, worker: &Worker<'_, '_>) {
        let oldest = worker.scheduler.by_age(&worker.requests).first().copied();
        let seen = oldest.map(|id| {
            let request = &worker.requests[&id];
            (id, request.progress.computed(), request.known())
        });
        self.ticks = match seen == self.seen && seen.is_some() {
            true => self.ticks + 1,
            false => 0,
        };
        self.seen = seen;
        assert!(self.ticks <= PATIENCE, "request {seen:?} makes no progress");
    }
}

/// A schedule, in which forward passes fail if there are `faults`.
fn run(
    case: &str,
    model: &LoadedModel,
    expected: &[Vec<u32>],
    (seed, faults): (u64, Option<Rc<RefCell<usize>>>),
    seen: &mut Seen,
) {
    let mut random = Random(seed);
    let row: usize = model.state_costs().iter().map(|cost| cost.bytes(256)).sum();
    let prefix_bytes = [row / 2, 64 << 20, row][seed as usize % 3];
    let cache_bytes = [row + row / 4, row + row / 2, 2 * row][seed as usize % 3];
    let limits = Limits {
        rows: 3 + seed as usize % 4,
        cache_bytes: Some(cache_bytes),
        prefix_bytes,
        ..Limits::default()
    };
    // Pages are reserved in every second schedule. Then their memory does not move.
    let pool = (seed % 2 == 0).then(|| {
        let reserved = memory::reserved(model, &limits, cache_bytes, usize::MAX);
        reserved.unwrap()
    });
    let moves = pool.as_ref().map(|pools| pools.own.moves());
    let mut worker = Worker::in_pool(model, limits, pool);
    // CUDA's order of passes, with and without reserved pages.
    if seed % 3 != 0 {
        worker = worker.splitting();
    }
    let (mut told, mut oldest) = (Vec::new(), Oldest::default());
    for tick in 0.. {
        assert!(
            tick < 5000,
            "{case}, {seed}: a request waits for ever: {:?}, {} preempted, {} bytes",
            worker.counts(),
            worker.preemptions(),
            worker.cache_bytes()
        );
        if tick < BUSY && random.below(4) == 0 {
            let of = random.below(KINDS);
            // Several answers to one prompt.
            for _ in 0..=random.below(3) {
                let dropped = CancelToken::new();
                let drafts = random.below(5);
                let answer = submit(&mut worker, of, drafts, &dropped);
                let leaves = (random.below(5) == 0).then(|| tick + random.below(30));
                told.push((of, answer, dropped, leaves));
            }
        }
        if tick < BUSY && random.below(20) == 0 && faults.is_none() {
            let (prompt, options) = kind(random.below(KINDS));
            let n = 16 + random.below(prompt.len().saturating_sub(16).max(1));
            let ids = prompt[..n.min(prompt.len())].to_vec();
            let file = PromptCache::compute(model, ids.clone().into(), &options).unwrap();
            worker.prefixes().put(&ids, file.state());
        }
        for (_, _, dropped, leaves) in &told {
            if *leaves == Some(tick) {
                dropped.cancel();
            }
        }
        if tick >= BUSY && worker.is_idle() {
            break;
        }
        let failed = faults.as_ref().map(|faults| *faults.borrow());
        worker.tick();
        oldest.check(&worker);
        let fails = failed != faults.as_ref().map(|faults| *faults.borrow());
        seen.failures += usize::from(fails);
        if faults.is_none() {
            worker.rows.cache().overwrite_unheld(poison()).unwrap();
        }
        let (shared, _) = sharing::shared_pages(&worker.scheduler, &worker.rows, &worker.requests);
        let shared = shared.into_values().flatten();
        seen.shared += shared.sum::<usize>();
        let (bytes, kept) = (worker.cache_bytes(), worker.prefix_counts().bytes);
        assert!(
            fails || bytes <= cache_bytes,
            "{case}, {seed}, tick {tick}: {bytes} bytes of {cache_bytes}"
        );
        assert!(kept <= prefix_bytes, "{case}, {seed}: {kept} kept bytes");
    }
    for (of, answer, dropped, _) in told {
        let Told { tokens, error, .. } = answer.take();
        let expected = &expected[of];
        assert!(
            expected.starts_with(&tokens),
            "{case}, {seed}: kind {of}: {tokens:?} for {expected:?}"
        );
        let is_whole = tokens.len() == expected.len() && error.is_none();
        let may_end = dropped.is_cancelled() || (faults.is_some() && error.is_some());
        assert!(is_whole || may_end, "{case}, {seed}: kind {of}: {error:?}");
        seen.errors += usize::from(error.is_some());
    }
    if let (Some(moves), None) = (moves, &faults) {
        assert_eq!(worker.pool().1, moves, "{case}, {seed}: pages have moved");
    }
    seen.preemptions += worker.preemptions();
    let counts = worker.prefix_counts();
    seen.hits += counts.hits;
    seen.evicted += counts.evicted;
    seen.resumed += counts.resumed;
    let in_use = |worker: &Worker<'_, '_>| -> BTreeSet<(usize, usize)> {
        let groups = worker.page_use().into_iter();
        groups
            .map(|group| (group.by_rows, group.by_prefixes))
            .collect()
    };
    assert!(in_use(&worker).iter().all(|&(by_rows, _)| by_rows == 0));
    worker.prefixes.clear();
    assert!(in_use(&worker).iter().all(|&pages| pages == (0, 0)));
}

/// Some schedules of a model. `grows`: its rows take more pages when they are longer.
fn schedules(case: &str, kv_bits: Option<i32>, grows: bool) {
    let model = load(case, kv_bits);
    let expected: Vec<Vec<u32>> = (0..KINDS).map(|of| alone(&model, of)).collect();
    let mut seen = Seen::default();
    for seed in 0..SCHEDULES {
        run(case, &model, &expected, (seed, None), &mut seen);
    }
    assert!(
        seen.hits > 0 && seen.evicted > 0 && seen.errors == 0,
        "{case}"
    );
    let (preempted, shared) = (seen.preemptions > 0, seen.shared > 0);
    let resumed = seen.resumed > 0;
    assert!(
        (preempted && shared && resumed) || !grows,
        "{case}: {preempted}, {shared}, {resumed}"
    );
    if model.model().draft_head().is_some() {
        // The model that fails does not have the head.
        return;
    }
    let (failures, passes) = (Rc::new(RefCell::new(0)), Rc::default());
    let counter = failures.clone();
    let fails = move |pass: usize| {
        let fails = pass % 23 == 11;
        *counter.borrow_mut() += usize::from(fails);
        fails
    };
    let fails: Rc<dyn Fn(usize) -> bool> = Rc::new(fails);
    let model = model.map(|model| {
        Box::new(Faulty {
            model,
            fault: Fault::Evaluation,
            fails,
            passes,
        })
    });
    for seed in SCHEDULES..SCHEDULES + 2 {
        run(
            case,
            &model,
            &expected,
            (seed, Some(failures.clone())),
            &mut seen,
        );
    }
    assert!(seen.failures > 0, "{case}");
}

#[test]
fn full_attention() {
    schedules("llama_llama3", None, true);
}

#[test]
fn windows() {
    schedules("gemma3_text", None, true);
    schedules("mistral", None, false);
}

#[test]
fn latents() {
    schedules("deepseek_v2", None, true);
}

#[test]
fn recurrent_layers() {
    schedules("lfm2", None, true);
    // It has no pages.
    schedules("mamba2", None, false);
}

#[test]
fn drafting_heads() {
    for case in ["qwen3_5_text", "deepseek_v3", "glm4_moe"] {
        let has_head = load(case, None).model().draft_head().is_some();
        assert!(has_head, "{case}");
        schedules(case, None, true);
    }
}

/// A schedule of each model that holds all kinds of requests.
#[test]
#[expect(clippy::print_stderr, reason = "a long run tells what it has done")]
fn other_models() {
    let part = std::env::var("MLX_INFER_SCHEDULES");
    let part = part.unwrap_or_else(|_| "7/40".to_owned());
    let (first, step) = part.split_once('/').expect("K/N");
    let [first, step] = [first, step].map(|n| n.parse().expect("a number"));
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let mut cases: Vec<String> = std::fs::read_dir(models)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("model.safetensors").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    cases.sort();
    let mut ran = 0;
    for case in cases.iter().skip(first).step_by(step) {
        let model = load(case, None);
        let longest = (0..KINDS).map(|of| {
            let (prompt, options) = kind(of);
            prompt.len() + options.max_tokens
        });
        let positions = model.info().max_positions;
        if longest.max() > Some(positions.unwrap_or(usize::MAX)) {
            eprintln!("{case}: left out, {positions:?} positions");
            continue;
        }
        let expected: Vec<Vec<u32>> = (0..KINDS).map(|of| alone(&model, of)).collect();
        let seed = case.len() as u64;
        run(case, &model, &expected, (seed, None), &mut Seen::default());
        eprintln!("{case}: the tokens of requests alone");
        ran += 1;
    }
    assert!(ran > 0, "all models were left out");
}

#[test]
fn packed_keys_and_values() {
    schedules("q_qwen3_mixed", Some(4), true);
}

#[test]
fn pages_without_memory_are_refused_with_their_size_and_what_is_free() {
    let model = load("gemma3_text", None);
    let limits = Limits::default();
    for (cache_bytes, free) in [(100 << 20, 300 << 20), (1 << 56, usize::MAX)] {
        let error = memory::reserved(&model, &limits, cache_bytes, free).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        let wanted = [cache_bytes, limits.prefix_bytes, free].map(|n| n.to_string());
        assert!(
            wanted.iter().all(|n| error.to_string().contains(n)),
            "{error}"
        );
    }
    let pools = memory::reserved(&model, &limits, 1 << 20, usize::MAX).unwrap();
    assert!(pools.own.pool_bytes() > limits.prefix_bytes && pools.draft.is_none());
}

/// The pages of a draft model that are reserved with those of its model do not move, and count.
#[test]
fn a_draft_model_has_reserved_pages() {
    let mut model = load("llama_llama3", None);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/llama_llama3");
    let files = Files::directory(dir).unwrap();
    model.load_draft_model(files).unwrap();
    let (own, draft) = (
        model.state_costs(),
        model.draft_model().unwrap().state_costs(),
    );
    let row: usize = own.iter().chain(&draft).map(|cost| cost.bytes(256)).sum();
    let limits = Limits {
        rows: 4,
        cache_bytes: Some(4 * row),
        prefix_bytes: row,
        ..Limits::default()
    };
    let error = memory::reserved(&model, &limits, 4 * row, row).unwrap_err();
    assert!(error.to_string().contains("draft model"), "{error}");
    let pools = memory::reserved(&model, &limits, 4 * row, usize::MAX).unwrap();
    let reserved = pools.own.pool_bytes() + pools.draft.as_ref().unwrap().pool_bytes();
    let mut worker = Worker::in_pool(&model, limits, Some(pools));
    let before = worker.pool();
    assert_eq!(before.0, reserved);
    let dropped = CancelToken::new();
    let answers: Vec<_> = (0..12)
        .map(|of| submit(&mut worker, of % 5, 1 + of % 4, &dropped))
        .collect();
    while !worker.is_idle() {
        worker.tick();
    }
    drop(answers);
    assert_eq!(worker.pool(), before);
}

/// Submits a request for one token after another of a prompt.
fn submit_prompt(worker: &mut Worker<'_, '_>, prompt: Vec<u32>, max_tokens: usize) {
    let options = GenerateOptions {
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    };
    let request = Request::new(prompt, options);
    let request = worker.model.frontend().checked(request).unwrap();
    let sink = Box::new(|event: Result<Event>| {
        event.unwrap();
        ControlFlow::Continue(())
    });
    worker.submit(request, Instant::now(), CancelToken::new(), None, sink);
}

/// 32 rows with a common prompt of three pages, in memory for three pages and one for each row.
#[test]
fn rows_that_share_a_prompt_hold_it_once() {
    let model = load("llama_llama3", None);
    let page: usize = model
        .state_costs()
        .iter()
        .map(|cost| cost.bytes(PAGE))
        .sum();
    let common: Vec<u32> = (0..3 * PAGE as u32).map(|at| 3 + at * 7 % 50).collect();
    for is_same in [false, true] {
        let limits = Limits {
            rows: 32,
            cache_bytes: Some((3 + 32) * page),
            ..Limits::default()
        };
        let mut worker = Worker::new(&model, limits);
        let (mut most, mut rows) = (0, 0);
        for n in 0..32 {
            let own = if is_same { 5 } else { 3 + n };
            let prompt = [&common[..], &[own, 9]].concat();
            submit_prompt(&mut worker, prompt, 60);
            if n == 0 {
                while worker.counts()[2] == 0 {
                    worker.tick();
                }
            }
        }
        while !worker.is_idle() {
            worker.tick();
            let in_use: usize = worker.page_use().iter().map(|group| group.by_rows).sum();
            let decoding = worker.counts()[2];
            assert!(
                in_use <= 3 + worker.counts()[1] + decoding,
                "{in_use} pages"
            );
            assert_eq!(worker.cache_bytes(), in_use * page);
            most = most.max(in_use);
            rows = rows.max(decoding);
        }
        assert_eq!((rows, most), (32, 3 + 32));
        assert_eq!(worker.preemptions(), 0);
        // All but the first began with the common pages. Some of those with equal prompts are copies of a
        // row.
        let hits = worker.prefix_counts().hits;
        assert!(if is_same { hits > 0 } else { hits == 31 }, "{hits}");
    }
}

/// Two rows grow until one is preempted. What it has computed stays in memory, unless prefixes are not
/// stored: then its tokens are computed again, one in each step.
#[test]
fn a_preempted_row_computes_only_the_rest() {
    for case in ["llama_llama3", "lfm2", "gemma3_text"] {
        let model = load(case, None);
        let row: usize = model.state_costs().iter().map(|cost| cost.bytes(256)).sum();
        let passes = |prefix_bytes: usize| {
            let limits = Limits {
                rows: 2,
                cache_bytes: Some(row + row / 2),
                prefix_bytes,
                ..Limits::default()
            };
            let mut worker = Worker::new(&model, limits);
            for seed in [3, 9] {
                let prompt = (0..50u32).map(|at| 3 + (at * 7 + seed) % 50).collect();
                submit_prompt(&mut worker, prompt, 190);
            }
            let mut oldest = Oldest::default();
            while !worker.is_idle() {
                worker.tick();
                oldest.check(&worker);
            }
            assert!(worker.preemptions() > 0, "{case}");
            (worker.forwards(), worker.prefix_counts().resumed)
        };
        let (kept, dropped) = (passes(64 << 20), passes(0));
        assert!(
            kept.1 >= 64 && dropped.1 == 0,
            "{case}: {kept:?} {dropped:?}"
        );
        // Without the pages, all tokens but those of the prompt are replayed.
        assert!(
            kept.0 + kept.1 - 60 <= dropped.0,
            "{case}: {kept:?} {dropped:?}"
        );
    }
}

/// A row that begins within a stored page gets a copy of it, so a request that waits will not share that
/// page with the row. A page that the row has whole is shared.
#[test]
fn a_page_that_a_row_will_copy_is_not_shared() {
    let model = load("llama_llama3", None);
    let common: Vec<u32> = (0..100).map(|at| 3 + at * 7 % 50).collect();
    for (same, expected) in [(63, 0), (64, 1)] {
        let limits = Limits {
            rows: 1,
            ..Limits::default()
        };
        let mut worker = Worker::new(&model, limits);
        submit_prompt(&mut worker, common.clone(), 1);
        while !worker.is_idle() {
            worker.tick();
        }
        for (n, own) in [(same, 3), (64, 4)] {
            submit_prompt(&mut worker, [&common[..n], &[own; 20]].concat(), 5);
        }
        worker.scheduler.plan(&mut worker.requests, |_| Vec::new());
        worker.reuse();
        let ids = worker.ids();
        let begun = worker.requests[&ids[0]].partial.as_ref().unwrap();
        assert_eq!(begun.lens(), [same]);
        let (_, whole) = sharing::shared_pages(&worker.scheduler, &worker.rows, &worker.requests);
        let waits = &worker.requests[&ids[1]];
        let found = sharing::in_rows(&worker.prefixes, &model, &whole, waits);
        assert_eq!(found, [expected]);
    }
}

/// One long row and many short ones hold the pages of their lengths.
#[test]
fn rows_of_unequal_lengths_hold_the_sum_of_their_pages() {
    let model = load("llama_llama3", None);
    let limits = Limits {
        prefix_bytes: 0,
        ..Limits::default()
    };
    let mut worker = Worker::new(&model, limits);
    let prompt = |n: usize, seed: u32| (0..n as u32).map(|at| 3 + (at * 7 + seed) % 50).collect();
    submit_prompt(&mut worker, prompt(200, 0), 30);
    for n in 1..20 {
        submit_prompt(&mut worker, prompt(20 + n, n as u32), 30);
    }
    let mut compared = 0;
    while !worker.is_idle() {
        worker.tick();
        let in_use: usize = worker.page_use().iter().map(|group| group.by_rows).sum();
        if worker.counts()[1] == 0 {
            let lens = worker.rows.held().lens().iter();
            let expected: usize = lens.map(|len| len.div_ceil(PAGE)).sum();
            assert_eq!(in_use, expected);
            compared += usize::from(worker.counts()[2] == 20);
        }
    }
    assert!(compared > 3, "{compared}");
}

/// Four times as many requests as there are rows, of mixed lengths, in memory for half of the rows.
#[test]
#[expect(clippy::print_stderr, reason = "a long soak tells what it has done")]
fn a_soak_leaves_no_page_behind() {
    let seconds = std::env::var("MLX_INFER_SOAK");
    let seconds: u64 = seconds.map_or(2, |text| text.parse().expect("a number of seconds"));
    let model = load("llama_llama3", None);
    let expected: Vec<Vec<u32>> = (0..KINDS).map(|of| alone(&model, of)).collect();
    let before = mlx_core::memory::active().unwrap();
    let row: usize = model.state_costs().iter().map(|cost| cost.bytes(256)).sum();
    let limits = Limits {
        rows: 4,
        cache_bytes: Some(row + row / 2),
        prefix_bytes: row / 2,
        ..Limits::default()
    };
    let capacity = limits.rows;
    let mut worker = Worker::new(&model, limits);
    let (mut random, mut told, start) = (Random(5), Vec::new(), Instant::now());
    let (mut ended, mut left, mut most) = (0, 0, 0);
    loop {
        let goes_on = start.elapsed().as_secs() < seconds || ended == 0;
        while goes_on && told.len() < 4 * capacity {
            let of = random.below(KINDS);
            let dropped = CancelToken::new();
            let answer = submit(&mut worker, of, random.below(3), &dropped);
            told.push((of, answer, dropped));
        }
        if told.is_empty() {
            break;
        }
        if random.below(40) == 0 {
            told[random.below(told.len())].2.cancel();
        }
        worker.tick();
        let (bytes, kept) = (worker.cache_bytes(), worker.prefix_counts().bytes);
        assert!(
            bytes <= row + row / 2 && kept <= row / 2,
            "{bytes} and {kept} bytes"
        );
        most = most.max(bytes + kept);
        told.retain(|(of, answer, dropped)| {
            let answer = answer.borrow();
            assert_eq!(answer.error, None);
            assert!(expected[*of].starts_with(&answer.tokens), "kind {of}");
            if answer.has_ended {
                let is_whole = answer.tokens.len() == expected[*of].len();
                assert!(is_whole || dropped.is_cancelled(), "kind {of}");
                ended += usize::from(is_whole);
                left += usize::from(!is_whole);
            }
            !answer.has_ended
        });
    }
    let counts = worker.prefix_counts();
    let preempted = worker.preemptions();
    eprintln!(
        "{ended} answered, {left} left, {preempted} preempted, {} begun with a prefix, {} pages evicted, at most \
         {most} bytes",
        counts.hits, counts.evicted
    );
    assert!(preempted > 0 && counts.hits > 0 && counts.evicted > 0);
    worker.prefixes.clear();
    let in_use = worker.page_use().into_iter();
    assert!(
        in_use
            .into_iter()
            .all(|group| (group.by_rows, group.by_prefixes) == (0, 0))
    );
    drop(worker);
    mlx_core::memory::clear_cache().unwrap();
    let after = mlx_core::memory::active().unwrap();
    assert!(after <= before, "{after} bytes, {before} before");
}
