//! Runs a model without the engine.

use mlx_core::{Array, Result, ops::concat};
use mlx_models::Loaded;
use mlx_nn::{CacheOptions, ModelCache};

fn cache(model: &Loaded, reach: usize) -> ModelCache {
    let mut cache = ModelCache::new(
        model.model.states(),
        1,
        CacheOptions {
            ..CacheOptions::default()
        },
    );
    cache.expect(0, reach);
    cache
}

/// The logits of the next `tokens`: `[L, V]`.
fn step(model: &Loaded, cache: &mut ModelCache, tokens: &[u32]) -> Result<Array> {
    let input = Array::from_slice(tokens, &[1, tokens.len() as i32])?;
    let mut step = cache.begin(&[tokens.len()])?;
    let hidden = model.model.hidden(&input, &mut step)?;
    step.commit_all()?;
    let logits = model.model.logits(&hidden)?.squeeze(0)?;
    mlx_core::eval([&logits])?;
    Ok(logits)
}

/// Logits of a whole prompt, `[L, V]`.
pub fn prompt_logits(model: &Loaded, prompt: &[u32]) -> Result<Array> {
    step(model, &mut cache(model, prompt.len()), prompt)
}

/// The same logits, with the prompt prefilled in chunks.
pub fn chunked_logits(model: &Loaded, prompt: &[u32], chunk: usize) -> Result<Array> {
    let mut cache = cache(model, prompt.len());
    let parts: Result<Vec<_>> = prompt
        .chunks(chunk)
        .map(|tokens| step(model, &mut cache, tokens))
        .collect();
    concat(&parts?, 0)
}

/// `n` greedy tokens, and the logits from which each was chosen: `[n, V]`.
pub fn greedy(model: &Loaded, prompt: &[u32], n: usize) -> Result<(Vec<u32>, Array)> {
    let (mut tokens, mut rows) = (Vec::new(), Vec::new());
    each_greedy(model, prompt, n, |token, logits| {
        tokens.push(token);
        rows.push(logits);
        true
    })?;
    Ok((tokens, concat(&rows, 0)?))
}

/// Whether the greedy tokens differ from the expected ones.
pub fn strays(model: &Loaded, prompt: &[u32], expected: &[u32]) -> Result<bool> {
    let mut at = 0;
    each_greedy(model, prompt, expected.len(), |token, _| {
        let same = token == expected[at];
        at += usize::from(same);
        same
    })?;
    Ok(at < expected.len())
}

/// Calls `more` with up to `n` greedy tokens, each with the logits `[1, V]` from which it was
/// chosen, until it returns false.
fn each_greedy(
    model: &Loaded,
    prompt: &[u32],
    n: usize,
    mut more: impl FnMut(u32, Array) -> bool,
) -> Result<()> {
    let mut all = prompt.to_vec();
    let mut cache_ = cache(model, prompt.len());
    let mut next = prompt.to_vec();
    for _ in 0..n {
        if model
            .model
            .switches_after()
            .is_some_and(|border| all.len() == border + 1)
        {
            cache_ = cache(model, all.len());
            next.clone_from(&all);
        }
        let logits = step(model, &mut cache_, &next)?;
        let last = logits.slice_axis(0, -1, logits.dim(0)?)?;
        let token: u32 = last.argmax(-1, false)?.item()?;
        if !more(token, last) {
            break;
        }
        all.push(token);
        next = vec![token];
    }
    Ok(())
}

/// Log probabilities in row-major order.
pub fn log_probs(logits: &Array) -> Result<Vec<f32>> {
    logits.subtract(logits.logsumexp(-1, true)?)?.to_vec()
}
