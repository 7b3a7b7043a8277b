//! The class of a checkpoint's tokenizer. It decides whether the pipeline is that of tokenizer.json
//! or one that the class builds.

use serde_json::{Map, Value};

use super::auto::{OTHERS, OVERRULED, REGISTERED, UNNAMED};
use super::config::{TokenizerConfig, string};

/// A class of tokenizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The pipeline of `tokenizer.json`, unchanged.
    Serialized,
    Bert,
    Llama,
    CodeLlama,
    CodeGen,
    Cohere,
    Gemma,
    Gpt2,
    GptNeoX,
    Qwen2,
    Qwen3_5,
    Roberta,
    XlmRoberta,
}

/// The classes that build their own pipelines.
const REBUILT: [(&str, Class); 12] = [
    ("BertTokenizer", Class::Bert),
    ("LlamaTokenizer", Class::Llama),
    ("CodeLlamaTokenizer", Class::CodeLlama),
    ("CodeGenTokenizer", Class::CodeGen),
    ("CohereTokenizer", Class::Cohere),
    ("GemmaTokenizer", Class::Gemma),
    ("GPT2Tokenizer", Class::Gpt2),
    ("GPTNeoXTokenizer", Class::GptNeoX),
    ("Qwen2Tokenizer", Class::Qwen2),
    ("Qwen3_5Tokenizer", Class::Qwen3_5),
    ("RobertaTokenizer", Class::Roberta),
    ("XLMRobertaTokenizer", Class::XlmRoberta),
];

/// Classes that are others under another name.
const ALIASES: [(&str, &str); 6] = [
    ("BartTokenizer", "RobertaTokenizer"),
    ("LEDTokenizer", "RobertaTokenizer"),
    ("LxmertTokenizer", "BertTokenizer"),
    ("MobileBertTokenizer", "BertTokenizer"),
    ("MvpTokenizer", "RobertaTokenizer"),
    ("SqueezeBertTokenizer", "BertTokenizer"),
];

impl Class {
    /// The type of its model in tokenizer.json.
    pub(super) fn model(self) -> &'static str {
        match self {
            Self::Bert => "WordPiece",
            Self::XlmRoberta => "Unigram",
            _ => "BPE",
        }
    }

    /// The name by which checkpoints refer to it.
    pub(super) fn name(self) -> &'static str {
        let found = REBUILT.iter().find(|&&(_, class)| class == self);
        found.map_or("PreTrainedTokenizerFast", |&(name, _)| name)
    }

    fn named(name: &str) -> Result<Self, String> {
        let name = base(name);
        let alias = ALIASES.iter().find(|&&(alias, _)| alias == name);
        let name = alias.map_or(name, |&(_, name)| name);
        if let Some(&(_, class)) = REBUILT.iter().find(|&&(known, _)| known == name) {
            return Ok(class);
        }
        let stem = name.strip_suffix("Tokenizer").unwrap_or(name);
        if OTHERS.split(' ').any(|other| other == stem) {
            let known: Vec<&str> = REBUILT.iter().map(|&(name, _)| name).collect();
            return Err(format!(
                "tokenizer_class {name} has a pipeline of its own, which is not supported; supported: {}, and every class \
                 that takes tokenizer.json as it is",
                known.join(", ")
            ));
        }
        Ok(Self::Serialized)
    }
}

/// The properties of a checkpoint that decide the class.
struct Checkpoint<'a> {
    /// `tokenizer_class` of tokenizer_config.json, else of config.json.
    class: Option<&'a str>,
    /// `model_type` of config.json.
    model_type: Option<&'a str>,
    /// Whether `auto_map` names Python code for the tokenizer. The code is not run.
    has_code: bool,
    /// Whether tokenizer.json has a ByteLevel step.
    has_byte_level: bool,
}

/// The class of a checkpoint's tokenizer, or the reason why it is not supported.
pub(super) fn class_in(
    config: &TokenizerConfig,
    model_config: &Map<String, Value>,
    has_byte_level: bool,
) -> Result<Class, String> {
    let class = config.class.clone();
    let class = class.or_else(|| string(model_config, "tokenizer_class"));
    class_of(&Checkpoint {
        class: class.as_deref(),
        model_type: string(model_config, "model_type").as_deref(),
        has_code: config.has_code,
        has_byte_level,
    })
}

/// The class that transformers' `AutoTokenizer` uses.
///
/// # Errors
/// The class builds a pipeline that is not supported.
fn class_of(checkpoint: &Checkpoint<'_>) -> Result<Class, String> {
    let model_type = checkpoint.model_type.unwrap_or_default();
    let has = |types: &str| types.split(' ').any(|name| name == model_type);
    let of_type = |table: &[(&'static str, &str)]| {
        let found = table.iter().find(|(_, types)| has(types));
        found.map(|&(class, _)| class)
    };
    let registered = of_type(REGISTERED);
    let is_overruled = has(OVERRULED);
    let Some(class) = checkpoint.class else {
        let class = of_type(UNNAMED).or(registered);
        return class.map_or(Ok(Class::Serialized), Class::named);
    };
    // Llama 3 names LlamaTokenizer, but has a byte-level vocabulary.
    let is_byte_level_llama = base(class) == "LlamaTokenizer" && checkpoint.has_byte_level;
    if checkpoint.has_code || !is_byte_level_llama || is_overruled {
        match registered {
            Some(own) if !checkpoint.has_code && own != base(class) => {
                return match (own, is_overruled) {
                    ("TokenizersBackend", _) => Ok(Class::Serialized),
                    (own, true) => Class::named(own),
                    (_, false) => Class::named(class),
                };
            }
            _ => return Class::named(class),
        }
    }
    Ok(Class::Serialized)
}

/// The name without the suffix that older versions had.
fn base(name: &str) -> &str {
    name.strip_suffix("Fast").unwrap_or(name)
}

/// The special tokens of a class whose configuration does not mention them.
pub(super) fn class_defaults(class: Class) -> &'static [(&'static str, &'static str)] {
    match class {
        Class::Serialized => &[],
        Class::Bert => &[
            ("unk_token", "[UNK]"),
            ("sep_token", "[SEP]"),
            ("pad_token", "[PAD]"),
            ("cls_token", "[CLS]"),
            ("mask_token", "[MASK]"),
        ],
        Class::Roberta | Class::XlmRoberta => &[
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "<unk>"),
            ("sep_token", "</s>"),
            ("pad_token", "<pad>"),
            ("cls_token", "<s>"),
            ("mask_token", "<mask>"),
        ],
        Class::Llama => &[
            ("unk_token", "<unk>"),
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
        ],
        Class::Gemma => &[
            ("unk_token", "<unk>"),
            ("bos_token", "<bos>"),
            ("eos_token", "<eos>"),
            ("pad_token", "<pad>"),
            ("mask_token", "<mask>"),
        ],
        Class::CodeLlama => &[
            ("unk_token", "<unk>"),
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("prefix_token", "▁<PRE>"),
            ("middle_token", "▁<MID>"),
            ("suffix_token", "▁<SUF>"),
            ("eot_token", "▁<EOT>"),
            ("fill_token", "<FILL_ME>"),
        ],
        Class::Gpt2 | Class::CodeGen => &[
            ("unk_token", "<|endoftext|>"),
            ("bos_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
        ],
        Class::Cohere => &[
            ("unk_token", "<UNK>"),
            ("bos_token", "<BOS_TOKEN>"),
            ("eos_token", "<|END_OF_TURN_TOKEN|>"),
            ("pad_token", "<PAD>"),
            ("cls_token", "<CLS>"),
            ("sep_token", "<SEP>"),
            ("mask_token", "<MASK_TOKEN>"),
        ],
        Class::GptNeoX => &[
            ("unk_token", "<|endoftext|>"),
            ("bos_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("pad_token", "<|padding|>"),
        ],
        Class::Qwen2 | Class::Qwen3_5 => &[
            ("unk_token", "<|endoftext|>"),
            ("eos_token", "<|endoftext|>"),
            ("pad_token", "<|endoftext|>"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of this module for a class of transformers; `None` if it is refused.
    fn expected(name: &str) -> Option<Class> {
        let found = REBUILT.iter().find(|&&(known, _)| known == name);
        match name {
            "TokenizersBackend" | "PythonBackend" => Some(Class::Serialized),
            _ => found.map(|&(_, class)| class),
        }
    }

    /// `testdata/text/classes.json`: each model type with each way to name a class, and each class.
    #[test]
    fn classes_are_those_of_transformers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/text/classes.json");
        let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let variants = golden["variants"].as_array().unwrap();
        let mut tried = 0;
        let mut compare = |model_type: &str, variant: &Value, found: &Value| {
            // transformers itself fails for these.
            let Some(found) = found.as_str() else { return };
            let checkpoint = Checkpoint {
                class: variant["class"].as_str(),
                model_type: Some(model_type),
                has_code: variant["has_code"] == true,
                has_byte_level: variant["byte_level"] == true,
            };
            let class = class_of(&checkpoint).ok();
            assert_eq!(class, expected(found), "{model_type} {variant}: {found}");
            tried += 1;
        };
        let types = golden["resolved"].as_object().unwrap();
        for (model_type, row) in types {
            for (variant, found) in variants.iter().zip(row.as_array().unwrap()) {
                compare(model_type, variant, found);
            }
        }
        for (name, found) in golden["classes"].as_object().unwrap() {
            compare("llama", &serde_json::json!({"class": name}), found);
        }
        assert!(types.len() > 250 && tried > 2500, "{tried}");
    }
}
