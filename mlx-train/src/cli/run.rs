//! `mlx-train lora` and `mlx-train full`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_core::{DType, random};
use mlx_infer::console;
use mlx_infer::output::Claim;
use mlx_models::Model;
use mlx_models::adapter::{AdapterConfig, AdapterKind};
use mlx_nn::Patterns;
use mlx_nn::lora::{LoraConfig, attach};
use mlx_nn::trainable::{set_trainable, trainable};
use mlx_train::checkpoint::Output;
use mlx_train::data::{self, DataFiles, DataOptions, Dataset, Encoder};
use mlx_train::evaluate::{self, evaluate};
use mlx_train::trainer::Event;
use mlx_train::{Error, ErrorKind, Result, Trainer, TrainerConfig};
use serde_json::{Map, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::report::Report;
use super::settings::Settings;
use super::{Done, ranks, source};

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::Argument, message)
}

pub(super) fn run(settings: Settings, lora: bool) -> Result<Done> {
    let settings = settings.with_file(lora)?;
    let data = settings
        .data
        .clone()
        .ok_or_else(|| wrong("--data is needed".to_owned()))?;
    let found = DataFiles::find(&data)?;
    let train = found
        .train
        .ok_or_else(|| wrong(format!("{}: no train.jsonl here", data.display())))?;
    let config = trainer_config(&settings)?;
    let test_batches = batches("test_batches", settings.test_batches.unwrap_or(-1))?;
    let dir = settings.out.clone().unwrap_or_else(|| "adapters".into());
    let files = source::files(settings.model.as_deref())?;
    let ranks = ranks::join(&files)?;
    let is_first = ranks.rank() == 0;
    // The claim is held to the end, so that a second run in the same folder fails here.
    let _claim = is_first.then(|| Claim::new(&dir)).transpose()?;
    let encoder = Encoder::load(&files)?;
    let loaded = source::load(&files, settings.dtype.as_deref(), settings.expand)?;
    let mut model = loaded.model;
    let options = DataOptions {
        max_tokens: max_tokens(&settings),
        mask_prompt: settings.mask_prompt,
        vocab: loaded.info.vocab as u32,
    };
    let read = |path: &PathBuf| -> Result<Dataset> {
        let dataset = data::read(path, &encoder, &options)?;
        say(path, &dataset);
        Ok(dataset)
    };
    let train = read(&train)?;
    let valid = found
        .valid
        .as_ref()
        .map(read)
        .transpose()?
        .unwrap_or_default();
    if settings.test == Some(true) && found.test.is_none() {
        return Err(wrong(format!("test: no test.jsonl in {}", data.display())));
    }
    let test = found.test.as_ref().filter(|_| settings.test != Some(false));
    let test = test.map(read).transpose()?;
    let layers = loaded.info.geometry.layers().len();
    let adapter = if lora {
        choose_lora(model.as_mut(), &settings, layers)?
    } else {
        choose_full(model.as_mut(), &settings, layers)?
    };
    let numbers: usize = trainable(model.as_ref())?
        .iter()
        .map(|(_, array)| array.size())
        .sum();
    let all = loaded.info.n_parameters;
    console::note(&format!(
        "{numbers} numbers to train, {:.2} % of the model's {all}",
        100.0 * numbers as f64 / all.max(1) as f64
    ));
    let output = Output {
        dir: dir.clone(),
        config: adapter,
    };
    if is_first {
        output.clean()?;
    }
    let examples = (train.examples, valid.examples);
    let mut trainer = Trainer::new(
        model.as_mut(),
        config.clone(),
        &examples.0,
        &examples.1,
        Some(output),
    )?
    .on_ranks(ranks);
    if settings.resume {
        if !trainer.resume()? {
            return Err(wrong(format!("{}: no checkpoint to resume", dir.display())));
        }
        console::note(&format!("resumed after step {}", trainer.progress().step));
    }
    trainer.check_output()?;
    let every = settings.report_every.unwrap_or(10).max(1);
    let from = trainer.progress().step;
    let mut report = is_first
        .then(|| Report::open(&dir, config.steps, from, every, settings.json))
        .transpose()?;
    let interrupted = watch()?;
    let mut failed = None;
    let done = trainer.run(|event| {
        let recorded = report.as_mut().map(|report| report.record(event));
        if let Some(Err(error)) = recorded {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        // The flag is read once after each step, so the step's evaluation and checkpoint are done
        // before the run ends.
        match event {
            Event::Step { .. } if interrupted.load(Ordering::SeqCst) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })?;
    if let Some(error) = failed {
        let step = trainer.progress().step;
        return Err(match done {
            true => error,
            // An error even if the reader of stdout is gone, because the run is not finished.
            false => {
                let message = format!("{error}; saved after step {step}, --resume goes on");
                Error::new(ErrorKind::Io, message)
            }
        });
    }
    if let Some(report) = report {
        report.finish()?;
    }
    if !done {
        console::note("interrupted and saved; --resume goes on");
        return Ok(Done::Interrupted);
    }
    // The other ranks have done their part.
    if let Some(test) = test.filter(|_| is_first) {
        let (rows, chunk) = (config.batch_size, config.ce_chunk);
        let found = evaluate(model.as_ref(), &test.examples, rows, test_batches, chunk)?;
        evaluate::check(&found, model.as_ref(), &test.examples, chunk)?;
        console::note(&format!(
            "test: loss {:.4}, perplexity {:.3}",
            found.loss, found.perplexity
        ));
        if settings.json {
            let event = json!({"event": "tested", "loss": found.loss});
            console::print(&format!("{event}\n"))?;
        }
    }
    Ok(Done::All)
}

/// A number of batches, or -1 for all.
fn batches(name: &str, n: i64) -> Result<Option<usize>> {
    match n {
        -1 => Ok(None),
        1.. => Ok(Some(n as usize)),
        _ => Err(wrong(format!(
            "{name} must be at least 1, or -1 for all, given {n}"
        ))),
    }
}

fn max_tokens(settings: &Settings) -> usize {
    settings.max_seq_length.unwrap_or(2048)
}

fn trainer_config(settings: &Settings) -> Result<TrainerConfig> {
    let eval_batches = batches("eval_batches", settings.eval_batches.unwrap_or(25))?;
    Ok(TrainerConfig {
        steps: settings.steps(),
        batch_size: settings.batch_size.unwrap_or(4),
        batch_tokens: settings.batch_tokens,
        accumulate: settings.accumulate.unwrap_or(1),
        recompute: settings.grad_checkpoint,
        ce_chunk: settings.ce_chunk,
        mtp: settings.mtp,
        pack: settings.pack.then(|| max_tokens(settings)),
        seed: settings.seed.unwrap_or(0),
        clip: settings.clip,
        method: settings.method()?,
        schedule: settings.schedule()?,
        eval_every: settings.eval_every.unwrap_or(200),
        eval_batches,
        save_every: settings.save_every.unwrap_or(100),
        patience: settings.patience,
    })
}

/// The first layer that is trained.
fn first_layer(settings: &Settings, layers: usize) -> Result<usize> {
    match settings.num_layers {
        None => Ok(layers.saturating_sub(16)),
        Some(-1) => Ok(0),
        Some(n) => match usize::try_from(n) {
            Ok(n) if (1..=layers).contains(&n) => Ok(layers - n),
            _ => Err(wrong(format!(
                "num_layers must be from 1 to the model's {layers}, or -1 for all, given {n}"
            ))),
        },
    }
}

/// The prefix of a head for multi-token prediction.
const HEAD: &str = "mtp.";

/// The number of a path's decoder layer, and the path within it.
fn in_layer(path: &str) -> Option<(usize, &str)> {
    // The layers of a head for multi-token prediction are not decoder layers.
    let (_, rest) = path.split_once("layers.").filter(|(set, _)| *set != HEAD)?;
    let (number, rest) = rest.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

fn choose_lora(model: &mut dyn Model, settings: &Settings, layers: usize) -> Result<AdapterConfig> {
    let first = first_layer(settings, layers)?;
    let keys = settings.keys.clone().map(Patterns::new);
    let all = Patterns::new(["*"]);
    let defaults = LoraConfig::default();
    let config = LoraConfig {
        rank: settings.rank.unwrap_or(defaults.rank),
        scale: settings.scale.unwrap_or(defaults.scale),
        dropout: settings.dropout.unwrap_or(defaults.dropout),
        dtype: match &settings.adapter_dtype {
            None => DType::F32,
            Some(name) => source::dtype(name)?,
        },
        dora: settings.dora,
    };
    let key = random::Key::new(settings.seed.unwrap_or(0))?;
    let taken = attach(&mut *model, &config, &key, |path| match in_layer(path) {
        Some((layer, rest)) => layer >= first && keys.as_ref().unwrap_or(&all).matches(rest),
        // The output head and similar parameters are chosen only by name.
        None => match &keys {
            Some(keys) => keys.matches(path),
            None => settings.mtp.is_some() && path.starts_with(HEAD),
        },
    })?;
    let mut names: Vec<String> = taken
        .iter()
        .map(|path| {
            in_layer(path)
                .map_or(path.as_str(), |(_, rest)| rest)
                .to_owned()
        })
        .collect();
    names.sort();
    names.dedup();
    if let Some(keys) = &keys {
        all_used("keys", keys, names.iter().map(String::as_str), "layer")?;
    }
    Ok(AdapterConfig {
        kind: if config.dora {
            AdapterKind::Dora
        } else {
            AdapterKind::Lora
        },
        rank: config.rank,
        scale: config.scale,
        dropout: config.dropout,
        num_layers: (layers - first) as i64,
        keys: names,
        facts: facts(settings),
    })
}

/// Refuses patterns that match nothing, because a misspelt name would silently be left out of the training.
fn all_used<'a>(
    setting: &str,
    patterns: &Patterns,
    names: impl IntoIterator<Item = &'a str>,
    of: &str,
) -> Result<()> {
    match patterns.unused(names)[..] {
        [] => Ok(()),
        [name, ..] => Err(wrong(format!(
            "{setting}: {name:?} matches no {of} that is trained"
        ))),
    }
}

fn choose_full(model: &mut dyn Model, settings: &Settings, layers: usize) -> Result<AdapterConfig> {
    let first = match settings.num_layers {
        None => 0,
        Some(_) => first_layer(settings, layers)?,
    };
    let rule = Patterns::new(
        settings
            .trainable
            .clone()
            .unwrap_or_else(|| vec!["*".to_owned()]),
    );
    set_trainable(&mut *model, |path| {
        let within = match in_layer(path) {
            Some((layer, _)) => layer >= first,
            // Without a loss for it, weight decay alone would change a head for multi-token prediction.
            None if path.starts_with(HEAD) => {
                settings.mtp.is_some()
                    || settings.num_layers.is_none() && settings.trainable.is_some()
            }
            None => settings.num_layers.is_none(),
        };
        within && rule.matches(path)
    })?;
    let trained = trainable(&*model)?;
    let names = trained.iter().map(|(name, _)| name.as_str());
    all_used("trainable", &rule, names, "parameter")?;
    Ok(AdapterConfig {
        kind: AdapterKind::Full,
        rank: 0,
        scale: 0.0,
        dropout: 0.0,
        num_layers: (layers - first) as i64,
        keys: Vec::new(),
        facts: facts(settings),
    })
}

fn facts(settings: &Settings) -> Map<String, serde_json::Value> {
    let mut facts = Map::new();
    if let Some(model) = &settings.model {
        facts.insert("model".to_owned(), model.display().to_string().into());
    }
    facts
}

fn say(path: &std::path::Path, dataset: &Dataset) {
    let report = &dataset.report;
    console::note(&format!(
        "{}: {} examples, {} tokens, {} of them learnt",
        path.display(),
        report.examples,
        report.tokens,
        report.learnt
    ));
    if report.truncated > 0 {
        console::note(&format!(
            "warning: {}: {} examples were cut and lost {} tokens",
            path.display(),
            report.truncated,
            report.lost_tokens
        ));
    }
    if report.dropped > 0 {
        console::note(&format!(
            "warning: {}: {} examples have nothing to learn and are not used",
            path.display(),
            report.dropped
        ));
    }
}

/// The first Ctrl-C ends the run after the current step, the second one ends the program.
fn watch() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|error| {
                Error::new(ErrorKind::Io, "cannot watch for Ctrl-C").with_source(error)
            })?;
    }
    Ok(flag)
}
