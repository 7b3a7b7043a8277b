//! From texts to ids: prompts, and the cut at the longest text.

use rayon::prelude::*;

use super::{EmbedOptions, EmbedPrompt};
use crate::error::{Error, Result};
use crate::model::frontend::{Frontend, check_ids, check_positions};
use crate::request::generation::Prompt;
use crate::text::sentence::SentenceSettings;

/// The ids and the token types of a text.
pub(crate) type TextIds = (Vec<u32>, Vec<u32>);

/// Texts that are ready to be embedded.
pub(crate) struct EncodedTexts {
    pub(crate) texts: Vec<Result<TextIds>>,
    /// The number of tokens of the prompt at the start of each text.
    pub(crate) prompt: usize,
}

impl EncodedTexts {
    /// The number of tokens of all texts without an error.
    #[cfg(feature = "serve")]
    pub(crate) fn tokens(&self) -> usize {
        self.texts.iter().flatten().map(|(ids, _)| ids.len()).sum()
    }
}

/// The ids of texts, computed on all cores. A text that already has an error keeps it. A text
/// that is too long is cut, unless `truncate` is false; ids are not cut.
///
/// # Errors
/// An option is out of range, or there are texts and no tokenizer.
pub(crate) fn encode_texts(
    frontend: &Frontend,
    texts: Vec<Result<Prompt>>,
    options: &EmbedOptions,
) -> Result<EncodedTexts> {
    if options.batch_tokens == 0 {
        return Err(Error::argument("batch_tokens must be at least 1, given 0"));
    }
    if options.dimensions == Some(0) {
        return Err(Error::argument("dimensions must be at least 1, given 0"));
    }
    let settings = frontend.sentence()?;
    let as_read = |text: String| match settings.lower_case {
        true => text.to_lowercase(),
        false => text,
    };
    let prompt = as_read(prompt(settings, &options.prompt)?.to_owned());
    let most = longest_text(frontend)?;
    let needs_text = texts.iter().any(|text| matches!(text, Ok(Prompt::Text(_))));
    let tokenizer = match needs_text || !prompt.is_empty() {
        true => Some(frontend.tokenizer()?),
        false => None,
    };
    let encode = |text: Prompt| -> Result<TextIds> {
        match (text, tokenizer) {
            (Prompt::Text(text), Some(tokenizer)) => {
                let text = as_read(format!("{prompt}{text}"));
                let limit = if options.truncate { most } else { usize::MAX };
                let ids = tokenizer.encode_cut(&text, None, limit)?;
                check_positions(ids.0.len(), Some(most), "")?;
                match ids.0.is_empty() {
                    true => Err(Error::argument("the text is empty and has no tokens")),
                    false => Ok(ids),
                }
            }
            (Prompt::Text(_), None) => unreachable!("texts have a tokenizer"),
            (Prompt::Tokens(ids), _) => {
                if ids.is_empty() {
                    return Err(Error::argument("a list of ids is empty"));
                }
                check_positions(ids.len(), Some(most), "")?;
                let types = vec![0; ids.len()];
                Ok((ids, types))
            }
        }
    };
    let vocab = frontend.info().vocab as usize;
    let checked = |text: Prompt| {
        let (ids, types) = encode(text)?;
        check_ids(&ids, vocab)?;
        Ok((ids, types))
    };
    let texts = texts.into_par_iter().map(|text| text.and_then(checked));
    let texts = texts.collect();
    Ok(EncodedTexts {
        texts,
        prompt: match tokenizer.filter(|_| !prompt.is_empty()) {
            Some(tokenizer) => prompt_tokens(tokenizer, &prompt, most)?,
            None => 0,
        },
    })
}

/// The most tokens of a text.
///
/// # Errors
/// A file of sentence-transformers is malformed.
pub(super) fn longest_text(frontend: &Frontend) -> Result<usize> {
    let limits = [
        frontend.sentence()?.max_tokens,
        frontend.info().max_positions,
    ];
    Ok(limits.into_iter().flatten().min().unwrap_or(usize::MAX / 2))
}

/// The number of tokens of a prompt, without a special token at its end.
fn prompt_tokens(
    tokenizer: &crate::text::tokenizer::Tokenizer,
    prompt: &str,
    most: usize,
) -> Result<usize> {
    let (ids, _) = tokenizer.encode_cut(prompt, None, most)?;
    let last = ids.last().and_then(|&id| tokenizer.id_to_token(id));
    let is_special = last.is_some_and(|token| tokenizer.is_special(&token));
    Ok(ids.len() - usize::from(is_special))
}

/// The text of a prompt; empty if there is none.
fn prompt<'a>(settings: &'a SentenceSettings, asked: &'a EmbedPrompt) -> Result<&'a str> {
    let named = |name: &str| {
        settings
            .prompts
            .get(name)
            .map(String::as_str)
            .ok_or_else(|| {
                let names: Vec<&str> = settings.prompts.keys().map(String::as_str).collect();
                Error::argument(match names.is_empty() {
                    true => format!("the checkpoint has no prompts, and so none named {name:?}"),
                    false => format!(
                        "the checkpoint has no prompt named {name:?}; it has {}",
                        names.join(", ")
                    ),
                })
            })
    };
    match (asked, &settings.default_prompt) {
        (EmbedPrompt::Text(text), _) => Ok(text),
        (EmbedPrompt::Named(name), _) | (EmbedPrompt::Default, Some(name)) => named(name),
        (EmbedPrompt::None, _) | (EmbedPrompt::Default, None) => Ok(""),
    }
}
