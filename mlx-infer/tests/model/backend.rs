//! The mlx-lm back end: with fake bridges, and with mlx_lm itself if `MLX_TEST_PYTHON` has it.

#[path = "../bridge/fake.rs"]
mod bridge;
mod command;
mod real;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use self::bridge::Fake;
use mlx_infer::{
    ErrorKind, Event, FinishReason, GenerateOptions, Generated, Limits, MlxLm, MlxLmOptions,
    Request, Result, TextModel,
};

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    }
}

fn generate(model: &MlxLm, options: &GenerateOptions) -> Result<Generated> {
    model.generate(&"The red fox".into(), options, &mut |_| {
        ControlFlow::Continue(())
    })
}

fn ids(generated: &Generated) -> Vec<u32> {
    generated.tokens.iter().map(|choice| choice.id).collect()
}

/// Waits until the condition holds.
fn until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it takes too long"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn tokens_text_stops_and_metrics_are_those_of_the_bridge_and_the_tokenizer() {
    let fake = Fake::new("good");
    let model = fake.load().unwrap();
    let generated = generate(&model, &options(6)).unwrap();
    assert_eq!(ids(&generated), [5, 6, 7, 8, 9, 10]);
    assert_eq!(generated.reason, FinishReason::Length);
    let tokenizer = model.frontend().tokenizer().unwrap();
    assert_eq!(
        generated.text.unwrap(),
        tokenizer.decode(&[5, 6, 7, 8, 9, 10], true).unwrap()
    );
    assert_eq!(
        (
            generated.metrics.peak_memory_bytes,
            generated.metrics.decode_tokens
        ),
        (2, 6)
    );
    assert_eq!(model.metrics(), generated.metrics);
    assert_eq!(model.version(), "0.0-fake");

    let stopped = GenerateOptions {
        stop_ids: vec![8],
        ..options(50)
    };
    let generated = generate(&model, &stopped).unwrap();
    assert_eq!(
        (ids(&generated), generated.reason),
        (vec![5, 6, 7, 8], FinishReason::Stop)
    );
    // A stop string ends the request on the bridge as well.
    let text = tokenizer.decode(&[9], true).unwrap();
    let stopped = GenerateOptions {
        stop: vec![text],
        ..options(5000)
    };
    let generated = generate(&model, &stopped).unwrap();
    assert_eq!(
        (ids(&generated).last(), generated.reason),
        (Some(&9), FinishReason::Stop)
    );
    until(|| fake.log().last().unwrap().contains("cancel"));
}

#[test]
fn a_cancelled_request_ends_within_a_token_and_the_next_one_runs() {
    let fake = Fake::new("good");
    let model = fake.load().unwrap();
    let mut seen = 0;
    let generated = model.generate(&"The".into(), &options(5000), &mut |event| {
        seen += usize::from(matches!(event, Event::Token { .. }));
        if seen == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let generated = generated.unwrap();
    assert_eq!(generated.reason, FinishReason::Cancelled);
    // Tokens that were on the way when the request was cancelled may still arrive.
    assert!(generated.tokens.len() < 100, "{}", generated.tokens.len());
    assert_eq!(ids(&generate(&model, &options(2)).unwrap()), [5, 6]);
    let cancels = fake
        .log()
        .iter()
        .filter(|line| line.contains("cancel"))
        .count();
    assert!(cancels >= 1, "{:?}", fake.log());
}

#[test]
fn a_process_that_dies_ends_its_requests_with_its_last_words_and_is_started_anew() {
    let fake = Fake::new("once-dies");
    let model = fake.load().unwrap();
    let error = generate(&model, &options(9)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "mlx_lm: the process has ended (exit status: 3); its last words: Traceback (most recent call last): | RuntimeError: boom"
    );
    assert_eq!(ids(&generate(&model, &options(3)).unwrap()), [5, 6, 7]);
    let processes: Vec<String> = fake
        .log()
        .into_iter()
        .filter(|line| line.starts_with("process"))
        .collect();
    assert_eq!(processes.len(), 2);
    drop(model);
    // Both processes have ended, and neither is a zombie.
    #[cfg(target_os = "linux")]
    for process in processes {
        let id = process.strip_prefix("process ").unwrap();
        assert!(
            !std::path::Path::new("/proc").join(id).exists(),
            "{process}"
        );
    }
}

#[test]
fn faults_of_a_process_are_errors_that_name_them() {
    for (behaviour, expected) in [
        (
            "once-babbles",
            r#"mlx_lm: its output has a line that is no answer (expected value at line 1 column 1): "loading weights""#,
        ),
        (
            "once-floods",
            "mlx_lm: a line of its output has more than 1048576 bytes",
        ),
        ("once-hangs", "mlx_lm: no answer for 5 s"),
        ("once-fails", "mlx_lm: RuntimeError: out of memory"),
        ("once-nan", "the model gives numbers that are not finite"),
    ] {
        let fake = Fake::new(behaviour);
        let settings = MlxLmOptions {
            timeout: Duration::from_secs(if behaviour == "once-hangs" { 5 } else { 60 }),
            ..fake.options()
        };
        let model = MlxLm::load(mlx_infer::default_model_files(), settings).unwrap();
        let error = generate(&model, &options(9)).unwrap_err();
        // More output of the process may follow when its pipe is closed.
        let text = error.to_string();
        assert!(text.starts_with(expected), "{behaviour}: {text}");
        // The next request is answered by this process or by a new one.
        let next = generate(&model, &options(1)).unwrap();
        assert_eq!(ids(&next), [5], "{behaviour}");
    }
}

#[test]
fn a_start_that_fails_tells_why() {
    for (behaviour, timeout, expected) in [
        (
            "dies-first",
            20.0,
            "mlx_lm: the process has ended (exit status: 7); its last words: no such module",
        ),
        (
            "refuses",
            20.0,
            "mlx_lm cannot load the model: ValueError: Model type new_family not supported.",
        ),
        ("slow", 0.5, "mlx_lm: the model was not loaded within 0.5 s"),
    ] {
        let fake = Fake::new(behaviour);
        let settings = MlxLmOptions {
            timeout: Duration::from_secs_f64(timeout),
            ..fake.options()
        };
        let loaded = MlxLm::load(mlx_infer::default_model_files(), settings);
        assert_eq!(loaded.err().unwrap().to_string(), expected);
    }
    let settings = MlxLmOptions {
        python: Some("/no/such/python".into()),
        ..Default::default()
    };
    let error = MlxLm::load(mlx_infer::default_model_files(), settings)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("cannot run /no/such/python: "),
        "{error}"
    );
}

#[test]
fn a_batch_runs_together_or_one_after_the_other() {
    for (behaviour, together) in [("good", true), ("single", false)] {
        let fake = Fake::new(behaviour);
        let model = fake.load().unwrap();
        let limits = Limits {
            rows: 2,
            ..Default::default()
        };
        let mut batch = model.batch(&limits).unwrap();
        for key in 0..3 {
            batch.submit(key, Request::new("The", options(4 + key)));
        }
        let mut done = Vec::new();
        while !batch.is_idle() {
            for (key, result) in batch.advance() {
                assert_eq!(result.tokens.len(), 4 + key);
                done.push(key);
            }
        }
        assert_eq!(done, [0, 1, 2]);
        // The second request is sent before or after the first has ended.
        let log = fake.log();
        let at = |what: &str| log.iter().position(|line| line.contains(what)).unwrap();
        let second = at(r#""op":"generate","id":2"#);
        assert_eq!(second < at(r#""op":"cancel","id":1"#), together, "{log:?}");
        // There were never three processes.
        assert!(
            at(r#""op":"generate","id":3"#) > at(r#""op":"cancel","id":1"#),
            "{log:?}"
        );
    }
}

#[test]
fn what_the_bridge_lacks_is_refused_by_name() {
    let fake = Fake::new("good");
    let model = fake.load().unwrap();
    let grammar = mlx_infer::Constraint::from(mlx_infer::Grammar::Regex("a+".to_owned()));
    for (refused, name) in [
        (
            GenerateOptions {
                grammar: Some(grammar),
                ..options(1)
            },
            "grammar",
        ),
        (
            GenerateOptions {
                speculative: mlx_infer::Speculative::Auto,
                ..options(1)
            },
            "speculative",
        ),
        (
            GenerateOptions {
                prefill_chunk: 7,
                ..options(1)
            },
            "prefill_chunk",
        ),
    ] {
        let error = generate(&model, &refused).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            format!("{name} is not supported by the mlx-lm back end; the native one has it")
        );
    }
    let limits = Limits {
        cache_bytes: Some(1),
        ..Default::default()
    };
    assert!(
        model
            .batch(&limits)
            .err()
            .unwrap()
            .to_string()
            .starts_with("cache_bytes ")
    );
    let error = model
        .classify(&["a".to_owned()], &["b".to_owned()])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // Faults of a request are found before it is sent to the bridge.
    let error = generate(
        &model,
        &GenerateOptions {
            max_tokens: 0,
            ..options(1)
        },
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "max_tokens must be at least 1, given 0");
}
