//! The bytes that a token adds to a text.

use crate::error::{Error, Result};
use crate::text::detokenize::{Steps, append_bytes, byte_token};
use crate::text::tokenizer::Tokenizer;

/// The text that a token adds, as the [`Detokenizer`](super::detokenize::Detokenizer) shows it.
pub(crate) enum Spelled {
    /// Nothing: the id has no token.
    Nothing,
    /// Nothing: a special token with this name.
    Special(String),
    /// These bytes. Several tokens may spell one character.
    Text(Vec<u8>),
}

/// The bytes of a tokenizer's tokens, if they do not depend on the tokens beside them.
pub(crate) struct Spelling<'a> {
    tokenizer: &'a Tokenizer,
}

impl<'a> Spelling<'a> {
    /// # Errors
    /// The bytes of a token depend on the tokens beside it.
    pub(crate) fn new(tokenizer: &'a Tokenizer) -> Result<Self> {
        let kind = match tokenizer.steps() {
            Steps::ByteLevel | Steps::SentencePiece { .. } | Steps::Metaspace { .. } => {
                return Ok(Self { tokenizer });
            }
            Steps::WordPiece { .. } => "the decoder WordPiece",
            Steps::Joined => "no decoder",
            Steps::Whole => "a decoder that needs the whole text",
        };
        Err(Error::unsupported(format!(
            "grammars need a tokenizer whose tokens spell the same text everywhere (the decoders ByteLevel, ByteFallback and Metaspace); this one has {kind}"
        )))
    }

    /// The text that a token adds after other tokens.
    pub(crate) fn of(&self, id: u32) -> Spelled {
        let Some(token) = self.tokenizer.token_for_decoding(id, false) else {
            return Spelled::Nothing;
        };
        if self.tokenizer.is_special(&token) {
            return Spelled::Special(token);
        }
        let token = self.tokenizer.token_to_decode(id, false).unwrap_or(token);
        Spelled::Text(match self.tokenizer.steps() {
            Steps::ByteLevel => {
                let mut bytes = Vec::new();
                append_bytes(&token, &mut bytes);
                bytes
            }
            Steps::SentencePiece { replace, bytes, .. } => {
                let mut token = token;
                for (from, to) in replace {
                    token = token.replace(from, to);
                }
                match byte_token(&token).filter(|_| *bytes) {
                    Some(byte) => vec![byte],
                    None => token.into_bytes(),
                }
            }
            Steps::Metaspace { mark, .. } => token.replace(*mark, " ").into_bytes(),
            _ => token.into_bytes(),
        })
    }

    /// Whether a token with these bytes adds less at the start of a text.
    #[cfg(feature = "grammar")]
    pub(crate) fn is_shortened(&self, bytes: &[u8]) -> bool {
        match self.tokenizer.steps() {
            Steps::SentencePiece {
                strip: Some((first, _)),
                ..
            } => {
                let mut utf8 = [0; 4];
                bytes.starts_with(first.encode_utf8(&mut utf8).as_bytes())
            }
            Steps::Metaspace {
                strip_first: true, ..
            } => bytes.contains(&b' '),
            _ => false,
        }
    }
}
