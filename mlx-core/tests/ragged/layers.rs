//! Layers with states, over ragged rows and over one row alone.

use mlx_core::fast::{self, RaggedDelta, RaggedRows, RaggedScan, StateSlots};
use mlx_core::{Array, DType, Result, ops::concat, zeros};

use super::reference::{Inputs, LIMITS, Rule, Sizes, normal};

pub enum Layer {
    Conv {
        /// `[1, T, C]`
        x: Array,
        taps: Array,
        bias: Option<Array>,
    },
    /// One row of T tokens.
    Rule(Inputs),
}

impl Layer {
    pub fn conv(tokens: i32, channels: i32, taps: i32, bias: bool, dtype: DType) -> Result<Self> {
        let bias = bias.then(|| normal(3, &[channels])?.astype(dtype));
        Ok(Self::Conv {
            x: normal(1, &[1, tokens, channels])?.astype(dtype)?,
            taps: normal(2, &[taps, channels])?.astype(dtype)?,
            bias: bias.transpose()?,
        })
    }

    pub fn rule(sizes: Sizes, tokens: i32, dtype: DType) -> Result<Self> {
        let mut inputs = Inputs::new(sizes, &[tokens], 40)?;
        let of_tokens = inputs.of_tokens();
        for array in &mut inputs.arrays[..of_tokens] {
            *array = array.astype(dtype)?;
        }
        Ok(Self::Rule(inputs))
    }

    /// The arrays with a place for each token, which the layer computes from.
    pub fn of_tokens(&self) -> Vec<Array> {
        match self {
            Self::Conv { x, .. } => vec![x.clone()],
            Self::Rule(inputs) => inputs.arrays[..inputs.of_tokens()].to_vec(),
        }
    }

    pub fn with_tokens(&self, arrays: &[Array]) -> Self {
        match self {
            Self::Conv { taps, bias, .. } => Self::Conv {
                x: arrays[0].clone(),
                taps: taps.clone(),
                bias: bias.clone(),
            },
            Self::Rule(inputs) => {
                let mut all = inputs.arrays.clone();
                all[..arrays.len()].clone_from_slice(arrays);
                Self::Rule(Inputs {
                    sizes: inputs.sizes,
                    arrays: all,
                    widths: inputs.widths.clone(),
                })
            }
        }
    }

    /// The same layer in F32.
    #[allow(dead_code, reason = "for the tests on GPUs")]
    pub fn in_f32(&self) -> Result<Self> {
        let wide = |array: &Array| array.astype(DType::F32);
        Ok(match self {
            Self::Conv { x, taps, bias } => Self::Conv {
                x: wide(x)?,
                taps: wide(taps)?,
                bias: bias.as_ref().map(wide).transpose()?,
            },
            Self::Rule(_) => {
                let tokens = self.of_tokens();
                self.with_tokens(&tokens.iter().map(wide).collect::<Result<Vec<_>>>()?)
            }
        })
    }

    pub fn tokens(&self) -> i32 {
        self.of_tokens()[0].shape()[1]
    }

    /// The shape and the dtype of a slot.
    pub fn slot(&self) -> (Vec<i32>, DType) {
        match self {
            Self::Conv { x, taps, .. } => (vec![taps.shape()[0] - 1, taps.shape()[1]], x.dtype()),
            Self::Rule(Inputs { sizes, .. }) => (vec![sizes.h, sizes.v, sizes.d], DType::F32),
        }
    }

    /// `[slots, ..]`
    pub fn pool(&self, slots: i32, seed: u64) -> Result<Array> {
        let (mut shape, dtype) = self.slot();
        shape.insert(0, slots);
        normal(seed, &shape)?.astype(dtype)
    }

    pub fn ragged(
        &self,
        starts: &Array,
        longest: i32,
        states: Option<StateSlots<'_>>,
    ) -> Result<(Array, Option<Array>)> {
        let rows = &RaggedRows { starts, longest };
        let inputs = match self {
            Self::Conv { x, taps, bias } => {
                return fast::ragged_conv(x, taps, bias.as_ref(), true, rows, states);
            }
            Self::Rule(inputs) => inputs,
        };
        let [x, a, b, rate, bias, _] = [0, 1, 2, 3, 4, 5].map(|at| &inputs.arrays[at]);
        let (key_heads, key_dim) = (inputs.sizes.k, inputs.sizes.d);
        if inputs.sizes.rule == Rule::Scan {
            let of = RaggedScan {
                x,
                dt: a,
                rate,
                bias,
                skip: b,
                groups: key_heads,
                key_dim,
                limits: LIMITS,
            };
            return fast::ragged_scan(&of, rows, states);
        }
        let of = RaggedDelta {
            qkv: x,
            a,
            b,
            rate,
            bias,
            key_heads,
            key_dim,
            most: inputs.sizes.most(),
            bound: inputs.sizes.bound(),
        };
        fast::ragged_delta(&of, rows, states)
    }

    /// The outputs of tokens `from .. to` as one row, and the state `[1, ..]` after them. Without a state it begins with
    /// zeros.
    pub fn alone(&self, from: i32, to: i32, state: Option<&Array>) -> Result<(Array, Array)> {
        let (mut shape, dtype) = self.slot();
        shape.insert(0, 1);
        let state = state.map_or_else(|| zeros(&shape, dtype), |state| Ok(state.clone()))?;
        match self {
            Self::Conv { x, taps, bias } => {
                let inputs = concat(&[&state, &x.slice_axis(1, from, to)?], 1)?;
                let n = inputs.shape()[1];
                let after = inputs.slice_axis(1, n - shape[1], n)?;
                Ok((
                    fast::causal_conv(&inputs, taps, bias.as_ref(), true)?,
                    after,
                ))
            }
            Self::Rule(inputs) => {
                let mut part = inputs.part(from, to, &state)?;
                part.widths = vec![to - from];
                part.run()
            }
        }
    }
}
