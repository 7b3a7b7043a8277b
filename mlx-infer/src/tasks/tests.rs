//! Scores and classifications that are computed in pieces, between the steps of an engine's rows.

mod shared;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::engine::{Engine, EngineOptions};
use crate::error::Result;
use crate::model::{LoadOptions, LoadedModel};
use crate::request::Request;
use crate::request::generation::{GenerateOptions, Prompt};
use crate::tasks::classify::{ClassifyOptions, ClassifyResult, Run};
use crate::tasks::score::{ScoreOptions, Scoring};
use crate::tasks::shared::TextRun;

fn model() -> LoadedModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/models/llama_llama3");
    LoadedModel::load(dir, LoadOptions::default()).unwrap()
}

fn ids(len: u32, seed: u32) -> Vec<u32> {
    (0..len).map(|at| (at * 7 + seed) % 60).collect()
}

/// Long scores and classifications are computed in pieces, with at least one step of the rows
/// between two pieces, and give the same results as alone.
#[test]
fn rows_go_on_between_the_pieces() {
    let engine = Engine::start(|| Ok(model()), EngineOptions::default()).unwrap();
    let engine = Arc::new(engine);
    let options = GenerateOptions {
        max_tokens: 200,
        ignore_eos: true,
        ..Default::default()
    };
    let expected = engine.submit(Request::new(ids(5, 1), options.clone()));
    let expected = expected.unwrap().wait().tokens;

    let scored = ScoreOptions {
        chunk: 8,
        ..Default::default()
    };
    let classified = ClassifyOptions {
        batch_tokens: 32,
        ..Default::default()
    };
    let texts = || {
        (0..20u32)
            .map(|n| Prompt::Tokens(ids(12, n)))
            .collect::<Vec<_>>()
    };
    let alone = model();
    let score = alone.score(ids(160, 2), &scored).unwrap();
    let labels = alone.classify(texts(), &classified).unwrap();
    let labels: Vec<u32> = labels
        .into_iter()
        .map(|label| label.unwrap().token)
        .collect();

    let row = engine.submit(Request::new(ids(5, 1), options)).unwrap();
    while engine.load().decoding == 0 {
        std::thread::yield_now();
    }
    // The forward passes of the rows before each piece.
    let (send, seen) = std::sync::mpsc::channel();
    let (look, sender) = (engine.clone(), send.clone());
    engine
        .run_in_pieces(None, move |model| {
            let mut scoring = Scoring::begin(model, ids(160, 2).into(), &scored).unwrap();
            move |model: &LoadedModel| {
                let found = scoring.advance(model).unwrap();
                let _ = sender.send(("score", look.load().forwards));
                match found {
                    None => ControlFlow::Continue(()),
                    Some(found) => {
                        assert_eq!(found, score);
                        ControlFlow::Break(())
                    }
                }
            }
        })
        .unwrap();
    let look = engine.clone();
    engine
        .run_in_pieces(None, move |model| {
            let encoded = model
                .frontend()
                .encode(texts().into_iter().map(Ok).collect(), &classified)
                .unwrap();
            let mut run = Run::begin(model, encoded, &classified);
            let mut tokens = vec![0; 20];
            move |model: &LoadedModel| {
                let mut take = |index: usize, result: Result<ClassifyResult>| {
                    tokens[index] = result.unwrap().token;
                };
                let goes_on = run.advance(model, &mut take);
                let _ = send.send(("classify", look.load().forwards));
                if goes_on {
                    return ControlFlow::Continue(());
                }
                assert_eq!(tokens, labels);
                ControlFlow::Break(())
            }
        })
        .unwrap();
    let seen: Vec<(&str, usize)> = seen.iter().collect();
    let count = |name: &str| seen.iter().filter(|(seen, _)| *seen == name).count();
    assert_eq!(count("score"), 20);
    assert!(count("classify") >= 8, "{seen:?}");
    assert!(seen.windows(2).all(|two| two[0].1 < two[1].1), "{seen:?}");
    assert_eq!(row.wait().tokens, expected);
}
