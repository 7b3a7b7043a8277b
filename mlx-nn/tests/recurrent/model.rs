//! A small model with recurrent layers, and the same model in loops over tokens.
//!
//! Layer 0 is a causal convolution and a gated linear recurrence, layer 1 is attention, and layer 2 adds the previous
//! input (a convolution of two taps without a recurrence).

use mlx_core::{Array, DType, Result, ops::concat};
use mlx_nn::{Attend, LayerKind, RecurrentShape, StateAfter, StatePart, Step};

pub const VOCAB: usize = 32;
/// Features of a head, and of a side of the recurrent state.
const D: usize = 8;
/// Features of a token: a query, a key and a value.
pub const E: usize = 3 * D;
/// The earlier inputs that the convolution reads.
const CONV: usize = 3;
const MIX: RecurrentShape = RecurrentShape::new(&[
    StatePart::Window {
        name: "conv",
        len: CONV as i32,
        width: E as i32,
    },
    StatePart::Carry {
        name: "state",
        shape: [1, D as i32, D as i32],
        dtype: DType::F32,
    },
]);
const SHIFT: RecurrentShape = RecurrentShape::new(&[StatePart::Window {
    name: "shift",
    len: 1,
    width: E as i32,
}]);

pub fn kinds(window: Option<usize>) -> [LayerKind; 3] {
    [
        LayerKind::Recurrent(MIX),
        window.map_or(LayerKind::Full, LayerKind::Window),
        LayerKind::Recurrent(SHIFT),
    ]
}

/// Pseudo-random numbers in -0.8 .. 0.8.
fn number(place: usize) -> f32 {
    let mixed = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 1.6
}

fn weights(first: usize, n: usize) -> Vec<f32> {
    (first..first + n).map(number).collect()
}

fn table() -> Vec<f32> {
    weights(0, VOCAB * E)
}

fn taps() -> Vec<f32> {
    weights(10_000, (CONV + 1) * E)
}

fn shift() -> Vec<f32> {
    weights(20_000, E)
}

/// The features `[1, T, E]` of the tokens `[1, T]` of a step.
pub fn forward(tokens: &Array, step: &mut Step<'_>) -> Result<Array> {
    let table = Array::from_slice(&table(), &[VOCAB as i32, E as i32])?;
    let x = table.take(tokens, 0)?;
    let x = mix(&x, step)?;
    let x = attention(&x, step)?;
    let weight = Array::from_slice(&shift(), &[E as i32])?;
    let before = step.window(2, 0, &x)?.slice_axis(2, 0, 1)?.squeeze(2)?;
    x.add(&before.multiply(&weight)?)
}

/// The three parts of the features: `[1, T, D]` each.
fn split(x: &Array) -> Result<[Array; 3]> {
    let part = |n: usize| x.slice_axis(2, (n * D) as i32, ((n + 1) * D) as i32);
    Ok([part(0)?, part(1)?, part(2)?])
}

fn mix(x: &Array, step: &mut Step<'_>) -> Result<Array> {
    let seen = step.window(0, 0, x)?;
    let taps = Array::from_slice(&taps(), &[CONV as i32 + 1, 1, 1, E as i32])?;
    let mut y = None;
    for tap in 0..=CONV as i32 {
        let weight = taps.slice_axis(0, tap, tap + 1)?.squeeze(0)?;
        let term = seen
            .slice_axis(2, tap, tap + 1)?
            .squeeze(2)?
            .multiply(&weight)?;
        y = Some(match y {
            Some(y) => term.add(&y)?,
            None => term,
        });
    }
    let y = y.expect("there are taps");
    let [q, k, v] = split(&y.multiply(&y.sigmoid()?)?)?;
    let before = step.state(0, 1)?;
    let (mut states, mut ends, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for (row, places) in step.places().enumerate() {
        let mut state = before.slice_axis(0, row as i32, row as i32 + 1)?;
        for token in places {
            let at = |x: &Array| x.slice_axis(1, token as i32, token as i32 + 1);
            // [1, 1, D, 1] and [1, 1, 1, D]
            let (q, k, v) = (at(&q)?.expand_dims(-1)?, at(&k)?.expand_dims(-1)?, at(&v)?);
            state = (state.multiply(&q.sigmoid()?)?).add(&k.multiply(&v.expand_dims(1)?)?)?;
            outputs.push(state.multiply(&q)?.sum(-2, false)?);
            states.push(state.clone());
        }
        ends.push(state);
    }
    let after = match step.keeps_parts() {
        true => StateAfter::Each(concat(&states, 0)?),
        false => StateAfter::End(concat(&ends, 0)?),
    };
    step.set_state(0, 1, after)?;
    let o = concat(&outputs, 1)?;
    x.add(&concat(&[&o, &o, &o], 2)?)
}

fn attention(x: &Array, step: &mut Step<'_>) -> Result<Array> {
    let [q, k, v] = split(x)?;
    let options = Attend {
        scale: 1.0,
        softcap: None,
        sinks: None,
        alibi: None,
    };
    let heads = |x: Array| x.expand_dims(1);
    let y = step.attend(1, &heads(q)?, &heads(k)?, &heads(v)?, &options)?;
    let y = y.squeeze(1)?;
    x.add(&concat(&[&y, &y, &y], 2)?)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The same for one row in plain loops: the features of each token.
pub fn reference(tokens: &[u32], window: Option<usize>) -> Vec<Vec<f64>> {
    let wide = |numbers: Vec<f32>| -> Vec<f64> { numbers.into_iter().map(f64::from).collect() };
    let (table, taps, shift) = (wide(table()), wide(taps()), wide(shift()));
    let inputs: Vec<&[f64]> = tokens
        .iter()
        .map(|&token| &table[token as usize * E..(token as usize + 1) * E])
        .collect();
    let mut state = vec![0.0; D * D];
    let mut mixed: Vec<Vec<f64>> = Vec::new();
    for (at, input) in inputs.iter().enumerate() {
        let y: Vec<f64> = (0..E)
            .map(|e| {
                let tap = |tap: usize| {
                    let from = (at + tap).checked_sub(CONV);
                    from.map_or(0.0, |from| taps[tap * E + e] * inputs[from][e])
                };
                let sum: f64 = (0..=CONV).map(tap).sum();
                sum * sigmoid(sum)
            })
            .collect();
        let (q, k, v) = (&y[..D], &y[D..2 * D], &y[2 * D..]);
        for m in 0..D {
            for n in 0..D {
                state[m * D + n] = state[m * D + n] * sigmoid(q[m]) + k[m] * v[n];
            }
        }
        let o = |n: usize| (0..D).map(|m| state[m * D + n] * q[m]).sum::<f64>();
        mixed.push((0..E).map(|e| input[e] + o(e % D)).collect());
    }
    let mut attended: Vec<Vec<f64>> = Vec::new();
    for (at, x) in mixed.iter().enumerate() {
        let first = window.map_or(0, |window| (at + 1).saturating_sub(window));
        let seen = &mixed[first..=at];
        let score = |key: &Vec<f64>| (0..D).map(|d| x[d] * key[D + d]).sum::<f64>();
        let most = seen.iter().map(score).fold(f64::MIN, f64::max);
        let weights: Vec<f64> = seen.iter().map(|key| (score(key) - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let y = |d: usize| {
            let values = seen.iter().zip(&weights);
            values.map(|(value, w)| value[2 * D + d] * w).sum::<f64>() / total
        };
        attended.push((0..E).map(|e| x[e] + y(e % D)).collect());
    }
    let before = |at: usize, e: usize| match at {
        0 => 0.0,
        _ => attended[at - 1][e] * shift[e],
    };
    let rows = attended.iter().enumerate();
    rows.map(|(at, x)| (0..E).map(|e| x[e] + before(at, e)).collect())
        .collect()
}
