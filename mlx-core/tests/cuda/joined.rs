//! Layers of joined operations, in which products compute the norm of their x, and one kernel computes the heads of queries and keys;
//! in captured steps attention also reads the cache early. The bits are those of evaluations of separate operations, in which each of
//! these has a kernel.

use mlx_core::fast::{
    self, Attention, Buffers, Gate, KeySlots, Mask, NormOf, Positions, Projection, Slots,
};
use mlx_core::ops::quantize::Scheme;
use mlx_core::{Array, DType, Replay, Result};

use super::{FOUR, Weights, f32s, noise, on_gpu, periods};

#[derive(Clone, Copy, Debug)]
struct Shape {
    dtype: DType,
    scheme: Option<Scheme>,
    rows: i32,
    width: i32,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    /// The slots of a ring, which is also the window.
    ring: Option<i32>,
}

/// A layer, and its KV cache.
struct Layer {
    shape: Shape,
    norms: [Array; 5],
    q: Weights,
    k: Weights,
    v: Weights,
    o: Weights,
    gate: Weights,
    up: Weights,
    down: Weights,
    periods: Array,
    cache: Option<(Array, Array)>,
    len: i32,
}

impl Layer {
    fn new(shape: Shape) -> Result<Self> {
        let Shape {
            width,
            head_dim: d,
            dtype,
            ..
        } = shape;
        // Small enough for F16.
        let norm = |seed, n: i32| noise(seed, &[n], dtype)?.multiply(0.1f32);
        let matrix = |seed, n, k| Weights::new(seed, n, k, dtype, shape.scheme);
        let hidden = 2 * width;
        Ok(Self {
            shape,
            norms: [
                norm(1, width)?,
                norm(2, width)?,
                norm(3, width)?,
                norm(4, d)?,
                norm(5, d)?,
            ],
            q: matrix(6, shape.heads * d, width)?,
            k: matrix(7, shape.kv_heads * d, width)?,
            v: matrix(8, shape.kv_heads * d, width)?,
            o: matrix(9, width, shape.heads * d)?,
            gate: matrix(10, hidden, width)?,
            up: matrix(11, hidden, width)?,
            down: matrix(12, width, hidden)?,
            periods: periods(d / 2)?,
            cache: None,
            len: 0,
        })
    }

    fn offsets(&self) -> Result<Array> {
        // The second row has fewer tokens in its cache.
        let offsets: Vec<i32> = (0..self.shape.rows).map(|row| self.len - 3 * row).collect();
        Array::from_slice(&offsets, &[self.shape.rows])
    }

    /// The layer's result for `x` `[B, T, width]`, and the norm that two products read; from joined operations, or from separate ones.
    fn step(&mut self, x: &Array, offsets: &Array, is_joined: bool) -> Result<[Array; 2]> {
        let Shape {
            rows,
            width,
            heads,
            kv_heads,
            head_dim,
            ring,
            ..
        } = self.shape;
        let tokens = x.shape()[1];
        let [before, inner, outer, of_queries, of_keys] = &self.norms;
        let matrices = [self.q.matrix(), self.k.matrix(), self.v.matrix()];
        let projected = match is_joined {
            true => {
                let of = NormOf {
                    x,
                    residual: None,
                    inner: None,
                    weight: Some(before),
                    eps: 1e-6,
                };
                fast::norm_linear(&of, &matrices)?.products
            }
            false => fast::linear_many(&fast::rms_norm(x, Some(before), 1e-6)?, &matrices)?,
        };
        let projection = |i: usize, weight| Projection {
            x: &projected[i],
            head_dim,
            norm: Some((weight, 1e-6)),
            dims: head_dim,
            freqs: &self.periods,
            offsets,
        };
        let values = projected[2]
            .reshape(&[rows, tokens, kv_heads, head_dim])?
            .swapaxes(1, 2)?;
        let buffers = match self.cache.take() {
            Some((k, v)) => Buffers::Own(k, v),
            None => Buffers::New(ring.unwrap_or(256)),
        };
        let slots = Slots {
            ring: ring.is_some(),
            scheme: None,
        };
        let (of_queries, of_keys) = (projection(0, of_queries), projection(1, of_keys));
        let (queries, k, v) = match is_joined {
            true => fast::heads_and_store(&of_queries, buffers, &of_keys, &values, slots)?,
            false => {
                let queries = fast::heads(&of_queries)?;
                let (k, v) = fast::store_heads(buffers, &of_keys, &values, slots)?;
                (queries, k, v)
            }
        };
        let layout = if ring.is_some() {
            KeySlots::Ring
        } else {
            KeySlots::Straight
        };
        let options = Attention {
            scale: (head_dim as f32).powf(-0.5),
            soft_cap: None,
            mask: Mask::Positions(Positions::new(offsets, ring, layout)),
            sinks: None,
        };
        let seen = fast::attention(&queries, &k, &v, &options)?.reshape(&[
            rows,
            tokens,
            heads * head_dim,
        ])?;
        self.cache = Some((k, v));
        let y = fast::linear_many(&seen, &[self.o.matrix()])?.remove(0);
        let [gate, up] = [self.gate.matrix(), self.up.matrix()];
        let (sum, normed, y) = match is_joined {
            true => {
                let of = NormOf {
                    x: &y,
                    residual: Some(x),
                    inner: Some(inner),
                    weight: Some(outer),
                    eps: 1e-6,
                };
                let mut all = fast::norm_gated_linear(Gate::Silu, &of, [&gate, &up])?;
                (all.sum, all.normed, all.products.remove(0))
            }
            false => {
                let (sum, normed) = fast::add_norm(&y, x, Some(inner), outer, 1e-6)?;
                let y = fast::gated_linear(Gate::Silu, &normed, &gate, &up)?;
                (sum, normed, y)
            }
        };
        let y = fast::linear_many(&y, &[self.down.matrix()])?.remove(0);
        let y = fast::rms_norm(&fast::add(&y, &sum)?, Some(inner), 1e-6)?;
        let last = y.slice_axis(1, tokens - 1, tokens)?;
        assert_eq!(last.shape(), [rows, 1, width]);
        self.len += tokens;
        Ok([last, normed])
    }
}

type Results = (Vec<Vec<f32>>, [Vec<f32>; 2]);

/// The results of a prompt and of `steps` tokens after it, and the cache at the end.
fn run(
    shape: Shape,
    prompt: i32,
    steps: usize,
    [is_joined, replays]: [bool; 2],
) -> Result<Results> {
    let mut layer = Layer::new(shape)?;
    let mut x = noise(20, &[shape.rows, prompt, shape.width], shape.dtype)?;
    let (mut replay, mut results) = (Replay::new()?, Vec::new());
    for step in 0..=steps {
        let offsets = layer.offsets()?;
        let outputs = layer.step(&x, &offsets, is_joined)?;
        if replays && step > 0 {
            replay.async_eval(&outputs, [&x, &offsets])?;
        } else {
            mlx_core::eval(&outputs)?;
        }
        let [next, normed] = outputs;
        results.extend([f32s(&next)?, f32s(&normed)?]);
        x = next;
    }
    assert_eq!(replay.repeats(), replays, "{shape:?}: not captured");
    let (k, v) = layer.cache.as_ref().expect("a step has run");
    Ok((results, [f32s(k)?, f32s(v)?]))
}

#[test]
fn captured_layers_are_those_of_evaluations() -> Result<()> {
    if !on_gpu()? {
        return Ok(());
    }
    let eight = Scheme { bits: 8, ..FOUR };
    let small = Shape {
        dtype: DType::BF16,
        scheme: Some(FOUR),
        rows: 1,
        width: 1024,
        heads: 8,
        kv_heads: 4,
        head_dim: 128,
        ring: None,
    };
    let shapes = [
        small,
        Shape { rows: 2, ..small },
        Shape {
            ring: Some(64),
            ..small
        },
        Shape {
            scheme: None,
            width: 1152,
            heads: 4,
            kv_heads: 1,
            head_dim: 256,
            ring: Some(65),
            ..small
        },
        Shape {
            scheme: Some(eight),
            dtype: DType::F16,
            width: 2048,
            head_dim: 64,
            ..small
        },
        // Wider than the norms that products compute, and heads without a fast path.
        Shape {
            width: 2560,
            head_dim: 80,
            ..small
        },
        Shape {
            scheme: None,
            dtype: DType::F16,
            rows: 3,
            width: 64,
            heads: 2,
            kv_heads: 2,
            head_dim: 32,
            ring: Some(72),
        },
    ];
    for shape in shapes {
        // The tokens end one part of 64 slots and begin the next.
        for prompt in [20, 58] {
            let wanted = run(shape, prompt, 14, [false, false])?;
            for how in [[true, true], [true, false], [false, true]] {
                let found = run(shape, prompt, 14, how)?;
                for (i, (a, b)) in found.0.iter().zip(&wanted.0).enumerate() {
                    assert_eq!(a, b, "{shape:?}, {prompt} tokens, result {i}, {how:?}");
                }
                assert!(found.1 == wanted.1, "{shape:?}, {prompt} tokens: the cache");
            }
            assert!(
                wanted.0[2..].iter().flatten().all(|x| x.is_finite()),
                "{shape:?}"
            );
        }
    }
    Ok(())
}
