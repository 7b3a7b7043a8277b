//! Classification, compared with generation and scoring of one text at a time.

use crate::checkpoint::{dir, load, log_softmax};
use crate::independence::{CASES, alone, greedy, prompt, sampled};
use mlx_infer::{
    CancelToken, ClassifyOptions, ErrorKind, LoadedModel, Prompt, SamplingParams, ScoreOptions,
    TextModel,
};

/// The sum of the log probabilities of the tokens of `whole` after its first `context`.
fn teacher_forced(model: &LoadedModel, whole: &[u32], context: usize) -> f64 {
    let score = model
        .score(whole.to_vec(), &ScoreOptions::default())
        .unwrap();
    let logprobs = score.logprobs[context..].iter().flatten();
    logprobs.map(|&logprob| f64::from(logprob)).sum()
}

#[test]
fn the_token_is_that_of_a_generation() {
    for case in CASES {
        let model = load(dir(case));
        let prompts: Vec<Vec<u32>> = [5, 1, 40, 3, 17, 140, 2, 30, 31]
            .iter()
            .zip(1..)
            .map(|(&n, seed)| prompt(n, seed))
            .collect();
        for batch_tokens in [1, 60, 4096] {
            for sampling in [SamplingParams::default(), sampled(1, 5).sampling] {
                let options = ClassifyOptions {
                    batch_tokens,
                    logits: true,
                    sampling: sampling.clone(),
                    ..Default::default()
                };
                let given = prompts.iter().cloned().map(Prompt::Tokens).collect();
                let results = model.classify(given, &options).unwrap();
                for (prompt, result) in prompts.iter().zip(results) {
                    let mut options = greedy(1);
                    options.sampling = sampling.clone();
                    let expected = &alone(&model, prompt, &options)[0];
                    let result = result.unwrap();
                    assert_eq!(result.token, expected.id, "{case}, {} tokens", prompt.len());
                    let logits = result.logits.unwrap();
                    if options.sampling.is_greedy() {
                        let logprob = log_softmax(&logits)[expected.id as usize];
                        assert!((logprob - f64::from(expected.logprob.unwrap())).abs() < 1e-5);
                    }
                }
            }
        }
    }
}

/// A common prefix that is longer than the windows is computed once and does not change the results.
#[test]
fn a_shared_beginning_changes_nothing() {
    for case in CASES {
        let model = load(dir(case));
        let head = prompt(40, 99);
        let prompts: Vec<Vec<u32>> = [1, 9, 2, 30, 5]
            .iter()
            .zip(1..)
            .map(|(&n, seed)| [head.clone(), prompt(n, seed)].concat())
            .collect();
        let options = ClassifyOptions {
            logits: true,
            batch_tokens: 100,
            ..Default::default()
        };
        let given = prompts.iter().cloned().map(Prompt::Tokens).collect();
        for (prompt, result) in prompts.iter().zip(model.classify(given, &options).unwrap()) {
            let expected = &alone(&model, prompt, &greedy(1))[0];
            let result = result.unwrap();
            assert_eq!(result.token, expected.id, "{case}");
            let logprob = log_softmax(&result.logits.unwrap())[expected.id as usize];
            let expected = f64::from(expected.logprob.unwrap());
            assert!(
                (logprob - expected).abs() < 1e-4,
                "{case}: {logprob} {expected}"
            );
        }
    }
}

#[test]
fn labels_of_several_tokens_are_scored_as_texts() {
    // The tokenizer's ids must be in the models' vocabulary.
    let model = LoadedModel::load_default().unwrap();
    let tokenizer = model.tokenizer().unwrap();
    let labels: Vec<String> = [
        " yes",
        " no way",
        " the quick brown fox",
        " it depends on you",
    ]
    .map(str::to_owned)
    .into();
    let texts = [
        "Is it so?",
        "Continue: The red fox and the old man went to the",
        "x",
        "What is 4 + 4? It is",
    ];
    let lens: Vec<usize> = labels
        .iter()
        .map(|label| tokenizer.encode(label, false).unwrap().len())
        .collect();
    assert!(
        lens.iter().max() > lens.iter().min() && lens[2] > 2,
        "{lens:?}"
    );
    for head in [
        "",
        "You are asked a question, and then you answer it in one word. ",
    ] {
        let options = ClassifyOptions {
            labels: labels.clone(),
            ..Default::default()
        };
        let texts: Vec<String> = texts.iter().map(|text| format!("{head}{text}")).collect();
        let given = texts.iter().map(|text| text.as_str().into()).collect();
        let results = model.classify(given, &options).unwrap();
        for (text, result) in texts.iter().zip(results) {
            let scores = result.unwrap().labels.unwrap();
            let context = tokenizer.encode(text, true).unwrap();
            let expected: Vec<f64> = labels
                .iter()
                .map(|label| {
                    let whole = tokenizer.encode(&format!("{text}{label}"), true).unwrap();
                    assert!(whole.starts_with(&context), "{text:?} {label:?}");
                    teacher_forced(&model, &whole, context.len())
                })
                .collect();
            for (found, expected) in scores.logprobs.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 2e-3,
                    "{text:?}: {found} {expected}"
                );
            }
            let total: f64 = expected.iter().map(|logprob| logprob.exp()).sum();
            for (p, logprob) in scores.probabilities.iter().zip(&expected) {
                assert!((p - logprob.exp() / total).abs() < 1e-3);
            }
            let best = scores.logprobs.iter().copied().fold(f64::MIN, f64::max);
            assert_eq!(scores.logprobs[scores.best], best);
        }
    }
}

#[test]
fn a_bad_text_spoils_no_other() {
    let model = LoadedModel::load_default().unwrap();
    let long = "word ".repeat(600);
    let texts = ["2 + 2 =", "", &long, "3 + 4 ="];
    let options = ClassifyOptions {
        labels: vec![" 4".into(), " 7".into()],
        ..Default::default()
    };
    let results = model
        .classify(texts.map(Into::into).into(), &options)
        .unwrap();
    let best = |at: usize| results[at].as_ref().unwrap().labels.as_ref().unwrap().best;
    assert_eq!((best(0), best(3)), (0, 1));
    let error = results[1].as_ref().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the text is empty; expected at least one token"
    );
    let error = results[2].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("(the text and its longest label) exceed the model's 512"),
        "{error}"
    );

    let backend: &dyn TextModel = &model;
    let sums = ["2 + 2 =".to_owned(), "3 + 4 =".to_owned()];
    let found = backend.classify(&sums, &options.labels).unwrap();
    assert_eq!([&*found[0].label, &*found[1].label], [" 4", " 7"]);
    assert!(found[0].probabilities[0] > 0.9);

    let cancel = CancelToken::new();
    cancel.cancel();
    let options = ClassifyOptions {
        cancel,
        ..Default::default()
    };
    let results = model.classify(vec!["2 + 2 =".into()], &options).unwrap();
    assert_eq!(
        results[0].as_ref().unwrap_err().kind(),
        ErrorKind::Cancelled
    );
}

#[test]
fn wrong_options_are_refused() {
    let model = load(dir("llama_llama3"));
    let refused = |change: fn(&mut ClassifyOptions)| {
        let mut options = ClassifyOptions::default();
        change(&mut options);
        model
            .classify(Vec::new(), &options)
            .unwrap_err()
            .to_string()
    };
    for (change, message) in [
        (
            (|o| o.batch_tokens = 0) as fn(&mut ClassifyOptions),
            "batch_tokens must be at least 1, given 0",
        ),
        (
            |o| o.labels = vec!["a".into(), String::new()],
            "label 1 is empty; expected at least one character",
        ),
        (
            |o| o.labels = vec!["a".into(), "b".into(), "a".into()],
            "label \"a\" is given twice",
        ),
        (
            |o| o.sampling.top_p = 0.0,
            "top_p must be in (0, 1], given 0",
        ),
    ] {
        assert_eq!(refused(change), message);
    }
    let bare = load(dir("llama_llama3"));
    let options = ClassifyOptions {
        labels: vec!["a".into()],
        ..Default::default()
    };
    let error = bare
        .classify(vec![vec![5u32].into()], &options)
        .unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}
