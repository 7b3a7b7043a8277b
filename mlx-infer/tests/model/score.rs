//! Scores, compared with transformers' logits.

use crate::checkpoint::{self, goldens, load, log_softmax};
use mlx_infer::{CancelToken, ErrorKind, ScoreOptions};

#[test]
fn scores_are_those_of_the_reference_in_chunks_of_any_size() {
    for case in ["gemma2", "mistral", "phi3_longrope"] {
        let model = load(checkpoint::dir(case));
        for golden in goldens(case) {
            for chunk in [1, 6, 512] {
                let options = ScoreOptions {
                    top: 4,
                    top_each: 1,
                    chunk,
                    ..Default::default()
                };
                let score = model.score(golden.prompt.clone(), &options).unwrap();
                assert_eq!(score.tokens, golden.prompt);
                assert_eq!(score.logprobs.len(), golden.prompt.len());
                assert_eq!(score.logprobs[0], None);
                let mut nll = 0.0;
                for (i, &id) in golden.prompt.iter().enumerate().skip(1) {
                    let all = log_softmax(&golden.logits[i - 1]);
                    let expected = all[id as usize];
                    let above = |least: f64| all.iter().filter(|&&lp| lp > least).count() as u32;
                    let ranks = above(expected + 1e-4) + 1..=above(expected - 1e-4);
                    assert!(ranks.contains(&score.ranks[i].unwrap()), "{case} at {i}");
                    let found = f64::from(score.logprobs[i].unwrap());
                    assert!(
                        (found - expected).abs() < 1e-4,
                        "{case} at {i}: {found} and {expected}"
                    );
                    nll -= expected;
                }
                assert!((score.nll - nll).abs() < 1e-3);
                let mean = score.nll / (golden.prompt.len() - 1) as f64;
                assert!((score.perplexity - mean.exp()).abs() < 1e-6 * mean.exp());
                let last = log_softmax(golden.logits.last().unwrap());
                let mut order: Vec<u32> = (0..last.len() as u32).collect();
                order.sort_by(|&a, &b| last[b as usize].total_cmp(&last[a as usize]));
                assert_eq!(score.next.len(), 4);
                for (&(id, logprob), &best) in score.next.iter().zip(&order) {
                    let (found, expected) = (f64::from(logprob), last[best as usize]);
                    assert!((found - expected).abs() < 1e-4, "{case}: {id} and {best}");
                }
                assert_eq!(score.next[0].0, order[0]);
            }
        }
    }
}

#[test]
fn one_token_has_no_log_probability() {
    let model = load(checkpoint::dir("qwen3"));
    let score = model.score(vec![5], &ScoreOptions::default()).unwrap();
    assert_eq!(
        (score.logprobs, score.nll, score.perplexity),
        (vec![None], 0.0, 1.0)
    );
    let all = ScoreOptions {
        top: usize::MAX,
        ..Default::default()
    };
    assert_eq!(model.score(vec![5], &all).unwrap().next.len(), 64);
}

#[test]
fn scores_that_cannot_be_are_refused() {
    let model = load(checkpoint::dir("phi3_longrope"));
    let refuse =
        |prompt: Vec<u32>, options: &ScoreOptions| model.score(prompt, options).unwrap_err();
    let options = ScoreOptions::default();
    assert!(refuse(vec![], &options).to_string().contains("empty"));
    assert!(
        refuse(vec![64], &options)
            .to_string()
            .contains("vocabulary of 64")
    );
    assert!(
        refuse(vec![1; 161], &options)
            .to_string()
            .contains("160 positions")
    );
    assert!(model.score(vec![1; 160], &options).is_ok());
    let cancelled = ScoreOptions {
        cancel: CancelToken::new(),
        ..Default::default()
    };
    cancelled.cancel.cancel();
    assert_eq!(refuse(vec![1], &cancelled).kind(), ErrorKind::Cancelled);
}
