//! The ways to split text into words that `tokenizer.ggml.pre` names, as the published tokenizers of these models have
//! them.

use serde_json::{Value, json};

/// How a byte-level tokenizer splits text.
pub(super) struct Words {
    /// The values of `tokenizer.ggml.pre`. The first, which the most programs know, is written.
    pub names: &'static [&'static str],
    /// The steps before the bytes are spelled.
    steps: &'static [Step],
    /// Whether letters and the marks on them are joined first, as by the tokenizers of these models. llama.cpp leaves
    /// them apart.
    pub composes: bool,
    /// Whether a word that is a token is not merged from its parts.
    pub ignores_merges: bool,
    /// Whether texts begin with the token that starts a text, unless the file says so itself.
    pub adds_bos: bool,
}

#[derive(Clone, Copy)]
enum Step {
    /// Matches of the pattern are words.
    Split(&'static str),
    /// Each digit is a word.
    Digits,
    /// Runs of digits are words.
    Numbers,
    /// Runs of punctuation are words.
    Punctuation,
}

const GPT2: Step =
    Step::Split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");
const THREE_DIGITS: Step = Step::Split(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const ONE_DIGIT: Step = Step::Split(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const MARKS: Step = Step::Split(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const CASES: Step = Step::Split(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const CASES_AND_ENDINGS: Step = Step::Split(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const SYMBOLS: Step = Step::Split(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));

const BASE: Words = Words {
    names: &[],
    steps: &[],
    composes: false,
    ignores_merges: false,
    adds_bos: false,
};

const ALL: &[Words] = &[
    Words {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        steps: &[THREE_DIGITS],
        ignores_merges: true,
        adds_bos: true,
        ..BASE
    },
    Words {
        names: &["dbrx", "glm4", "chatglm-bpe", "smaug-bpe"],
        steps: &[THREE_DIGITS],
        ..BASE
    },
    Words {
        names: &["qwen2", "deepseek-r1-qwen"],
        steps: &[ONE_DIGIT],
        composes: true,
        ..BASE
    },
    Words {
        names: &["stablelm2", "kormo", "megrez", "hunyuan", "grok-2"],
        steps: &[ONE_DIGIT],
        ..BASE
    },
    Words {
        names: &["qwen35"],
        steps: &[MARKS],
        composes: true,
        ..BASE
    },
    Words {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "granite-docling",
        ],
        steps: &[GPT2],
        ..BASE
    },
    Words {
        names: &[
            "starcoder",
            "refact",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        steps: &[Step::Digits, GPT2],
        ..BASE
    },
    Words {
        names: &["command-r"],
        steps: &[Step::Digits, GPT2],
        composes: true,
        ..BASE
    },
    Words {
        names: &["falcon"],
        steps: &[
            Step::Punctuation,
            GPT2,
            Step::Numbers,
            Step::Split("[0-9][0-9][0-9]"),
        ],
        ..BASE
    },
    Words {
        names: &["deepseek-v3", "hunyuan-dense"],
        steps: &[
            Step::Split(r"\p{N}{1,3}"),
            Step::Split("[一-龥\u{3040}-ゟ゠-ヿ]+"),
            SYMBOLS,
        ],
        ..BASE
    },
    Words {
        names: &["deepseek-coder"],
        steps: &[
            Step::Split(r"[\r\n]"),
            Step::Split(r"\s?\p{L}+"),
            Step::Split(r"\s?\p{P}+"),
            Step::Split("[一-龥\u{800}-一가-\u{d7ff}]+"),
            Step::Digits,
        ],
        ..BASE
    },
    Words {
        names: &["tekken"],
        steps: &[CASES],
        ignores_merges: true,
        adds_bos: true,
        ..BASE
    },
    Words {
        names: &["gpt-4o", "llama4", "minimax-m2"],
        steps: &[CASES_AND_ENDINGS],
        ..BASE
    },
    Words {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Step::Split(concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ))],
        ..BASE
    },
    Words {
        names: &["seed-coder"],
        steps: &[Step::Split(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|",
            r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
        ..BASE
    },
];

impl Words {
    /// The words of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|words| words.names.contains(&name))
    }

    /// Every way.
    pub(super) fn all() -> &'static [Self] {
        ALL
    }

    /// The `normalizer` of tokenizer.json.
    pub(super) fn normalizer(&self) -> Value {
        match self.composes {
            true => json!({"type": "NFC"}),
            false => Value::Null,
        }
    }

    /// All names.
    pub(super) fn names() -> String {
        let names: Vec<&str> = ALL.iter().flat_map(|words| words.names).copied().collect();
        names.join(", ")
    }

    /// The `pre_tokenizer` of tokenizer.json.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let step = |step: &Step| match step {
            Step::Split(pattern) => json!({
                "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false,
            }),
            Step::Digits => json!({"type": "Digits", "individual_digits": true}),
            Step::Numbers => json!({"type": "Digits", "individual_digits": false}),
            Step::Punctuation => json!({"type": "Punctuation", "behavior": "Contiguous"}),
        };
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let steps: Vec<Value> = self.steps.iter().map(step).chain([bytes]).collect();
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}
