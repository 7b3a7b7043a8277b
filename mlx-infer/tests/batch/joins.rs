//! Rows join and leave at random steps of other rows, in slots that held longer rows.

use std::task::Poll;

use crate::checkpoint::{dir, load};
use crate::independence::{CASES, alone, greedy, prompt, sampled};
use mlx_infer::{
    Choice, Engine, EngineOptions, Event, GenerateOptions, Handle, Limits, LoadedModel, Request,
};

/// Pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

fn options(n: u64) -> GenerateOptions {
    let max_tokens = 3 + n as usize * 7 % 40;
    match n % 3 {
        0 => greedy(max_tokens),
        _ => sampled(max_tokens, n),
    }
}

fn texts(n: u64) -> Vec<u32> {
    prompt([1, 5, 80, 19, 2, 130][n as usize % 6], n)
}

/// Compares the tokens of a request so far with those of the same request alone.
fn check(model: &LoadedModel, n: u64, tokens: &[Choice], is_whole: bool, case: &str) {
    let expected = alone(model, &texts(n), &options(n));
    assert!(expected.starts_with(tokens), "{case}: request {n}");
    assert!(
        !is_whole || tokens.len() == expected.len(),
        "{case}: request {n}"
    );
}

#[test]
fn rows_that_join_and_leave_change_no_other_row() {
    for (case, seed) in CASES.into_iter().zip(1..) {
        let model = load(dir(case));
        let limits = Limits {
            rows: 5,
            // Prefixes of other requests are not used, so results are equal to the bit.
            prefix_bytes: 0,
            ..Limits::default()
        };
        let engine_options = EngineOptions {
            limits,
            // The engine waits until the test reads the events.
            max_events: 1,
            ..EngineOptions::default()
        };
        let engine = Engine::start(move || Ok(load(dir(case))), engine_options).unwrap();
        let mut numbers = Numbers(seed);
        let row = (prompt(13, seed), sampled(70, seed));
        let expected = alone(&model, &row.0, &row.1);
        let submit = |prompt: &[u32], options: &GenerateOptions| {
            engine
                .submit(Request::new(prompt.to_vec(), options.clone()))
                .unwrap()
        };
        let main = submit(&row.0, &row.1);
        let mut others: Vec<(u64, Vec<Choice>, Handle)> = Vec::new();
        let (mut next, mut ended, mut left, mut tokens) = (0, 0, 0, Vec::new());
        for event in main {
            if let Event::Token { choice, .. } = event.unwrap() {
                tokens.push(choice);
            }
            if others.len() < 7 && numbers.below(3) == 0 {
                others.push((next, Vec::new(), submit(&texts(next), &options(next))));
                next += 1;
            }
            if !others.is_empty() && tokens.len() % 12 == 11 {
                let (n, tokens, _) = others.swap_remove(numbers.below(others.len()));
                check(&model, n, &tokens, false, case);
                left += 1;
            }
            others.retain_mut(|(n, tokens, handle)| {
                match handle.try_next().map(|event| event.map(Result::unwrap)) {
                    Poll::Ready(Some(Event::Token { choice, .. })) => tokens.push(choice),
                    Poll::Ready(event) => {
                        assert!(event.is_some(), "the end is read once");
                        check(&model, *n, tokens, true, case);
                        ended += 1;
                        return false;
                    }
                    Poll::Pending => {}
                }
                true
            });
        }
        assert_eq!(tokens, expected, "{case}");
        assert!(next > 7 && left > 0, "{case}: {next} joined, {left} left");
        for (n, mut tokens, handle) in others {
            for event in handle {
                if let Event::Token { choice, .. } = event.unwrap() {
                    tokens.push(choice);
                }
            }
            check(&model, n, &tokens, true, case);
            ended += 1;
        }
        assert_eq!(ended + left, next, "{case}");
        engine.finish().unwrap();
    }
}
