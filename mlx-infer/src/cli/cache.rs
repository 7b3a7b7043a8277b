//! `mlx-infer cache`.

use std::path::PathBuf;

use clap::Args;
use mlx_infer::console;
use mlx_infer::output::Claim;
use serde_json::json;

use super::generate::PromptSource;
use super::{Result, args, interrupt, output};

#[derive(Args)]
pub(super) struct CacheArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    #[command(flatten)]
    source: PromptSource,
    /// File to write; an existing one is replaced
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON document: tokens, bytes
    #[arg(long)]
    json: bool,
}

impl CacheArgs {
    pub(super) fn run(self) -> Result {
        let claim = Claim::new(&self.out)?;
        let prompt = self.source.read()?;
        let options = mlx_infer::GenerateOptions {
            cancel: interrupt::cancels()?,
            ..Default::default()
        };
        let model = self.load.load()?;
        let cache = {
            let _running = interrupt::running();
            model.prompt_cache(prompt, &options)?
        };
        let made = claim.scratch()?.join("cache");
        model.save_prompt_cache(&cache, &made)?;
        claim.publish(&made)?;
        let (tokens, bytes) = (cache.tokens().len(), cache.nbytes());
        if self.json {
            return output::print_json(&json!({"tokens": tokens, "bytes": bytes}));
        }
        console::note(&format!("{tokens} tokens, {}", output::bytes(bytes)));
        Ok(())
    }
}
