//! Checkpoints of a run: atomic, and complete enough that a resumed run computes the same bits.
//!
//! ```text
//! out/adapters.safetensors, adapter_config.json    the result, for mlx-infer and mlx-lm
//! out/best/…                                       the parameters of the best evaluation
//! out/checkpoints/00000100/parameters.safetensors  the trained parameters
//!                          optimizer.safetensors   the optimiser's moments
//!                          state.json              progress, settings
//! ```
//!
//! A save first writes everything to a hidden folder and flushes it. Then the adapter files get
//! their names, and last the checkpoint. A run that is killed in between leaves the previous
//! checkpoint, and `adapters.safetensors` is never older than the last checkpoint. Resuming writes
//! the adapter files again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use mlx_core::safetensors::save as save_arrays;
use mlx_core::{Array, DType, Safetensors};
use mlx_infer::Files;
use mlx_infer::output::{remove, replace_folder, sync_folder};
use mlx_models::Model;
use mlx_models::adapter::{self, AdapterConfig};
use mlx_nn::trainable::trainable;
use mlx_nn::{Param, Visit, VisitMut};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::batch::Example;
use crate::error::{Result, argument, format, io};
use crate::feed::Numbers;
use crate::optim::Optimizer;
use crate::trainer::{Progress, TrainerConfig};

const PARAMETERS: &str = "parameters.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// Hidden folders: an unfinished checkpoint, unfinished adapter files, an old checkpoint during its
/// removal.
const UNFINISHED: &str = ".saving";
const UNNAMED: &str = ".adapter";
const REMOVED: &str = ".removed";
/// How many checkpoints are kept.
const KEPT: usize = 2;
/// The version of this layout. Version 1 did not record the adapter and the frozen weights.
const FORMAT: u32 = 2;

/// The output folder of a run.
#[derive(Clone, Debug)]
pub struct Output {
    /// The folder.
    pub dir: PathBuf,
    /// The content of its `adapter_config.json`.
    pub config: AdapterConfig,
}

impl Output {
    fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// Removes the hidden folders of a killed run. The caller holds the
    /// [`Claim`](mlx_infer::output::Claim) on the folder.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn clean(&self) -> Result<()> {
        for name in [UNFINISHED, UNNAMED, REMOVED] {
            let dir = self.checkpoints().join(name);
            remove(&dir).map_err(|error| io(&dir, error))?;
        }
        Ok(())
    }

    /// Writes the trained parameters as those of the best evaluation.
    pub(crate) fn write_best(&self, model: &dyn Model) -> Result<()> {
        self.write(&self.dir.join("best"), &trainable(model)?)
    }

    /// Writes the trained parameters as the run's result.
    pub(crate) fn write_result(&self, model: &dyn Model) -> Result<()> {
        self.write(&self.dir, &trainable(model)?)
    }

    /// Writes adapter files to a hidden folder and moves each to `dir`, the tensors first.
    fn write(&self, dir: &Path, params: &[(String, Array)]) -> Result<()> {
        let parent = self.checkpoints();
        let scratch = fresh(&parent, UNNAMED)?;
        let pairs = params.iter().map(|(name, array)| (name.as_str(), array));
        adapter::write(&scratch, &self.config, pairs)
            .map_err(|error| error.context(dir.display()))?;
        let publish = || -> std::io::Result<()> {
            fs::create_dir_all(dir)?;
            for name in [adapter::WEIGHTS, adapter::CONFIG] {
                let made = scratch.join(name);
                File::open(&made)?.sync_all()?;
                fs::rename(&made, dir.join(name))?;
            }
            sync_folder(dir)?;
            remove(&scratch)
        };
        publish().map_err(|error| io(dir, error))
    }
}

/// An empty folder of this name.
fn fresh(parent: &Path, name: &str) -> Result<PathBuf> {
    let dir = parent.join(name);
    let make = || {
        fs::create_dir_all(parent)?;
        remove(&dir)?;
        fs::create_dir(&dir)
    };
    make().map_err(|error| io(&dir, error))?;
    Ok(dir)
}

/// The content of `state.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub config: TrainerConfig,
    /// The [`adapter_settings`] of the run.
    pub adapter: Value,
    pub frozen: Frozen,
    /// The [`fingerprint`] of the training data.
    pub data: u64,
    pub progress: Progress,
}

/// The part of `state.json` that every format has.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct State {
    format: u32,
    #[serde(flatten)]
    saved: Saved,
}

/// The settings of an adapter that change the result of a step, by their names.
pub(crate) fn adapter_settings(config: &AdapterConfig) -> Value {
    // Without `..`: a new field does not compile until it is listed or left out here.
    let AdapterConfig {
        kind,
        rank,
        scale,
        dropout,
        num_layers,
        keys,
        facts: _,
    } = config;
    json!({
        "fine_tune_type": format!("{kind:?}").to_lowercase(),
        "rank": rank,
        "scale": scale,
        "dropout": dropout,
        "num_layers": num_layers,
        "keys": keys,
    })
}

/// The parameters that a run does not train, in a form for comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Frozen {
    /// The dtypes that occur.
    pub dtypes: BTreeSet<String>,
    /// A hash of names, shapes, dtypes and the first numbers of each.
    pub hash: u64,
}

impl Frozen {
    /// The number of elements of each parameter in the hash. Another training run changes nearly
    /// all of them.
    const NUMBERS: i32 = 64;

    pub(crate) fn of(model: &dyn Model) -> Result<Self> {
        struct Collect(Frozen);
        impl Visit for Collect {
            fn param(&mut self, path: &mlx_nn::Path, param: &Param) -> mlx_core::Result<()> {
                if param.trainable {
                    return Ok(());
                }
                let value = param.value();
                let dtype = value.dtype().to_string();
                let mut mix = |number: u64| self.0.hash = Numbers::new(self.0.hash, number).next();
                path.as_str().bytes().for_each(|byte| mix(byte.into()));
                dtype.bytes().for_each(|byte| mix(byte.into()));
                value.shape().iter().for_each(|&size| mix(size as u64));
                // Evaluated first: a weight that is converted when it is used would otherwise be
                // converted here again.
                mlx_core::eval([value])?;
                let numbers = value.reshape(&[-1])?;
                let some = numbers.dim(0)?.min(Frozen::NUMBERS);
                let numbers = numbers.slice_axis(0, 0, some)?.astype(DType::F32)?;
                for number in numbers.to_vec::<f32>()? {
                    mix(number.to_bits().into());
                }
                self.0.dtypes.insert(dtype);
                Ok(())
            }
        }
        let mut visitor = Collect(Self::default());
        model.visit(&mut mlx_nn::Path::default(), &mut visitor)?;
        Ok(visitor.0)
    }
}

/// A 64-bit hash of the examples and their order.
pub(crate) fn fingerprint(examples: &[Example]) -> u64 {
    let mut sum = examples.len() as u64;
    let mut mix = |number: u64| sum = Numbers::new(sum, number).next();
    for example in examples {
        mix(example.prompt as u64);
        if let Some(weights) = &example.weights {
            weights
                .iter()
                .for_each(|&weight| mix(weight.to_bits().into()));
        }
        example.tokens.iter().for_each(|&token| mix(token.into()));
    }
    sum
}

/// The folder of the last checkpoint.
pub(crate) fn last(output: &Output) -> Result<Option<PathBuf>> {
    Ok(all(output)?.pop())
}

/// All checkpoints, oldest first.
fn all(output: &Output) -> Result<Vec<PathBuf>> {
    let dir = output.checkpoints();
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(&dir, error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| io(&dir, error))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(step) = name.and_then(|name| name.parse::<u64>().ok()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Saves a checkpoint, and removes old ones.
pub(crate) fn save(
    output: &Output,
    saved: &Saved,
    model: &dyn Model,
    optimizer: &Optimizer,
) -> Result<PathBuf> {
    let parent = output.checkpoints();
    let scratch = fresh(&parent, UNFINISHED)?;
    let params = trainable(model)?;
    let none = BTreeMap::new();
    let pairs = params.iter().map(|(name, array)| (name.as_str(), array));
    save_arrays(scratch.join(PARAMETERS), pairs, &none)?;
    let states = optimizer.arrays()?;
    let pairs = states.iter().map(|(name, array)| (name.as_str(), array));
    save_arrays(scratch.join(OPTIMIZER), pairs, &none)?;
    let state = State {
        format: FORMAT,
        saved: saved.clone(),
    };
    let text = serde_json::to_vec_pretty(&state).map_err(|error| format(error.to_string()))?;
    write_synced(&scratch.join(STATE), &text)?;
    sync_folder(&scratch).map_err(|error| io(&scratch, error))?;
    output.write(&output.dir, &params)?;
    let dir = parent.join(format!("{:08}", saved.progress.step));
    let removed = parent.join(REMOVED);
    // A run that continued from an earlier checkpoint computes this step again, to the same bits.
    replace_folder(&scratch, &dir, &removed)
        .and_then(|()| sync_folder(&parent))
        .map_err(|error| io(&dir, error))?;
    let checkpoints = all(output)?;
    for old in &checkpoints[..checkpoints.len().saturating_sub(KEPT)] {
        // If the process is killed during the removal, a folder with the old name would look like a
        // checkpoint.
        fs::rename(old, &removed)
            .and_then(|()| remove(&removed))
            .map_err(|error| io(old, error))?;
    }
    Ok(dir)
}

/// Restores model and optimiser from a checkpoint. The run that wrote it must have the settings and
/// data of `expected`.
pub(crate) fn load(
    dir: &Path,
    expected: &Saved,
    model: &mut dyn Model,
    optimizer: &mut Optimizer,
) -> Result<Progress> {
    let path = dir.join(STATE);
    // `Files::read` refuses files that are not ordinary ones or are too large.
    let text = Files::Directory(dir.to_owned()).read(STATE)?;
    let text = text.ok_or_else(|| io(&path, std::io::ErrorKind::NotFound.into()))?;
    let wrong = |message: String| format(format!("{}: {message}", path.display()));
    let fault = |error: serde_json::Error| wrong(error.to_string());
    let Version { format: found } = serde_json::from_slice(&text).map_err(fault)?;
    if found != FORMAT {
        return Err(wrong(format!(
            "expected format {FORMAT}, found {found}: the version of mlx-train that wrote it can resume it"
        )));
    }
    let state: State = serde_json::from_slice(&text).map_err(fault)?;
    same_run(&state.saved, expected)
        .map_err(|what| argument(format!("{} cannot be resumed: {what}", dir.display())))?;
    let progress = state.saved.progress;
    let file = Safetensors::open(dir.join(PARAMETERS))?;
    restore(dir, model, &file)?;
    let file = Safetensors::open(dir.join(OPTIMIZER))?;
    let arrays: Vec<(String, Array)> = file
        .names()
        .map(|name| Ok((name.to_owned(), file.array(name)?)))
        .collect::<mlx_core::Result<_>>()?;
    optimizer
        .restore(progress.step, &trainable(model)?, arrays)
        .map_err(|error| error.context(dir.join(OPTIMIZER).display()))?;
    Ok(progress)
}

/// Checks that two runs are the same. Settings that do not change a step may differ.
fn same_run(found: &Saved, expected: &Saved) -> std::result::Result<(), String> {
    // Without `..`: a new field does not compile until it is compared or left out here.
    let Saved {
        config,
        adapter,
        frozen,
        data,
        progress: _,
    } = found;
    let json = |config: &TrainerConfig| serde_json::to_value(config).unwrap_or_default();
    let free = [
        "steps",
        "eval_every",
        "eval_batches",
        "save_every",
        "patience",
    ];
    same_settings(&json(config), &json(&expected.config), &free)?;
    same_settings(adapter, &expected.adapter, &[])?;
    // A run that trains all weights has other parameters than one that trains an adapter; `restore`
    // reports that.
    let both_freeze = !frozen.dtypes.is_empty() && !expected.frozen.dtypes.is_empty();
    if both_freeze && frozen.dtypes != expected.frozen.dtypes {
        let list = |frozen: &Frozen| Vec::from_iter(frozen.dtypes.iter().cloned()).join(", ");
        return Err(format!(
            "its model's frozen weights are {}, not {} (--dtype)",
            list(frozen),
            list(&expected.frozen)
        ));
    }
    if both_freeze && frozen.hash != expected.frozen.hash {
        return Err("its model has other frozen weights (--model)".to_owned());
    }
    match data == &expected.data {
        true => Ok(()),
        false => Err("it was trained on other examples".to_owned()),
    }
}

/// Compares the settings by their names, except for those of `free`.
fn same_settings(
    found: &Value,
    expected: &Value,
    free: &[&str],
) -> std::result::Result<(), String> {
    for (key, found) in found.as_object().into_iter().flatten() {
        if !free.contains(&key.as_str()) && *found != expected[key] {
            let expected = &expected[key];
            return Err(format!("its {key} is {found}, not {expected}"));
        }
    }
    Ok(())
}

fn restore(dir: &Path, model: &mut dyn Model, file: &Safetensors) -> Result<()> {
    struct Restore<'a>(&'a Safetensors, Vec<String>, usize);
    impl VisitMut for Restore<'_> {
        fn param(&mut self, path: &mlx_nn::Path, param: &mut Param) -> mlx_core::Result<()> {
            if !param.trainable {
                return Ok(());
            }
            let name = path.as_str();
            let expected = (param.value().dtype(), param.shape());
            match self.0.info(name) {
                Ok(found) if found == expected => {
                    param.set(self.0.array(name)?);
                    self.2 += 1;
                }
                Ok(found) => self
                    .1
                    .push(format!("{name}: expected {expected:?}, found {found:?}")),
                Err(_) => self.1.push(format!("{name}: missing")),
            }
            Ok(())
        }
    }
    let mut visitor = Restore(file, Vec::new(), 0);
    model.visit_mut(&mut mlx_nn::Path::default(), &mut visitor)?;
    let Restore(_, mut faults, restored) = visitor;
    if faults.is_empty() && restored != file.names().len() {
        let more = file.names().len() - restored;
        faults.push(format!("{more} parameters that this run does not train"));
    }
    match faults.first() {
        None => Ok(()),
        Some(fault) => Err(argument(format!(
            "{} cannot be resumed: {fault}",
            dir.display()
        ))),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| io(path, error))
}
