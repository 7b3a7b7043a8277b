//! Attention and caches of a flat step: the tokens of all rows are on one axis, without padding, and rows keep their
//! positions in pages.

use mlx_c_sys as sys;

use super::Projection;
use super::packed::{packed_words, packing};
use super::ragged::RaggedRows;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::ops::quantize::Scheme;

/// The positions of a page of a cache, unless its pool says otherwise.
pub const PAGE: i32 = sys::MLXRS_PAGE as i32;

/// The rows of a flat step, and the pages in which they keep keys and values.
///
/// Row `b` brings the tokens `starts[b]` to `starts[b + 1] - 1` of the axis of all tokens, which may be none. Tokens
/// from `starts[B]` on belong to no row: they are not stored, and their results are zeros. Position `p` of row `b` is
/// in slot `p mod PAGE` of page `tables[b, (p / PAGE) mod P]`. Entries that no query of the step can see may be
/// anything, such as -1.
///
/// On the CPU an evaluation fails if an entry that is used is not a page of the pool, if `starts` does not ascend from
/// 0 to the number of tokens or less, or if the positions that a row's tokens see have more than `P` pages.
///
/// ```
/// use mlx_core::{Array, DType, fast::{self, FlatAttention, PagedStore, Pages, Pools, Seen}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// // A row with two tokens after three positions, and a row with a first token. One page of 16 positions each.
/// let pages = Pages {
///     starts: &Array::from_slice(&[0i32, 2, 3], &[3])?,
///     lens: &Array::from_slice(&[3i32, 0], &[2])?,
///     tables: &Array::from_slice(&[4i32, 1], &[2, 1])?,
///     most: Some(2),
/// };
/// let pool = || fast::blank(&[5, 1, 16, 8], DType::F32);
/// let new = ones(&[1, 1, 3, 8], DType::F32)?;
/// let how = PagedStore { scheme: None };
/// let (keys, values) = fast::paged_store(Pools::Own(pool()?, pool()?), &new, &new, &pages, how)?;
/// assert_eq!(keys.sum(.., false)?.item::<f32>()?, 24.0);
/// let seen = Seen { window: Some(2), ..Seen::default() };
/// let options = FlatAttention { scale: 1.0, soft_cap: None, seen, sinks: None };
/// let q = ones(&[1, 2, 3, 8], DType::F32)?;
/// let y = fast::paged_attention(&q, &keys, &values, None, &pages, &options)?;
/// assert_eq!(y.shape(), [1, 2, 3, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pages<'a> {
    /// I32 `[B + 1]`, ascending from 0 to at most the number of tokens.
    pub starts: &'a Array,
    /// I32 `[B]`: the positions that each row held before the step.
    pub lens: &'a Array,
    /// I32 `[B, P]`
    pub tables: &'a Array,
    /// No row brings more tokens, if the caller knows it. GPUs then start fewer blocks.
    pub most: Option<i32>,
}

/// What a query at position `p` of a flat step sees: the positions from the first to `p` of its own row, and with
/// [`ahead`](Self::ahead) some or all of those after `p`. The default sees all up to `p`.
///
/// ```
/// use mlx_core::fast::Seen;
///
/// let up_to_own = Seen::default();
/// assert!(up_to_own.window.is_none() && up_to_own.mask.is_none() && up_to_own.ahead == 0);
/// // Encoders: the whole row, or the keys that are at most 64 positions away.
/// let whole = Seen { ahead: i32::MAX, ..up_to_own };
/// let near = Seen { window: Some(65), ahead: 64, ..up_to_own };
/// # let _ = (whole, near);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen<'a> {
    /// Only the last `window` positions, including `p`.
    pub window: Option<i32>,
    /// Only positions of the same chunk: from `p / chunk * chunk` on.
    pub chunk: Option<i32>,
    /// Also the `ahead` positions after `p`, as far as the row has them; `i32::MAX` for all. Only rows without pages,
    /// and not together with `chunk` or `slopes`.
    pub ahead: i32,
    /// `[1 or H, 1 or T, S]`: positions are hidden where booleans are false, numbers are added to the scores. Column
    /// `j` is position `j`; positions after the last column must not be seen. Positions that only booleans hide must
    /// hold numbers, because a query from which they hide all keys gets the mean of the values at the positions that it
    /// sees otherwise.
    pub mask: Option<&'a Array>,
    /// F32 `[H]`: ALiBi adds `slope · (position of the key - p)` to the scores of a head (Press et al.,
    /// arXiv:2108.12409).
    pub slopes: Option<&'a Array>,
}

/// Options of [`paged_attention`] and [`ragged_attention`].
///
/// ```
/// use mlx_core::fast::{FlatAttention, Seen};
///
/// let options = FlatAttention { scale: 0.125, soft_cap: None, seen: Seen::default(), sinks: None };
/// assert!(options.sinks.is_none());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FlatAttention<'a> {
    /// The factor of the scores.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`, before the mask.
    pub soft_cap: Option<f32>,
    /// What queries see.
    pub seen: Seen<'a>,
    /// `[H]`: as in [`Attention`](super::Attention).
    pub sinks: Option<&'a Array>,
}

/// The values of [`paged_latents`] and [`ragged_latents`] are the first features of the keys.
enum Values<'a> {
    Own(&'a Array),
    Latent(i32),
}

/// [`attention`](super::attention()) of the queries of a flat step, `[1, H, T, D]`, over pools of pages: keys
/// `[N, K, PAGE, D]` and values `[N, K, PAGE, Dv]`, or U32 words if they are packed by a scheme. The result is
/// `[1, H, T, Dv]`.
///
/// On the CPU the results of a row have the same bits as those of [`attention`](super::attention()) over that row
/// alone. They depend neither on other rows, nor on the pages that the row has, nor on its place in the axis. What
/// pages hold in positions that no query sees does not show, NaN included.
///
/// # Errors
/// Shapes or dtypes do not fit, rows cannot be packed in the scheme, or queries see positions after their own.
pub fn paged_attention(
    q: &Array,
    keys: &Array,
    values: &Array,
    scheme: Option<Scheme>,
    pages: &Pages<'_>,
    options: &FlatAttention<'_>,
) -> Result<Array> {
    attend_paged(q, keys, &Values::Own(values), scheme, pages, options)
}

/// [`paged_attention`] over one pool of latents `[N, K, PAGE, D]`, whose first `value_dim` features are the values.
///
/// # Errors
/// The errors of [`paged_attention`], or `value_dim` is not from 1 to `D`.
pub fn paged_latents(
    q: &Array,
    latents: &Array,
    value_dim: i32,
    pages: &Pages<'_>,
    options: &FlatAttention<'_>,
) -> Result<Array> {
    attend_paged(q, latents, &Values::Latent(value_dim), None, pages, options)
}

fn attend_paged(
    q: &Array,
    keys: &Array,
    values: &Values<'_>,
    scheme: Option<Scheme>,
    pages: &Pages<'_>,
    options: &FlatAttention<'_>,
) -> Result<Array> {
    let [.., d] = q.dims::<4>()?;
    pages.check("paged_attention")?;
    let row = match scheme {
        Some(scheme) => packed_words(d, q.dtype(), scheme)?,
        None => d,
    };
    let [n, _, page, width] = keys.dims()?;
    if width != row {
        return Err(refusal(
            "paged_attention",
            format!("keys of {width} elements do not fit queries of {d}, which need {row}"),
        ));
    }
    check_page("paged_attention", keys)?;
    let columns = i64::from(pages.tables.dim(1)?) * i64::from(page);
    options.check("paged_attention", q, Some(columns))?;
    check_values("paged_attention", keys, values, [n, page])?;
    let how = options.raw(scheme, values)?;
    let (seen, sinks, pages) = (options.seen, options.sinks, *pages);
    let values = values.own();
    op!(mlxrs_fast_paged_attention(
        q, keys, values, pages, seen, sinks, how
    ))
}

/// [`paged_attention`] for rows that hold no positions before the step, over the step's own keys `[1, K, T, D]` and
/// values `[1, K, T, Dv]`: a row sees only its own tokens. With a number of tokens that no row exceeds, GPUs start fewer
/// blocks, and the plain form compares fewer tokens; it may be larger than `T`. It has derivatives for queries, keys and
/// values.
///
/// ```
/// use mlx_core::{Array, DType, fast::{self, FlatAttention, RaggedRows, Seen}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let starts = Array::from_slice(&[0i32, 2, 5], &[3])?; // two texts, of two and of three tokens
/// let x = ones(&[1, 2, 5, 8], DType::F32)?;
/// let options = FlatAttention { scale: 1.0, soft_cap: None, seen: Seen::default(), sinks: None };
/// let rows = RaggedRows { starts: &starts, longest: 3 };
/// let y = fast::ragged_attention(&x, &x, &x, &rows, &options)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0; 80]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes do not fit, or [`Seen::ahead`] is negative or beside a chunk or slopes.
pub fn ragged_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    rows: &RaggedRows<'_>,
    options: &FlatAttention<'_>,
) -> Result<Array> {
    attend_ragged(q, k, &Values::Own(v), rows, options)
}

/// [`ragged_attention`] over latents `[1, K, T, D]`, whose first `value_dim` features are the values.
///
/// # Errors
/// The errors of [`ragged_attention`], or `value_dim` is not from 1 to `D`.
pub fn ragged_latents(
    q: &Array,
    latents: &Array,
    value_dim: i32,
    rows: &RaggedRows<'_>,
    options: &FlatAttention<'_>,
) -> Result<Array> {
    attend_ragged(q, latents, &Values::Latent(value_dim), rows, options)
}

fn attend_ragged(
    q: &Array,
    k: &Array,
    values: &Values<'_>,
    of: &RaggedRows<'_>,
    options: &FlatAttention<'_>,
) -> Result<Array> {
    let ([_, _, tokens, d], [rows, _, keys, width]) = (q.dims::<4>()?, k.dims::<4>()?);
    check_starts("ragged_attention", of.starts)?;
    if rows != 1 || keys != tokens || width != d {
        return Err(refusal(
            "ragged_attention",
            format!("keys {:?} do not fit queries {:?}", k.shape(), q.shape()),
        ));
    }
    options.check("ragged_attention", q, None)?;
    check_values("ragged_attention", k, values, [1, tokens])?;
    let how = sys::mlxrs_flat_options {
        most: of.longest,
        ..options.raw(None, values)?
    };
    let (starts, seen) = (of.starts, options.seen);
    let (sinks, values) = (options.sinks, values.own());
    op!(mlxrs_fast_ragged_attention(
        q, k, values, starts, seen, sinks, how
    ))
}

/// The pools of a layer's keys and values, `[N, K, PAGE, D]` each: `N` pages of `PAGE` positions, a power of two from
/// 16 to 256.
#[derive(Debug)]
pub enum Pools<'a> {
    /// Pools that are written in place, on the conditions of [`inplace`](crate::inplace).
    Own(Array, Array),
    /// Pools that are copied, because something else still reads them.
    Shared(&'a Array, &'a Array),
}

/// How the keys and values of a flat step are written.
#[derive(Clone, Copy, Debug)]
pub struct PagedStore {
    /// How rows are packed, if they are.
    pub scheme: Option<Scheme>,
}

/// Both pools with the new keys `[1, K, T, D]` and values `[1, K, T, Dv]` of a flat step.
///
/// # Errors
/// Shapes or dtypes do not fit, or rows cannot be packed in the scheme.
pub fn paged_store(
    pools: Pools<'_>,
    keys: &Array,
    values: &Array,
    pages: &Pages<'_>,
    how: PagedStore,
) -> Result<(Array, Array)> {
    let (k, v) = pools.arrays();
    how.check("paged_store", k, keys.shape(), keys.dtype(), pages)?;
    how.check("paged_store", v, values.shape(), keys.dtype(), pages)?;
    let options = how.raw(pools.in_place())?;
    let (pages, v) = (*pages, Some(v));
    let all = op!(vector mlxrs_fast_paged_store(k, v, keys, Some(values), pages, options))?;
    let [k, v] = results("paged_store", all)?;
    Ok((k, v))
}

/// A pool with the new vectors `[1, K, T, D]` of a flat step, for layers that keep one vector for each position. It is
/// written in place on the conditions of [`inplace`](crate::inplace) if `in_place`, else copied.
///
/// # Errors
/// Shapes or dtypes do not fit.
pub fn paged_keep(
    pool: &Array,
    vectors: &Array,
    pages: &Pages<'_>,
    in_place: bool,
) -> Result<Array> {
    let how = PagedStore { scheme: None };
    how.check("paged_keep", pool, vectors.shape(), vectors.dtype(), pages)?;
    let options = how.raw(in_place)?;
    let (pages, none) = (*pages, None::<&Array>);
    let all = op!(vector mlxrs_fast_paged_store(pool, none, vectors, none, pages, options))?;
    let [pool] = results("paged_keep", all)?;
    Ok(pool)
}

/// [`paged_store`] of keys that are [`heads`](super::heads) of a projection `[1, T, K · D]`, whose offsets are the
/// positions of the tokens, `[1, T]`.
///
/// # Errors
/// As [`paged_store`] and [`heads`](super::heads).
pub fn paged_store_heads(
    pools: Pools<'_>,
    keys: &Projection<'_>,
    values: &Array,
    pages: &Pages<'_>,
    how: PagedStore,
) -> Result<(Array, Array)> {
    let (k, v) = pools.arrays();
    let dtype = keys.x.dtype();
    how.check("paged_store_heads", k, &keys.heads_shape()?, dtype, pages)?;
    how.check("paged_store_heads", v, values.shape(), dtype, pages)?;
    let options = how.raw(pools.in_place())?;
    let pages = *pages;
    let all = op!(vector mlxrs_fast_paged_store_heads(k, v, keys, values, pages, options))?;
    let [k, v] = results("paged_store_heads", all)?;
    Ok((k, v))
}

/// [`heads`](super::heads) of `queries` and [`paged_store_heads`], in one operation as
/// [`heads_and_store`](super::heads_and_store): the heads of the queries `[1, H, T, D]`, and both pools.
///
/// # Errors
/// As [`paged_store_heads`] and [`heads`](super::heads).
pub fn paged_heads_and_store(
    queries: &Projection<'_>,
    pools: Pools<'_>,
    keys: &Projection<'_>,
    values: &Array,
    pages: &Pages<'_>,
    how: PagedStore,
) -> Result<(Array, Array, Array)> {
    let (k, v) = pools.arrays();
    let (name, dtype) = ("paged_heads_and_store", keys.x.dtype());
    how.check(name, k, &keys.heads_shape()?, dtype, pages)?;
    how.check(name, v, values.shape(), dtype, pages)?;
    let options = how.raw(pools.in_place())?;
    let pages = *pages;
    let all =
        op!(vector mlxrs_fast_paged_heads_and_store(queries, k, v, keys, values, pages, options))?;
    let [queries, k, v] = results(name, all)?;
    Ok((queries, k, v))
}

impl Pools<'_> {
    fn arrays(&self) -> (&Array, &Array) {
        match self {
            Self::Own(k, v) => (k, v),
            Self::Shared(k, v) => (k, v),
        }
    }

    fn in_place(&self) -> bool {
        matches!(self, Self::Own(..))
    }
}

impl PagedStore {
    /// Checks one pool, its new vectors of shape `new`, and the rows.
    fn check(
        self,
        name: &str,
        pool: &Array,
        new: &[i32],
        dtype: DType,
        pages: &Pages<'_>,
    ) -> Result<()> {
        pages.check(name)?;
        check_page(name, pool)?;
        let &[1, heads, _, d] = new else {
            return Err(refusal(
                name,
                format!(
                    "the vectors of a flat step are [1, heads, tokens, features], found {new:?}"
                ),
            ));
        };
        let row = match self.scheme {
            Some(scheme) => packed_words(d, dtype, scheme)?,
            None => d,
        };
        let [_, of, _, width] = pool.dims()?;
        if [of, width] != [heads, row] {
            return Err(refusal(
                name,
                format!(
                    "a pool {:?} and vectors {new:?} of {row} elements do not fit each other",
                    pool.shape()
                ),
            ));
        }
        Ok(())
    }

    fn raw(self, in_place: bool) -> Result<sys::mlxrs_paged_store_options> {
        let (bits, group_size) = self.scheme.map_or(Ok((0, 0)), packing)?;
        Ok(sys::mlxrs_paged_store_options {
            bits,
            group_size,
            in_place,
        })
    }
}

impl Pages<'_> {
    fn check(&self, name: &str) -> Result<()> {
        check_starts(name, self.starts)?;
        let (rows, lens) = (self.starts.dim(0)? - 1, self.lens);
        if lens.dtype() != DType::I32 || lens.shape() != [rows] {
            return Err(refusal(
                name,
                format!(
                    "lens must be I32 [{rows}], found {} {:?}",
                    lens.dtype(),
                    lens.shape()
                ),
            ));
        }
        let fits = matches!(*self.tables.shape(), [of, pages] if of == rows && pages > 0);
        if self.tables.dtype() != DType::I32 || !fits {
            let (dtype, shape) = (self.tables.dtype(), self.tables.shape());
            return Err(refusal(
                name,
                format!("tables must be I32 [{rows}, pages], found {dtype} {shape:?}"),
            ));
        }
        Ok(())
    }
}

impl FlatAttention<'_> {
    /// Checks the queries, the mask, which has at most `columns`, and the slopes.
    fn check(&self, name: &str, q: &Array, columns: Option<i64>) -> Result<()> {
        let [rows, heads, tokens, _] = q.dims()?;
        let (seen, shape) = (&self.seen, q.shape());
        if rows != 1 {
            return Err(refusal(
                name,
                format!("queries are [1, H, T, D], found {shape:?}"),
            ));
        }
        for (what, size) in [("window", seen.window), ("chunk", seen.chunk)] {
            if let Some(size) = size.filter(|size| *size < 1) {
                return Err(refusal(
                    name,
                    format!("a {what} must be at least 1, given {size}"),
                ));
            }
        }
        if seen.ahead < 0 {
            let message = format!(
                "queries cannot see {} positions after their own",
                seen.ahead
            );
            return Err(refusal(name, message));
        }
        let excludes = [
            ("pages", columns.is_some()),
            ("chunks", seen.chunk.is_some()),
            ("slopes", seen.slopes.is_some()),
        ];
        let excluding = excludes.iter().find(|(_, is_there)| *is_there);
        if let Some((what, _)) = excluding.filter(|_| seen.ahead > 0) {
            let message = format!("with {what} queries see no positions after their own");
            return Err(refusal(name, message));
        }
        if let Some(mask) = seen.mask {
            let fits = matches!(*mask.shape(), [h, t, s] if (h == 1 || h == heads) && (t == 1 || t == tokens) && s > 0
                && columns.is_none_or(|most| i64::from(s) <= most));
            if !fits {
                let most = columns.map_or(String::new(), |most| format!(" of at most {most}"));
                let message = format!(
                    "a mask is [1 or {heads}, 1 or {tokens}, positions{most}], found {:?}",
                    mask.shape()
                );
                return Err(refusal(name, message));
            }
        }
        if let Some(slopes) = seen.slopes
            && (slopes.dtype() != DType::F32 || slopes.shape() != [heads])
        {
            let (dtype, shape) = (slopes.dtype(), slopes.shape());
            return Err(refusal(
                name,
                format!("slopes must be F32 [{heads}], found {dtype} {shape:?}"),
            ));
        }
        Ok(())
    }

    fn raw(&self, scheme: Option<Scheme>, values: &Values<'_>) -> Result<sys::mlxrs_flat_options> {
        let (bits, group_size) = scheme.map_or(Ok((0, 0)), packing)?;
        Ok(sys::mlxrs_flat_options {
            scale: self.scale,
            soft_cap: self.soft_cap.unwrap_or(0.0),
            bits,
            group_size,
            value_dim: match *values {
                Values::Own(_) => 0,
                Values::Latent(size) => size,
            },
            most: 0,
        })
    }
}

impl<'a> Values<'a> {
    fn own(&self) -> Option<&'a Array> {
        match *self {
            Self::Own(values) => Some(values),
            Self::Latent(_) => None,
        }
    }
}

/// Checks values against keys, whose first and third axis have these sizes.
fn check_values(name: &str, keys: &Array, values: &Values<'_>, sizes: [i32; 2]) -> Result<()> {
    let [_, heads, _, d] = keys.dims()?;
    match *values {
        Values::Own(values) => {
            let [first, of, third, _] = values.dims()?;
            if [first, third] != sizes || of != heads || heads == 0 {
                let message = format!(
                    "values {:?} do not fit keys {:?}",
                    values.shape(),
                    keys.shape()
                );
                return Err(refusal(name, message));
            }
        }
        Values::Latent(size) if size < 1 || size > d => {
            return Err(refusal(
                name,
                format!("the values of latents are 1 to {d} features, given {size}"),
            ));
        }
        Values::Latent(_) => {}
    }
    Ok(())
}

fn check_starts(name: &str, starts: &Array) -> Result<()> {
    if starts.dtype() == DType::I32 && matches!(*starts.shape(), [n] if n > 1) {
        return Ok(());
    }
    let (dtype, shape) = (starts.dtype(), starts.shape());
    Err(refusal(
        name,
        format!("starts must be I32 [rows + 1], found {dtype} {shape:?}"),
    ))
}

fn check_page(name: &str, pool: &Array) -> Result<()> {
    let [_, _, page, _] = pool.dims()?;
    if (16..=256).contains(&page) && page & (page - 1) == 0 {
        return Ok(());
    }
    Err(refusal(
        name,
        format!(
            "pages have 16, 32, 64, 128 or 256 positions, found a pool {:?}",
            pool.shape()
        ),
    ))
}

fn refusal(name: &str, fault: String) -> Error {
    Error::new(ErrorKind::Shape, format!("{name}: {fault}"))
}

fn results<const N: usize>(name: &str, all: Vec<Array>) -> Result<[Array; N]> {
    <[Array; N]>::try_from(all)
        .map_err(|_| Error::new(ErrorKind::Mlx, format!("{name} has {N} results")))
}

impl Arg for Pages<'_> {
    type C = sys::mlxrs_pages;
    fn c(&self) -> Self::C {
        sys::mlxrs_pages {
            starts: self.starts.c(),
            lens: self.lens.c(),
            tables: self.tables.c(),
            most: self.most.unwrap_or(0),
        }
    }
    fn check(&self) -> Result<()> {
        let all = [self.starts, self.lens, self.tables];
        all.into_iter().try_for_each(Arg::check)
    }
}

impl Arg for Seen<'_> {
    type C = sys::mlxrs_seen;
    fn c(&self) -> Self::C {
        sys::mlxrs_seen {
            window: self.window.unwrap_or(0),
            chunk: self.chunk.unwrap_or(0),
            ahead: self.ahead,
            mask: self.mask.c(),
            slopes: self.slopes.c(),
        }
    }
    fn check(&self) -> Result<()> {
        Arg::check(&self.mask)?;
        Arg::check(&self.slopes)
    }
}

impl Arg for sys::mlxrs_flat_options {
    type C = Self;
    fn c(&self) -> Self {
        *self
    }
}

impl Arg for sys::mlxrs_paged_store_options {
    type C = Self;
    fn c(&self) -> Self {
        *self
    }
}
