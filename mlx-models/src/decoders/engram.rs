//! Features of hashed n-grams over tokens whose texts are alike (Engram of DeepSeek V4.1): a token and the tokens before it
//! are hashed to rows of a large table, whose projection is added to the residual streams by a gate.

use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_nn::{
    Embedding, LayerKind, Linear, Param, Step, StreamsConfig, module, rounded_to_eight_bits,
};

use super::ngrams::{Hashes, primes};
use super::token_bytes;

/// Sizes of [`Engram`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngramSizes {
    /// The residual streams.
    pub streams: StreamsConfig,
    /// Tokens of the longest n-gram, at least 2. The shortest has 2.
    pub longest: i32,
    /// Rows that are looked up for each length.
    pub heads: i32,
    /// Features of a row.
    pub head_dim: i32,
    /// The least number of rows for a length and a head.
    pub least_rows: i32,
    /// Rows of the table.
    pub rows: i32,
    /// The layer, which seeds the factors.
    pub layer: u64,
    /// The number of this layer among those with such features.
    pub index: usize,
    /// The token that stands before the first one of a text.
    pub pad: i32,
    /// Epsilon of the norms.
    pub norm_eps: f32,
}

impl EngramSizes {
    /// Rows that are looked up for a token.
    fn tables(&self) -> i32 {
        (self.longest - 1) * self.heads
    }

    /// The state of a row: the bytes of the last tokens.
    pub(crate) fn kind(&self) -> LayerKind {
        token_bytes::last_tokens(self.longest)
    }

    /// The hashes, over `alike` kinds of tokens.
    fn hashes(&self, alike: i64) -> Result<Hashes> {
        let tables = self.tables() as usize;
        let sizes = primes(self.least_rows, self.index * tables, tables);
        let needed: i64 = sizes.iter().sum();
        if needed > i64::from(self.rows) {
            let message = format!(
                "layer {}: a table of n-grams has {} rows, but {needed} are hashed to",
                self.layer, self.rows
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Hashes::of(&factors(self.layer, self.longest as usize, alike), &sizes)
    }
}

/// Features of n-grams. Fields are named as in published checkpoints, but for the projection.
#[derive(Clone)]
pub(crate) struct Engram {
    embed: Embedding,
    kv_proj: Linear,
    /// `[n, E]`
    q_weight: Param,
    /// `[n, E]`
    k_weight: Param,
    hashes: Hashes,
    /// I64 `[V]`: the kind of each token. Tokens of a kind have texts that are alike.
    kinds: Array,
    sizes: EngramSizes,
}
module!(Engram { embed, kv_proj, q_weight, k_weight } plain { hashes, kinds, sizes });

impl Engram {
    /// Features without values. `kinds` is the kind of each token of the vocabulary, from 0 on.
    ///
    /// # Errors
    /// The table has fewer rows than tokens are hashed to.
    pub(crate) fn new(sizes: EngramSizes, kinds: &[i64]) -> Result<Self> {
        let StreamsConfig {
            hidden, streams, ..
        } = sizes.streams;
        let alike = kinds.iter().max().map_or(0, |most| most + 1);
        Ok(Self {
            embed: Embedding::empty(sizes.rows, sizes.head_dim)?,
            kv_proj: Linear::empty(
                sizes.tables() * sizes.head_dim,
                (streams + 1) * hidden,
                false,
            )?,
            q_weight: Param::empty(&[streams, hidden])?.never_narrowed(),
            k_weight: Param::empty(&[streams, hidden])?.never_narrowed(),
            hashes: sizes.hashes(alike)?,
            kinds: Array::from_slice(kinds, &[kinds.len() as i32])?,
            sizes,
        })
    }

    /// The rows I32 `[1, T, tables]` of the step's tokens, whose bytes are given.
    fn rows(&self, bytes: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let longest = self.sizes.longest;
        let seen = step.last_vectors(state, bytes, longest)?;
        let seen = token_bytes::tokens(&seen)?; // [1, T, longest]
        let kinds = self.kinds.take(&seen, 0)?;
        let pad = self
            .kinds
            .slice_axis(0, self.sizes.pad, self.sizes.pad + 1)?;
        let kind = |before: i32| {
            let own = token_bytes::before(&kinds, before)?;
            let exists = step.positions().greater_equal(before)?;
            exists.select(&own, &pad)
        };
        let each = (0..longest).map(kind).collect::<Result<Vec<_>>>()?;
        self.hashes.rows(&each)
    }

    /// The streams `x` `[1, T, n E]` with the features added. `bytes` are those of the step's tokens, and `state` is the
    /// layer's state of the kind [`EngramSizes::kind`].
    ///
    /// # Errors
    /// The shapes do not fit.
    pub(crate) fn forward(
        &self,
        x: &Array,
        bytes: &Array,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let StreamsConfig {
            hidden, streams, ..
        } = self.sizes.streams;
        let rows = self.embed.forward(&self.rows(bytes, state, step)?)?;
        let width = self.sizes.tables() * self.sizes.head_dim;
        let rows = rows.reshape(&[1, -1, width])?.astype(x.dtype())?;
        let both = self.kv_proj.forward(&rounded_to_eight_bits(&rows)?)?;
        let both = both.astype(DType::F32)?;
        let key = both.slice_axis(-1, 0, streams * hidden)?;
        let value = both.slice_axis(-1, streams * hidden, (streams + 1) * hidden)?;
        let apart = |x: &Array| x.reshape(&[1, -1, streams, hidden]);
        let (wide, key) = (apart(&x.astype(DType::F32)?)?, apart(&key)?);
        let scale = |x: &Array| {
            let mean = x.square()?.mean(-1, false)?;
            mean.add(self.sizes.norm_eps)?.rsqrt()
        };
        let [q, k] = [&self.q_weight, &self.k_weight].map(|weight| weight.get());
        let weight = q?.astype(DType::F32)?.multiply(k?.astype(DType::F32)?)?;
        let score = wide.multiply(weight)?.multiply(&key)?.sum(-1, false)?;
        let score = score.multiply(scale(&wide)?.multiply(scale(&key)?)?)?;
        let score = score.multiply((hidden as f32).powf(-0.5))?;
        let root = score.abs()?.maximum(1e-6)?.sqrt()?;
        let signed = score.greater_equal(0.0)?.select(&root, &root.negative()?)?;
        let gate = signed.sigmoid()?.expand_dims(-1)?;
        let added = gate.multiply(value.expand_dims(2)?)?;
        wide.add(&added)?.reshape(x.shape())?.astype(x.dtype())
    }
}

/// Odd factors of the tokens of an n-gram, the last token first, of which no product with a number below `alike` exceeds 63
/// bits: numbers of NumPy's default generator (PCG64, seeded by `SeedSequence`), whose seed is 10007 times the layer.
fn factors(layer: u64, count: usize, alike: i64) -> Vec<i64> {
    let bound = (i64::MAX / alike.max(1) / 2).max(1) as u64;
    let mut random = Pcg64::seeded(layer.wrapping_mul(10_007));
    (0..count)
        .map(|_| random.below(bound) as i64 * 2 + 1)
        .collect()
}

/// PCG XSL RR 128/64 (O'Neill, 2014), as NumPy seeds and draws from it.
struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    fn seeded(seed: u64) -> Self {
        let words = seed_words(seed);
        let wide = |at: usize| u128::from(words[at]) << 64 | u128::from(words[at + 1]);
        let mut random = Self {
            state: 0,
            increment: wide(2) << 1 | 1,
        };
        random.step();
        random.state = random.state.wrapping_add(wide(0));
        random.step();
        random
    }

    fn step(&mut self) {
        const FACTOR: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.state = self.state.wrapping_mul(FACTOR).wrapping_add(self.increment);
    }

    fn next(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// A number below `bound` by Lemire's method (arXiv:1805.10941).
    fn below(&mut self, bound: u64) -> u64 {
        let least = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next()) * u128::from(bound);
            if product as u64 >= least {
                return (product >> 64) as u64;
            }
        }
    }
}

/// The first four numbers of NumPy's `SeedSequence`.
fn seed_words(seed: u64) -> [u64; 4] {
    /// Mixes a number with a constant that changes with each call.
    fn hashed(mut value: u32, constant: &mut u32, factor: u32) -> u32 {
        value ^= *constant;
        *constant = constant.wrapping_mul(factor);
        value = value.wrapping_mul(*constant);
        value ^ value >> 16
    }
    let mut constant = 0x43b0_d7e5;
    let mut hash = |value: u32| hashed(value, &mut constant, 0x931e_8875);
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash);
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            let mixed = pool[to].wrapping_mul(0xca01_f9dd);
            let mixed = mixed.wrapping_sub(hash(pool[from]).wrapping_mul(0x4973_f715));
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    let mut constant = 0x8b51_f9dd;
    let mut word = |at: usize| u64::from(hashed(pool[at % 4], &mut constant, 0x58f3_8ded));
    [0, 2, 4, 6].map(|at| word(at) | word(at + 1) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_of_numpy() {
        // numpy.random.default_rng(10007 * layer).integers(0, (2**63 - 1) // 99092 // 2, 4) * 2 + 1
        for (layer, expected) in [
            (
                1,
                [
                    76632096046245,
                    4839876093313,
                    35959672319349,
                    73987337458391,
                ],
            ),
            (
                14,
                [
                    67716810739261,
                    51510806800915,
                    30921347202721,
                    82619226485591,
                ],
            ),
        ] {
            assert_eq!(factors(layer, 4, 99_092), expected);
        }
    }
}
