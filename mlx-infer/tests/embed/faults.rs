//! What a checkpoint or a call cannot do is refused by name.

use mlx_infer::{
    ClassifyOptions, EmbedOptions, EmbedPrompt, ErrorKind, Files, GenerateOptions, LoadOptions,
    LoadedModel, Prompt, RerankOptions, ScoreOptions,
};
use serde_json::{Value, json};

use crate::cases::{case, folder, headless, load, with_config, write};

#[track_caller]
fn refused<T>(result: mlx_infer::Result<T>, words: &[&str]) {
    let error = result.err().expect("it is refused").to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn an_encoder_generates_nothing() {
    let dir = folder(case("bert"));
    let model = load(dir.path());
    let words = ["bert model is an encoder", "mlx-infer embed"];
    refused(model.generate("x", &GenerateOptions::default()), &words);
    refused(model.score("x", &ScoreOptions::default()), &words);
    refused(
        model.classify(vec!["x".into()], &Default::default()),
        &words,
    );
    refused(model.prompt_cache("x", &GenerateOptions::default()), &words);
    let requests = vec![mlx_infer::Request::new("x", GenerateOptions::default())];
    let mut results = model.batch_generate(requests, &Default::default()).unwrap();
    refused(results.remove(0).into_generated(), &words);
}

#[test]
fn a_decoder_without_its_head_generates_nothing() {
    let dir = folder(&headless("qwen3_rerank"));
    let mut model = load(dir.path());
    let words = ["no output head (lm_head.weight)", "mlx-infer embed"];
    refused(model.generate("x", &GenerateOptions::default()), &words);
    refused(model.score("x", &ScoreOptions::default()), &words);
    let labels = ClassifyOptions {
        labels: vec!["a".to_owned(), "b".to_owned()],
        ..Default::default()
    };
    refused(model.classify(vec!["x".into()], &labels), &words);
    refused(model.prompt_cache("x", &GenerateOptions::default()), &words);
    let requests = vec![mlx_infer::Request::new("x", GenerateOptions::default())];
    let mut results = model.batch_generate(requests, &Default::default()).unwrap();
    refused(results.remove(0).into_generated(), &words);
    let pairs = vec![("a".to_owned(), "b".to_owned())];
    let words = ["no output head (lm_head.weight)", "scores no pairs"];
    refused(model.score_pairs(pairs, &RerankOptions::default()), &words);
    // It is neither drafted for nor drafts.
    let files = || Files::directory(dir.path()).unwrap();
    let words = ["no output head (lm_head.weight)"; 1];
    refused(model.load_draft_model(files()), &words);
    let whole = folder(case("qwen3_rerank"));
    let words = ["draft model", words[0]];
    refused(load(whole.path()).load_draft_model(files()), &words);
}

#[test]
fn only_models_that_score_pairs_do() {
    let pairs = || vec![("a".to_owned(), "b".to_owned())];
    let options = RerankOptions::default();
    let dir = folder(case("bert"));
    refused(
        load(dir.path()).score_pairs(pairs(), &options),
        &["bert", "no head"],
    );
    let built_in = LoadedModel::load_default().unwrap();
    refused(
        built_in.score_pairs(pairs(), &options),
        &["gemma3_text", "yes, no"],
    );
    let dir = folder(case("bert_rerank"));
    let with_instruction = RerankOptions {
        instruction: Some("x".to_owned()),
        ..options
    };
    refused(
        load(dir.path()).score_pairs(pairs(), &with_instruction),
        &["instruction", "cross-encoder"],
    );
}

#[test]
fn options_that_do_not_fit() {
    let dir = folder(case("bert_pools"));
    let model = load(dir.path());
    let texts = || vec![Prompt::from("x")];
    for (options, words) in [
        (
            EmbedOptions {
                dimensions: Some(25),
                ..Default::default()
            },
            ["1..=24", "25"],
        ),
        (
            EmbedOptions {
                dimensions: Some(0),
                ..Default::default()
            },
            ["dimensions", "given 0"],
        ),
        (
            EmbedOptions {
                batch_tokens: 0,
                ..Default::default()
            },
            ["batch_tokens", "given 0"],
        ),
        (
            EmbedOptions {
                prompt: EmbedPrompt::Named("passage".to_owned()),
                ..Default::default()
            },
            ["passage", "document, query"],
        ),
    ] {
        refused(model.embed(texts(), &options), &words);
    }
    // One bad text does not fail the others.
    let mixed = vec![
        Prompt::Tokens(vec![2, 99_999]),
        Prompt::Tokens(Vec::new()),
        "x".into(),
    ];
    let mut found = model.embed(mixed, &EmbedOptions::default()).unwrap();
    assert!(found.pop().unwrap().is_ok());
    refused(found.pop().unwrap(), &["empty"]);
    refused(found.pop().unwrap(), &["99999", "vocabulary"]);
    let cancelled = EmbedOptions::default();
    cancelled.cancel.cancel();
    let found = model.embed(texts(), &cancelled).unwrap().remove(0);
    assert_eq!(found.unwrap_err().kind(), ErrorKind::Cancelled);
}

/// Malformed or unknown modules are named, with their file.
#[test]
fn modules_that_are_not_supported() {
    let dir = folder(case("bert_pools"));
    let module = |kind: &str, path: &str| json!({"idx": 1, "name": "1", "path": path, "type": format!("sentence_transformers.models.{kind}")});
    let transformer = module("Transformer", "");
    let pooling = module("Pooling", "1_Pooling");
    let with = |file: &str, content: Value, words: &[&str]| {
        let path = dir.path().join(file);
        let before = std::fs::read(&path).unwrap_or_default();
        write(dir.path(), file, &content);
        refused(
            load(dir.path()).embed(vec!["x".into()], &EmbedOptions::default()),
            words,
        );
        std::fs::write(path, before).unwrap();
    };
    with("modules.json", json!({}), &["modules.json", "list"]);
    with(
        "modules.json",
        json!([transformer, module("WordWeights", "2")]),
        &["WordWeights"],
    );
    with(
        "modules.json",
        json!([transformer, pooling, module("CNN", "2")]),
        &["CNN", "known"],
    );
    with(
        "modules.json",
        json!([module("Transformer", "0_T")]),
        &["0_T", "own folder"],
    );
    with(
        "modules.json",
        json!([transformer, module("Pooling", "../x")]),
        &["../x", "leaves"],
    );
    with(
        "modules.json",
        json!([transformer, module("Pooling", "9_P")]),
        &["9_P", "missing"],
    );
    with(
        "1_Pooling/config.json",
        json!({"pooling_mode": "median"}),
        &["median", "known"],
    );
    with(
        "1_Pooling/config.json",
        json!({"pooling_mode": "mean"}),
        &["in_features is 192", "32"],
    );
    with(
        "2_Dense/config.json",
        json!({"in_features": 192, "out_features": 0}),
        &["out_features"],
    );
    let odd = json!({"in_features": 192, "out_features": 24, "activation_function": "torch.nn.Hardshrink"});
    with("2_Dense/config.json", odd, &["Hardshrink", "known"]);
    std::fs::remove_file(dir.path().join("2_Dense/model.safetensors")).unwrap();
    refused(
        load(dir.path()).embed(vec!["x".into()], &EmbedOptions::default()),
        &["2_Dense"],
    );
}

/// Options of a config that change the result and are not supported.
#[test]
fn configs_that_are_not_supported() {
    for (name, entries, words) in [
        (
            "bert",
            json!({"position_embedding_type": "relative_key"}),
            ["relative_key", "absolute"],
        ),
        (
            "bert",
            json!({"is_decoder": true}),
            ["is_decoder", "encoders"],
        ),
        ("bert", json!({"num_attention_heads": 5}), ["32", "5"]),
        (
            "roberta",
            json!({"max_position_embeddings": 2}),
            ["max_position_embeddings", "pad_token_id"],
        ),
        ("nomic_bert", json!({"prenorm": true}), ["prenorm", "false"]),
        (
            "nomic_bert",
            json!({"rotary_emb_fraction": 0.5}),
            ["rotary_emb_fraction", "1.0"],
        ),
        (
            "gte",
            json!({"model_type": "new", "logn_attention_scale": true}),
            ["logn_attention_scale", "false"],
        ),
        (
            "modernbert_rerank",
            json!({"classifier_pooling": "max"}),
            ["max", "cls, mean"],
        ),
    ] {
        let dir = folder(&with_config(case(name), entries));
        refused(
            LoadedModel::load(dir.path(), LoadOptions::default()),
            &words,
        );
    }
    let dir = folder(&with_config(
        case("bert_rerank"),
        json!({"sbert_ce_default_activation_function": "torch.nn.Tanh"}),
    ));
    let pairs = vec![("a".to_owned(), "b".to_owned())];
    refused(
        load(dir.path()).score_pairs(pairs, &RerankOptions::default()),
        &["torch.nn.Tanh"],
    );
}
