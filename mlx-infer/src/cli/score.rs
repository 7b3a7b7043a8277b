//! `mlx-infer score`.

use clap::Args;
use mlx_infer::{Prompt, ScoreOptions};

use super::{Result, args, interrupt, output, ranks};

#[derive(Args)]
pub(super) struct ScoreArgs {
    #[command(flatten)]
    load: args::LoadArgs,
    #[command(flatten)]
    source: TextSource,
    /// Number of likeliest next tokens to print
    #[arg(long, value_name = "K", default_value_t = 5)]
    top: usize,
    /// Print one JSON document: tokens, logprobs, nll (their negative sum), perplexity, next
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct TextSource {
    /// Text to score
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// Exactly these token ids, such as 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = args::token_id)]
    tokens: Option<Vec<u32>>,
}

impl ScoreArgs {
    pub(super) fn run(self) -> Result {
        if ranks::follow(|| self.load.load())? {
            return Ok(());
        }
        let prompt = match self.source.text {
            Some(text) => Prompt::Text(text),
            None => Prompt::Tokens(self.source.tokens.unwrap_or_default()),
        };
        let model = self.load.load()?;
        let _leading = ranks::Leading(&model);
        let options = ScoreOptions {
            top: self.top,
            cancel: interrupt::cancels()?,
            ..Default::default()
        };
        let score = {
            let _running = interrupt::running();
            model.score(prompt, &options)?
        };
        let token = |id| model.tokenizer().ok()?.id_to_token(id);
        if self.json {
            return output::print_json(&score.to_json(token));
        }
        let spelled = |id: u32| token(id).map_or(String::new(), |token| format!("  {token:?}"));
        let mut text = format!(
            "tokens: {}\nnll: {:.4}\nperplexity: {:.4}\n",
            score.tokens.len(),
            score.nll,
            score.perplexity
        );
        for (&id, logprob) in score.tokens.iter().zip(&score.logprobs) {
            let logprob = logprob.map_or("-".to_owned(), |logprob| format!("{logprob:.4}"));
            text += &format!("{id:>8} {logprob:>10}{}\n", spelled(id));
        }
        text += "next:\n";
        for &(id, logprob) in &score.next {
            text += &format!("{id:>8} {logprob:>10.4}{}\n", spelled(id));
        }
        output::print(&text)
    }
}
