//! `mlx-infer generate`.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::input::{MAX_TEXT, read_text};
use mlx_infer::{BackEnd, Prompt};

use super::{Result, args, backend, drafters, interrupt, output};

#[derive(Args)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    #[command(flatten)]
    drafters: drafters::Drafters,
    #[command(flatten)]
    backend: backend::BackendArgs,
    #[command(flatten)]
    source: PromptSource,
    #[command(flatten)]
    generation: args::GenerationArgs,
    /// File of mlx-infer cache with the same model: its prompt precedes this one and is not computed again
    #[arg(long, value_name = "FILE")]
    prompt_cache: Option<PathBuf>,
    /// Print counts, times and memory to stderr
    #[arg(long)]
    stats: bool,
    /// Print one JSON document: text, tokens, finish_reason, usage, timings
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct PromptSource {
    /// Text to continue
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to continue, unchanged; - is stdin
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Exactly these token ids, such as 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = args::token_id)]
    tokens: Option<Vec<u32>>,
}

impl PromptSource {
    pub(super) fn read(self) -> Result<Prompt> {
        Ok(match (self.prompt, self.prompt_file, self.tokens) {
            (Some(text), _, _) => Prompt::Text(text),
            (_, Some(path), _) => Prompt::Text(read_text(&path, MAX_TEXT)?),
            (_, _, tokens) => Prompt::Tokens(tokens.unwrap_or_default()),
        })
    }
}

impl GenerateArgs {
    pub(super) fn run(self) -> Result {
        let mut options = self.generation.options()?;
        let prompt = self.source.read()?;
        self.backend.check(&options)?;
        self.backend
            .refuse(&[("prompt-cache", self.prompt_cache.is_some())])?;
        options.cancel = interrupt::cancels()?;
        let model = self
            .load
            .load_in(&self.backend, &self.drafters, options.speculative)?;
        output::warn_of_keywords(model.frontend(), &options);
        let generated = match (&model, &self.prompt_cache) {
            (BackEnd::Native(model), Some(path)) => {
                let cache = model.load_prompt_cache(path)?;
                let prompt = cache.followed_by(model, prompt)?;
                let generation = model.generate(prompt, &options)?;
                let mut generation = generation.with_prompt_cache(&cache)?;
                output::show(self.json, |on_event| generation.run(on_event))?
            }
            _ => {
                let model = model.text_model();
                output::show(self.json, |on_event| {
                    model.generate(&prompt, &options, on_event)
                })?
            }
        };
        if self.stats {
            output::print_stats(&generated);
        }
        output::not_cancelled(&generated)
    }
}
