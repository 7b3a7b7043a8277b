//! Every tiny checkpoint of `testdata/models` compared with its reference.

#[path = "shared/checkpoints.rs"]
mod checkpoints;
#[path = "../../mlx-core/tests/distributed/launch.rs"]
mod launch;
mod golden {
    pub mod case;
    mod decode;
    mod families;
    mod gradients;
    mod in_memory;
    mod long;
    mod narrow;
    mod ngrams;
    mod published_bits;
    pub mod renamed;
    pub mod run;
    pub mod sharded;
    mod wrappers;
}

use golden::case::{Case, Kind, Mutation};
use golden::run::{greedy, log_probs, prompt_logits, strays};

/// What a rank of a ring does, which a test of `golden/sharded.rs` has started.
#[test]
fn a_rank() -> mlx_core::Result<()> {
    match std::env::var(launch::CHILD) {
        Ok(name) => golden::sharded::run(&name),
        Err(_) => Ok(()),
    }
}

/// The largest absolute difference between two rows of numbers.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn logits_and_tokens_equal_the_reference() {
    let cases = Case::all();
    assert!(cases.len() >= 30, "only {} cases were found", cases.len());
    for case in &cases {
        for config in &case.configs {
            let place = format!("{} with {config}", case.name);
            let model = case
                .load(config, None)
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            let mut worst = 0.0f32;
            for (index, prompt) in case.prompts.iter().enumerate() {
                let golden = case.golden(index);
                let found = golden.shown(&prompt_logits(&model, prompt).unwrap());
                let off = difference(&found.unwrap(), &golden.log_probs);
                worst = worst.max(off);
                assert!(
                    off < case.tolerance,
                    "{place}, prompt {index}: log probabilities are off by {off}"
                );
                let (tokens, logits) = greedy(&model, prompt, golden.tokens.len()).unwrap();
                assert_eq!(
                    tokens, golden.tokens,
                    "{place}, prompt {index}: greedy tokens"
                );
                let off = difference(&golden.shown(&logits).unwrap(), &golden.step_log_probs);
                worst = worst.max(off);
                assert!(
                    off < case.tolerance,
                    "{place}, prompt {index}: decode is off by {off}"
                );
            }
            println!("{place}: {worst:.1e}");
        }
    }
}

/// A wrong flag must change the result, or the test above would not cover that flag.
#[test]
fn every_mutation_shows() {
    let mut shown = 0;
    for case in Case::all().iter().filter(|case| case.kind == Kind::Float) {
        for mutation in &case.mutations {
            let place = format!("{}: mutation {:?}", case.name, mutation.name);
            let model = case
                .load("config.json", Some(mutation))
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            let shows = case.prompts.iter().enumerate().any(|(index, prompt)| {
                let golden = case.golden(index);
                if mutation.changes == Mutation::TOKENS {
                    strays(&model, prompt, &golden.tokens).unwrap()
                } else {
                    let found = golden.shown(&prompt_logits(&model, prompt).unwrap());
                    difference(&found.unwrap(), &golden.log_probs) > 100.0 * case.tolerance
                }
            });
            assert!(shows, "{place} changes nothing");
            shown += 1;
        }
    }
    assert!(shown >= 100, "only {shown} mutations were tried");
}

/// Reading a prompt in one step, in chunks, or token by token gives the same result.
#[test]
fn decode_equals_prefill() {
    for case in Case::all() {
        let model = case.load("config.json", None).unwrap();
        // A row that grows past LongRoPE's limit is computed again instead of continued. Beyond the
        // limit of dynamic NTK, the keys of a prompt depend on the prompt's length.
        let of = model.model.as_ref();
        let prompt = match of.switches_after().or(of.grows_after()) {
            Some(border) => &case.prompts[0][..case.prompts[0].len().min(border)],
            None => &case.prompts[0][..],
        };
        let whole = log_probs(&prompt_logits(&model, prompt).unwrap()).unwrap();
        for chunk in [1, 5] {
            let parts = golden::run::chunked_logits(&model, prompt, chunk).unwrap();
            let off = difference(&whole, &log_probs(&parts).unwrap());
            assert!(
                off < case.tolerance,
                "{}: chunks of {chunk} are off by {off}",
                case.name
            );
        }
    }
}
