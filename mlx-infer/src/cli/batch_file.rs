//! `mlx-infer batch` with input in the form of OpenAI's batches.

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use clap::Args;
use mlx_infer::serve::{BatchFile, ServeOptions};
use mlx_infer::{
    EngineOptions, Error, ErrorKind, GenerateOptions, Limits, RequestOptions, console,
};
use serde_json::Value;

use super::lines::bar;
use super::{Failure, Result, args, backend, drafters, interrupt};

/// The files of answers.
#[derive(Args)]
pub(super) struct BatchFileArgs {
    /// File of the answers to input in OpenAI's form. Requests with an answer there are not computed again
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File of the answers of requests that failed [default: that of --output]
    #[arg(long, value_name = "FILE", requires = "output")]
    errors: Option<PathBuf>,
    /// Name of the model in lines of OpenAI's form; may be given several times [default: the model's own name]
    #[arg(long, value_name = "NAME", requires = "output")]
    name: Vec<String>,
}

/// What loads the model.
pub(super) struct BatchLoading {
    pub(super) load: args::LoadArgs,
    pub(super) backend: backend::BackendArgs,
    pub(super) drafters: drafters::Drafters,
}

impl BatchFileArgs {
    /// The names that lines may give for the model.
    pub(super) fn names(&self) -> Vec<String> {
        self.name.clone()
    }

    /// The batch of an input in OpenAI's form: a file whose first line has a `custom_id`. `None` for
    /// another input.
    ///
    /// # Errors
    /// The flags are not those of the input's form, or a line is not a request.
    pub(super) fn of(&self, input: &Path) -> Result<Option<(BatchFile, usize)>> {
        match (&self.output, is_in_openais_form(input)) {
            (None, false) => Ok(None),
            (Some(_), false) => Err(Failure::Usage(
                "--output is for an input file in OpenAI's form, with custom_id, method, url and body; other answers go to stdout".to_owned(),
            )),
            (None, true) => Err(Failure::Usage(format!(
                "{} is in OpenAI's form: name the file of its answers with --output",
                input.display()
            ))),
            (Some(output), true) => {
                let batch = BatchFile {
                    input: input.to_owned(),
                    output: output.clone(),
                    errors: self.errors.clone(),
                };
                let total = batch.check()?;
                Ok(Some((batch, total)))
            }
        }
    }
}

/// Whether the first line of a file that is not blank is an object with a `custom_id`.
fn is_in_openais_form(input: &Path) -> bool {
    use std::io::{BufRead, BufReader};
    if !std::fs::metadata(input).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let Ok(file) = std::fs::File::open(input) else {
        return false;
    };
    let mut lines = BufReader::new(file)
        .lines()
        .map_while(std::result::Result::ok);
    let first = lines.find(|line| !line.trim().is_empty());
    let first: Option<Value> = first.and_then(|line| serde_json::from_str(&line).ok());
    first.is_some_and(|first| first.get("custom_id").is_some())
}

/// Answers a batch, with `given` for what its lines do not say.
pub(super) fn run(
    names: Vec<String>,
    (batch, total): (BatchFile, usize),
    loading: BatchLoading,
    limits: Limits,
    given: RequestOptions,
    options: &GenerateOptions,
) -> Result {
    if options.grammar.is_some() {
        let message = "--json-schema, --regex, --choice and --grammar are not for input in OpenAI's form: its lines have response_format";
        return Err(Failure::Usage(message.to_owned()));
    }
    let BatchLoading {
        load,
        backend,
        drafters,
    } = loading;
    let rows = limits.rows;
    let settings = ServeOptions {
        names: match names.is_empty() {
            true => vec![load.name()],
            false => names,
        },
        max_output: options.max_tokens,
        defaults: RequestOptions {
            max_tokens: None,
            ..given
        },
        engine: EngineOptions {
            limits,
            max_requests: rows
                .saturating_mul(2)
                .max(EngineOptions::default().max_requests),
            ..EngineOptions::default()
        },
        ..ServeOptions::default()
    };
    let speculative = options.speculative;
    let _running = interrupt::running();
    let bar = bar(|| Some(total));
    let started = std::time::Instant::now();
    let (usage, wrong_usage) = mpsc::channel();
    let load = move || {
        load.load_for_requests(&backend, &drafters, speculative)
            .map_err(|failure| match failure {
                Failure::Failed(error) => error,
                Failure::Usage(message) => {
                    let _ = usage.send(message.clone());
                    Error::new(ErrorKind::Argument, message)
                }
            })
    };
    let mut before = None;
    let counts = batch.run(load, settings, &options.cancel, |counts| {
        let done = counts.completed + counts.failed;
        before.get_or_insert(done);
        if let Some(bar) = &bar {
            bar.set_position(done as u64);
        }
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    if let Ok(message) = wrong_usage.try_recv() {
        return Err(Failure::Usage(message));
    }
    let counts = counts?;
    let (all, before) = (counts.completed + counts.failed, before.unwrap_or(0));
    let seconds = started.elapsed().as_secs_f64();
    let known = match before {
        0 => String::new(),
        n => format!(" ({n} had an answer before)"),
    };
    console::note(&format!(
        "{all} requests{known}, {} failed, {seconds:.2} s",
        counts.failed
    ));
    Ok(())
}
