//! Long texts of families whose queries see chosen or compressed blocks of positions: more positions than pages, blocks and
//! windows have, in steps of any widths, of which some tokens are rejected.

use mlx_core::{Array, Result};
use mlx_models::Loaded;
use mlx_nn::{CacheOptions, ModelCache};

use super::case::Case;
use super::run::{log_probs, prompt_logits};

const CASES: [&str; 6] = [
    "deepseek_v4",
    "deepseek_v41",
    "deepseek_v41_ngrams",
    "glm5_next",
    "hy_v4",
    "qwen4_exp",
];

/// The widths of steps, and how many of their tokens are kept.
const STEPS: [(usize, usize); 8] = [
    (270, 270),
    (1, 1),
    (9, 4),
    (1, 1),
    (5, 0),
    (6, 6),
    (3, 2),
    (1, 1),
];

/// Logarithms of probabilities are a few units large.
const NOISE: f32 = 5e-4;

/// 300 tokens without a period: blocks of the same tokens would have scores that differ by rounding only.
fn text() -> Vec<u32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        3 + (state >> 16) % 56
    };
    (0..300).map(|_| next()).collect()
}

/// The log probabilities after the last token of each step's kept ones, if there are some.
fn in_steps(
    model: &Loaded,
    text: &[u32],
    steps: &[(usize, usize)],
) -> Result<Vec<(usize, Vec<f32>)>> {
    let options = CacheOptions {
        slack: 8,
        ..CacheOptions::default()
    };
    let model = model.model.as_ref();
    let mut cache = ModelCache::new(model.states(), 1, options);
    let (mut at, mut found) = (0, Vec::new());
    for &(width, keep) in steps {
        let mut tokens = text[at..at + width].to_vec();
        // Tokens that are rejected are others than those of the text.
        tokens[keep..]
            .iter_mut()
            .for_each(|token| *token = 61 - *token);
        let tokens = Array::from_slice(&tokens, &[1, width as i32])?;
        let mut step = cache.begin(&[width])?;
        let hidden = model.hidden(&tokens, &mut step)?;
        step.commit(&[keep])?;
        at += keep;
        if let Some(last) = (keep as i32).checked_sub(1).filter(|&last| last >= 0) {
            let logits = model.logits(&hidden.slice_axis(1, last, last + 1)?)?;
            found.push((at, log_probs(&logits.squeeze(0)?)?));
        }
    }
    Ok(found)
}

#[test]
fn long_texts_are_the_same_in_all_steps() {
    let text = text();
    for case in Case::all()
        .into_iter()
        .filter(|case| CASES.contains(&case.name.as_str()))
    {
        let model = case.load("config.json", None).unwrap();
        for (len, found) in in_steps(&model, &text, &STEPS).unwrap() {
            let whole = log_probs(&prompt_logits(&model, &text[..len]).unwrap()).unwrap();
            let expected = &whole[whole.len() - found.len()..];
            let pairs = expected.iter().zip(&found);
            let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(
                off < NOISE,
                "{}: after {len} tokens off by {off}",
                case.name
            );
        }
    }
}

/// Commits the tokens of one step, and returns the log probabilities after the last.
fn after(model: &Loaded, cache: &mut ModelCache, tokens: &[u32]) -> Result<Vec<f32>> {
    let width = tokens.len();
    let tokens = Array::from_slice(tokens, &[1, width as i32])?;
    let mut step = cache.begin(&[width])?;
    let hidden = model.model.hidden(&tokens, &mut step)?;
    step.commit_all()?;
    let last = hidden.slice_axis(1, width as i32 - 1, width as i32)?;
    log_probs(&model.model.logits(&last)?.squeeze(0)?)
}

/// A text goes on from a recorded length: in the row itself, in a copy of the row, and in one that was read from the row's
/// arrays, as from a file.
#[test]
fn long_texts_go_on_from_a_recorded_length() {
    const BEGUN: usize = 270;
    let text = text();
    let other: Vec<u32> = (0..30u32).map(|at| 3 + at * 5 % 56).collect();
    for case in Case::all()
        .into_iter()
        .filter(|case| CASES.contains(&case.name.as_str()))
    {
        let model = case.load("config.json", None).unwrap();
        let whole = log_probs(&prompt_logits(&model, &text).unwrap()).unwrap();
        let options = CacheOptions::default();
        let mut cache = ModelCache::new(model.model.states(), 1, options);
        after(&model, &mut cache, &text[..BEGUN]).unwrap();
        let arrays = cache.to_row(0).unwrap();
        cache.record(0).unwrap();
        after(&model, &mut cache, &other).unwrap();
        let copied = cache.prefix(0, BEGUN).unwrap();
        let read = cache.row_from(BEGUN, BEGUN, arrays).unwrap();
        cache.truncate(0, BEGUN).unwrap();
        for (place, mut cache) in [("itself", cache), ("a copy", copied), ("a file", read)] {
            let found = after(&model, &mut cache, &text[BEGUN..]).unwrap();
            let expected = &whole[whole.len() - found.len()..];
            let pairs = expected.iter().zip(&found);
            let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < NOISE, "{}: in {place} off by {off}", case.name);
        }
    }
}
