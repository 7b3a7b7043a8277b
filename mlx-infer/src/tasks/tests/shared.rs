//! Texts of calls that wait at the same time are computed together, and each call gets the results
//! that it has alone.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::{ids, model};
use crate::engine::tests::{Fault, Faulty};
use crate::engine::{Begin, Engine, EngineOptions};
use crate::error::{ErrorKind, Result};
use crate::model::{LoadOptions, LoadedModel};
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{GenerateOptions, Prompt};
use crate::tasks::classify::{ClassifyOptions, ClassifyResult, LabelledIds, Run};
use crate::tasks::embed::{EmbedOptions, EncodedTexts, TextEmbedding, encode_texts};
use crate::tasks::shared::TextRun;
use crate::tasks::work::{classifying, embedding};
use crate::work_sizes::WorkSizes;

/// An engine that computes nothing before [`release`](Self::release).
struct Held {
    engine: Engine,
    release: Sender<()>,
}

impl Held {
    fn start(load: impl FnOnce() -> Result<LoadedModel> + Send + 'static) -> Self {
        let engine = Engine::start(load, EngineOptions::default()).unwrap();
        let (release, released) = channel::<()>();
        let wait = move |_: &LoadedModel| {
            let _ = released.recv();
        };
        engine.run(None, wait).unwrap();
        Self { engine, release }
    }

    fn job<T: Send + 'static>(
        &self,
        left: &CancelToken,
        begin: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> Begin<LoadedModel>,
    ) -> Receiver<T> {
        let (send, found) = channel();
        let begin = begin(Box::new(move |result| {
            let _ = send.send(result);
        }));
        let left = left.clone();
        self.engine
            .run_told((None, 1.0), None, left, begin)
            .unwrap();
        found
    }

    fn embed(
        &self,
        texts: &[Vec<u32>],
        options: &EmbedOptions,
    ) -> Receiver<Result<Vec<Result<TextEmbedding>>>> {
        let encoded = encoded(&self.engine, texts, options);
        let options = options.clone();
        self.job(&CancelToken::new(), |on_end| {
            embedding(encoded, options, on_end)
        })
    }

    fn classify(
        &self,
        texts: &[LabelledIds],
        options: &ClassifyOptions,
    ) -> Receiver<Result<Vec<Result<ClassifyResult>>>> {
        let texts = texts.iter().cloned().map(Ok).collect();
        let options = options.clone();
        self.job(&CancelToken::new(), |on_end| {
            classifying(texts, options, on_end)
        })
    }

    /// Lets the engine compute what waits. Returns the number of its passes, when there are `n` of
    /// them.
    fn passes(&self, n: usize) -> usize {
        self.release.send(()).unwrap();
        let start = Instant::now();
        // The call that holds the engine is a piece too.
        while self.engine.load().pieces < n + 1 {
            assert!(start.elapsed() < Duration::from_secs(60), "too few passes");
            std::thread::sleep(Duration::from_millis(2));
        }
        // Another pass would follow at once.
        std::thread::sleep(Duration::from_millis(50));
        self.engine.load().pieces - 1
    }
}

fn prompts(texts: &[Vec<u32>]) -> Vec<Prompt> {
    texts.iter().cloned().map(Prompt::Tokens).collect()
}

fn encoded(engine: &Engine, texts: &[Vec<u32>], options: &EmbedOptions) -> EncodedTexts {
    let texts = prompts(texts).into_iter().map(Ok).collect();
    encode_texts(engine.frontend(), texts, options).unwrap()
}

/// A folder of a decoder whose embeddings are the means of all tokens.
fn folder_of_means() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/llama_llama3");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let modules = json!([
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]);
    fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    let pooling = json!({"pooling_mode": "mean"});
    let path = folder.path().join("1_Pooling/config.json");
    fs::write(path, pooling.to_string()).unwrap();
    folder
}

/// The decoder, or an encoder in its place: a BERT, or a ModernBERT with windows.
fn of_means(folder: &Path, encoder: Option<&str>) -> LoadedModel {
    let model = LoadedModel::load(folder, LoadOptions::default()).unwrap();
    let Some(model_type) = encoder else {
        return model;
    };
    let config = json!({
        "model_type": model_type, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 512,
        "initializer_range": 0.5, "local_attention": 16, "pad_token_id": 0, "type_vocab_size": 2,
    });
    let encoder = mlx_models::initialised("test", config, 3).unwrap().model;
    model.map(|_| encoder)
}

/// Calls with one to three texts of 1 to 48 tokens, and options that differ.
fn calls() -> Vec<(Vec<Vec<u32>>, EmbedOptions)> {
    let call = |n: u32| {
        let text = |at: u32| ids(1 + (n * 11 + at * 17) % 48, n + at);
        let options = EmbedOptions {
            dimensions: (n % 3 == 1).then_some(8),
            normalize: (n % 4 == 2).then_some(false),
            ..Default::default()
        };
        ((0..=n % 3).map(text).collect(), options)
    };
    (0..32).map(call).collect()
}

#[test]
fn many_calls_share_a_pass_and_have_the_vectors_of_each_alone() {
    let folder = folder_of_means();
    for encoder in [None, Some("bert"), Some("modernbert")] {
        let path = folder.path().to_owned();
        let load = move || Ok(of_means(&path, encoder));
        let alone = of_means(folder.path(), encoder);
        let held = Held::start(load);
        let calls = calls();
        let found: Vec<_> = (calls.iter())
            .map(|(texts, options)| held.embed(texts, options))
            .collect();
        assert_eq!(held.passes(1), 1, "{encoder:?}");
        for ((texts, options), found) in calls.iter().zip(found) {
            let found = found.recv().unwrap().unwrap();
            assert_eq!(found.len(), texts.len());
            for (text, found) in texts.iter().zip(found) {
                let expected = alone.embed(vec![text.clone().into()], options).unwrap();
                let expected = expected.into_iter().next().unwrap().unwrap();
                assert_eq!(
                    found.unwrap(),
                    expected,
                    "{encoder:?} {} tokens",
                    text.len()
                );
            }
        }
    }
}

#[test]
fn texts_beyond_a_batch_are_computed_in_later_passes() {
    let held = Held::start(|| Ok(model()));
    let options = EmbedOptions {
        batch_tokens: 40,
        ..Default::default()
    };
    // 4 texts of 10 tokens are a batch. One call has texts for two batches and is not joined.
    let large: Vec<Vec<u32>> = (0..8).map(|n| ids(10, n)).collect();
    let mut found = vec![held.embed(&[ids(10, 50)], &options)];
    found.push(held.embed(&large, &options));
    found.extend((0..6).map(|n| held.embed(&[ids(10, n)], &options)));
    // The first with three others, the large call, three others, and again the large call.
    assert_eq!(held.passes(4), 4);
    let expected = model().embed(prompts(&large), &options).unwrap();
    let expected: Vec<TextEmbedding> = expected.into_iter().map(Result::unwrap).collect();
    let mut found = found.into_iter().map(|found| {
        let found = found.recv().unwrap().unwrap().into_iter();
        found.map(Result::unwrap).collect::<Vec<_>>()
    });
    found.next();
    assert_eq!(found.next().unwrap(), expected);
    for (found, expected) in found.zip(&expected) {
        assert_eq!(found, std::slice::from_ref(expected));
    }
}

#[test]
fn faults_of_a_call_are_its_own_and_one_without_a_caller_is_left_out() {
    let held = Held::start(|| Ok(model()));
    let options = EmbedOptions::default();
    let expected = model().embed(prompts(&[ids(5, 1)]), &options).unwrap();
    let expected = expected.into_iter().next().unwrap().unwrap();
    let good = held.embed(&[ids(5, 1)], &options);
    let bad = held.embed(&[ids(5, 2), vec![99_999], Vec::new()], &options);
    let only_bad = held.embed(&[vec![99_999]], &options);
    let wide = EmbedOptions {
        dimensions: Some(33),
        ..Default::default()
    };
    let wide = held.embed(&[ids(5, 3)], &wide);
    let left = CancelToken::new();
    let texts = encoded(&held.engine, &[ids(5, 4)], &options);
    let gone: Receiver<Result<Vec<_>>> =
        held.job(&left, |on_end| embedding(texts, options.clone(), on_end));
    let cancelled = EmbedOptions::default();
    cancelled.cancel.cancel();
    let cancelled = held.embed(&[ids(5, 5)], &cancelled);
    let last = held.embed(&[ids(5, 1)], &options);
    left.cancel();
    // The call that cannot begin is a piece of its own.
    held.passes(2);
    for found in [good, last] {
        let found = found.recv().unwrap().unwrap().remove(0);
        assert_eq!(found.unwrap(), expected);
    }
    let bad = bad.recv().unwrap().unwrap();
    assert!(bad[0].is_ok());
    for (found, word) in [(&bad[1], "99999"), (&bad[2], "empty")] {
        let error = found.as_ref().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(only_bad.recv().unwrap().unwrap()[0].is_err());
    let error = wide.recv().unwrap().unwrap_err().to_string();
    assert!(error.contains("dimensions must be in 1..=32"), "{error}");
    let found = gone.recv_timeout(Duration::from_secs(10));
    assert_eq!(found.unwrap_err(), RecvTimeoutError::Disconnected);
    let cancelled = cancelled.recv().unwrap().unwrap().remove(0);
    assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
}

/// A model of which the passes with these numbers fail.
fn failing(fault: Fault, fails: &'static [usize]) -> LoadedModel {
    model().map(|model| {
        Box::new(Faulty {
            model,
            fault,
            fails: Rc::new(|pass| fails.contains(&pass)),
            passes: Rc::new(Cell::new(0)),
        })
    })
}

#[test]
fn a_pass_that_fails_costs_at_most_one_call() {
    let texts: Vec<Vec<u32>> = (0..4).map(|n| ids(6 + n, n)).collect();
    let embedded = model()
        .embed(prompts(&texts), &EmbedOptions::default())
        .unwrap();
    let embedded: Vec<TextEmbedding> = embedded.into_iter().map(Result::unwrap).collect();
    let labelled: Vec<LabelledIds> = (texts.iter())
        .map(|text| (text.clone(), vec![vec![5], vec![6, 7]]))
        .collect();
    let options = ClassifyOptions {
        labels: vec!["a".to_owned(), "b".to_owned()],
        ..Default::default()
    };
    let classified: Vec<ClassifyResult> = (labelled.iter())
        .map(|text| classified_alone(std::slice::from_ref(text), &options).remove(0))
        .collect();
    for fault in [Fault::Evaluation, Fault::Graph, Fault::Panic] {
        // The common pass fails, and then that of the second call alone.
        let held = Held::start(move || Ok(failing(fault, &[0, 2])));
        let found: Vec<_> = (texts.iter())
            .map(|text| held.embed(std::slice::from_ref(text), &EmbedOptions::default()))
            .collect();
        assert_eq!(held.passes(5), 5, "{fault:?}");
        for (at, (found, expected)) in found.into_iter().zip(&embedded).enumerate() {
            let found = found.recv().unwrap().unwrap().remove(0);
            match at {
                1 => assert_eq!(found.unwrap_err().kind(), ErrorKind::Compute, "{fault:?}"),
                _ => assert_eq!(&found.unwrap(), expected, "{fault:?}"),
            }
        }
        let held = Held::start(move || Ok(failing(fault, &[0])));
        let found: Vec<_> = (labelled.iter())
            .map(|text| held.classify(std::slice::from_ref(text), &options))
            .collect();
        held.passes(5);
        for (found, expected) in found.into_iter().zip(&classified) {
            let found = found
                .recv_timeout(Duration::from_secs(60))
                .unwrap()
                .unwrap()
                .remove(0);
            assert_eq!(&found.unwrap(), expected, "{fault:?}");
        }
    }
}

fn classified_alone(texts: &[LabelledIds], options: &ClassifyOptions) -> Vec<ClassifyResult> {
    let model = model();
    let texts: Vec<_> = texts.iter().cloned().map(Ok).collect();
    let mut found: Vec<Option<ClassifyResult>> = texts.iter().map(|_| None).collect();
    let mut run = Run::begin(&model, texts, options);
    while run.advance(&model, &mut |index: usize, result: Result<_>| {
        found[index] = Some(result.unwrap());
    }) {}
    found.into_iter().map(Option::unwrap).collect()
}

#[test]
fn classifications_share_passes_and_keep_their_common_prefixes() {
    let options = ClassifyOptions {
        labels: vec!["a".to_owned(), "b".to_owned()],
        ..Default::default()
    };
    // Calls of one text, with labels of their own.
    let single: Vec<LabelledIds> = (0..12)
        .map(|n| {
            let more = (0..n % 3).map(|at| vec![at, at + 1]);
            (
                ids(4 + n, n),
                [vec![5], vec![6]].into_iter().chain(more).collect(),
            )
        })
        .collect();
    let held = Held::start(|| Ok(model()));
    let found: Vec<_> = (single.iter())
        .map(|text| held.classify(std::slice::from_ref(text), &options))
        .collect();
    // The texts, and two labels of more than one token.
    assert_eq!(held.passes(3), 3);
    for (text, found) in single.iter().zip(found) {
        let expected = classified_alone(std::slice::from_ref(text), &options);
        let found = found.recv().unwrap().unwrap().into_iter();
        let found = found.map(Result::unwrap);
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    // Two calls whose texts begin with 20 tokens that are the same in both, and one with others.
    let prefixed = |seed: u32, prefix: u32| -> Vec<LabelledIds> {
        let text = |n: u32| [ids(20, prefix), ids(3 + n, seed + n)].concat();
        (0..3).map(|n| (text(n), vec![vec![5], vec![6]])).collect()
    };
    let several = [prefixed(1, 7), prefixed(30, 7), prefixed(1, 8)];
    let held = Held::start(|| Ok(model()));
    let found: Vec<_> = (several.iter())
        .map(|texts| held.classify(texts, &options))
        .collect();
    // A prefix and the texts behind it, twice: the third call would lose its prefix.
    assert_eq!(held.passes(4), 4);
    for (texts, found) in several.iter().zip(found) {
        let found = found.recv().unwrap().unwrap().into_iter();
        let found = found.map(Result::unwrap);
        assert_eq!(found.collect::<Vec<_>>(), classified_alone(texts, &options));
    }
}

/// A row decodes at least once between two passes over texts. Calls share a pass beside it, but only
/// so far that it is no longer than a chunk of a prompt.
#[test]
fn rows_go_on_between_the_passes() {
    let options = GenerateOptions {
        max_tokens: 200,
        ignore_eos: true,
        ..Default::default()
    };
    let request = || Request::new(ids(5, 1), options.clone());
    let alone = model().batch_generate(vec![request()], &Default::default());
    let alone = alone.unwrap().remove(0).tokens;
    // Texts of 30 tokens in batches of one, and of 100 tokens, of which a chunk has five on a CPU.
    let of_chunk = (WorkSizes::of_device().chunk / 100).min(20);
    for (tokens, batch_tokens, calls) in [(30, 32, 1), (100, 4096, of_chunk)] {
        let Held { engine, release } = Held::start(|| Ok(model()));
        let engine = Arc::new(engine);
        let options = EmbedOptions {
            batch_tokens,
            ..Default::default()
        };
        let row = engine.submit(request()).unwrap();
        let (send, seen) = channel();
        for n in 0..20 {
            let (look, send) = (engine.clone(), send.clone());
            let texts = encoded(&engine, &[ids(tokens, n)], &options);
            let on_end = Box::new(move |_| {
                let _ = send.send(look.load().forwards);
            });
            let begin = embedding(texts, options.clone(), on_end);
            let left = CancelToken::new();
            engine.run_told((None, 1.0), None, left, begin).unwrap();
        }
        drop(send);
        release.send(()).unwrap();
        // The number of the row's passes before the results of each call.
        let seen: Vec<usize> = seen.iter().collect();
        let passes = seen.chunk_by(|a, b| a == b).map(<[usize]>::len);
        assert_eq!(passes.collect::<Vec<_>>(), vec![calls; 20 / calls]);
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(row.wait().tokens, alone);
    }
}
