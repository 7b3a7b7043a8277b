//! The bytes of all tokens.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use super::Mask;
use super::front::Crossing;
use crate::error::{Error, Result};
use crate::text::spelling::{Spelled, Spelling};
use crate::text::tokenizer::Tokenizer;

/// The number of marks that are remembered.
const MARKS: usize = 8;

/// The results for the marks that were used last.
type Remembered<K, T> = Mutex<Vec<(K, Arc<T>)>>;

/// The longest token in bytes. Longer tokens are never allowed, because the trie has no room for them.
const MAX_BYTES: usize = 512;

/// The tokens of a model in the form that grammars need.
pub(super) struct Vocabulary {
    env: TokEnv,
    /// The number of ids of the model, including those beyond the tokenizer.
    size: usize,
    eos_ids: Vec<u32>,
    /// The tokens that continue beyond marks, for the marks that were used last.
    crossing: Remembered<String, Crossing>,
    /// The tokens that continue opening marks, for the marks that were used last.
    opening: Remembered<[String; 2], Vec<Mask>>,
    /// Tokens that add fewer bytes at the start of a text than after other tokens. They may not
    /// come first.
    not_first: Option<Mask>,
}

impl Vocabulary {
    /// The vocabulary of a model with `size` ids. Ids without text are never allowed, and special tokens only if a
    /// grammar names them.
    ///
    /// # Errors
    /// The text of a token depends on the tokens beside it.
    pub(super) fn new(tokenizer: &Tokenizer, size: usize, eos_ids: &[u32]) -> Result<Self> {
        let spelling = Spelling::new(tokenizer)?;
        let eos_ids: Vec<u32> = (eos_ids.iter().copied())
            .filter(|&id| (id as usize) < size)
            .collect();
        let mut words = vec![Vec::new(); size];
        let mut not_first = vec![0; size.div_ceil(32)];
        for (id, word) in (0..).zip(&mut words) {
            let bytes = match spelling.of(id) {
                Spelled::Nothing => continue,
                Spelled::Special(name) => special(&name),
                Spelled::Text(_) if eos_ids.contains(&id) => {
                    special(&tokenizer.id_to_token(id).unwrap_or_default())
                }
                Spelled::Text(bytes) => {
                    if spelling.is_shortened(&bytes) {
                        not_first[id as usize / 32] |= 1 << (id % 32);
                    }
                    bytes
                }
            };
            if bytes.len() <= MAX_BYTES {
                *word = bytes;
            }
        }
        let first_eos = eos_ids.first().copied().unwrap_or(INVALID_TOKEN);
        let build = || {
            let trie = TokTrie::from(&TokRxInfo::new(size as u32, first_eos), &words);
            match eos_ids.is_empty() {
                true => trie,
                false => trie.with_eos_tokens(&eos_ids),
            }
        };
        let trie = catch_unwind(AssertUnwindSafe(build)).map_err(|_| {
            Error::unsupported(format!(
                "grammars do not work with this tokenizer: its {size} tokens do not fit into a trie"
            ))
        })?;
        let has_shortened = not_first.iter().any(|&word| word != 0);
        Ok(Self {
            // Not canonical: any tokenisation of forced text is accepted.
            env: Arc::new(ApproximateTokEnv::new(trie)),
            size,
            eos_ids,
            crossing: Mutex::default(),
            opening: Mutex::default(),
            not_first: has_shortened.then(|| not_first.into()),
        })
    }

    pub(super) fn env(&self) -> &TokEnv {
        &self.env
    }

    /// The number of words of a mask.
    pub(super) fn words(&self) -> usize {
        self.size.div_ceil(32)
    }

    pub(super) fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    pub(super) fn not_first(&self) -> Option<&Mask> {
        self.not_first.as_ref()
    }

    /// The text of a token, by name if it is special.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        if id as usize >= self.size {
            return &[];
        }
        let bytes = self.env.tok_trie().token(id);
        bytes
            .strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])
            .unwrap_or(bytes)
    }

    /// The tokens that end a mark and continue with other text.
    pub(super) fn crossing(&self, mark: &str) -> Arc<Crossing> {
        remembered(&self.crossing, mark.to_owned(), || {
            let sought = mark.as_bytes();
            let mut crossing = vec![Vec::new(); sought.len()];
            for id in 0..self.size as u32 {
                let bytes = self.text(id);
                let at = |at: usize| bytes.get(at..).is_some_and(|rest| rest.starts_with(sought));
                if let Some(at) = (0..bytes.len()).find(|&from| at(from))
                    && at + sought.len() < bytes.len()
                {
                    crossing[0].push(id);
                }
                for (n, crossing) in crossing.iter_mut().enumerate().skip(1) {
                    let rest = bytes.strip_prefix(&sought[n..]);
                    if rest.is_some_and(|rest| !rest.is_empty()) {
                        crossing.push(id);
                    }
                }
            }
            crossing
        })
    }

    /// For each number of bytes of `opener` that were found: the tokens that continue it. A token may end it and
    /// continue with text in which `after` is not complete.
    pub(super) fn opening(&self, opener: &str, after: &str) -> Arc<Vec<Mask>> {
        remembered(&self.opening, [opener, after].map(str::to_owned), || {
            let (sought, after) = (opener.as_bytes(), after.as_bytes());
            let has_after = |text: &[u8]| text.windows(after.len()).any(|part| part == after);
            let masks = (0..sought.len()).map(|came| {
                let rest = &sought[came..];
                let mut words = vec![0; self.words()];
                for id in 0..self.size as u32 {
                    let bytes = self.text(id);
                    let goes_on = match bytes.strip_prefix(rest) {
                        Some(behind) => !has_after(behind),
                        None => !bytes.is_empty() && rest.starts_with(bytes),
                    };
                    words[id as usize / 32] |= u32::from(goes_on) << (id % 32);
                }
                words.into()
            });
            masks.collect()
        })
    }
}

/// The result for a mark. It is computed unless the mark is among those that were used last.
fn remembered<K: PartialEq, T>(
    known: &Remembered<K, T>,
    key: K,
    make: impl FnOnce() -> T,
) -> Arc<T> {
    let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = lock().iter().find(|(known, _)| *known == key) {
        return found.clone();
    }
    let made = Arc::new(make());
    let mut known = lock();
    if known.len() == MARKS {
        known.remove(0);
    }
    known.push((key, made.clone()));
    made
}

fn special(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}
