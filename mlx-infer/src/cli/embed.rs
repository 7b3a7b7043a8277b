//! `mlx-infer embed`.

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_infer::input::{Arrival, Lines};
use mlx_infer::mlx_core::{self, Array};
use mlx_infer::output::Claim;
use mlx_infer::{EmbedOptions, EmbedPrompt, Error, ErrorKind, LoadedModel, Prompt, TextEmbedding};
use serde::Serialize;
use serde_json::Value;

use super::lines::{LineProgress, MAX_BYTES, MAX_LINES, WAIT, failed};
use super::{Failure, Result, args, interrupt, output, ranks};

#[derive(Args)]
#[command(
    after_help = "Pooling, dense layers and prompts are those of sentence-transformers' files in the checkpoint. \
                  Without modules.json an encoder takes the mean of a text's tokens and a decoder its last token, \
                  and vectors have length 1. A text that is longer than the model's limit is cut."
)]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    /// File with a text in each line; - is stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Lines are JSON objects with the text under this key
    #[arg(long, value_name = "KEY")]
    field: Option<String>,
    /// Write the vectors to a file that ends in .npy or .safetensors (tensor "embeddings"), float32
    /// [lines, size]; without it they are printed
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON lines: line, embedding, tokens; without it, numbers with spaces between them
    #[arg(long, conflicts_with = "out")]
    json: bool,
    /// Put the checkpoint's prompt of this name before each text, such as query or document
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
    /// Put this text before each text; an empty text turns off the checkpoint's default prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Keep this many leading features, of a model that was trained for it
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Bring vectors to length 1 (true) or not (false) [default: as the checkpoint says]
    #[arg(long, value_name = "BOOL")]
    normalize: Option<bool>,
    /// Maximum number of tokens that are computed together
    #[arg(long, value_name = "N", default_value_t = EmbedOptions::default().batch_tokens)]
    batch_tokens: usize,
}

/// The document of a line. Numbers are written as the shortest that are the same in F32.
#[derive(Serialize)]
struct LineEmbedding<'a> {
    line: usize,
    embedding: &'a [f32],
    tokens: usize,
}

/// The forms of the file that is written.
#[derive(Clone, Copy)]
enum Form {
    Npy,
    Safetensors,
}

impl EmbedArgs {
    pub(super) fn run(self) -> Result {
        if ranks::follow(|| self.load.load())? {
            return Ok(());
        }
        let form = self.out.as_deref().map(form).transpose()?;
        let options = EmbedOptions {
            prompt: match (&self.prompt, &self.prompt_name) {
                (Some(text), _) if text.is_empty() => EmbedPrompt::None,
                (Some(text), _) => EmbedPrompt::Text(text.clone()),
                (None, Some(name)) => EmbedPrompt::Named(name.clone()),
                (None, None) => EmbedPrompt::Default,
            },
            dimensions: self.dimensions,
            normalize: self.normalize,
            truncate: true,
            batch_tokens: self.batch_tokens,
            cancel: interrupt::cancels()?,
        };
        let claim = self.out.as_deref().map(Claim::new).transpose()?;
        let lines = Lines::open(&self.input)?;
        let model = self.load.load()?;
        let _leading = ranks::Leading(&model);
        // Reports a fault of the options or of a module before the first line is read.
        model.embed(Vec::new(), &options)?;
        let _running = interrupt::running();
        let mut progress = LineProgress::new(|| lines.total());
        let mut lines = lines.stream()?;
        let mut rows: Vec<Vec<f32>> = Vec::new();
        let mut end = None;
        while end.is_none() && !options.cancel.is_cancelled() {
            let (mut window, mut bytes) = (Vec::new(), 0);
            while window.len() < MAX_LINES && bytes < MAX_BYTES && !options.cancel.is_cancelled() {
                match lines.next(WAIT) {
                    Ok(Arrival::Line(line)) => {
                        bytes += line.1.as_ref().map_or(0, String::len);
                        window.push(line);
                    }
                    Ok(Arrival::Later) if window.is_empty() => {}
                    Ok(Arrival::Later) => break,
                    Ok(Arrival::End) => {
                        end = Some(Ok(()));
                        break;
                    }
                    Err(error) => {
                        end = Some(Err(error));
                        break;
                    }
                }
            }
            self.embed(
                &model,
                window,
                &options,
                form.is_some(),
                &mut rows,
                &mut progress,
            )?;
        }
        progress.finish("lines", "");
        if options.cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "cancelled").into());
        }
        end.unwrap_or(Ok(()))?;
        match (form, claim) {
            (Some(form), Some(claim)) => write(form, claim, &rows),
            _ => Ok(()),
        }
    }

    /// Embeds lines. With `keeps` the vectors are added to `rows`, and else printed.
    fn embed(
        &self,
        model: &LoadedModel,
        window: Vec<mlx_infer::input::Line>,
        options: &EmbedOptions,
        keeps: bool,
        rows: &mut Vec<Vec<f32>>,
        progress: &mut LineProgress,
    ) -> Result {
        let mut found: Vec<Option<mlx_infer::Result<TextEmbedding>>> = Vec::new();
        let (mut texts, mut places, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for (number, line) in window {
            let text = line.map_err(|error| error.to_string());
            match text.and_then(|line| self.text(line)) {
                Ok(text) => {
                    places.push(found.len());
                    texts.push(Prompt::Text(text));
                    found.push(None);
                }
                Err(what) => found.push(Some(Err(Error::new(ErrorKind::Argument, what)))),
            }
            numbers.push(number);
        }
        model.embed_with(texts, options, |index, result| {
            found[places[index]] = Some(result);
        })?;
        for (number, result) in numbers.into_iter().zip(found) {
            let result = result.expect("every line gets a result");
            match (keeps, result) {
                (true, Ok(embedding)) => {
                    rows.push(embedding.values);
                    progress.count();
                }
                // A file has a row for each line, so that a line without a vector ends the command.
                (true, Err(error)) => {
                    return Err(of_line(number, &error));
                }
                (false, Ok(embedding)) if self.json => {
                    let TextEmbedding { values, tokens } = embedding;
                    let document = LineEmbedding {
                        line: number,
                        embedding: &values,
                        tokens,
                    };
                    progress.count();
                    let text = serde_json::to_string(&document).expect("it has numbers only");
                    output::print(&(text + "\n"))?;
                }
                (false, Ok(embedding)) => {
                    let numbers: Vec<String> =
                        embedding.values.iter().map(f32::to_string).collect();
                    progress.count();
                    output::print(&(numbers.join(" ") + "\n"))?;
                }
                (false, Err(error)) if self.json => progress.print(&failed(number, error))?,
                (false, Err(error)) => {
                    return Err(of_line(number, &error));
                }
            }
        }
        Ok(())
    }

    fn text(&self, line: String) -> std::result::Result<String, String> {
        let Some(field) = &self.field else {
            return Ok(line);
        };
        let json: Value =
            serde_json::from_str(&line).map_err(|error| format!("not valid json: {error}"))?;
        match json.get(field) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("{field:?} is not a string")),
            None => Err(format!("there is no {field:?}")),
        }
    }
}

/// The form that the name of a file asks for.
fn form(out: &Path) -> Result<Form> {
    match out.extension().and_then(|end| end.to_str()) {
        Some("npy") => Ok(Form::Npy),
        Some("safetensors") => Ok(Form::Safetensors),
        _ => Err(Failure::Usage(format!(
            "--out {}: the name must end in .npy or .safetensors",
            out.display()
        ))),
    }
}

/// Writes the vectors as one array.
fn write(form: Form, claim: Claim, rows: &[Vec<f32>]) -> Result {
    let width = rows.first().map_or(0, Vec::len);
    let array = Array::from_slice(&rows.concat(), &[rows.len() as i32, width as i32])
        .map_err(Error::from)?;
    let made = claim.scratch()?.join("embeddings");
    match form {
        Form::Npy => mlx_core::save(&made, &array),
        Form::Safetensors => mlx_core::save_safetensors(&made, [("embeddings", &array)]),
    }
    .map_err(Error::from)?;
    claim.publish(&made)?;
    Ok(())
}

/// The error of a line, for a command that ends with it.
fn of_line(number: usize, error: &Error) -> Failure {
    Error::new(error.kind(), format!("line {number}: {error}")).into()
}
