//! Products with matrices, each run with a matrix of its own.

use mlx_core::fast::{self, Gate, Matrix};
use mlx_core::ops::quantize::{QuantMode, Quantized, Scheme};
use mlx_core::{Array, DType, Result};

use crate::inputs::{Amount, affine, matrix, normal, product, quantized};
use crate::measure::Bench;

/// Rows of a product: one token, batches, prompts.
const ROWS: [i32; 5] = [1, 8, 64, 512, 2048];
/// Outputs and inputs of matrices.
const MATRICES: [(&str, i32, i32); 8] = [
    UP_PROJ,
    ("gemma3 down_proj", 1152, 6912),
    ("qwen3 q_proj", 2048, 1024),
    ("qwen3 up_proj", 3072, 1024),
    ("qwen3 down_proj", 1024, 3072),
    ("llama3 q_proj", 4096, 4096),
    ("llama3 up_proj", 14_336, 4096),
    ("llama3 down_proj", 4096, 14_336),
];
const UP_PROJ: (&str, i32, i32) = ("gemma3 up_proj", 6912, 1152);
/// Output heads compute one position of each row.
const HEADS: [(&str, i32, i32); 2] = [
    ("gemma3 head", 262_144, 1152),
    ("qwen3 head", 151_936, 1024),
];

/// How a matrix is stored.
struct Coding {
    name: &'static str,
    dtype: DType,
    scheme: Option<Scheme>,
}

const BF16: Coding = Coding {
    name: "bf16",
    dtype: DType::BF16,
    scheme: None,
};

fn packed(name: &'static str, scheme: Scheme) -> Coding {
    Coding {
        name,
        dtype: DType::BF16,
        scheme: Some(scheme),
    }
}

fn q4() -> Coding {
    packed("q4", affine(4))
}

enum Weights {
    Dense(Array),
    Packed(Quantized, Scheme),
}

impl Weights {
    /// Random weights, and their bytes.
    fn new(n: i32, k: i32, coding: &Coding) -> Result<(Self, usize)> {
        match coding.scheme {
            None => {
                let weight = normal(&[n, k], coding.dtype)?;
                let bytes = weight.nbytes();
                Ok((Self::Dense(weight), bytes))
            }
            Some(scheme) => {
                let (weight, bytes) = quantized(&[n, k], scheme)?;
                Ok((Self::Packed(weight, scheme), bytes))
            }
        }
    }

    /// As many as are larger than the L2 cache, and the bytes of one.
    fn cold(bench: &Bench, n: i32, k: i32, coding: &Coding) -> Result<(Vec<Self>, usize)> {
        let (first, bytes) = Self::new(n, k, coding)?;
        let mut all = vec![first];
        while all.len() < bench.copies(bytes) {
            all.push(Self::new(n, k, coding)?.0);
        }
        Ok((all, bytes))
    }

    fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::Dense(weight) => Matrix::Dense(weight),
            Self::Packed(weight, scheme) => matrix(weight, *scheme),
        }
    }

    fn times(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Dense(weight) => fast::linear(x, weight),
            Self::Packed(w, scheme) => {
                fast::quantized_linear(x, &w.packed, &w.scales, w.biases.as_ref(), *scheme)
            }
        }
    }
}

fn one(bench: &Bench, coding: &Coding, (name, n, k): (&str, i32, i32), rows: &[i32]) -> Result<()> {
    let kernel = format!("linear {}", coding.name);
    let case = format!("{name} [{n}, {k}]");
    for &m in rows {
        bench.time(&kernel, &case, m, || {
            let (weights, bytes) = Weights::cold(bench, n, k, coding)?;
            let x = normal(&[m, k], coding.dtype)?;
            let amount = product(m, n, k, coding.dtype, bytes);
            Ok((amount, weights.len(), move |run: usize| {
                weights[run].times(&x)
            }))
        })?;
    }
    Ok(())
}

pub fn linear(bench: &Bench) -> Result<()> {
    for coding in [q4(), BF16] {
        for matrix in MATRICES {
            one(bench, &coding, matrix, &ROWS)?;
        }
        for head in HEADS {
            one(bench, &coding, head, &ROWS[..3])?;
        }
    }
    Ok(())
}

pub fn other_codings(bench: &Bench) -> Result<()> {
    let groups = |bits, group_size| Scheme {
        mode: QuantMode::Affine,
        bits,
        group_size,
    };
    let mode = |mode, bits, group_size| Scheme {
        mode,
        bits,
        group_size,
    };
    for coding in [
        Coding {
            name: "f16",
            dtype: DType::F16,
            scheme: None,
        },
        packed("q2", affine(2)),
        packed("q3", affine(3)),
        packed("q4, groups of 32", groups(4, 32)),
        packed("q4, groups of 128", groups(4, 128)),
        packed("q5", affine(5)),
        packed("q6", affine(6)),
        packed("q8", affine(8)),
        packed("mxfp4", mode(QuantMode::Mxfp4, 4, 32)),
        packed("mxfp8", mode(QuantMode::Mxfp8, 8, 32)),
        packed("nvfp4", mode(QuantMode::Nvfp4, 4, 16)),
    ] {
        one(bench, &coding, UP_PROJ, &ROWS)?;
    }
    Ok(())
}

/// Queries, keys and values as one operation.
pub fn together(bench: &Bench) -> Result<()> {
    for (name, sizes, k) in [
        ("gemma3", [1024, 256, 256], 1152),
        ("qwen3", [2048, 1024, 1024], 1024),
    ] {
        for coding in [q4(), BF16] {
            let kernel = format!("q, k and v {}", coding.name);
            for m in ROWS {
                bench.time(&kernel, &format!("{name} {sizes:?} of {k}"), m, || {
                    let n = sizes.iter().sum();
                    let (first, bytes) = Weights::new(n, k, &coding)?;
                    drop(first);
                    let all = (0..bench.copies(bytes)).map(|_| {
                        let weights = sizes.iter().map(|&n| Ok(Weights::new(n, k, &coding)?.0));
                        weights.collect::<Result<Vec<_>>>()
                    });
                    let all: Vec<Vec<Weights>> = all.collect::<Result<_>>()?;
                    let x = normal(&[m, k], coding.dtype)?;
                    let amount = product(m, n, k, coding.dtype, bytes);
                    Ok((amount, all.len(), move |run: usize| {
                        let matrices: Vec<_> = all[run].iter().map(Weights::matrix).collect();
                        Ok(fast::linear_many(&x, &matrices)?.remove(0))
                    }))
                })?;
            }
        }
    }
    Ok(())
}

/// Gate and up as one operation with what joins them.
pub fn gated(bench: &Bench) -> Result<()> {
    for (name, gate, n, k) in [
        ("gemma3", Gate::GeluTanh, 6912, 1152),
        ("qwen3", Gate::Silu, 3072, 1024),
    ] {
        for coding in [q4(), BF16] {
            let kernel = format!("gate and up {}", coding.name);
            for m in ROWS {
                bench.time(&kernel, &format!("{name} two of [{n}, {k}]"), m, || {
                    let (gates, bytes) = Weights::cold(bench, n, k, &coding)?;
                    let (ups, _) = Weights::cold(bench, n, k, &coding)?;
                    let x = normal(&[m, k], coding.dtype)?;
                    let amount = Amount {
                        operations: 2.0 * product(m, n, k, coding.dtype, 0).operations,
                        bytes: product(m, n, k, coding.dtype, 2 * bytes).bytes,
                    };
                    Ok((amount, gates.len(), move |run: usize| {
                        fast::gated_linear(gate, &x, &gates[run].matrix(), &ups[run].matrix())
                    }))
                })?;
            }
        }
    }
    Ok(())
}
