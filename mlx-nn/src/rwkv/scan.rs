//! The recurrence of RWKV 7.
//!
//! A head has a matrix `S [D, D]` in F32, whose rows belong to keys and whose columns to values. A
//! token with decays `w`, key `k`, value `v`, cleared key `c` of length 1, learning rates `a` and
//! receptance `r` changes and reads it:
//!
//! ```text
//! S ← diag(w) S − (a c) (cᵀ S) + k vᵀ        y = Sᵀ r
//! ```

use mlx_core::fast::{RaggedRows, StateSlots};
use mlx_core::ops::{concat, create, stack};
use mlx_core::{Array, DType, Result};

use crate::lines::{Lines, by_line};

/// The most tokens that are computed one after the other.
const FEW: i32 = 4;

/// Tokens of a prompt that are computed together. Decays are at least `exp(-exp(-1/2))`, so the
/// product of 16 of them is above 6e-5, and products of other numbers with it and with its inverse
/// are exact enough in F32.
const CHUNK: i32 = 16;

/// The recurrence over ragged rows: the outputs, F32 `[1, T, heads * dim]`, and the states of all
/// rows, if they have states. `tokens` are receptances, logarithms of decays, keys, values, cleared
/// keys and learning rates, all `[1, T, heads * dim]`.
pub(super) fn ragged(
    tokens: [&Array; 6],
    rows: &RaggedRows<'_>,
    states: Option<StateSlots<'_>>,
    (heads, dim): (i32, i32),
) -> Result<(Array, Option<Array>)> {
    by_line(tokens, rows, states, [heads, dim, dim], |lines| {
        let inputs = Inputs::of(lines, heads, dim)?;
        match lines.tokens[0].dim(1)? {
            tokens if lines.each || tokens <= FEW => one_by_one(&inputs, lines, tokens),
            tokens => in_chunks(&inputs, &lines.state, tokens),
        }
    })
}

/// The inputs of the recurrence, F32 `[B, H, L, D]`.
struct Inputs {
    r: Array,
    log_w: Array,
    k: Array,
    v: Array,
    c: Array,
    /// The learning rates times the cleared keys.
    ac: Array,
}

impl Inputs {
    /// Places without tokens change nothing: the logarithm of their decay is 0, and so are their
    /// keys.
    fn of(lines: &Lines<6>, heads: i32, dim: i32) -> Result<Self> {
        let [b, tokens, _] = lines.tokens[0].dims()?;
        let by_head = |x: &Array| {
            let x = lines.masked(&x.astype(DType::F32)?)?;
            x.reshape(&[b, tokens, heads, dim])?.swapaxes(1, 2)
        };
        let [r, log_w, k, v, c, a] = lines.tokens.each_ref().map(by_head);
        let c = c?;
        Ok(Self {
            r: r?,
            log_w: log_w?,
            k: k?,
            v: v?,
            ac: a?.multiply(&c)?,
            c,
        })
    }
}

/// The outputs of `tokens` tokens, `[B, L, H * D]`, and the states after them or each of them, by
/// the formula.
fn one_by_one(inputs: &Inputs, lines: &Lines<6>, tokens: i32) -> Result<(Array, Array)> {
    let mut state = lines.state.clone();
    let (mut read, mut states) = (Vec::new(), Vec::new());
    let w = inputs.log_w.exp()?;
    for at in 0..tokens {
        let column = |x: &Array| x.slice_axis(2, at, at + 1)?.swapaxes(-1, -2); // [B, H, D, 1]
        let row = |x: &Array| x.slice_axis(2, at, at + 1); // [B, H, 1, D]
        let found = state.multiply(column(&inputs.c)?)?.sum(-2, true)?;
        state = state
            .multiply(column(&w)?)?
            .subtract(column(&inputs.ac)?.multiply(&found)?)?
            .add(column(&inputs.k)?.multiply(row(&inputs.v)?)?)?;
        read.push(state.multiply(column(&inputs.r)?)?.sum(-2, false)?);
        if lines.each {
            states.push(state.clone());
        }
    }
    if lines.each {
        state = stack(states, 1)?;
    }
    let [b, heads, _, dim] = inputs.v.dims()?;
    let y = stack(read, 1)?.reshape(&[b, tokens, heads * dim])?;
    Ok((y, state))
}

/// The same, for chunks of tokens. With the product `G` of the decays from the chunk's first token
/// on, `G'` without the token's own, and `C = G' c`, `K = k / G`, `A = a c / G` and `R = G r`, the
/// numbers `U` that the chunk's tokens find at their cleared keys are the solution of `U = C S −
/// tril(C Aᵀ, −1) U + tril(C Kᵀ, −1) V`, where `S` is the state before the chunk. Outputs are `R S
/// − tril(R Aᵀ) U + tril(R Kᵀ) V`, and the state after the chunk is `diag(G) (S − Aᵀ U + Kᵀ V)`.
fn in_chunks(inputs: &Inputs, state: &Array, tokens: i32) -> Result<(Array, Array)> {
    let [b, heads, _, dim] = inputs.v.dims()?;
    let chunks = (tokens + CHUNK - 1) / CHUNK;
    let chunked = |x: &Array| {
        let x = x.pad_with_zeros(2, 0, chunks * CHUNK - tokens)?;
        x.reshape(&[b, heads, chunks, CHUNK, dim])
    };
    let log_w = chunked(&inputs.log_w)?;
    let logs = log_w.cumsum(-2)?;
    let (all, inverse) = (logs.exp()?, logs.negative()?.exp()?);
    let c = chunked(&inputs.c)?.multiply(logs.subtract(&log_w)?.exp()?)?;
    let r = chunked(&inputs.r)?.multiply(&all)?;
    let ac = chunked(&inputs.ac)?.multiply(&inverse)?;
    let k = chunked(&inputs.k)?.multiply(&inverse)?;
    let v = chunked(&inputs.v)?;
    let keys = concat(&[ac.negative()?, k], -2)?; // [B, H, n, 2 C, D]
    let products = |x: &Array, until: i32| {
        let mask = create::tri_with(CHUNK, CHUNK, until, DType::F32)?;
        let found = x.matmul(&keys.swapaxes(-1, -2)?)?;
        found.multiply(concat(&[&mask, &mask], -1)?)
    };
    let (of_found, of_read) = (products(&c, -1)?, products(&r, 0)?); // [B, H, n, C, 2 C]
    let solved = solved(&of_found.slice_axis(-1, 0, CHUNK)?)?;
    let of_values = of_found.slice_axis(-1, CHUNK, 2 * CHUNK)?;
    let from_state = concat(&[solved.matmul(&c)?, r], -2)?; // [B, H, n, 2 C, D]
    let from_values = solved.matmul(&of_values.matmul(&v)?)?;
    let last = all.slice_axis(-2, CHUNK - 1, CHUNK)?.swapaxes(-1, -2)?;
    let keys = keys.swapaxes(-1, -2)?;
    let (mut state, mut read) = (state.clone(), Vec::new());
    for chunk in 0..chunks {
        let own = |x: &Array| x.slice_axis(2, chunk, chunk + 1)?.squeeze(2);
        let by_state = own(&from_state)?.matmul(&state)?;
        let found = by_state.slice_axis(2, 0, CHUNK)?.add(own(&from_values)?)?;
        let both = concat(&[found, own(&v)?], 2)?;
        let by_state = by_state.slice_axis(2, CHUNK, 2 * CHUNK)?;
        read.push(by_state.add(own(&of_read)?.matmul(&both)?)?);
        state = state
            .add(own(&keys)?.matmul(&both)?)?
            .multiply(own(&last)?)?;
    }
    let y = concat(&read, 2)?.slice_axis(2, 0, tokens)?;
    let y = y.swapaxes(1, 2)?.reshape(&[b, tokens, heads * dim])?;
    Ok((y, state))
}

/// `(1 − n)⁻¹` of matrices `n [.., C, C]` that have numbers only below their diagonals. The
/// inverses of blocks on the diagonal give those of blocks of twice their size.
fn solved(n: &Array) -> Result<Array> {
    let mut inverse = create::eye(CHUNK, DType::F32)?.broadcast_to(n.shape())?;
    let mut size = 1;
    while size < CHUNK {
        let places = 0..CHUNK * CHUNK;
        let is_between = places.map(|place| {
            let (row, column) = (place / CHUNK / size, place % CHUNK / size);
            if row == column + 1 && row % 2 == 1 {
                1.0f32
            } else {
                0.0
            }
        });
        let between: Vec<f32> = is_between.collect();
        let between = n.multiply(Array::from_slice(&between, &[CHUNK, CHUNK])?)?;
        inverse = inverse.add(inverse.matmul(&between.matmul(&inverse)?)?)?;
        size *= 2;
    }
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlx_core::random;

    const SHAPE: [i32; 4] = [2, 3, 37, 8];

    /// Random inputs. `same`: all tokens have the same cleared key, which nothing forgets and each
    /// token clears.
    fn inputs(same: bool) -> Result<Inputs> {
        random::seed(7);
        let normal = || random::normal(None, &SHAPE, DType::F32);
        let unit = || random::uniform(None, 0.0, 1.0, &SHAPE, DType::F32);
        let c = normal()?;
        let c = match same {
            true => c.slice_axis(2, 0, 1)?.broadcast_to(&SHAPE)?,
            false => c,
        };
        let c = c.divide(c.square()?.sum(-1, true)?.sqrt()?)?;
        let least = (-0.5f32).exp();
        Ok(Inputs {
            r: normal()?,
            log_w: match same {
                true => create::zeros(&SHAPE, DType::F32)?,
                // Some forget as fast as any.
                false => unit()?.multiply(2.0)?.minimum(1.0)?.multiply(-least)?,
            },
            k: normal()?,
            v: normal()?,
            ac: match same {
                true => c.clone(),
                false => unit()?.multiply(&c)?,
            },
            c,
        })
    }

    #[test]
    fn chunks_are_the_formula() -> Result<()> {
        for same in [false, true] {
            let inputs = inputs(same)?;
            let state = random::normal(None, &[2, 3, 8, 8], DType::F32)?;
            let (found, end) = in_chunks(&inputs, &state, SHAPE[2])?;
            let nothing = || Array::scalar(0.0f32);
            let mut lines = Lines {
                tokens: [
                    nothing()?,
                    nothing()?,
                    nothing()?,
                    nothing()?,
                    nothing()?,
                    nothing()?,
                ],
                real: None,
                state,
                each: true,
            };
            let (_, each) = one_by_one(&inputs, &lines, SHAPE[2])?;
            lines.each = false;
            let (expected, after) = one_by_one(&inputs, &lines, SHAPE[2])?;
            let last = each.slice_axis(1, SHAPE[2] - 1, SHAPE[2])?.squeeze(1)?;
            assert_eq!(last.to_vec::<f32>()?, after.to_vec::<f32>()?);
            for (expected, found) in [(expected, found), (after, end)] {
                let size = expected.abs()?.max(.., false)?.item::<f32>()?;
                let error = expected
                    .subtract(&found)?
                    .abs()?
                    .max(.., false)?
                    .item::<f32>()?;
                assert!(error < 4e-6 * size, "{same}: {error} of {size}");
            }
        }
        Ok(())
    }
}
