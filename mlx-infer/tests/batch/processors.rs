//! Logit processors: the caller's code for the logits of a row delays that row only.

use std::ops::ControlFlow;

use crate::checkpoint::{dir, load};
use crate::independence::{CASES, alone, greedy, prompt, sampled};
use mlx_infer::{
    Choice, Error, ErrorKind, GenerateOptions, Limits, LoadedModel, ProcessorError, Request,
};

type Processed = Result<(), ProcessorError>;

/// Allows only even ids.
fn even(_: &[u32], logits: &mut [f32]) -> Processed {
    for odd in logits.iter_mut().skip(1).step_by(2) {
        *odd = f32::NEG_INFINITY;
    }
    Ok(())
}

fn nothing(_: &[u32], _: &mut [f32]) -> Processed {
    Ok(())
}

fn alone_with(
    model: &LoadedModel,
    prompt: &[u32],
    options: &GenerateOptions,
    processor: impl FnMut(&[u32], &mut [f32]) -> Processed + Send + 'static,
) -> Result<Vec<Choice>, Error> {
    let generation = model.generate(prompt.to_vec(), options).unwrap();
    let mut generation = generation.with_processor(processor);
    let generated = generation.run(|_| ControlFlow::Continue(()))?;
    Ok(generated.tokens)
}

#[test]
fn rows_with_processors_and_those_beside_them_equal_the_single_runs() {
    for case in CASES {
        let model = load(dir(case));
        // The texts also cross LongRoPE's switch.
        let prompt = |n: u64| prompt(12 + n as usize % 3, n);
        let n_tokens = |n: u64| 20 + n as usize * 3;
        let asked: Vec<Request> = (0..9)
            .map(|n| {
                let request = Request::new(prompt(n), sampled(n_tokens(n), n));
                match n % 3 {
                    0 => request,
                    1 => request.with_processor(nothing),
                    _ => request.with_processor(even),
                }
            })
            .collect();
        let results = model.batch_generate(asked, &Limits::default()).unwrap();
        for (n, result) in (0..).zip(results) {
            let (prompt, options) = (prompt(n), sampled(n_tokens(n), n));
            let expected = alone(&model, &prompt, &options);
            match n % 3 {
                0 => assert_eq!(result.tokens, expected, "{case}: row {n}"),
                1 => {
                    assert_eq!(result.tokens, expected, "{case}: row {n}");
                    let single = alone_with(&model, &prompt, &options, nothing).unwrap();
                    assert_eq!(single, expected, "{case}: row {n}");
                }
                _ => {
                    let single = alone_with(&model, &prompt, &options, even).unwrap();
                    assert_eq!(result.tokens, single, "{case}: row {n}");
                    assert!(single.iter().all(|choice| choice.id % 2 == 0));
                    assert_ne!(single, expected, "{case}: row {n}");
                }
            }
        }
    }
}

/// While the host chooses the token of one row, the other rows take their next step: the row with a processor takes
/// part in every other step.
#[test]
fn other_rows_do_not_wait_for_a_processor() {
    let model = load(dir("qwen3"));
    let asked = vec![
        Request::new(prompt(5, 1), greedy(25)).with_processor(nothing),
        Request::new(prompt(5, 2), greedy(40)),
        Request::new(prompt(5, 3), greedy(23)),
    ];
    let mut order = Vec::new();
    let on_done = |index, result: mlx_infer::BatchResult| {
        assert!(result.error.is_none());
        order.push(index);
        ControlFlow::Continue(())
    };
    model
        .batch_generate_with(asked, &Limits::default(), on_done)
        .unwrap();
    assert_eq!(order, [2, 1, 0]);
}

#[test]
fn a_processor_that_fails_ends_its_generation() {
    let model = load(dir("mistral"));
    let fault = |error: Error| (error.kind(), error.to_string());
    let fails = |ids: &[u32], _: &mut [f32]| match ids.len() {
        9 => Err("no more".into()),
        _ => Ok(()),
    };
    let generation = model.generate(prompt(5, 1), &greedy(30)).unwrap();
    let events: Vec<_> = generation.with_processor(fails).collect();
    // Four tokens, and then the error.
    assert_eq!(events.len(), 5);
    assert!(events[..4].iter().all(Result::is_ok));
    let error = alone_with(&model, &prompt(5, 1), &greedy(30), fails).unwrap_err();
    let (kind, text) = fault(error);
    assert_eq!(kind, ErrorKind::Argument);
    assert!(text.contains("processor failed: no more"), "{text}");
    let panics = |_: &[u32], _: &mut [f32]| panic!("a processor's own");
    let error = alone_with(&model, &prompt(5, 1), &greedy(30), panics).unwrap_err();
    assert!(error.to_string().contains("it panicked"), "{error}");
    let nan = |_: &[u32], logits: &mut [f32]| {
        logits.fill(f32::NAN);
        Ok(())
    };
    let error = alone_with(&model, &prompt(5, 1), &greedy(30), nan).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Compute);
    // The model still works.
    assert_eq!(alone(&model, &prompt(5, 1), &greedy(3)).len(), 3);
}
