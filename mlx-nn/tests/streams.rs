//! Several residual streams compared with the formulas in F64.

use mlx_core::{Array, Result};
use mlx_nn::init::initialise;
use mlx_nn::{Module, StreamMixer, StreamsConfig, StreamsHead};

const N: usize = 3;
const E: usize = 5;
const T: usize = 4;

const CONFIG: StreamsConfig = StreamsConfig {
    hidden: E as i32,
    streams: N as i32,
    norm_eps: 1e-5,
    eps: 1e-2,
    magnitude: 1.5,
    shifted: true,
    rounds: None,
};

fn numbers(shape: &[i32], seed: u32) -> Result<Array> {
    let n = shape.iter().product::<i32>() as u32;
    let number = |i: u32| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    let all: Vec<f32> = (0..n).map(number).collect();
    Array::from_slice(&all, shape)
}

/// The module with numbers for all parameters, and these numbers by name.
fn filled<M: Module>(module: &mut M) -> Result<[Vec<f64>; 3]> {
    initialise(module, 3, 0.5)?;
    let mut parameters = module.parameters();
    let mut found = [Vec::new(), Vec::new(), Vec::new()];
    for (at, name) in ["mix", "base", "scale"].into_iter().enumerate() {
        let array = parameters.get_mut(name).expect("the parameter is there");
        *array = numbers(array.shape(), 10 + at as u32)?;
        found[at] = array.to_vec::<f32>()?.into_iter().map(f64::from).collect();
    }
    assert_eq!(parameters.len(), 3);
    module.update(&parameters)?;
    Ok(found)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The outputs of the projection of one token's normed streams.
fn projected(x: &[f64], mix: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(CONFIG.norm_eps)).sqrt();
    let row = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x * scale).sum();
    mix.chunks(x.len()).map(row).collect()
}

fn tokens(x: &Array) -> Result<Vec<Vec<f64>>> {
    let all: Vec<f64> = x.to_vec::<f32>()?.into_iter().map(f64::from).collect();
    let width = *x.shape().last().unwrap() as usize;
    Ok(all.chunks(width).map(<[f64]>::to_vec).collect())
}

fn sum(x: &[f64], weights: &[f64]) -> Vec<f64> {
    let at = |e: usize| (0..N).map(|s| weights[s] * x[s * E + e]).sum();
    (0..E).map(at).collect()
}

fn close(found: &Array, expected: &[Vec<f64>]) -> Result<()> {
    let found = found.to_vec::<f32>()?;
    let expected = expected.concat();
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.into_iter().zip(expected) {
        assert!((f64::from(a) - b).abs() < 1e-5, "{a} is not {b}");
    }
    Ok(())
}

/// The mixing matrix of one token, whose entry `[i][j]` is the part of stream i in the new stream j.
fn stochastic(logits: &[f64], rounds: u32) -> Vec<Vec<f64>> {
    let eps = f64::from(CONFIG.eps);
    let mut matrix: Vec<Vec<f64>> = logits
        .chunks(N)
        .map(|row| {
            let all: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| x.exp() / all + eps).collect()
        })
        .collect();
    for round in 0..rounds {
        if round > 0 {
            for row in &mut matrix {
                let all: f64 = row.iter().sum::<f64>() + eps;
                row.iter_mut().for_each(|x| *x /= all);
            }
        }
        for j in 0..N {
            let all: f64 = matrix.iter().map(|row| row[j]).sum::<f64>() + eps;
            matrix.iter_mut().for_each(|row| row[j] /= all);
        }
    }
    matrix
}

#[test]
fn blocks_read_and_write_streams_by_the_formulas() -> Result<()> {
    for rounds in [None, Some(1), Some(4)] {
        for shifted in [false, true] {
            let config = StreamsConfig {
                rounds,
                shifted,
                ..CONFIG
            };
            let mut mixer = StreamMixer::empty(config)?;
            let [mix, base, scale] = filled(&mut mixer)?;
            let x = numbers(&[1, T as i32, (N * E) as i32], 1)?;
            let y = numbers(&[1, T as i32, E as i32], 2)?;
            let (read, weights) = mixer.read(&x)?;
            let after = weights.write(&x, &y)?;
            let (mut reads, mut afters) = (Vec::new(), Vec::new());
            for (x, y) in tokens(&x)?.iter().zip(tokens(&y)?) {
                let outputs = projected(x, &mix);
                let kind = |at: usize| (at / N).min(2);
                let logits: Vec<f64> = outputs
                    .iter()
                    .enumerate()
                    .map(|(at, out)| out * scale[kind(at)] + base[at])
                    .collect();
                let eps = f64::from(config.eps);
                let pre: Vec<f64> = logits[..N].iter().map(|&x| sigmoid(x) + eps).collect();
                reads.push(sum(x, &pre));
                let mixed = match rounds {
                    Some(rounds) => stochastic(&logits[2 * N..], rounds),
                    None => (0..N)
                        .map(|i| (0..N).map(|j| f64::from(u8::from(i == j))).collect())
                        .collect(),
                };
                let mut all = Vec::new();
                for j in 0..N {
                    let post = f64::from(config.magnitude) * sigmoid(logits[N + j])
                        + if shifted { eps } else { 0.0 };
                    let part: Vec<f64> = mixed.iter().map(|row| row[j]).collect();
                    let before = sum(x, &part);
                    all.extend((0..E).map(|e| before[e] + post * y[e]));
                }
                afters.push(all);
            }
            close(&read, &reads)?;
            close(&after, &afters)?;
        }
    }
    Ok(())
}

#[test]
fn streams_begin_alike_and_end_as_a_sum() -> Result<()> {
    let mut head = StreamsHead::empty(CONFIG)?;
    let [mix, base, scale] = filled(&mut head)?;
    let x = numbers(&[1, T as i32, (N * E) as i32], 4)?;
    let expected = tokens(&x)?.into_iter().map(|x| {
        let outputs = projected(&x, &mix).into_iter().zip(&base);
        let weight =
            |(out, base): (f64, &f64)| sigmoid(out * scale[0] + base) + f64::from(CONFIG.eps);
        sum(&x, &outputs.map(weight).collect::<Vec<f64>>())
    });
    close(&head.forward(&x)?, &expected.collect::<Vec<_>>())?;
    let y = numbers(&[1, T as i32, E as i32], 5)?;
    let entered = CONFIG.enter(&y)?;
    assert_eq!(entered.shape(), [1, T as i32, (N * E) as i32]);
    close(&CONFIG.mean(&entered)?, &tokens(&y)?)
}
