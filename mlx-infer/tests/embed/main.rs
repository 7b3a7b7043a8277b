//! Embeddings and relevances equal those of sentence-transformers in float32.

mod cases;
#[cfg(feature = "cli")]
mod command;
mod faults;
mod real;

use mlx_infer::{EmbedOptions, EmbedPrompt, LoadedModel, Prompt, RerankOptions};
use serde_json::{Value, json};

use cases::{GOLDEN, case, folder, headless, load, mutated, pairs, texts, with_config};

/// The largest distance of a result from sentence-transformers': 1 less the cosine of vectors, and
/// the difference of relevances.
const DISTANCE: f64 = 1e-5;
const COSINE: f64 = 1.0 - DISTANCE;

fn prompts() -> Vec<Prompt> {
    texts().into_iter().map(Prompt::Text).collect()
}

/// The vectors of the golden's texts, with the prompt of this name.
fn vectors(model: &LoadedModel, prompt: &str) -> Vec<Vec<f32>> {
    let options = EmbedOptions {
        prompt: match prompt {
            "" => EmbedPrompt::Default,
            name => EmbedPrompt::Named(name.to_owned()),
        },
        ..Default::default()
    };
    let found = model.embed(prompts(), &options).unwrap();
    found
        .into_iter()
        .map(|found| found.unwrap().values)
        .collect()
}

/// The relevances of the golden's pairs, or their logits.
fn relevances(model: &LoadedModel, logits: bool) -> Vec<f32> {
    let options = RerankOptions {
        logits,
        ..Default::default()
    };
    let found = model.score_pairs(pairs(), &options).unwrap();
    found.into_iter().map(|found| found.unwrap()).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
        products.sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn length(values: &[f32]) -> f64 {
    values
        .iter()
        .map(|&x| f64::from(x) * f64::from(x))
        .sum::<f64>()
        .sqrt()
}

/// How far a model is from the results of a case: 1 less the least cosine, the largest distance of
/// a relevance, and the largest relative difference of lengths.
fn distance(model: &LoadedModel, case: &Value) -> f64 {
    let mut worst = 0.0f64;
    for (prompt, expected) in case["results"].as_object().unwrap() {
        let expected: Vec<Vec<f32>> = serde_json::from_value(expected.clone()).unwrap();
        if ["pairs", "logits"].contains(&prompt.as_str()) {
            let logits = prompt == "logits";
            for (found, expected) in relevances(model, logits).iter().zip(expected) {
                let scale = if logits { expected[0].abs() } else { 1.0 };
                worst = worst.max(f64::from((found - expected[0]).abs() / scale));
            }
            continue;
        }
        for (found, expected) in vectors(model, prompt).iter().zip(&expected) {
            if found.len() != expected.len() {
                return 1.0;
            }
            let lengths = (length(found) / length(expected) - 1.0).abs();
            worst = worst.max(1.0 - cosine(found, expected)).max(lengths);
        }
    }
    worst
}

/// Each family with its modules, and every mutation of it.
fn check(name: &str) {
    let case = case(name);
    let dir = folder(case);
    let model = load(dir.path());
    let found = distance(&model, case);
    assert!(found <= DISTANCE, "{name}: {found}");
    let ids: Vec<Vec<u32>> = serde_json::from_value(case["ids"].clone()).unwrap();
    if case["results"].get("pairs").is_none() {
        let tokenizer = model.tokenizer().unwrap();
        for (text, ids) in texts().iter().zip(&ids) {
            assert_eq!(
                &tokenizer.encode(text, true).unwrap(),
                ids,
                "{name}: {text}"
            );
        }
    }
    for mutation in case["mutations"].as_array().unwrap() {
        let dir = folder(&mutated(case, mutation));
        let Ok(model) = LoadedModel::load(dir.path(), Default::default()) else {
            continue;
        };
        let moved = distance(&model, case);
        assert!(
            moved > 1e-4,
            "{name}: {mutation} moves the results by {moved} only"
        );
    }
}

#[test]
fn bert() {
    check("bert");
}

#[test]
fn poolings_a_dense_layer_and_a_prompt_that_is_not_pooled() {
    check("bert_pools");
}

#[test]
fn roberta_and_xlm_roberta() {
    check("roberta");
    check("xlm_roberta");
}

#[test]
fn modernbert() {
    check("modernbert");
}

#[test]
fn nomic_bert_and_gte() {
    check("nomic_bert");
    check("gte");
}

#[test]
fn embedding_gemma() {
    check("gemma3_text");
}

#[test]
fn qwen3() {
    check("qwen3");
    check("qwen3_mean");
}

/// Without its output head a decoder has the same vectors, to the bit, by its last token or by a mean.
#[test]
fn a_decoder_without_its_head() {
    for name in ["qwen3", "qwen3_mean"] {
        let (whole, bare) = (folder(case(name)), folder(&headless(name)));
        let (whole, bare) = (load(whole.path()), load(bare.path()));
        for prompt in case(name)["results"].as_object().unwrap().keys() {
            assert_eq!(vectors(&bare, prompt), vectors(&whole, prompt), "{name}");
        }
    }
    // Without modules.json it takes the last token too, as any decoder.
    let plain = |mut case: Value| {
        let files = case["files"].as_object_mut().unwrap();
        files.retain(|name, _| ["config.json", "tokenizer_config.json"].contains(&name.as_str()));
        let dir = folder(&case);
        vectors(&load(dir.path()), "")
    };
    assert_eq!(plain(headless("qwen3")), plain(case("qwen3").clone()));
}

#[test]
fn cross_encoders() {
    for name in [
        "bert_rerank",
        "xlm_roberta_rerank",
        "modernbert_rerank",
        "gte_rerank",
    ] {
        check(name);
    }
}

#[test]
fn a_decoder_that_answers_yes_or_no() {
    check("qwen3_rerank");
}

/// A golden case that no test names would prove nothing.
#[test]
fn every_case_has_a_test() {
    let text = include_str!("main.rs");
    for case in GOLDEN["cases"].as_array().unwrap() {
        assert!(
            text.contains(&format!("\"{}\"", case["name"].as_str().unwrap())),
            "{case}"
        );
    }
}

/// The published config of GTE has another type, and a scaling of ropes that transformers does not
/// know: a larger base and frequencies divided by a root of the factor.
#[test]
fn gte_as_published() {
    let golden = case("gte");
    let published = with_config(
        golden,
        json!({"model_type": "new", "architectures": ["NewModel"]}),
    );
    let dir = folder(&published);
    assert!(distance(&load(dir.path()), golden) <= DISTANCE);
    let factor = 8.0f64;
    let scaled =
        json!({"rope_theta": 100.0 / factor, "rope_scaling": {"type": "ntk", "factor": factor}});
    let ntk = folder(&with_config(&published, scaled));
    let same = json!({"rope_parameters": {
        "rope_type": "linear", "factor": factor.powf(2.0 / 8.0), "rope_theta": 100.0,
    }});
    let linear = folder(&with_config(golden, same));
    let (ntk, linear) = (
        vectors(&load(ntk.path()), ""),
        vectors(&load(linear.path()), ""),
    );
    for (ntk, linear) in ntk.iter().zip(&linear) {
        assert!(cosine(ntk, linear) > COSINE);
    }
    assert!(distance(&load(dir.path()), golden) < distance_of(&ntk, golden));
}

fn distance_of(found: &[Vec<f32>], case: &Value) -> f64 {
    let expected: Vec<Vec<f32>> = serde_json::from_value(case["results"][""].clone()).unwrap();
    let cosines = found.iter().zip(&expected).map(|(a, b)| 1.0 - cosine(a, b));
    cosines.fold(0.0, f64::max)
}

/// The first features of a model that was trained for it have length 1 again.
#[test]
fn fewer_dimensions() {
    let dir = folder(case("bert"));
    let model = load(dir.path());
    let whole = vectors(&model, "");
    let options = EmbedOptions {
        dimensions: Some(8),
        ..Default::default()
    };
    let cut = model.embed(prompts(), &options).unwrap();
    for (whole, cut) in whole.iter().zip(cut) {
        let cut = cut.unwrap().values;
        assert!((length(&cut) - 1.0).abs() < 1e-6 && cut.len() == 8);
        assert!(cosine(&whole[..8], &cut) > COSINE);
    }
    let raw = EmbedOptions {
        normalize: Some(false),
        ..options
    };
    let raw = model.embed(prompts(), &raw).unwrap().remove(0).unwrap();
    let far = raw.values.iter().zip(&whole[0]).map(|(a, b)| (a - b).abs());
    assert!(far.fold(0.0, f32::max) < 1e-6 && raw.values.len() == 8);
}

/// A text that is not to be cut gives an error if it is too long; others keep their vectors.
#[test]
fn texts_that_are_not_to_be_cut() {
    let dir = folder(case("bert"));
    let model = load(dir.path());
    let options = EmbedOptions {
        truncate: false,
        ..Default::default()
    };
    // The limit is 24 tokens, and only one of the texts has more.
    let whole = model.embed(prompts(), &options).unwrap();
    let mut refused = Vec::new();
    for (index, (found, cut)) in whole.into_iter().zip(vectors(&model, "")).enumerate() {
        match found {
            Ok(found) => assert_eq!(found.values, cut),
            Err(error) => refused.push((index, error.to_string())),
        }
    }
    let [(4, told)] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert!(told.contains("exceed the model's 24 positions"), "{told}");
}

/// A text has the same vector in every batch, up to roundings of products of other sizes.
#[test]
fn a_text_alone_and_in_a_batch() {
    for name in ["bert", "gemma3_text", "qwen3", "qwen3_mean"] {
        let dir = folder(case(name));
        let model = load(dir.path());
        let together = vectors(&model, "");
        for (text, together) in texts().into_iter().zip(together) {
            for batch_tokens in [1, 4096] {
                let options = EmbedOptions {
                    batch_tokens,
                    ..Default::default()
                };
                let alone = model.embed(vec![text.as_str().into()], &options).unwrap();
                let alone = &alone[0].as_ref().unwrap().values;
                let distance = alone.iter().zip(&together).map(|(a, b)| (a - b).abs());
                assert!(distance.fold(0.0, f32::max) < 2e-6, "{name}: {text}");
            }
        }
    }
}

/// Documents keep their order, and the query's own words are the most relevant where the model says
/// so; the relevance is that of the pair.
#[test]
fn reranking_scores_each_document_with_the_query() {
    let dir = folder(case("bert_rerank"));
    let model = load(dir.path());
    let documents: Vec<String> = pairs().into_iter().map(|pair| pair.1).collect();
    let query = &pairs()[0].0;
    let ranked = model
        .rerank(query, &documents, &RerankOptions::default())
        .unwrap();
    let all: Vec<f32> = ranked.into_iter().map(|found| found.unwrap()).collect();
    let pair = |document: &String| vec![(query.clone(), document.clone())];
    for (document, relevance) in documents.iter().zip(&all) {
        let alone = model
            .score_pairs(pair(document), &RerankOptions::default())
            .unwrap();
        assert!((alone[0].as_ref().unwrap() - relevance).abs() < 1e-6);
        assert!((0.0..=1.0).contains(relevance));
    }
    let logits = RerankOptions {
        logits: true,
        ..Default::default()
    };
    let logit = model.score_pairs(pair(&documents[0]), &logits).unwrap();
    let logit = f64::from(*logit[0].as_ref().unwrap());
    assert!((1.0 / (1.0 + (-logit).exp()) - f64::from(all[0])).abs() < 1e-6);
}
