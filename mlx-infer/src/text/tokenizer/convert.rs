//! Tokenizers in files other than tokenizer.json: SentencePiece's `tokenizer.model`, Mistral's
//! `tekken.json`, tiktoken's `tiktoken.model`, RWKV's vocabulary; and those in the metadata of GGUF.
//!
//! The conversion results in the text of a tokenizer.json, like that which transformers makes when
//! it loads such a checkpoint, and the tokens that transformers adds to it.

pub(crate) mod gguf;
mod merges;
mod proto;
mod ranks;
mod rwkv;
mod sentencepiece;

use tokenizers::AddedToken;
use tokenizers::processors::template::TemplateProcessing;

use super::classes::Class;
use super::config::{ConfigToken, TokenizerConfig};
use super::trie::Trie;
use crate::error::{Error, Result};
use crate::text::files::Files;

/// The files that can be converted, in the order in which they are looked for.
pub(super) const NAMES: [&str; 4] = ["tekken.json", "tiktoken.model", "tokenizer.model", RWKV];

/// The vocabulary of RWKV's tokenizer.
const RWKV: &str = "rwkv_vocab_v20230424.txt";

/// A tokenizer that was converted.
pub(super) struct Converted {
    /// The text of tokenizer.json, without added tokens.
    pub(super) json: String,
    /// The class that builds its pipeline.
    pub(super) class: Class,
    /// Tokens that are added before those of the configuration.
    pub(super) added: Vec<AddedToken>,
    /// Named tokens that apply unless the configuration mentions them.
    pub(super) named: Vec<(&'static str, String)>,
    /// Tokens that replace `extra_special_tokens`, if the configuration does not mention those.
    pub(super) extra: Vec<AddedToken>,
    /// Whether `add_bos_token` and `add_eos_token` decide on the tokens around a text even if the
    /// configuration mentions neither.
    has_ends: bool,
    /// The vocabulary, if the tokens of a text are the longest with which it goes on.
    pub(super) trie: Option<Trie>,
}

/// The file of a checkpoint without tokenizer.json that is converted, and its content.
pub(super) fn find(files: &Files) -> Result<Option<(&'static str, Vec<u8>)>> {
    for name in NAMES {
        if let Some(bytes) = files.read(name)? {
            return Ok(Some((name, bytes.into_owned())));
        }
    }
    Ok(None)
}

/// Converts the file of this name. `class` is the class that tokenizer.json would have.
///
/// # Errors
/// The file is malformed, or the class does not read it.
pub(super) fn convert(
    (name, bytes): (&str, &[u8]),
    class: std::result::Result<Class, String>,
    config: &TokenizerConfig,
    place: &str,
) -> Result<Converted> {
    let wrong = |what: String| Error::format(format!("{place}: {what}"));
    if name == "tekken.json" {
        return ranks::tekken(bytes).map_err(wrong);
    }
    if name == RWKV {
        return rwkv::convert(bytes, config).map_err(wrong);
    }
    // Files of both formats have the name tokenizer.model.
    if name == "tiktoken.model" || ranks::is_tiktoken(bytes) {
        return ranks::tiktoken(bytes, config).map_err(wrong);
    }
    let class = class.map_err(|what| Error::unsupported(format!("{place}: {what}")))?;
    let supported = [
        Class::Serialized,
        Class::Llama,
        Class::CodeLlama,
        Class::Gemma,
    ];
    if !supported.contains(&class) {
        return Err(Error::unsupported(format!(
            "{place}: tokenizer_class {} does not read SentencePiece's files; those that do: LlamaTokenizer, CodeLlamaTokenizer, GemmaTokenizer, \
             PreTrainedTokenizerFast",
            class.name()
        )));
    }
    let model = proto::Model::parse(bytes).map_err(wrong)?;
    sentencepiece::convert(&model, class, config).map_err(wrong)
}

impl Converted {
    /// Adds the tokens of the file that the configuration does not mention.
    pub(super) fn complete(&mut self, config: &mut TokenizerConfig) {
        for (name, content) in std::mem::take(&mut self.named) {
            config.default_named(name, &content);
        }
        if !config.has_extra {
            let extra = std::mem::take(&mut self.extra);
            config.extra = extra.into_iter().map(ConfigToken::Full).collect();
        }
    }

    /// Puts `bos_token` and `eos_token` around texts if `add_bos_token` and `add_eos_token` are
    /// set.
    pub(super) fn post_process(
        &self,
        inner: &mut tokenizers::Tokenizer,
        config: &TokenizerConfig,
    ) -> tokenizers::Result<()> {
        let is_told = config.add_bos.is_some() || config.add_eos.is_some();
        if !self.has_ends && !is_told {
            return Ok(());
        }
        let end =
            |name: &str, is_added: Option<bool>| -> tokenizers::Result<Option<(String, u32)>> {
                let Some(token) = config
                    .named_content(name)
                    .filter(|_| is_added == Some(true))
                else {
                    return Ok(None);
                };
                let id = inner.token_to_id(token);
                let id = id.ok_or_else(|| format!("{name} {token:?} is not in the vocabulary"))?;
                Ok(Some((token.to_owned(), id)))
            };
        let (bos, eos) = (
            end("bos_token", config.add_bos)?,
            end("eos_token", config.add_eos)?,
        );
        let text = |end: &Option<(String, u32)>| {
            end.iter()
                .map(|(token, _)| token.clone())
                .collect::<Vec<_>>()
        };
        let single = [text(&bos), vec!["$A".to_owned()], text(&eos)].concat();
        let mut template = TemplateProcessing::builder();
        template.try_single(single)?;
        let specials: Vec<(String, u32)> = bos.into_iter().chain(eos).collect();
        inner.with_post_processor(Some(template.special_tokens(specials).build()?));
        Ok(())
    }
}
