//! Features of hashed n-grams: a token and the tokens before it are hashed to rows of large tables, which are added to
//! the residual streams (per-layer embeddings of Qwen 4).

use mlx_core::{Array, DType, Error, ErrorKind, Result, ops::concat};
use mlx_nn::{
    Activation, CausalConv, Embedding, LayerKind, Linear, Module, Path, RecurrentShape, RmsNorm,
    StatePart, Step, Visit, VisitMut, known_type, module,
};

use super::token_bytes;

/// Sizes of [`NgramFeatures`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NgramSizes {
    /// Tokens of the vocabulary.
    pub vocab: i32,
    /// Features of a token.
    pub hidden: i32,
    /// Residual streams.
    pub streams: i32,
    /// Features of the rows of all tables together.
    pub width: i32,
    /// Tokens of the longest n-gram, at least 2. The shortest has 2.
    pub longest: i32,
    /// Tables for each length.
    pub heads: i32,
    /// The least number of rows of a table, without padding.
    pub least_rows: i32,
    /// The number of all rows is a multiple of this.
    pub multiple: i32,
    /// The seed of the multipliers.
    pub seed: u64,
    /// The number of this layer among those with such features.
    pub index: u64,
    /// The token at which n-grams begin.
    pub end: i32,
    /// Taps of the convolution.
    pub taps: i32,
    /// Epsilon of the norms.
    pub norm_eps: f32,
}

impl NgramSizes {
    /// The tables of all lengths.
    fn tables(&self) -> i32 {
        (self.longest - 1) * self.heads
    }

    /// The states: the bytes of the last tokens, and the inputs of the convolution.
    pub(crate) fn states(&self) -> [LayerKind; 2] {
        let inputs = StatePart::Window {
            name: "ngrams",
            len: (self.taps - 1) * self.longest,
            width: self.streams * self.hidden,
        };
        let inputs = RecurrentShape::new(&[inputs]).with_slots();
        [
            token_bytes::last_tokens(self.longest),
            LayerKind::Recurrent(inputs),
        ]
    }

    /// The rows of each table. Layers have successive primes.
    fn primes(&self) -> Vec<i64> {
        let count = self.tables() as usize;
        primes(self.least_rows, self.index as usize * count, count)
    }

    /// Odd factors of tokens, of which no product exceeds 63 bits: the mixing function of SplitMix64 over a counter.
    fn multipliers(&self) -> Vec<i64> {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let half = (i64::MAX / i64::from(self.vocab.max(1)) / 2).max(1) as u64;
        let seed = self.seed.wrapping_add(10_007u64.wrapping_mul(self.index));
        let each = (1..=self.longest as u64).map(|at| {
            let mut x = seed.wrapping_add(STEP.wrapping_mul(at)).wrapping_add(STEP);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((x ^ (x >> 31)) % half) as i64 * 2 + 1
        });
        each.collect()
    }
}

/// `count` primes from `least` on, after the first `skipped` of them.
pub(super) fn primes(least: i32, skipped: usize, count: usize) -> Vec<i64> {
    let primes = (i64::from(least).max(2)..).filter(|&number| is_prime(number));
    primes.skip(skipped).take(count).collect()
}

fn is_prime(number: i64) -> bool {
    let divisors = (2..).take_while(|divisor| divisor * divisor <= number);
    number > 1 && divisors.into_iter().all(|divisor| number % divisor != 0)
}

/// The hash of each table, as files store it.
#[derive(Clone, Debug)]
pub(super) struct Hashes {
    /// I64 `[longest]`: the factor of each token of an n-gram, the last token first.
    layer_multipliers: Array,
    /// I64 `[tables]`: the rows of each table.
    ngram_heads_vocab_sizes: Array,
    /// I64 `[tables]`: the first row of each table.
    ngram_heads_offsets: Array,
    /// Rows of all tables.
    rows: i64,
}

impl Hashes {
    fn new(sizes: &NgramSizes) -> Result<Self> {
        let mut hashes = Self::of(&sizes.multipliers(), &sizes.primes())?;
        let multiple = i64::from(sizes.multiple);
        hashes.rows = (hashes.rows + multiple - 1) / multiple * multiple;
        Ok(hashes)
    }

    /// Hashes with these factors of the tokens of an n-gram, the last token first, and tables of these rows.
    pub(super) fn of(factors: &[i64], primes: &[i64]) -> Result<Self> {
        let before = |at: usize| primes[..at].iter().sum::<i64>();
        let offsets: Vec<i64> = (0..primes.len()).map(before).collect();
        let array = |values: &[i64]| Array::from_slice(values, &[values.len() as i32]);
        Ok(Self {
            layer_multipliers: array(factors)?,
            ngram_heads_vocab_sizes: array(primes)?,
            ngram_heads_offsets: array(&offsets)?,
            rows: before(primes.len()),
        })
    }

    /// Refuses hashes of a file that name rows that do not exist.
    fn check(&self, path: &Path) -> Result<()> {
        let fault = |message: String| {
            let message = format!("{}: {message}", path.as_str());
            Err(Error::new(ErrorKind::Format, message))
        };
        for (name, array) in [
            ("layer_multipliers", &self.layer_multipliers),
            ("ngram_heads_vocab_sizes", &self.ngram_heads_vocab_sizes),
            ("ngram_heads_offsets", &self.ngram_heads_offsets),
        ] {
            if array.dtype() != DType::I64 {
                return fault(format!("{name} must be I64, found {}", array.dtype()));
            }
        }
        let sizes = self.ngram_heads_vocab_sizes.to_vec::<i64>()?;
        let offsets = self.ngram_heads_offsets.to_vec::<i64>()?;
        for (&size, &offset) in sizes.iter().zip(&offsets) {
            let last = offset.checked_add(size);
            if size < 1 || offset < 0 || last.is_none_or(|last| last > self.rows) {
                return fault(format!(
                    "a table of {size} rows from row {offset} on, of {} rows",
                    self.rows
                ));
            }
        }
        Ok(())
    }

    /// The row of each table, I32 `[1, T, tables]`, from the last tokens, I64 `[1, T]` each, the own token first.
    pub(super) fn rows(&self, tokens: &[Array]) -> Result<Array> {
        let multiplied = tokens.iter().enumerate().map(|(at, token)| {
            let at = at as i32;
            token.multiply(self.layer_multipliers.slice_axis(0, at, at + 1)?)
        });
        let mut multiplied = multiplied.collect::<Result<Vec<_>>>()?.into_iter();
        let mut mixed = multiplied.next().expect("there is a token");
        let heads = self.ngram_heads_offsets.dim(0)? / (tokens.len() as i32 - 1);
        let mut rows = Vec::new();
        for (at, token) in multiplied.enumerate() {
            mixed = mixed.bitwise_xor(&token)?;
            let begin = at as i32 * heads;
            let own = |array: &Array| array.slice_axis(0, begin, begin + heads);
            let row = mixed
                .expand_dims(-1)?
                .remainder(own(&self.ngram_heads_vocab_sizes)?)?;
            rows.push(row.add(own(&self.ngram_heads_offsets)?)?);
        }
        concat(&rows, -1)?.astype(DType::I32)
    }
}

impl Module for Hashes {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("layer_multipliers", |path| {
            v.state(path, &self.layer_multipliers)
        })?;
        path.scoped("ngram_heads_vocab_sizes", |path| {
            v.state(path, &self.ngram_heads_vocab_sizes)
        })?;
        path.scoped("ngram_heads_offsets", |path| {
            v.state(path, &self.ngram_heads_offsets)
        })
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        path.scoped("layer_multipliers", |path| {
            v.state(path, &mut self.layer_multipliers)
        })?;
        path.scoped("ngram_heads_vocab_sizes", |path| {
            v.state(path, &mut self.ngram_heads_vocab_sizes)
        })?;
        path.scoped("ngram_heads_offsets", |path| {
            v.state(path, &mut self.ngram_heads_offsets)
        })?;
        self.check(path)
    }

    known_type!();
}

/// The rows of the n-grams that end at a token.
#[derive(Clone)]
struct NgramEmbedding {
    ngram_embedding: Embedding,
    hashes: Hashes,
    sizes: NgramSizes,
}
module!(NgramEmbedding { ngram_embedding } flat { hashes } plain { sizes });

impl NgramEmbedding {
    fn new(sizes: NgramSizes) -> Result<Self> {
        let hashes = Hashes::new(&sizes)?;
        let Ok(rows) = i32::try_from(hashes.rows) else {
            let message = format!("tables of n-grams with {} rows are too large", hashes.rows);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        Ok(Self {
            ngram_embedding: Embedding::empty(rows, sizes.width / sizes.tables())?,
            hashes,
            sizes,
        })
    }

    /// The rows of all tables, `[1, T, width]`, from the bytes of the step's tokens. Before the first token of a row, and
    /// before the last end of a text, there are only ends.
    fn forward(&self, bytes: &Array, state: usize, step: &mut Step<'_>) -> Result<Array> {
        let seen = step.last_vectors(state, bytes, self.sizes.longest)?;
        let seen = token_bytes::tokens(&seen)?; // [1, T, longest]
        let token = |before: i32| token_bytes::before(&seen, before);
        let end = Array::scalar(i64::from(self.sizes.end))?;
        let mut tokens = vec![token(0)?];
        for before in 1..self.sizes.longest {
            let exists = step.positions().greater_equal(before)?;
            let exists = match before {
                1 => exists,
                _ => exists.logical_and(tokens[tokens.len() - 1].not_equal(&end)?)?,
            };
            tokens.push(exists.select(&token(before)?, &end)?);
        }
        let rows = self.hashes.rows(&tokens)?;
        let rows = self.ngram_embedding.forward(&rows)?;
        rows.reshape(&[1, -1, self.sizes.width])
    }
}

/// Features of n-grams for each stream: a value, weighted by a product of the n-gram's key and the stream, plus a
/// convolution over it. Fields are named as in published checkpoints.
#[derive(Clone)]
pub(crate) struct NgramFeatures {
    ple_embedding: NgramEmbedding,
    key_proj: Linear,
    value_proj: Linear,
    norm_key: RmsNorm,
    norm_query: RmsNorm,
    norm_conv: RmsNorm,
    conv1d: CausalConv,
    sizes: NgramSizes,
}
module!(NgramFeatures { ple_embedding, key_proj, value_proj, norm_key, norm_query, norm_conv, conv1d } plain { sizes });

impl NgramFeatures {
    /// Features without values.
    ///
    /// # Errors
    /// The tables are too large.
    pub(crate) fn new(sizes: NgramSizes) -> Result<Self> {
        let all = sizes.streams * sizes.hidden;
        let norm = || RmsNorm::empty(all, sizes.norm_eps);
        let conv = CausalConv::empty(all, sizes.taps, false, Some(Activation::Silu))?;
        Ok(Self {
            ple_embedding: NgramEmbedding::new(sizes)?,
            key_proj: Linear::empty(sizes.width, all, false)?,
            value_proj: Linear::empty(sizes.width, sizes.hidden, false)?,
            norm_key: norm()?,
            norm_query: norm()?,
            norm_conv: norm()?,
            conv1d: conv.dilated(sizes.longest),
            sizes,
        })
    }

    /// The addition to the streams `x` `[1, T, n E]`. `bytes` are those of the step's tokens, and `state` is the first of
    /// [`NgramSizes::states`].
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
        let NgramSizes {
            hidden, streams, ..
        } = self.sizes;
        let rows = self.ple_embedding.forward(bytes, state, step)?;
        let rows = rows.astype(x.dtype())?;
        let [key, value] = Linear::forward_all([&self.key_proj, &self.value_proj], &rows)?;
        let apart = |x: &Array| x.reshape(&[1, -1, streams, hidden])?.astype(DType::F32);
        let key = apart(&self.norm_key.by_group(&key, streams)?)?;
        let query = apart(&self.norm_query.by_group(x, streams)?)?;
        let score = key.multiply(&query)?.sum(-1, true)?;
        let score = score.multiply((hidden as f32).powf(-0.5))?;
        let root = score.abs()?.maximum(1e-6)?.sqrt()?;
        let weight = root.multiply(score.sign()?)?.sigmoid()?;
        let value = weight.multiply(value.expand_dims(2)?)?;
        let value = value.reshape(x.shape())?.astype(x.dtype())?;
        let normed = self.norm_conv.by_group(&value, streams)?;
        let mixed = self.conv1d.forward(&normed, state + 1, 0, step)?;
        value.add(&mixed)
    }
}
