//! Turns ids into text one at a time, as they arrive.
//!
//! The tokenizer's decoder works on all tokens at once. This module does the same token by token: the cost of a token
//! does not grow with their number, and the joined pieces equal the decoded text to the byte.

use std::borrow::Cow;
use std::sync::LazyLock;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::text::tokenizer::{Tokenizer, clean_up};

/// The steps of a tokenizer's decoder, in a form that works token by token.
#[derive(Debug)]
pub(crate) enum Steps {
    /// Tokens spell bytes (GPT-2, Llama 3, Qwen).
    ByteLevel,
    /// Tokens are text with marks for spaces; some are single bytes (Llama 2, Gemma, Mistral).
    SentencePiece {
        replace: Vec<(String, String)>,
        bytes: bool,
        strip: Option<(char, usize)>,
    },
    /// One mark stands for a space.
    Metaspace { mark: char, strip_first: bool },
    /// Tokens are words unless they begin with a prefix (BERT).
    WordPiece { prefix: String, clean_up: bool },
    /// There is no decoder: tokens are joined with spaces.
    Joined,
    /// A later token may change earlier text, so everything is decoded at the end.
    Whole,
}

impl Steps {
    pub(crate) fn of(tokenizer: &tokenizers::Tokenizer, clean_up: bool) -> Result<Self> {
        if clean_up {
            return Ok(Self::Whole);
        }
        let Some(decoder) = tokenizer.get_decoder() else {
            return Ok(Self::Joined);
        };
        let decoder = serde_json::to_value(decoder)
            .map_err(|error| Error::format(format!("tokenizer.json: decoder: {error}")))?;
        let steps = match decoder.get("decoders").and_then(Value::as_array) {
            Some(list) => list.clone(),
            None => vec![decoder],
        };
        Ok(Self::single(&steps)
            .or_else(|| Self::sentencepiece(&steps))
            .unwrap_or(Self::Whole))
    }

    fn single(steps: &[Value]) -> Option<Self> {
        let [step] = steps else { return None };
        match kind(step) {
            "ByteLevel" => Some(Self::ByteLevel),
            "Metaspace" => Some(Self::Metaspace {
                mark: step.get("replacement")?.as_str()?.chars().next()?,
                strip_first: step.get("prepend_scheme")?.as_str()? != "never",
            }),
            "WordPiece" => Some(Self::WordPiece {
                prefix: step.get("prefix")?.as_str()?.to_owned(),
                clean_up: step.get("cleanup")?.as_bool()?,
            }),
            _ => None,
        }
    }

    /// `Replace`s, then `ByteFallback`, `Fuse`, and a `Strip` of the beginning, each at most once.
    fn sentencepiece(steps: &[Value]) -> Option<Self> {
        let mut steps = steps.iter().peekable();
        let mut next = |sought: &str| steps.next_if(|step| kind(step) == sought);
        let mut replace = Vec::new();
        while let Some(step) = next("Replace") {
            let from = step
                .get("pattern")?
                .get("String")?
                .as_str()
                .filter(|from| !from.is_empty())?;
            replace.push((from.to_owned(), step.get("content")?.as_str()?.to_owned()));
        }
        let bytes = next("ByteFallback").is_some();
        let fused = next("Fuse").is_some();
        let strip = match next("Strip") {
            // Without `Fuse` every token is stripped. Stripping the end of a text is only possible
            // at its end.
            Some(step) if fused && step.get("stop")?.as_u64()? == 0 => {
                let content = step.get("content")?.as_str()?.chars().next()?;
                Some((content, usize::try_from(step.get("start")?.as_u64()?).ok()?))
            }
            Some(_) => return None,
            None => None,
        };
        if steps.next().is_some() {
            return None;
        }
        Some(Self::SentencePiece {
            replace,
            bytes,
            strip,
        })
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

impl Tokenizer {
    /// The bytes that a token adds to a text after other tokens; for a special token those of its name. `None` for an
    /// id outside the vocabulary. The bytes of a token may be a part of a character.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.token_to_decode(id, false)?;
        Some(match self.steps() {
            Steps::ByteLevel => {
                let mut bytes = Vec::new();
                append_bytes(&token, &mut bytes);
                bytes
            }
            Steps::SentencePiece { replace, bytes, .. } => {
                let replaced = replace
                    .iter()
                    .fold(token, |token, (from, to)| token.replace(from, to));
                match byte_token(&replaced).filter(|_| *bytes) {
                    Some(byte) => vec![byte],
                    None => replaced.into_bytes(),
                }
            }
            Steps::Metaspace { mark, .. } => token.replace(*mark, " ").into_bytes(),
            Steps::WordPiece { prefix, clean_up } => {
                word_piece(&token, prefix, *clean_up, false).into_bytes()
            }
            Steps::Joined => format!(" {token}").into_bytes(),
            Steps::Whole => self.decode(&[id], false).ok()?.into_bytes(),
        })
    }
}

/// Turns ids into text as they come.
///
/// The pieces of [`Detokenizer::push`] and the last one of [`Detokenizer::finish`], joined, equal [`Tokenizer::decode`]
/// of all ids. A piece never ends inside a character: the bytes of a character are held back until it is complete. In a
/// vocabulary with single bytes as a fallback, a run of them is held back until another token ends it, because one
/// invalid byte changes how the whole run is shown.
///
/// ```no_run
/// # fn main() -> mlx_infer::Result<()> {
/// let tokenizer = mlx_infer::Tokenizer::load(&mlx_infer::Files::directory("model")?)?;
/// let mut text = tokenizer.detokenizer(true);
/// for id in tokenizer.encode("grüß dich", false)? {
///     print!("{}", text.push(id)?);
/// }
/// println!("{}", text.finish()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Special tokens that are nevertheless text.
    kept: Vec<u32>,
    /// The bytes of an incomplete character, or of a run of single bytes.
    held: Vec<u8>,
    /// Whether a token has been decoded.
    started: bool,
    /// How many more characters may be stripped from the beginning.
    strip_left: usize,
    /// All ids, if decoding is only possible at the end.
    ids: Vec<u32>,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let strip_left = match tokenizer.steps() {
            Steps::SentencePiece {
                strip: Some((_, count)),
                ..
            } => *count,
            _ => 0,
        };
        Self {
            tokenizer,
            skip_special,
            kept: Vec::new(),
            held: Vec::new(),
            started: false,
            strip_left,
            ids: Vec::new(),
        }
    }

    /// The same, but these special tokens are text.
    #[must_use]
    pub fn keeping(mut self, special: &[u32]) -> Self {
        self.kept = special.to_vec();
        self
    }

    fn skips(&self, id: u32) -> bool {
        self.skip_special && !self.kept.contains(&id)
    }

    /// Adds the next id and returns the text that is certain now. It may be empty.
    ///
    /// # Errors
    /// None today: no decoder that works token by token can fail.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if matches!(self.tokenizer.steps(), Steps::Whole) {
            self.ids.push(id);
            return Ok(String::new());
        }
        let Some(token) = self.tokenizer.token_to_decode(id, self.skips(id)) else {
            return Ok(String::new());
        };
        let first = !std::mem::replace(&mut self.started, true);
        Ok(match self.tokenizer.steps() {
            Steps::ByteLevel => {
                append_bytes(&token, &mut self.held);
                take_whole_chars(&mut self.held)
            }
            Steps::SentencePiece {
                replace,
                bytes,
                strip,
            } => {
                let mut token = token;
                for (from, to) in replace {
                    token = token.replace(from, to);
                }
                if let Some(byte) = byte_token(&token).filter(|_| *bytes) {
                    self.held.push(byte);
                    return Ok(String::new());
                }
                let mut text = take_run(&mut self.held);
                text.push_str(&token);
                strip_start(text, *strip, &mut self.strip_left)
            }
            Steps::Metaspace { mark, strip_first } => {
                token.replace(*mark, if first && *strip_first { "" } else { " " })
            }
            Steps::WordPiece { prefix, clean_up } => word_piece(&token, prefix, *clean_up, first),
            Steps::Joined if first => token,
            Steps::Joined => format!(" {token}"),
            Steps::Whole => String::new(),
        })
    }

    /// The text that was held back. The detokenizer can then be used for another text.
    ///
    /// # Errors
    /// If the decoder works on all ids at once, those of [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<String> {
        let text = match self.tokenizer.steps() {
            Steps::Whole => {
                let is_text = |&&id: &&u32| {
                    let token = self.tokenizer.token_for_decoding(id, self.skips(id));
                    token.is_some()
                };
                let ids: Vec<u32> = self.ids.iter().filter(is_text).copied().collect();
                self.tokenizer.decode(&ids, false)?
            }
            Steps::SentencePiece { strip, .. } => {
                strip_start(take_run(&mut self.held), *strip, &mut self.strip_left)
            }
            _ => String::from_utf8_lossy(&self.held).into_owned(),
        };
        let kept = std::mem::take(&mut self.kept);
        *self = Self::new(self.tokenizer.clone(), self.skip_special).keeping(&kept);
        Ok(text)
    }
}

/// The character that stands for each byte in a byte-level vocabulary: printable Latin-1 for itself, the other bytes in
/// order from U+0100 (GPT-2's `bytes_to_unicode`).
static SHOWN: LazyLock<Vec<char>> = LazyLock::new(|| {
    let mut next = 'Ā'..;
    let shown = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => next.next().unwrap_or_default(),
    };
    (0..=255).map(shown).collect()
});

/// A text as a byte-level vocabulary spells it.
pub(super) fn byte_level(text: &str) -> String {
    text.bytes().map(|byte| SHOWN[usize::from(byte)]).collect()
}

/// The bytes of a byte-level token. A token with another character counts as its own bytes.
pub(super) fn append_bytes(token: &str, out: &mut Vec<u8>) {
    static BYTES: LazyLock<Vec<Option<u8>>> = LazyLock::new(|| {
        let mut table = vec![None; 512];
        for (byte, &shown) in (0..=255).zip(SHOWN.iter()) {
            table[shown as usize] = Some(byte);
        }
        table
    });
    let start = out.len();
    for shown in token.chars() {
        match BYTES.get(shown as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Takes all complete characters, with invalid bytes as U+FFFD in the way of `from_utf8_lossy`. Keeps an incomplete
/// character.
fn take_whole_chars(held: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut from = 0;
    loop {
        match std::str::from_utf8(&held[from..]) {
            Ok(rest) => {
                text.push_str(rest);
                from = held.len();
                break;
            }
            Err(error) => {
                let valid = from + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&held[from..valid]));
                from = valid;
                let Some(bad) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                from += bad;
            }
        }
    }
    held.drain(..from);
    text
}

/// The byte that a `<0xE4>` token stands for.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token
        .strip_prefix("<0x")?
        .strip_suffix('>')
        .filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// A run of single bytes: its text if all of it is valid, else one U+FFFD for each byte (the `ByteFallback` decoder).
fn take_run(held: &mut Vec<u8>) -> String {
    let run = std::mem::take(held);
    let count = run.len();
    String::from_utf8(run).unwrap_or_else(|_| "\u{fffd}".repeat(count))
}

fn strip_start(text: String, strip: Option<(char, usize)>, left: &mut usize) -> String {
    let Some((content, _)) = strip.filter(|_| *left > 0) else {
        return text;
    };
    let mut rest = text.as_str();
    while *left > 0
        && let Some(first) = rest.chars().next()
    {
        if first == content {
            rest = &rest[first.len_utf8()..];
            *left -= 1;
        } else {
            *left = 0;
        }
    }
    rest.to_owned()
}

/// The `WordPiece` decoder on one token.
fn word_piece(token: &str, prefix: &str, cleans_up: bool, first: bool) -> String {
    let text: Cow<'_, str> = match token.strip_prefix(prefix) {
        _ if first => token.into(),
        Some(rest) => rest.into(),
        None => format!(" {token}").into(),
    };
    match cleans_up {
        true => clean_up(&text).replace(" do not", " don't"),
        false => text.into_owned(),
    }
}
