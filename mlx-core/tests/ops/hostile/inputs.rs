//! Unusual arrays and arguments.

use mlx_core::{Array, DType, Result};
use serde_json::Value;

/// Random numbers that depend only on a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

const SIZES: [i32; 8] = [0, 1, 2, 3, 5, 17, 32, 64];

fn shape(random: &mut Random, like: &[i32]) -> Vec<i32> {
    let mut shape = like.to_vec();
    match random.below(14) {
        0 | 1 if !shape.is_empty() => {
            let axis = random.below(shape.len());
            shape[axis] = random.one(&[0, 0, 1, 1, 2, 31, 33]);
        }
        2 => drop(shape.pop()),
        3 => shape.insert(0, random.one(&[0, 1, 2])),
        4 => shape = Vec::new(),
        5 => shape = vec![random.one(&SIZES)],
        6 => {
            shape = (0..random.below(5))
                .map(|_| random.one(&SIZES[..5]))
                .collect()
        }
        7 => shape = vec![1 << 14],
        8 => shape.iter_mut().for_each(|size| *size = 1),
        9 => shape.iter_mut().for_each(|size| *size = 0),
        _ => {}
    }
    shape
}

/// `n` elements of `dtype`, including the ends of its range.
fn elements(random: &mut Random, n: usize, shape: &[i32], dtype: DType) -> Result<Array> {
    let kind = random.below(5);
    if dtype.is_float() || dtype == DType::C64 {
        let odd = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            -0.0,
            1e-42,
            0.5,
        ];
        let values: Vec<f32> = (0..n)
            .map(|i| match kind {
                0 => f32::NAN,
                1 => odd[random.below(odd.len())],
                2 => 0.0,
                3 => i as f32,
                _ => random.below(1000) as f32 / 500.0 - 1.0,
            })
            .collect();
        return Array::from_slice(&values, shape)?.astype(dtype);
    }
    let odd = [
        0,
        1,
        -1,
        i64::MAX,
        i64::MIN,
        i64::from(i32::MAX),
        i64::from(i32::MIN),
        255,
        128,
        1 << 40,
    ];
    let values: Vec<i64> = (0..n)
        .map(|i| match kind {
            0 => odd[random.below(odd.len())],
            1 => -1,
            2 => 0,
            3 => i as i64,
            _ => random.below(4) as i64,
        })
        .collect();
    Array::from_slice(&values, shape)?.astype(dtype)
}

/// An evaluated array like `like`, but with another size of an axis.
pub fn resized(like: &Array, axis: usize, size: i32) -> Result<Array> {
    let mut shape = like.shape().to_vec();
    shape[axis] = size;
    let n = shape.iter().map(|&size| size as usize).product();
    let array = elements(&mut Random::new(1), n, &shape, like.dtype())?;
    mlx_core::eval([&array])?;
    Ok(array)
}

/// An evaluated array that takes the place of `like`.
pub fn array(random: &mut Random, like: &Array) -> Result<Array> {
    let shape = shape(random, like.shape());
    let dtype = match random.below(3) {
        0 => random.one(&DType::ALL),
        _ => like.dtype(),
    };
    let n = |shape: &[i32]| shape.iter().map(|&size| size as usize).product::<usize>();
    let same = shape == like.shape() && random.below(2) == 0;
    let array = match random.below(8) {
        _ if same => like.astype(dtype)?,
        0 => {
            let turned: Vec<i32> = shape.iter().rev().copied().collect();
            elements(random, n(&turned), &turned, dtype)?.t()?
        }
        1 => {
            let ends: Vec<i32> = shape.iter().map(|size| -size - 1).collect();
            let (starts, steps) = (vec![-1; shape.len()], vec![-1; shape.len()]);
            elements(random, n(&shape), &shape, dtype)?.slice_strided(&starts, &ends, &steps)?
        }
        2 => {
            let narrow: Vec<i32> = shape
                .iter()
                .map(|&size| {
                    if size > 0 && random.below(2) == 0 {
                        1
                    } else {
                        size
                    }
                })
                .collect();
            elements(random, n(&narrow), &narrow, dtype)?.broadcast_to(&shape)?
        }
        3 => {
            let wide: Vec<i32> = shape.iter().map(|size| size + 1).collect();
            elements(random, n(&wide), &wide, dtype)?.slice(&vec![1; shape.len()], &wide)?
        }
        _ => elements(random, n(&shape), &shape, dtype)?,
    };
    mlx_core::eval([&array])?;
    Ok(array)
}

/// A value of the same type that takes the place of `value`. Seeds and the lengths of Rust arrays are not changed.
pub fn argument(random: &mut Random, value: &Value, op: &str) -> Value {
    match value {
        Value::Bool(_) => (random.below(2) == 0).into(),
        Value::Number(_) if op == "random::key" => value.clone(),
        Value::Number(number) if number.is_i64() => {
            let n = number.as_i64().unwrap_or_default();
            let others = [
                0,
                1,
                -1,
                2,
                -2,
                3,
                5,
                64,
                n + 1,
                n - 1,
                -n,
                i64::from(i32::MAX),
                i64::from(i32::MIN),
                1 << 30,
                n,
                n,
            ];
            random
                .one(&others)
                .clamp(i32::MIN.into(), i32::MAX.into())
                .into()
        }
        Value::Number(_) => random
            .one(&[0.0, -1.0, 1e300, -1e300, 1e-300, 0.5, 3e9, -3e9])
            .into(),
        Value::String(text) if DType::ALL.iter().any(|dtype| dtype.name() == text) => {
            random.one(&DType::ALL).name().into()
        }
        Value::String(text) if text.parse::<f64>().is_ok() => {
            random.one(&["NaN", "inf", "-inf", "0"]).into()
        }
        Value::Array(list) if list.iter().all(Value::is_i64) => {
            let mut list: Vec<Value> = list
                .iter()
                .map(|value| {
                    if random.below(3) == 0 {
                        argument(random, value, op)
                    } else {
                        value.clone()
                    }
                })
                .collect();
            match random.below(8) {
                _ if op.starts_with("conv") && op != "conv_general" => {}
                0 => drop(list.pop()),
                1 => list.push(random.one(&[-1, 0, 1, 2, 7]).into()),
                2 => list.clear(),
                _ => {}
            }
            list.into()
        }
        // Lists of rows: the lengths of the rows stay as in the case.
        Value::Array(list) => list
            .iter()
            .map(|row| match row {
                Value::Array(row) => row
                    .iter()
                    .map(|value| argument(random, value, op))
                    .collect(),
                value => argument(random, value, op),
            })
            .collect(),
        other => other.clone(),
    }
}
