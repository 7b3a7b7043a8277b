//! Filling in the middle: prompts of a text with a gap, for models that were trained to fill it.
//!
//! The marks are those of the vocabulary. Sources: the model cards of Qwen2.5-Coder, StarCoder2,
//! DeepSeek-Coder, CodeLlama, Granite Code, CodeGemma, GLM 4.5 and Seed-Coder, and mistral-common
//! for Codestral. The order of files before the gap is that of Qwen2.5-Coder and StarCoder2, which
//! llama.cpp's `/infill` also uses.

use crate::error::Result;
use crate::text::tokenizer::Tokenizer;

/// The marks of a family.
struct Marks {
    prefix: &'static str,
    suffix: &'static str,
    /// The mark after which the gap is filled; `None`: it is filled after the prefix, which comes
    /// last.
    middle: Option<&'static str>,
    /// Whether the suffix comes before the prefix.
    is_suffix_first: bool,
    /// The marks before the name of the repository and before the name of a file.
    repository: &'static [&'static str],
    file: &'static [&'static str],
    /// Tokens that end the filled text, beside the model's own end tokens and the other marks.
    ends: &'static [&'static str],
}

const FAMILIES: [Marks; 7] = [
    // Qwen2.5-Coder and later, Granite 4, CodeGemma.
    Marks {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: Some("<|fim_middle|>"),
        is_suffix_first: false,
        repository: &["<|repo_name|>"],
        file: &["<|file_sep|>", "<|file_separator|>"],
        ends: &["<|fim_pad|>", "<|cursor|>"],
    },
    // StarCoder, StarCoder2, Granite Code and 3, SmolLM.
    Marks {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: Some("<fim_middle>"),
        is_suffix_first: false,
        repository: &["<repo_name>", "<reponame>"],
        file: &["<file_sep>", "<filename>"],
        ends: &["<fim_pad>"],
    },
    // DeepSeek-Coder and later.
    Marks {
        prefix: "<｜fim▁begin｜>",
        suffix: "<｜fim▁hole｜>",
        middle: Some("<｜fim▁end｜>"),
        is_suffix_first: false,
        repository: &[],
        file: &[],
        ends: &[],
    },
    // CodeLlama.
    Marks {
        prefix: "▁<PRE>",
        suffix: "▁<SUF>",
        middle: Some("▁<MID>"),
        is_suffix_first: false,
        repository: &[],
        file: &[],
        ends: &["▁<EOT>"],
    },
    // Codestral.
    Marks {
        prefix: "[PREFIX]",
        suffix: "[SUFFIX]",
        middle: None,
        is_suffix_first: true,
        repository: &[],
        file: &[],
        ends: &["[MIDDLE]"],
    },
    // GLM 4.5.
    Marks {
        prefix: "<|code_prefix|>",
        suffix: "<|code_suffix|>",
        middle: Some("<|code_middle|>"),
        is_suffix_first: false,
        repository: &[],
        file: &[],
        ends: &[],
    },
    // Seed-Coder.
    Marks {
        prefix: "<[fim-prefix]>",
        suffix: "<[fim-suffix]>",
        middle: Some("<[fim-middle]>"),
        is_suffix_first: true,
        repository: &[],
        file: &[],
        ends: &[],
    },
];

/// The text between two snippets for families without a mark before a file.
const BETWEEN: &str = "\n--- snippet ---\n";
/// The name of a repository and of a file that have none, as in llama.cpp.
const REPOSITORY: &str = "myproject";
const FILE: &str = "filename";

/// How a model fills a gap in a text.
#[derive(Clone, Debug)]
pub(crate) struct Infill {
    bos: Option<u32>,
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    is_suffix_first: bool,
    repository: Option<u32>,
    file: Option<u32>,
    ends: Vec<u32>,
}

/// A text with a gap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gap<'a> {
    pub(crate) before: &'a str,
    pub(crate) after: &'a str,
    /// Other files, or parts of them: names and texts.
    pub(crate) files: &'a [(Option<String>, String)],
}

impl Infill {
    /// The form whose marks the vocabulary has, if there is one.
    pub(crate) fn detect(tokenizer: &Tokenizer) -> Option<Self> {
        let id = |mark: &str| tokenizer.token_to_id(mark);
        let first = |marks: &[&str]| marks.iter().find_map(|mark| id(mark));
        FAMILIES.iter().find_map(|marks| {
            let (prefix, suffix) = (id(marks.prefix)?, id(marks.suffix)?);
            let middle = match marks.middle {
                Some(mark) => Some(id(mark)?),
                None => None,
            };
            let (repository, file) = (first(marks.repository), first(marks.file));
            let ends = marks.ends.iter().filter_map(|mark| id(mark));
            let bos = tokenizer.encode("", true).ok()?.first().copied();
            Some(Self {
                bos: bos.filter(|id| tokenizer.bos_id() == Some(*id)),
                ends: (ends.chain(repository).chain(file))
                    .chain([prefix, suffix])
                    .chain(middle)
                    .collect(),
                prefix,
                suffix,
                middle,
                is_suffix_first: marks.is_suffix_first,
                repository,
                file,
            })
        })
    }

    /// The tokens that end the filled text: marks that the model writes after it.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The prompt of a gap with at most `room` tokens, and whether something was left out for that:
    /// first the beginnings of other files, then text far from the gap, three tokens before it for
    /// each one after it.
    ///
    /// # Errors
    /// A text cannot be encoded.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        gap: Gap<'_>,
        room: usize,
    ) -> Result<(Vec<u32>, bool)> {
        let mut before = tokenizer.encode(gap.before, false)?;
        let mut after = behind(tokenizer, gap.after)?;
        let mut files = self.files(tokenizer, gap.files)?;
        let marks = 2 + [self.middle, self.bos].iter().flatten().count();
        let room = room.saturating_sub(marks);
        let over = (before.len() + after.len()).saturating_sub(room);
        if over > 0 {
            let most_after = (room / 4).max(room.saturating_sub(before.len()));
            after.truncate(most_after);
            let cut = (before.len() + after.len()).saturating_sub(room);
            before.drain(..cut);
        }
        let left = room - before.len() - after.len();
        let dropped = files.len().saturating_sub(left);
        files.drain(..dropped);
        let [first, second] = match self.is_suffix_first {
            false => [(self.prefix, before), (self.suffix, after)],
            true => [(self.suffix, after), (self.prefix, before)],
        };
        let mut ids: Vec<u32> = self.bos.into_iter().chain(files).collect();
        for (mark, text) in [first, second] {
            ids.push(mark);
            ids.extend(text);
        }
        ids.extend(self.middle);
        Ok((ids, over + dropped > 0))
    }

    /// The other files, and the head of the file with the gap.
    fn files(&self, tokenizer: &Tokenizer, files: &[(Option<String>, String)]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        if files.is_empty() {
            return Ok(ids);
        }
        if let Some(repository) = self.repository {
            ids.push(repository);
            ids.extend(tokenizer.encode(&format!("{REPOSITORY}\n"), false)?);
        }
        for (name, text) in files {
            match self.file {
                Some(file) => {
                    let name = name.as_deref().unwrap_or(FILE);
                    ids.push(file);
                    ids.extend(tokenizer.encode(&format!("{name}\n{text}"), false)?);
                }
                None => ids.extend(tokenizer.encode(&format!("{BETWEEN}{text}"), false)?),
            }
        }
        match self.file {
            Some(file) => {
                ids.push(file);
                ids.extend(tokenizer.encode(&format!("{FILE}\n"), false)?);
            }
            None => ids.extend(tokenizer.encode(BETWEEN, false)?),
        }
        Ok(ids)
    }
}

/// The ids of a text in the middle of another: without the blank that some tokenizers put before a
/// text.
fn behind(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    // A character with which no token merges.
    const FIRST: &str = "☺";
    let first = tokenizer.encode(FIRST, false)?;
    let both = tokenizer.encode(&format!("{FIRST}{text}"), false)?;
    match both.strip_prefix(&first[..]) {
        Some(rest) => Ok(rest.to_vec()),
        None => tokenizer.encode(text, false),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::text::files::Files;

    /// A tokenizer of testdata with these additional special tokens.
    fn tokenizer(name: &str, marks: &[&str]) -> Tokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/text/tokenizers");
        let to = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(folder.join(name)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
        }
        let path = to.path().join("tokenizer_config.json");
        let config = std::fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        if !marks.is_empty() {
            config["additional_special_tokens"] = serde_json::json!(marks);
        }
        std::fs::write(&path, config.to_string()).unwrap();
        Tokenizer::load(&Files::directory(to.path()).unwrap()).unwrap()
    }

    fn gap<'a>(files: &'a [(Option<String>, String)]) -> Gap<'a> {
        Gap {
            before: "def f(x):\n    return ",
            after: "\n\nf(1)\n",
            files,
        }
    }

    fn shown(tokenizer: &Tokenizer, ids: &[u32]) -> String {
        tokenizer.decode(ids, false).unwrap()
    }

    #[test]
    fn marks_come_from_the_vocabulary() {
        let (before, after) = (gap(&[]).before, gap(&[]).after);
        for (name, marks, expected) in [
            (
                "qwen",
                &["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"][..],
                format!("<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"),
            ),
            (
                "gpt2",
                &["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
                format!("<fim_prefix>{before}<fim_suffix>{after}<fim_middle>"),
            ),
            (
                "qwen",
                &["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
                format!("<｜fim▁begin｜>{before}<｜fim▁hole｜>{after}<｜fim▁end｜>"),
            ),
            (
                "qwen",
                &["[PREFIX]", "[SUFFIX]"],
                format!("[SUFFIX]{after}[PREFIX]{before}"),
            ),
            (
                "qwen",
                &["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
                format!("<|code_prefix|>{before}<|code_suffix|>{after}<|code_middle|>"),
            ),
            (
                "qwen",
                &["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
                format!("<[fim-suffix]>{after}<[fim-prefix]>{before}<[fim-middle]>"),
            ),
        ] {
            let tokenizer = tokenizer(name, marks);
            let infill = Infill::detect(&tokenizer).unwrap();
            let (ids, is_cut) = infill.prompt(&tokenizer, gap(&[]), 1000).unwrap();
            assert_eq!(shown(&tokenizer, &ids), expected);
            assert!(!is_cut);
            for mark in marks {
                let id = tokenizer.token_to_id(mark).unwrap();
                assert!(infill.ends().contains(&id), "{mark}");
            }
        }
        for marks in [
            &["<|fim_prefix|>", "<|fim_suffix|>"][..],
            &["[SUFFIX]"],
            &[],
        ] {
            assert!(Infill::detect(&tokenizer("qwen", marks)).is_none());
        }
    }

    /// SentencePiece puts a blank before a text, but not before what comes after the gap.
    #[test]
    fn the_text_after_the_gap_has_no_blank_before_it() {
        let tokenizer = tokenizer("code_llama", &[]);
        let infill = Infill::detect(&tokenizer).unwrap();
        let words = Gap {
            before: "one",
            after: "two",
            files: &[],
        };
        let (ids, _) = infill.prompt(&tokenizer, words, 1000).unwrap();
        let [pre, suf, mid] =
            ["▁<PRE>", "▁<SUF>", "▁<MID>"].map(|mark| tokenizer.token_to_id(mark));
        assert_eq!(ids.first().copied(), tokenizer.bos_id());
        assert_eq!((Some(ids[1]), ids.last().copied()), (pre, mid));
        let at = ids.iter().position(|id| Some(*id) == suf).unwrap();
        assert_eq!(ids[2..at], tokenizer.encode("one", false).unwrap());
        let spelled: Vec<u8> = (ids[at + 1..ids.len() - 1].iter())
            .flat_map(|&id| tokenizer.token_bytes(id).unwrap())
            .collect();
        assert_eq!(spelled, b"two");
        let end = tokenizer.token_to_id("▁<EOT>").unwrap();
        assert!(infill.ends().contains(&end));
    }

    #[test]
    fn other_files_come_first_and_are_cut_first() {
        let marks = [
            "<|fim_prefix|>",
            "<|fim_suffix|>",
            "<|fim_middle|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ];
        let bare = tokenizer("qwen", &marks[..3]);
        let tokenizer = tokenizer("qwen", &marks);
        let infill = Infill::detect(&tokenizer).unwrap();
        let files = [
            (Some("a.py".to_owned()), "x = 1\n".to_owned()),
            (None, "y = 2\n".to_owned()),
        ];
        let (ids, is_cut) = infill.prompt(&tokenizer, gap(&files), 1000).unwrap();
        let whole = shown(&tokenizer, &ids);
        assert_eq!(
            whole,
            "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>filename\ny = 2\n<|file_sep|>filename\n<|fim_prefix|>def f(x):\n    return <|fim_suffix|>\n\nf(1)\n<|fim_middle|>"
        );
        assert!(!is_cut);
        for room in 0..ids.len() + 1 {
            let (cut, is_cut) = infill.prompt(&tokenizer, gap(&files), room).unwrap();
            assert_eq!(is_cut, room < ids.len(), "{room}");
            assert_eq!(cut.len(), room.max(3), "{room}");
            let plain = infill.prompt(&tokenizer, gap(&[]), 1000).unwrap().0;
            if room >= plain.len() {
                assert!(cut.ends_with(&plain), "{room}");
            }
        }

        let infill = Infill::detect(&bare).unwrap();
        let (ids, _) = infill.prompt(&bare, gap(&files), 1000).unwrap();
        let text = shown(&bare, &ids);
        assert!(text.starts_with("\n--- snippet ---\nx = 1\n\n--- snippet ---\ny = 2\n\n--- snippet ---\n<|fim_prefix|>"), "{text}");
    }
}
