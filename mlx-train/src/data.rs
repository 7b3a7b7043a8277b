//! Training data: JSON lines in mlx-lm's formats, turned into tokens.
//!
//! A line is an object with one of
//! - `messages`, a conversation, and optionally `tools`: the model's chat template makes the text, from messages that
//!   are prepared as in serving ([`mlx_infer::chat::prepare`]);
//! - `prompt` and `completion`: a conversation of two messages, or, without a chat template, both texts one after the
//!   other;
//! - `text`: used unchanged;
//! - `tokens`, and optionally `prompt_tokens` (the number of tokens at the start that are not learnt) or `weights` (the
//!   weight of each token in the loss, 0 for tokens that are only read; one for each token): ids, for models without a
//!   tokenizer, and for inputs that no template can express.
//!
//! Texts end with the model's end token. Conversations end with the end token of their last answer:
//! white space that a template writes after it is removed. Empty lines are skipped. A line that
//! cannot be used is an error that names the file and the line.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use mlx_infer::chat::reply::ReplyFormat;
use mlx_infer::input::Lines;
use mlx_infer::{ChatTemplate, Files, Tokenizer};

use crate::batch::Example;
use crate::error::{ErrorKind, Result, argument, format};

mod line;

/// The most bytes of a data file.
const MAX_BYTES: u64 = 16 << 30;
/// The most bytes of a file's examples, which are all kept in memory.
const MAX_MEMORY: usize = 4 << 30;

/// A checkpoint's tokenizer and chat template, which turn text into tokens.
#[derive(Default)]
pub struct Encoder {
    tokenizer: Option<Tokenizer>,
    template: Option<(ChatTemplate, ReplyFormat)>,
    /// The reason why there is no template.
    no_template: String,
}

impl Encoder {
    /// Loads the tokenizer and the chat template of a checkpoint, if it has them.
    ///
    /// # Errors
    /// One of them is malformed.
    pub fn load(files: &Files) -> Result<Self> {
        if files.read("tokenizer.json")?.is_none() {
            return Ok(Self::default());
        }
        let tokenizer = Tokenizer::load(files)?;
        let mut encoder = Self {
            tokenizer: None,
            template: None,
            no_template: String::new(),
        };
        match ChatTemplate::load(files, &tokenizer) {
            Ok(template) => {
                let format = ReplyFormat::detect(&template, &tokenizer);
                encoder.template = Some((template, format));
            }
            // The checkpoint has no template. A malformed template is an error.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                encoder.no_template = error.to_string();
            }
            Err(error) => return Err(error),
        }
        encoder.tokenizer = Some(tokenizer);
        Ok(encoder)
    }
}

/// Options of reading data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOptions {
    /// The longest example; the rest of a longer one is cut off.
    pub max_tokens: usize,
    /// Whether prompts are left out of the loss. The prompt of a conversation is everything but its last message.
    pub mask_prompt: bool,
    /// Ids must be below this.
    pub vocab: u32,
}

/// The examples of one file.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// In the file's order.
    pub examples: Vec<Example>,
    /// Counts of examples and tokens.
    pub report: DataReport,
    /// Bytes of the examples.
    bytes: usize,
}

/// Counts of a file's examples and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DataReport {
    /// Examples that are used.
    pub examples: usize,
    /// Their tokens.
    pub tokens: usize,
    /// The tokens that count in the loss.
    pub learnt: usize,
    /// Examples that were longer than the limit.
    pub truncated: usize,
    /// Tokens that truncation removed.
    pub lost_tokens: usize,
    /// Examples without a token that counts in the loss, which are not used.
    pub dropped: usize,
}

/// The files of a data folder, or one file for training alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFiles {
    /// `train.jsonl`
    pub train: Option<PathBuf>,
    /// `valid.jsonl`
    pub valid: Option<PathBuf>,
    /// `test.jsonl`
    pub test: Option<PathBuf>,
}

impl DataFiles {
    /// Looks up `path`, a folder or a file.
    ///
    /// # Errors
    /// There is no file or folder at the path, or the folder has none of the files.
    pub fn find(path: &Path) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Ok(Self {
                train: Some(path.to_owned()),
                valid: None,
                test: None,
            });
        }
        let of = |name: &str| Some(path.join(name)).filter(|path| path.exists());
        let files = Self {
            train: of("train.jsonl"),
            valid: of("valid.jsonl"),
            test: of("test.jsonl"),
        };
        if files.train.is_none() && files.valid.is_none() && files.test.is_none() {
            return Err(argument(format!(
                "{}: expected a JSONL file, or a folder with train.jsonl, valid.jsonl or test.jsonl",
                path.display()
            )));
        }
        Ok(files)
    }
}

/// Reads a file of JSON lines.
///
/// # Errors
/// It is neither an ordinary file nor the standard input, has more than 16 GiB or cannot be read; a line is too long,
/// has none of the known forms or holds ids outside the vocabulary; the whole file has nothing to learn; or its
/// examples take more than 4 GiB of memory.
pub fn read(path: &Path, encoder: &Encoder, options: &DataOptions) -> Result<Dataset> {
    read_up_to(MAX_MEMORY, path, encoder, options)
}

fn read_up_to(
    most: usize,
    path: &Path,
    encoder: &Encoder,
    options: &DataOptions,
) -> Result<Dataset> {
    let mut lines = Lines::open_file(path, MAX_BYTES)?;
    let mut dataset = Dataset::default();
    while let Some((number, text)) = lines.next()? {
        let place =
            |what: &dyn Display| format(format!("{}: line {number}: {what}", path.display()));
        let text = text.map_err(|error| place(&error))?;
        if text.trim().is_empty() {
            continue;
        }
        let example = line::example(&text, encoder, options)
            .map_err(|error| place(&error).with_source(error))?;
        dataset.take(example, options.max_tokens);
        if dataset.bytes > most {
            let what = format!(
                "the {} examples up to here take more than {most} bytes of memory; divide the data",
                dataset.examples.len()
            );
            return Err(place(&what));
        }
    }
    if dataset.examples.is_empty() {
        return Err(format(format!(
            "{}: no line has anything to learn ({} had nothing within {} tokens)",
            path.display(),
            dataset.report.dropped,
            options.max_tokens
        )));
    }
    Ok(dataset)
}

/// The most bytes of a text file.
const MAX_TEXT: u64 = 256 << 20;

/// Reads a text file as examples of `max_tokens` tokens each, one behind the other; a rest of one token is left out.
///
/// # Errors
/// The file cannot be read, is no UTF-8 or has more than 256 MiB; there is no tokenizer; an id is outside the
/// vocabulary.
pub fn read_text(path: &Path, encoder: &Encoder, options: &DataOptions) -> Result<Vec<Example>> {
    let place = |what: &dyn Display| format(format!("{}: {what}", path.display()));
    let tokenizer = encoder.tokenizer.as_ref();
    let tokenizer =
        tokenizer.ok_or_else(|| place(&"text needs a tokenizer, and the model has none"))?;
    if options.max_tokens < 2 {
        return Err(argument(format!(
            "an example needs 2 tokens, given a limit of {}",
            options.max_tokens
        )));
    }
    let bytes = mlx_core::files::read(path, MAX_TEXT)?;
    let text = String::from_utf8(bytes).map_err(|error| place(&error))?;
    let ids = tokenizer.encode(&text, false)?;
    if let Some(id) = ids.iter().find(|&&id| id >= options.vocab) {
        return Err(place(&format!(
            "token {id} is outside the vocabulary of {}",
            options.vocab
        )));
    }
    let parts = ids.chunks(options.max_tokens).filter(|part| part.len() > 1);
    let examples: Vec<Example> = parts.map(|part| Example::new(part.to_vec(), 0)).collect();
    match examples.is_empty() {
        true => Err(place(&"fewer than two tokens")),
        false => Ok(examples),
    }
}

impl Dataset {
    fn take(&mut self, mut example: Example, max_tokens: usize) {
        let report = &mut self.report;
        let length = example.tokens.len();
        if length > max_tokens {
            report.truncated += 1;
            report.lost_tokens += length - max_tokens;
            example.tokens.truncate(max_tokens);
            example.tokens.shrink_to_fit();
            if let Some(weights) = &mut example.weights {
                weights.truncate(max_tokens);
                weights.shrink_to_fit();
            }
        }
        if example.learnt() == 0 {
            report.dropped += 1;
            return;
        }
        report.examples += 1;
        report.tokens += example.tokens.len();
        report.learnt += example.learnt();
        let numbers = example.tokens.capacity() + example.weights.as_ref().map_or(0, Vec::capacity);
        self.bytes += size_of::<Example>() + 4 * numbers;
        self.examples.push(example);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_have_a_limit_in_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"tokens\": [1, 2, 3]}\n".repeat(100)).unwrap();
        let (encoder, mut options) = (
            Encoder::default(),
            DataOptions {
                max_tokens: 8,
                mask_prompt: false,
                vocab: 4,
            },
        );
        let read = |most, options: &DataOptions| read_up_to(most, file.path(), &encoder, options);
        let all = read(1 << 20, &options).unwrap();
        assert_eq!(all.examples.len(), 100);
        let error = read(all.bytes - 1, &options).unwrap_err().to_string();
        assert!(
            error.contains("line 100: the 100 examples up to here take more than"),
            "{error}"
        );
        // Tokens that are cut off do not count.
        options.max_tokens = 2;
        assert!(read(1 << 20, &options).unwrap().bytes <= all.bytes);
    }
}
