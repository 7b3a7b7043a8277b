//! `GatedDeltaNet` compared with a loop over tokens. The result does not depend on the division of
//! tokens into steps and rows.

use std::collections::HashMap;

use mlx_core::fast::{self, Form, Op};
use mlx_core::{Array, DType, Result, random};
use mlx_nn::{
    Activation, CacheOptions, DeltaConfig, GatedDeltaNet, ModelCache, Module, Param, Path, Visit,
    init,
};

const CONFIG: DeltaConfig = DeltaConfig {
    hidden: 24,
    key_heads: 2,
    value_heads: 4,
    key_dim: 16,
    value_dim: 8,
    taps: 4,
    activation: Activation::Silu,
    norm_eps: 1e-3,
    output_gate: Activation::Silu,
    most: 1.0,
    apart: false,
};
const E: usize = CONFIG.hidden as usize;

fn layer(config: DeltaConfig, seed: u64) -> GatedDeltaNet {
    let mut layer = GatedDeltaNet::empty(config).unwrap();
    init::initialise(&mut layer, seed, 1.0).unwrap();
    layer
}

fn parameters(layer: &GatedDeltaNet) -> HashMap<String, Vec<f64>> {
    struct Collect(HashMap<String, Vec<f64>>);
    impl Visit for Collect {
        fn param(&mut self, path: &Path, param: &Param) -> Result<()> {
            let values: Vec<f32> = param.value().to_vec()?;
            let values = values.into_iter().map(f64::from).collect();
            self.0.insert(path.as_str().to_owned(), values);
            Ok(())
        }
    }
    let mut collect = Collect(HashMap::new());
    layer.visit(&mut Path::default(), &mut collect).unwrap();
    collect.0
}

fn inputs(rows: i32, tokens: i32, seed: u64) -> Array {
    let key = random::Key::new(seed).unwrap();
    random::normal(&key, &[rows, tokens, E as i32], DType::F32).unwrap()
}

fn cache(rows: usize) -> ModelCache {
    ModelCache::new(&[CONFIG.kind()], rows, CacheOptions::default())
}

/// A step of which each row keeps `keep` tokens. Returns the outputs `[1, T, E]`.
fn step(
    layer: &GatedDeltaNet,
    cache: &mut ModelCache,
    x: &Array,
    widths: &[usize],
    keep: &[usize],
) -> Array {
    let mut step = cache.begin(widths).unwrap();
    let y = layer.forward(x, 0, &mut step).unwrap();
    step.commit(keep).unwrap();
    mlx_core::eval([&y]).unwrap();
    mlx_core::eval(cache.arrays()).unwrap();
    y
}

fn bits(array: &Array) -> Vec<u32> {
    let values: Vec<f32> = array.to_vec().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

fn states(cache: &ModelCache) -> Vec<Vec<u32>> {
    cache.arrays().iter().map(bits).collect()
}

/// Whether sums do not depend on the number of rows and tokens. This project's kernels guarantee
/// it, and MLX's own operations do not.
fn to_the_bit() -> bool {
    let form = |op| fast::form(op).unwrap() == Form::Cpu;
    form(Op::Delta) && form(Op::Linear)
}

fn assert_same(found: &[Vec<u32>], expected: &[Vec<u32>], place: &str) {
    if to_the_bit() {
        assert_eq!(found, expected, "{place}");
        return;
    }
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let (found, expected) = (f32::from_bits(*found), f32::from_bits(*expected));
        assert!(
            (found - expected).abs() < 1e-4,
            "{place}: {found} for {expected}"
        );
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn product(weight: &[f64], x: &[f64]) -> Vec<f64> {
    let row = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
    weight.chunks(x.len()).map(row).collect()
}

/// The layer's definition, in F64, one token after the other.
fn reference(config: &DeltaConfig, of: &HashMap<String, Vec<f64>>, x: &[f64]) -> Vec<f64> {
    let [hidden, key_heads, heads, keys, values, taps] = [
        config.hidden,
        config.key_heads,
        config.value_heads,
        config.key_dim,
        config.value_dim,
        config.taps,
    ]
    .map(|size| size as usize);
    let channels = 2 * key_heads * keys + heads * values;
    let mut window = vec![vec![0.0; channels]; taps - 1];
    let mut state = vec![vec![vec![0.0; keys]; values]; heads];
    let mut out = Vec::new();
    for x in x.chunks(hidden) {
        window.push(product(&of["in_proj_qkv.weight"], x));
        let mixed: Vec<f64> = (0..channels)
            .map(|c| {
                let tap = |tap: usize| window[tap][c] * of["conv1d.weight"][c * taps + tap];
                let sum: f64 = (0..taps).map(tap).sum();
                match config.activation {
                    Activation::Relu => sum.max(0.0),
                    _ => sum * sigmoid(sum),
                }
            })
            .collect();
        window.remove(0);
        let z = product(&of["in_proj_z.weight"], x);
        let (a, b) = (
            product(&of["in_proj_a.weight"], x),
            product(&of["in_proj_b.weight"], x),
        );
        let unit = |at: usize| {
            let part = &mixed[at..at + keys];
            let norm = (part.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            part.iter().map(|x| x / norm).collect::<Vec<_>>()
        };
        let mut read = Vec::new();
        for (head, state) in state.iter_mut().enumerate() {
            let of_keys = head / (heads / key_heads);
            let (q, k) = (unit(of_keys * keys), unit((key_heads + of_keys) * keys));
            let decay = (1.0 + (a[head] + of["dt_bias"][head]).exp()).ln();
            let decay = (-of["A_log"][head].exp() * decay).exp();
            let beta = f64::from(config.most) * sigmoid(b[head]);
            let v = &mixed[2 * key_heads * keys + head * values..][..values];
            let mut y = Vec::new();
            for (state, v) in state.iter_mut().zip(v) {
                state.iter_mut().for_each(|s| *s *= decay);
                let found: f64 = state.iter().zip(&k).map(|(s, k)| s * k).sum();
                let off = beta * (v - found);
                state.iter_mut().zip(&k).for_each(|(s, k)| *s += off * k);
                let sum: f64 = state.iter().zip(&q).map(|(s, q)| s * q).sum();
                y.push(sum / (keys as f64).sqrt());
            }
            let square = y.iter().map(|y| y * y).sum::<f64>() / values as f64;
            let scale = (square + f64::from(config.norm_eps)).sqrt();
            for (at, y) in y.iter().enumerate() {
                let z = z[head * values + at];
                read.push(y / scale * of["norm.weight"][at] * z * sigmoid(z));
            }
        }
        out.extend(product(&of["out_proj.weight"], &read));
    }
    out
}

#[test]
fn it_computes_its_definition() {
    let others = [
        CONFIG,
        DeltaConfig {
            key_heads: 3,
            value_heads: 3,
            key_dim: 8,
            value_dim: 12,
            taps: 2,
            most: 2.0,
            ..CONFIG
        },
        DeltaConfig {
            key_heads: 1,
            key_dim: 5,
            value_dim: 7,
            taps: 3,
            activation: Activation::Relu,
            ..CONFIG
        },
    ];
    for (seed, config) in others.into_iter().enumerate() {
        let layer = layer(config, seed as u64);
        for tokens in [1, 3, 70] {
            let x = inputs(1, tokens, 5);
            let mut cache = ModelCache::new(&[config.kind()], 1, CacheOptions::default());
            let n = tokens as usize;
            let found: Vec<f32> = step(&layer, &mut cache, &x, &[n], &[n]).to_vec().unwrap();
            let x: Vec<f32> = x.to_vec().unwrap();
            let x: Vec<f64> = x.into_iter().map(f64::from).collect();
            let expected = reference(&config, &parameters(&layer), &x);
            assert_eq!(found.len(), expected.len());
            for (at, (&found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (f64::from(found) - expected).abs();
                assert!(
                    off < 2e-5 * (1.0 + expected.abs()),
                    "{config:?}, {at}: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn chunks_of_a_text_equal_the_whole() {
    let layer = layer(CONFIG, 3);
    const N: usize = 150;
    let x = inputs(1, N as i32, 7);
    let mut whole = cache(1);
    let expected = step(&layer, &mut whole, &x, &[N], &[N]);
    for chunk in [1, 2, 5, 63, 64, 65, 128] {
        let mut parts = cache(1);
        let mut found = Vec::new();
        let mut from = 0;
        while from < N {
            let n = chunk.min(N - from);
            let part = x.slice_axis(1, from as i32, (from + n) as i32).unwrap();
            found.extend(bits(&step(&layer, &mut parts, &part, &[n], &[n])));
            from += n;
        }
        assert_same(&[found], &[bits(&expected)], &format!("chunks of {chunk}"));
        assert_same(
            &states(&parts),
            &states(&whole),
            &format!("state after chunks of {chunk}"),
        );
    }
}

/// Rows of any width, each of which keeps any number of tokens, continue like rows in caches of
/// their own that never read the rejected tokens.
#[test]
fn rejected_tokens_leave_no_trace() {
    const ROWS: usize = 4;
    let layer = layer(CONFIG, 9);
    let mut state = 12345u64;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..20 {
        let mut batch = cache(ROWS);
        let mut alone: Vec<ModelCache> = (0..ROWS).map(|_| cache(1)).collect();
        for turn in 0..6 {
            let widest = if turn == 0 { 70 } else { 9 };
            let mut widths: Vec<usize> = (0..ROWS).map(|_| draw(widest + 1)).collect();
            widths[draw(ROWS)] = 1 + draw(widest);
            let keep: Vec<usize> = widths.iter().map(|&width| draw(width + 1)).collect();
            let x = inputs(1, widths.iter().sum::<usize>() as i32, draw(1 << 20) as u64);
            let y = step(&layer, &mut batch, &x, &widths, &keep);
            for (row, alone) in alone.iter_mut().enumerate() {
                let place =
                    format!("round {round}, turn {turn}, row {row}: {keep:?} of {widths:?}");
                let kept = keep[row];
                let of_row = |of: &Array, n: usize| {
                    let first = widths[..row].iter().sum::<usize>();
                    of.slice_axis(1, first as i32, (first + n) as i32).unwrap()
                };
                if kept > 0 {
                    let expected = step(&layer, alone, &of_row(&x, kept), &[kept], &[kept]);
                    assert_same(&[bits(&of_row(&y, kept))], &[bits(&expected)], &place);
                    let mine = batch.prefix(row, batch.lens()[row]).unwrap();
                    assert_same(&states(&mine), &states(alone), &place);
                }
                assert_eq!(batch.lens()[row], alone.lens()[0], "{place}");
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let refused = |config: DeltaConfig| GatedDeltaNet::empty(config).unwrap_err().to_string();
    let error = refused(DeltaConfig {
        value_heads: 3,
        ..CONFIG
    });
    assert!(
        error.contains("3 value heads are not a multiple of 2 key heads"),
        "{error}"
    );
    let error = refused(DeltaConfig { taps: 1, ..CONFIG });
    assert!(error.contains("at least 2 taps, given 1"), "{error}");
}

/// In 16 bits the state and the inputs of its decay stay F32, and the output has the dtype of the input.
#[test]
fn half_precision_keeps_its_state_in_f32() {
    let mut layer = layer(CONFIG, 4);
    let exact = step(&layer, &mut cache(1), &inputs(1, 40, 2), &[40], &[40]);
    struct Cast;
    impl mlx_nn::VisitMut for Cast {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            // Some vectors are F32 in files of BF16, as in published files.
            let dtype = match path.as_str() {
                "norm.weight" => Some(DType::F32),
                _ => param.dtype_in(Some(DType::BF16)),
            };
            if let Some(dtype) = dtype {
                param.set(param.value().astype(dtype)?);
            }
            Ok(())
        }
    }
    layer.visit_mut(&mut Path::default(), &mut Cast).unwrap();
    let mut half = cache(1);
    let x = inputs(1, 40, 2).astype(DType::BF16).unwrap();
    let y = step(&layer, &mut half, &x, &[40], &[40]);
    assert_eq!(y.dtype(), DType::BF16);
    let dtypes: Vec<DType> = half.arrays().iter().map(Array::dtype).collect();
    assert_eq!(dtypes, [DType::BF16, DType::F32]);
    let y: Vec<f32> = y.astype(DType::F32).unwrap().to_vec().unwrap();
    let exact: Vec<f32> = exact.to_vec().unwrap();
    let largest = exact.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (y, exact) in y.iter().zip(&exact) {
        assert!((y - exact).abs() < 0.05 * largest, "{y} for {exact}");
    }
}
