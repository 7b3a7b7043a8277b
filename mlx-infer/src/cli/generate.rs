//! `mlx-infer generate`.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::Prompt;

use super::{Result, args, interrupt, output};

#[derive(Args)]
pub(super) struct Generate {
    #[command(flatten)]
    load: args::Load,
    #[command(flatten)]
    source: PromptSource,
    #[command(flatten)]
    generation: args::Generation,
    /// Print counts, times and memory to stderr
    #[arg(long)]
    stats: bool,
    /// Print one JSON document: text, tokens, finish_reason, usage, timings
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct PromptSource {
    /// Text to continue
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to continue, taken as it is; - is stdin
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Exactly these token ids, as in 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = args::token_id)]
    tokens: Option<Vec<u32>>,
}

impl Generate {
    pub(super) fn run(self) -> Result {
        let mut options = self.generation.options()?;
        let prompt = match (
            self.source.prompt,
            self.source.prompt_file,
            self.source.tokens,
        ) {
            (Some(text), _, _) => Prompt::Text(text),
            (_, Some(path), _) => Prompt::Text(args::read_text(&path)?),
            (_, _, tokens) => Prompt::Tokens(tokens.unwrap_or_default()),
        };
        options.cancel = interrupt::cancels()?;
        let model = self.load.load()?;
        let generated = output::show(model.generate(prompt, &options)?, self.json)?;
        if self.stats {
            output::print_stats(&model, &generated);
        }
        output::not_cancelled(&generated)
    }
}
