//! `mlx-train eval`.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::console;
use mlx_models::adapter;
use mlx_train::data::{self, DataFiles, DataOptions, Encoder};
use mlx_train::evaluate::{self, evaluate};
use mlx_train::{Error, ErrorKind, Result};

use super::source;

/// The model and the data that are measured.
#[derive(Args)]
pub(super) struct Eval {
    /// Checkpoint folder, or the name of a model on the hub [default: the built-in model]
    #[arg(long, value_name = "DIR|ORG/NAME[@REV]")]
    model: Option<PathBuf>,
    /// Adapter folder
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// JSONL file, or a folder: its test.jsonl, else its valid.jsonl
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// Rows of a batch
    #[arg(long, value_name = "N", default_value_t = 4)]
    batch_size: usize,
    /// Maximum length of an example; longer ones are truncated
    #[arg(long, value_name = "TOKENS", default_value_t = 2048)]
    max_seq_length: usize,
    /// Measure only the last message or the completion: with labelled data, the label
    #[arg(long)]
    mask_prompt: bool,
    /// Run the head on this many tokens of the vocabulary at a time: less memory [default: all at once]
    #[arg(long, value_name = "TOKENS")]
    ce_chunk: Option<i32>,
    /// Convert floating-point weights: f32, bf16 or f16 [default: as stored]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<String>,
    /// Expand blocks of GGUF that have no exact packed form (Q2_K, Q6_K)
    #[arg(long)]
    expand: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print a loss that is NaN [default: an error]
    #[arg(long)]
    allow_nan: bool,
}

impl Eval {
    pub(super) fn run(self) -> Result<()> {
        let found = DataFiles::find(&self.data)?;
        // In a run a single file is the training file; in this command it is the file to measure.
        let path = match (found.test, found.valid, found.train) {
            (Some(path), _, _) | (None, Some(path), _) => path,
            (None, None, Some(path)) if !self.data.is_dir() => path,
            _ => {
                let message = format!("{}: no test.jsonl or valid.jsonl", self.data.display());
                return Err(Error::new(ErrorKind::Argument, message));
            }
        };
        let files = source::files(self.model.as_deref())?;
        let encoder = Encoder::load(&files)?;
        let mut loaded = source::load(&files, self.dtype.as_deref(), self.expand)?;
        if let Some(dir) = &self.adapter {
            adapter::load(dir, loaded.model.as_mut())?;
        }
        let options = DataOptions {
            max_tokens: self.max_seq_length,
            mask_prompt: self.mask_prompt,
            vocab: loaded.info.vocab as u32,
        };
        let dataset = data::read(&path, &encoder, &options)?;
        if dataset.report.truncated > 0 {
            console::note(&format!(
                "warning: {} examples were cut",
                dataset.report.truncated
            ));
        }
        let found = evaluate(
            loaded.model.as_ref(),
            &dataset.examples,
            self.batch_size,
            None,
            self.ce_chunk,
        )?;
        if !self.allow_nan {
            let model = loaded.model.as_ref();
            evaluate::check(&found, model, &dataset.examples, self.ce_chunk)?;
        }
        if self.json {
            let json = serde_json::to_string(&found)
                .map_err(|error| Error::new(ErrorKind::Format, error.to_string()))?;
            return console::print(&format!("{json}\n"));
        }
        console::print(&format!(
            "examples         {}\n\
             tokens           {}\n\
             loss             {:.4}\n\
             perplexity       {:.4}\n\
             token accuracy   {:.2} %\n\
             accuracy         {:.2} %\n",
            found.examples,
            found.tokens,
            found.loss,
            found.perplexity,
            100.0 * found.token_accuracy,
            100.0 * found.accuracy
        ))
    }
}
