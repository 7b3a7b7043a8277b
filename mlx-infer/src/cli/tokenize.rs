//! `mlx-infer tokenize`.

use clap::Args;
use mlx_infer::Tokenizer;
use serde_json::json;

use super::{Result, args, output};

#[derive(Args)]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    source: args::SourceArgs,
    #[command(flatten)]
    input: Input,
    /// Leave out the tokens that the tokenizer puts around a text, such as <bos>
    #[arg(long, conflicts_with = "ids")]
    no_special: bool,
    /// Print one JSON document: ids and tokens, or text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Input {
    /// Text to turn into ids
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// Ids to turn into text, such as 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = args::token_id)]
    ids: Option<Vec<u32>>,
}

impl TokenizeArgs {
    pub(super) fn run(self) -> Result {
        let tokenizer = Tokenizer::load(&self.source.files()?)?;
        if let Some(text) = self.input.text {
            let ids = tokenizer.encode(&text, !self.no_special)?;
            if self.json {
                let tokens: Vec<_> = ids.iter().map(|&id| tokenizer.id_to_token(id)).collect();
                return output::print_json(&json!({"ids": ids, "tokens": tokens}));
            }
            return output::print(&format!("{}\n", output::id_list(&ids)));
        }
        let ids = self.input.ids.unwrap_or_default();
        // Decoding skips ids that do not exist, but here such an id is an error.
        if let Some(id) = ids.iter().find(|&&id| tokenizer.id_to_token(id).is_none()) {
            let message = format!(
                "token id {id} is not in the vocabulary of {} tokens",
                tokenizer.vocab_size()
            );
            return Err(mlx_infer::Error::new(mlx_infer::ErrorKind::Argument, message).into());
        }
        let text = tokenizer.decode(&ids, false)?;
        if self.json {
            return output::print_json(&json!({"text": text}));
        }
        output::print(&format!("{text}\n"))
    }
}
