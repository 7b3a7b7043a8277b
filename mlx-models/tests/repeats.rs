//! Decode steps that claim to repeat the step before have its graph, for the models of `testdata/models`.

#[path = "shared/checkpoints.rs"]
mod checkpoints;

use std::path::{Path, PathBuf};

use checkpoints::checkpoint;
use mlx_core::{Array, DType, Graph, Replay, Result, eval, fast};
use mlx_models::{LoadOptions, Loaded, Model, load};
use mlx_nn::{CacheOptions, ModelCache};

/// The number of steps.
const STEPS: usize = 48;

#[derive(Debug)]
struct Found {
    /// Steps that claim to repeat the step before.
    claimed: usize,
    /// Claimed steps that have the graph of the step before.
    agreed: usize,
    /// Claimed steps that differ from the step before in tokens and offsets only.
    launched: usize,
    /// Steps that have the graph of the step before, claimed or not.
    same: usize,
}

fn load_case(dir: &Path) -> Loaded {
    load_as(dir, DType::F32)
}

fn load_as(dir: &Path, dtype: DType) -> Loaded {
    let options = LoadOptions {
        dtype: Some(dtype),
        ..LoadOptions::default()
    };
    load(dir, options).expect("the case loads")
}

/// Rows of a model whose prompts of these lengths are computed.
fn started(model: &dyn Model, lens: &[usize], options: CacheOptions) -> Result<ModelCache> {
    let mut cache = ModelCache::new(model.states(), lens.len(), options);
    let tokens = lens.iter().sum();
    let prompt = Array::from_slice(&vec![1u32; tokens], &[1, tokens as i32])?;
    let mut step = cache.begin(lens)?;
    eval([&model.hidden(&prompt, &mut step)?])?;
    step.commit_all()?;
    eval(cache.arrays())?;
    Ok(cache)
}

/// Decodes rows of a model after prompts of these lengths.
fn decode(dir: &Path, lens: &[usize], options: CacheOptions) -> Result<Found> {
    let loaded = load_case(dir);
    let model = &*loaded.model;
    let mut cache = started(model, lens, options)?;
    let b = lens.len() as i32;
    let mut before: Option<Graph> = None;
    let mut found = Found {
        claimed: 0,
        agreed: 0,
        launched: 0,
        same: 0,
    };
    let widths = vec![1; lens.len()];
    for number in 0..STEPS {
        let tokens: Vec<u32> = (0..b as u32)
            .map(|row| 1 + row + number as u32 % 5)
            .collect();
        let tokens = Array::from_slice(&tokens, &[1, b])?;
        let claims = cache.begin_repeated(&widths)?.is_some();
        let mut step = cache.begin(&widths)?;
        step.keep_all();
        let hidden = model.hidden(&tokens, &mut step)?;
        let mut inputs = step.inputs();
        inputs.push(tokens);
        step.commit_all()?;
        let logits = model.logits(&hidden)?;
        let graph = Graph::of([&logits])?;
        if let Some(before) = &before {
            let same = graph.is_same(before)?;
            found.same += usize::from(same);
            found.claimed += usize::from(claims);
            found.agreed += usize::from(claims && same);
            let is_known = same && graph.other_inputs(before, &inputs)? == 0;
            found.launched += usize::from(claims && is_known);
        }
        before = Some(graph);
        eval(std::iter::once(&logits).chain(&cache.arrays()))?;
    }
    Ok(found)
}

/// The names and folders of the checkpoints of `testdata/models`.
fn cases() -> Vec<(String, PathBuf)> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models");
    let mut cases: Vec<_> = std::fs::read_dir(models)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .map(|name| (name.clone(), checkpoint(&name)))
        .collect();
    cases.sort();
    cases
}

#[test]
fn steps_that_claim_to_repeat_have_the_same_graph() -> Result<()> {
    if fast::form(fast::Op::Attention)? == fast::Form::Plain {
        return Ok(());
    }
    let options = |slack| CacheOptions {
        slack,
        ..CacheOptions::default()
    };
    let runs: [(&[usize], CacheOptions); 4] = [
        (&[5], options(0)),
        (&[7, 4], options(0)),
        (&[3, 3, 3], options(3)),
        (&[11, 2], options(0)),
    ];
    for (name, case) in &cases() {
        let mut launched = 0;
        for (lens, options) in &runs {
            let found = decode(case, lens, *options)?;
            println!("{name}, prompts of {lens:?}: {found:?}");
            assert_eq!(
                found.agreed, found.claimed,
                "{name}, prompts of {lens:?}: {found:?}"
            );
            launched += found.launched;
        }
        assert!(launched > 0, "{name}");
    }
    Ok(())
}

/// Steps of a batch in which longer and shorter rows replace rows that leave.
#[derive(Default)]
struct Served {
    /// Steps that have the graph of the step before.
    same: usize,
    /// Steps with other rows than the step before that claim to repeat it.
    claimed: usize,
    /// Steps that claim to repeat the step before and have another graph.
    wrong: usize,
}

fn served(dir: &Path) -> Result<Served> {
    let loaded = load_case(dir);
    let model = &*loaded.model;
    let options = CacheOptions::default();
    let mut cache = started(model, &[5, 21, 9], options)?;
    let (mut before, mut widths): (Option<Graph>, _) = (None, [1; 3]);
    let (mut found, mut kept) = (Served::default(), Vec::new());
    for number in 0..STEPS {
        match number {
            // The longest row leaves, and then another one.
            10 | 15 => {
                widths[number % 3] = 0;
                cache.clear(number % 3);
            }
            20 | 25 => {
                let (row, len) = [(0, 33), (1, 2)][number / 5 - 4];
                // The prompt stays in a cache of its own, so its last page is copied.
                let mut prompt = cache.beside(1);
                let tokens = Array::from_slice(&vec![1u32; len], &[1, len as i32])?;
                let mut step = prompt.begin(&[len])?;
                eval([&model.hidden(&tokens, &mut step)?])?;
                step.commit_all()?;
                eval(prompt.arrays())?;
                cache.put(row, &prompt, 0)?;
                kept.push(prompt);
                widths[row] = 1;
                eval(cache.row_arrays())?;
            }
            _ => {}
        }
        let claims = cache.begin_repeated(&widths)?.is_some();
        let is_changed = [10, 15, 20, 25].contains(&number);
        found.claimed += usize::from(claims && is_changed);
        let tokens = Array::from_slice(&[1u32, 2, 3], &[1, 3])?;
        let mut step = cache.begin_slots(0..model.states().len(), None, &widths)?;
        step.keep_all();
        let hidden = model.hidden(&tokens, &mut step)?;
        let mut inputs = step.inputs();
        inputs.push(tokens);
        step.commit_all()?;
        let logits = model.logits(&hidden)?;
        let graph = Graph::of([&logits])?;
        if let Some(before) = &before {
            let same_graph = graph.is_same(before)? && graph.other_inputs(before, &inputs)? == 0;
            found.same += usize::from(same_graph);
            found.wrong += usize::from(claims && !same_graph);
        }
        before = Some(graph);
        eval(std::iter::once(&logits).chain(&cache.arrays()))?;
    }
    Ok(found)
}

/// Rows that leave and rows that take their places change only the inputs of the graph.
#[test]
fn rows_that_join_and_leave_change_no_graph() -> Result<()> {
    if fast::form(fast::Op::Attention)? == fast::Form::Plain {
        return Ok(());
    }
    let mut others = Vec::new();
    for (name, case) in &cases() {
        let found = served(case)?;
        assert_eq!(found.wrong, 0, "{name}");
        match found.same {
            same if same < STEPS - 1 => others.push(name.clone()),
            _ => assert_eq!(found.claimed, 4, "{name}"),
        }
    }
    // Exceptions: some ropes depend on the length of the prompt, and blocks are hidden from rows that are longer than those that all
    // queries see.
    let expected = [
        "llama_dynamic",
        "minicpm3",
        "phi3_longrope",
        "phi3small",
        "phimoe",
    ];
    assert_eq!(others, expected);
    Ok(())
}

/// Steps with drafts that have the graph of the step before, where rows keep different numbers of
/// tokens.
fn drafted(dir: &Path, steps: usize) -> Result<usize> {
    let loaded = load_case(dir);
    let model = &*loaded.model;
    let options = CacheOptions {
        slack: 3,
        ..CacheOptions::default()
    };
    let mut cache = started(model, &[5, 9], options)?;
    let (mut before, mut same): (Option<Graph>, usize) = (None, 0);
    for number in 0..steps {
        let widths = [[3, 2], [1, 3], [3, 3]][number % 3];
        let tokens: Vec<u32> = (0..6).map(|at| 1 + (at + number as u32) % 5).collect();
        let tokens = Array::from_slice(&tokens, &[1, 6])?;
        let claimed = cache.begin_repeated_padded(&widths, 3)?;
        let claimed = claimed.map(|step| step.inputs().to_vec());
        let mut step = cache.begin_padded(model.decoder_states(), &widths, 3)?;
        step.keep_any()?;
        let [_, hidden] = model.run(&tokens, &mut step)?;
        let mut inputs = step.inputs();
        if let Some(claimed) = &claimed {
            assert_eq!(claimed.len(), inputs.len());
            for (claimed, built) in claimed.iter().zip(&inputs) {
                assert_eq!(claimed.shape(), built.shape());
                assert_eq!(claimed.to_vec::<i32>()?, built.to_vec::<i32>()?);
            }
        }
        inputs.push(tokens);
        let is_in_place = step.is_in_place();
        step.commit(&widths.map(|width| 1 + number % width))?;
        let logits = model.logits(&hidden)?;
        let graph = Graph::of([&logits])?;
        if let Some(before) = &before {
            let is_same = graph.is_same(before)? && graph.other_inputs(before, &inputs)? == 0;
            assert!(is_same || claimed.is_none(), "step {number}");
            same += usize::from(is_same && is_in_place && claimed.is_some());
        }
        before = Some(graph);
        eval(std::iter::once(&logits).chain(&cache.arrays()))?;
    }
    Ok(same)
}

/// How many tokens rows keep changes only the inputs of the graph of a step with drafts.
#[test]
fn kept_tokens_change_no_graph() -> Result<()> {
    if fast::form(fast::Op::Attention)? == fast::Form::Plain {
        return Ok(());
    }
    const DRAFTED: usize = 9;
    let mut others = Vec::new();
    for (name, case) in &cases() {
        let same = drafted(case, DRAFTED)?;
        println!("{name}: {same} of {DRAFTED}");
        if same + 2 < DRAFTED {
            others.push(name.clone());
        }
    }
    // A rope depends on the length of the text.
    assert_eq!(others, ["phimoe"]);
    Ok(())
}

/// The logits of a step of one token a row, and whether it was launched without its graph. `replay`: `None` evaluates the
/// step.
fn launch(
    model: &dyn Model,
    cache: &mut ModelCache,
    tokens: &Array,
    replay: Option<&mut Replay>,
) -> Result<(Vec<f32>, bool)> {
    let widths = vec![1; cache.rows()];
    let mut replay = replay;
    if let Some(replay) = &mut replay
        && replay.repeats()
        && let Some(step) = cache.begin_repeated(&widths)?
    {
        let inputs = step.inputs().iter().chain([tokens]);
        if let Some(results) = replay.relaunch(inputs, step.written())? {
            step.commit();
            return Ok((results[0].to_vec()?, true));
        }
    }
    let mut step = cache.begin(&widths)?;
    step.keep_all();
    let hidden = model.hidden(tokens, &mut step)?;
    let (mut inputs, is_in_place) = (step.inputs(), step.is_in_place());
    inputs.push(tokens.clone());
    step.commit_all()?;
    let logits = model.logits(&hidden)?.astype(DType::F32)?;
    match replay.filter(|_| is_in_place) {
        Some(replay) => replay.async_eval([&logits], &inputs)?,
        None => eval(std::iter::once(&logits).chain(&cache.arrays()))?,
    }
    Ok((logits.to_vec()?, false))
}

/// The number of steps of a model that were launched without their graphs.
///
/// # Errors
/// A step fails, or its logits are not those of an evaluated step, to the bit.
fn launched(case: &Path) -> std::result::Result<usize, String> {
    let failed = |error: mlx_core::Error| error.to_string();
    let loaded = load_as(case, DType::BF16);
    let model = &*loaded.model;
    let options = CacheOptions::default();
    let mut caches = [(); 2].map(|()| started(model, &[5, 9], options));
    let [Ok(launched), Ok(evaluated)] = &mut caches else {
        return Err("a prompt fails".to_owned());
    };
    let mut replay = Replay::new().map_err(failed)?;
    let mut count = 0;
    for number in 0..STEPS as u32 {
        let tokens =
            Array::from_slice(&[1 + number % 5, 2 + number % 7], &[1, 2]).map_err(failed)?;
        let (found, is_launched) =
            launch(model, launched, &tokens, Some(&mut replay)).map_err(failed)?;
        let (expected, _) = launch(model, evaluated, &tokens, None).map_err(failed)?;
        if found != expected {
            return Err(format!(
                "other logits in step {number}, launched: {is_launched}"
            ));
        }
        count += usize::from(is_launched);
    }
    Ok(count)
}

/// On a GPU, steps that are launched as captured graphs compute what evaluated steps do, to the bit.
#[test]
fn launched_steps_equal_evaluated_ones() -> Result<()> {
    if fast::form(fast::Op::Attention)? != fast::Form::Cuda {
        return Ok(());
    }
    let (mut faults, mut never) = (Vec::new(), Vec::new());
    for (name, case) in &cases() {
        let found = launched(case);
        println!("{name}: {found:?} of {STEPS}");
        match found {
            Ok(0) => never.push(name.clone()),
            Ok(count) if count >= STEPS / 2 => {}
            found => faults.push((name.clone(), found)),
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(never.is_empty(), "{never:?}");
    Ok(())
}

/// A recurrence of plain operations (RWKV 7) computes the same, whether the states after each token
/// have slots or only those after the last are stored.
#[test]
fn states_of_tokens_in_slots_are_those_of_new_arrays() -> Result<()> {
    let loaded = load_case(&checkpoint("rwkv7"));
    let model = &*loaded.model;
    let run = |in_slots: bool| -> Result<Vec<Vec<f32>>> {
        let options = CacheOptions {
            slack: 3,
            ..CacheOptions::default()
        };
        let mut cache = started(model, &[5, 19, 2], options)?;
        let mut found = Vec::new();
        for number in 0..12 {
            let widths = [[3, 2, 3], [1, 0, 3], [1, 1, 1], [3, 3, 3]][number % 4];
            let n = widths.iter().sum::<usize>() as u32;
            let tokens: Vec<u32> = (0..n).map(|at| 1 + (7 * at + number as u32) % 60).collect();
            let tokens = Array::from_slice(&tokens, &[1, n as i32])?;
            let mut step = cache.begin(&widths)?;
            let keep = match number % 4 {
                2 => widths,
                // A row with tokens keeps at least one.
                _ => widths.map(|width| width.min(1 + number % 2)),
            };
            if in_slots {
                match keep == widths {
                    // The slots of the steps before are still there.
                    true => step.keep_all(),
                    false => assert!(step.keep_any()?),
                }
            }
            let logits = model.logits(&model.hidden(&tokens, &mut step)?)?;
            step.commit(&keep)?;
            found.push(logits.to_vec::<f32>()?);
        }
        Ok(found)
    };
    for (number, (new, slots)) in run(false)?.iter().zip(&run(true)?).enumerate() {
        assert_eq!(new.len(), slots.len());
        let off = new.iter().zip(slots).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0, f32::max);
        assert!(off < 2e-5, "step {number}: {off}");
    }
    Ok(())
}
