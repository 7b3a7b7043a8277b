//! After any schedule the states of rows that speculate equal those of rows that do not, and
//! rejected tokens leave no trace in the states.
//!
//! Rejected drafts are tokens with an embedding of their own, which no text has. Between two steps
//! the slots after each row's length are overwritten with NaN.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

use mlx_core::fast::{self, Form, Op};
use mlx_core::ops::create::full;
use mlx_core::{Array, DType, Safetensors, eval, safetensors};
use mlx_nn::{Attend, LayerKind, ModelCache};

use super::*;
use crate::engine::rows::AGREED;
use crate::engine::scheduler::Status;
use crate::engine::speculate::drafters::Drafts;
use crate::model::LoadOptions;
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::GenerateOptions;
use crate::request::sampling::SamplingParams;
use crate::request::speculative::Speculative;

/// The token of rejected drafts, and its embedding.
const POISON: u32 = 63;
const LARGE: f32 = 1e4;
/// The longest draft, and the room that rings have for drafts.
const MOST: usize = 4;
/// The number of schedules of each model and drafter.
const SCHEDULES: u64 = 5;

/// A generator of pseudorandom numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, below: usize) -> usize {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// NaN for slots after a row's length. A large number if masked slots are multiplied by 0, as in
/// MLX's own attention.
pub(super) fn poison() -> f32 {
    match fast::form(Op::Attention).unwrap() {
        Form::Plain => LARGE,
        _ => f32::NAN,
    }
}

/// A model of `testdata` with the token of rejected drafts.
fn load(case: &str) -> LoadedModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata/models")
        .join(case);
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("config.json"), copy.path().join("config.json")).unwrap();
    let file = Safetensors::open(dir.join("model.safetensors")).unwrap();
    let mut tensors = BTreeMap::new();
    for name in file.names() {
        let mut array = file.array(name).unwrap();
        if name.ends_with("embed_tokens.weight") {
            array = array.astype(DType::F32).unwrap();
            let shape = array.shape().to_vec();
            let mut values = array.to_vec::<f32>().unwrap();
            let width = shape[1] as usize;
            values[POISON as usize * width..][..width].fill(LARGE);
            array = Array::from_slice(&values, &shape).unwrap();
        }
        tensors.insert(name.to_owned(), array);
    }
    let arrays = tensors.iter().map(|(name, array)| (name.as_str(), array));
    let path = copy.path().join("model.safetensors");
    safetensors::save(path, arrays, &BTreeMap::new()).unwrap();
    let options = LoadOptions {
        dtype: Some(DType::F32),
        max_draft: MOST,
        ..LoadOptions::default()
    };
    LoadedModel::load(copy.path(), options).unwrap()
}

/// Drafts the right tokens up to a random position. Those after it are `POISON`.
struct Scripted {
    /// The tokens of each request.
    expected: Rc<RefCell<BTreeMap<Id, Vec<u32>>>>,
    random: Random,
}

impl Drafter for Scripted {
    fn draft(
        &mut self,
        _rows: &mut Rows<'_>,
        requests: &mut Requests<'_>,
        wanted: &BTreeMap<Id, usize>,
        drafts: &mut Drafts,
    ) -> Result<()> {
        for (&id, &most) in wanted {
            let at = requests[&id].sequence.history().generated().len();
            let right = self.random.below(most + 1);
            let mut draft = self.expected.borrow()[&id][at..at + right].to_vec();
            draft.resize(most, POISON);
            drafts.add(id, draft);
        }
        Ok(())
    }
}

/// The numbers of row `slot`, state by state: those of positions that later tokens see, and those
/// of recurrent states.
fn states(model: &LoadedModel, cache: &ModelCache, slot: usize) -> Vec<Vec<f32>> {
    let len = cache.lens()[slot];
    let row = cache.prefix(slot, len).unwrap();
    let mut arrays = row.to_row(0).unwrap().into_iter();
    let kinds = model.model().states();
    let mut found = Vec::new();
    for (layer, kind) in kinds.iter().enumerate() {
        for _ in kind.part_names() {
            let array = arrays.next().unwrap();
            // A head is one position behind the layers.
            let is_head = model.model().draft_head().is_some() && layer + 2 == kinds.len();
            let held = len - usize::from(is_head);
            let (first, slots) = match kind {
                LayerKind::Recurrent(_) => {
                    found.push(array.to_vec().unwrap());
                    continue;
                }
                LayerKind::Window(window) | LayerKind::LatentWindow { window, .. } => {
                    ((held + 1).saturating_sub(*window), window + MOST)
                }
                LayerKind::Full | LayerKind::Latent => (0, usize::MAX),
            };
            if first == held {
                found.push(Vec::new());
                continue;
            }
            let seen: Vec<i32> = (first..held).map(|at| (at % slots) as i32).collect();
            let seen = Array::from_slice(&seen, &[seen.len() as i32]).unwrap();
            found.push(array.take(&seen, 2).unwrap().to_vec().unwrap());
        }
    }
    found
}

/// Whether these are the same numbers: to the bit, except with MLX's own kernels.
fn same(found: &[Vec<f32>], expected: &[Vec<f32>]) -> bool {
    let ours = |op| fast::form(op).unwrap() != Form::Plain;
    let to_the_bit = ours(Op::Attention) && ours(Op::Delta);
    let near = |(a, b): (&f32, &f32)| match to_the_bit {
        true => a.to_bits() == b.to_bits(),
        false => (a - b).abs() < 1e-3 * (1.0 + b.abs()),
    };
    let part = |(a, b): (&Vec<f32>, &Vec<f32>)| a.len() == b.len() && a.iter().zip(b).all(near);
    found.len() == expected.len() && found.iter().zip(expected).all(part)
}

/// Overwrites the slots after each row's length.
fn overwrite(model: &LoadedModel, cache: &mut ModelCache) {
    let (rows, width) = (cache.rows(), MOST + 1);
    let geometry = model.model().geometry().clone();
    let kinds = geometry.states();
    let mut step = cache.begin(&vec![width; rows]).unwrap();
    for (layer, kv) in geometry.kv().iter().enumerate() {
        let Some(kv) = kv else { continue };
        let shape = [1, kv.heads, (rows * width) as i32, kv.key_dim];
        let queries = full(&shape, 1.0f32, DType::F32).unwrap();
        let dirt = full(&shape, poison(), DType::F32).unwrap();
        let options = Attend {
            scale: 1.0,
            softcap: None,
            sinks: None,
            alibi: None,
        };
        let is_head = model.model().draft_head().is_some() && layer + 2 == kinds.len();
        let seen = match is_head {
            true => step
                .at_previous_position(|step| step.attend(layer, &queries, &dirt, &dirt, &options)),
            false => step.attend(layer, &queries, &dirt, &dirt, &options),
        };
        eval([&seen.unwrap()]).unwrap();
    }
    drop(step);
    eval(cache.arrays()).unwrap();
}

fn kind(kind: usize) -> (Vec<u32>, GenerateOptions) {
    let mut random = Random(kind as u64 + 1);
    let prompt = (0..1 + kind * 5 % 19).map(|_| random.below(60) as u32);
    let options = GenerateOptions {
        max_tokens: 6 + kind * 7 % 15,
        ignore_eos: true,
        prefill_chunk: if kind.is_multiple_of(3) { 4 } else { 512 },
        sampling: SamplingParams {
            temperature: if kind.is_multiple_of(2) { 0.0 } else { 1.2 },
            seed: Some(kind as u64),
            // It is never chosen.
            logit_bias: [(POISON, -1e4)].into_iter().collect(),
            ..Default::default()
        },
        ..Default::default()
    };
    (prompt.collect(), options)
}

type Told = Rc<RefCell<Vec<u32>>>;

/// Submits a request and collects its tokens in the list.
fn submit<'s>(
    worker: &mut Worker<'_, 's>,
    of: usize,
    drafts: usize,
    dropped: &CancelToken,
) -> Told {
    let (prompt, options) = kind(of);
    let options = GenerateOptions {
        speculative: match drafts {
            0 => Speculative::Off,
            5 => Speculative::Auto,
            tokens => Speculative::Tokens(tokens),
        },
        ..options
    };
    let told = Told::default();
    submit_with(worker, prompt, options, dropped, &told);
    told
}

fn submit_with<'s>(
    worker: &mut Worker<'_, 's>,
    prompt: Vec<u32>,
    options: GenerateOptions,
    dropped: &CancelToken,
    told: &Told,
) {
    let tokens = told.clone();
    let sink = Box::new(move |event: Result<Event>| {
        if let Event::Token { choice, .. } = event.unwrap() {
            tokens.borrow_mut().push(choice.id);
        }
        ControlFlow::Continue(())
    });
    let request = Request::new(prompt, options);
    let request = worker.model.frontend().checked(request).unwrap();
    worker.submit(request, Instant::now(), dropped.clone(), None, sink);
}

/// The tokens of a request that runs alone without speculation, and its states at each length.
type Plain = (Vec<u32>, BTreeMap<usize, Vec<Vec<f32>>>);

fn plain(model: &LoadedModel, of: usize) -> Plain {
    let mut worker = Worker::new(model, Limits::default());
    let told = submit(&mut worker, of, 0, &CancelToken::new());
    let mut found = BTreeMap::new();
    while !worker.is_idle() {
        worker.tick();
        if let Some(slot) = worker.slot(1) {
            let cache = worker.rows.whole_cache().unwrap();
            found.insert(cache.lens()[slot], states(model, cache, slot));
        }
    }
    (told.take(), found)
}

/// Rows join, leave, are preempted and return while others draft 0 to 4 tokens. Returns the number
/// of states that were compared, and of ticks with slots for states after single tokens.
fn run(
    case: &str,
    model: &LoadedModel,
    plain: &[Plain],
    seed: u64,
    is_scripted: bool,
) -> (usize, usize) {
    let mut random = Random(seed);
    let row: usize = model.state_costs().iter().map(|cost| cost.bytes(256)).sum();
    let (rows, cache_rows) = [(5, None), (3, Some(2)), (6, Some(3))][seed as usize % 3];
    let limits = Limits {
        rows,
        cache_bytes: cache_rows.map(|rows| rows * row),
        ..Limits::default()
    };
    let mut worker = Worker::new(model, limits);
    if seed % 4 < 2 {
        worker.scheduler = worker.scheduler.clone().rounding();
    }
    let expected = Rc::new(RefCell::new(BTreeMap::new()));
    // The passes of a worker on CUDA, with rows that do not draft.
    let is_split = seed % 5 == 4;
    if is_split {
        worker = worker.splitting();
    }
    if seed % 2 == 1 {
        worker = worker.padding();
    }
    if is_scripted && !is_split {
        worker.drafter = Some(Box::new(Scripted {
            expected: expected.clone(),
            random: Random(seed + 7),
        }));
    }
    let mut waiting: Vec<_> = (0..8).map(|_| random.below(20)).collect();
    let (mut kinds, mut told, mut compared) = (BTreeMap::new(), Vec::new(), 0);
    let mut spare = 0;
    for tick in 0.. {
        let due = waiting.iter().filter(|at| **at == tick).count();
        waiting.retain(|at| *at != tick);
        for _ in 0..due {
            let of = random.below(plain.len());
            let dropped = CancelToken::new();
            let drafts = random.below(6) * usize::from(!is_split);
            let tokens = submit(&mut worker, of, drafts, &dropped);
            let leaves = (random.below(4) == 0).then(|| tick + random.below(8));
            kinds.insert(worker.submitted, of);
            expected
                .borrow_mut()
                .insert(worker.submitted, plain[of].0.clone());
            told.push((of, tokens, dropped, leaves));
        }
        for (_, _, dropped, leaves) in &told {
            if *leaves == Some(tick) {
                dropped.cancel();
            }
        }
        if waiting.is_empty() && worker.is_idle() {
            break;
        }
        worker.tick();
        spare += usize::from(worker.rows.spare_bytes() > 0);
        for id in worker.scheduler.running().collect::<Vec<_>>() {
            let progress = worker.requests[&id].progress;
            let slot = progress.slot.expect("a row that runs has a slot");
            assert_eq!(worker.rows.owners()[slot], Some(id));
            assert_eq!(worker.rows.cache().lens()[slot], progress.computed());
            assert_eq!(progress.status(), Status::Running);
        }
        // A comparison makes the head read its unread positions, so some schedules skip comparisons.
        let is_compared = seed.is_multiple_of(2) || random.below(2) == 0;
        for id in worker.scheduler.running().filter(|_| is_compared) {
            let Some(slot) = worker.requests[&id].progress.slot else {
                continue;
            };
            let cache = worker.rows.whole_cache().unwrap();
            let len = cache.lens()[slot];
            if let Some(expected) = plain[kinds[&id]].1.get(&len) {
                let found = states(model, cache, slot);
                assert!(
                    same(&found, expected),
                    "{case}, {seed}: request {id}, length {len}"
                );
                compared += 1;
            }
        }
        if worker.rows.slots() > 0 {
            overwrite(model, worker.rows.cache());
        }
    }
    for (of, tokens, dropped, _) in told {
        let (found, expected) = (tokens.take(), &plain[of].0);
        let is_whole = dropped.is_cancelled() || found.len() == expected.len();
        assert!(
            is_whole && expected.starts_with(&found),
            "{case}, {seed}: {of}"
        );
    }
    (compared, spare)
}

/// `MLX_INFER_DRAFTED_DAYS=1000` runs that many schedules instead of a few.
#[test]
fn rejected_tokens_leave_no_trace_in_any_state() {
    let days = std::env::var("MLX_INFER_DRAFTED_DAYS");
    let days: u64 = days.map_or(SCHEDULES, |days| days.parse().expect("a number of days"));
    for (case, drafters) in [
        ("llama_llama3", &[true][..]),
        ("mistral", &[true]),
        ("qwen3_5_text", &[true, false]),
        ("falcon_h1", &[true]),
    ] {
        let model = load(case);
        let plain: Vec<Plain> = (0..10).map(|of| plain(&model, of)).collect();
        for &is_scripted in drafters {
            let runs = (0..days).map(|seed| run(case, &model, &plain, seed, is_scripted));
            let (compared, spare): (Vec<usize>, Vec<usize>) = runs.unzip();
            let (compared, spare): (usize, usize) = (compared.iter().sum(), spare.iter().sum());
            assert!(compared > 40 * days as usize, "{case}: {compared} states");
            assert_eq!(spare > 0, model.is_recurrent(), "{case}: {spare} ticks");
        }
    }
}

/// Rounds of a head have the same graph whatever rows keep, and the tokens are those without drafts.
#[test]
fn rounds_of_a_head_repeat() {
    for case in ["qwen3_5_text", "glm4_moe"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
        let options = LoadOptions {
            dtype: Some(DType::F32),
            max_draft: MOST,
            ..LoadOptions::default()
        };
        let model = LoadedModel::load(dir.join(case), options).unwrap();
        assert!(model.model().draft_head().is_some(), "{case}");
        let told = |drafts: usize| {
            let mut worker = Worker::new(&model, Limits::default()).padding();
            let tokens: Vec<Told> = (0..4)
                .map(|of| {
                    let prompt = (0..5 + 3 * of).map(|at| (7 * at + of) % 50).collect();
                    let sampling = SamplingParams {
                        temperature: [0.0, 1.0][of as usize % 2],
                        seed: Some(u64::from(of)),
                        ..Default::default()
                    };
                    let options = GenerateOptions {
                        max_tokens: 60 - 9 * of as usize,
                        ignore_eos: true,
                        speculative: match drafts {
                            0 => Speculative::Off,
                            tokens => Speculative::Tokens(tokens),
                        },
                        sampling,
                        ..Default::default()
                    };
                    let told = Told::default();
                    submit_with(&mut worker, prompt, options, &CancelToken::new(), &told);
                    told
                })
                .collect();
            while !worker.is_idle() {
                worker.tick();
            }
            let tokens = tokens.iter().map(|told| told.take());
            tokens.collect::<Vec<Vec<u32>>>()
        };
        let plain = told(0);
        for drafts in [1, 3] {
            AGREED.with(|agreed| agreed.set(0));
            assert_eq!(told(drafts), plain, "{case}, {drafts} drafts");
            // MLX's own operations have another graph for each number of tokens.
            let is_off = std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off");
            let agreed = AGREED.with(std::cell::Cell::get);
            assert!(
                agreed > 20 || is_off,
                "{case}, {drafts} drafts: {agreed} rounds"
            );
        }
    }
}

/// The costs that a worker measured are known to the next worker of the model, and not to a worker
/// that exists at the same time.
#[test]
fn a_model_remembers_what_steps_cost() {
    let model = load("llama_llama3");
    let knows = |worker: &Worker<'_, '_>| worker.experience.costs.knows_plain(1);
    let mut worker = Worker::new(&model, Limits::default());
    submit(&mut worker, 0, 0, &CancelToken::new());
    while !worker.is_idle() {
        worker.tick();
    }
    assert!(knows(&worker));
    let beside = Worker::new(&model, Limits::default());
    assert!(!knows(&beside));
    drop(beside);
    drop(worker);
    assert!(knows(&Worker::new(&model, Limits::default())));
}
