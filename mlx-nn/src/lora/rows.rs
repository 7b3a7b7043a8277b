//! Adapters by row: the rows of one step have different adapters, or none.
//!
//! A layer has the factors of all adapters in one stack ([`AdapterSlot`]), which begins with an adapter of zeros for tokens
//! without one. The corrections of all tokens are two grouped products, as those of experts
//! ([`fast::experts_linear`]): each token is multiplied by the factors of its adapter. Ranks are padded with zeros to the
//! largest, which changes no correction.
//!
//! [`set_row_adapters`] fills the stacks, [`TokenAdapters`] has the adapter of each token. A layer uses its stack only
//! inside of [`TokenAdapters::scope`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlx_core::ops::{concat, create::full, create::zeros};
use mlx_core::{Array, DType, Error, ErrorKind, Result, eval, fast};

use super::{AdaptableLayer, Layout, Lora, quotient, row_lengths};
use crate::module::{Module, Path, Visit};
use crate::step::Step;

/// The adapter of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowAdapter {
    /// Its index among the adapters of [`set_row_adapters`].
    pub number: usize,
    /// A factor of its correction, besides its own alpha / rank.
    pub scale: f32,
}

/// The place of a layer's stacked adapters. It is empty in a new layer.
#[derive(Default)]
pub struct AdapterSlot(RefCell<Option<Rc<LayerAdapters>>>);

impl AdapterSlot {
    fn get(&self) -> Option<Rc<LayerAdapters>> {
        self.0.borrow().clone()
    }

    fn set(&self, adapters: Option<Rc<LayerAdapters>>) {
        self.0.replace(adapters);
    }

    /// The layer's adapters, and those of the tokens, if the current [scope](TokenAdapters::scope) has some.
    pub(crate) fn active(&self) -> Option<ActiveAdapters> {
        let tokens = ACTIVE.with_borrow(Clone::clone)?;
        let layer = self.get()?;
        if let Some(seen) = &tokens.seen {
            seen.borrow_mut().insert(Rc::as_ptr(&layer).addr());
        }
        Some(ActiveAdapters { layer, tokens })
    }

    /// The adapters of the outputs `from .. to` of a layer that is not a stack of experts.
    pub(crate) fn slice(&self, from: i32, to: i32) -> Result<Self> {
        let sliced = self.get().map(|layer| -> Result<_> {
            let part = |array: &Array| array.slice_axis(1, from, to);
            let stacks = layer.stacks.iter().map(|stack| {
                Ok(Stack {
                    b: part(&stack.b)?,
                    lookup: None,
                    ..stack.clone()
                })
            });
            Ok(Rc::new(LayerAdapters {
                stacks: stacks.collect::<Result<_>>()?,
                factors: layer.factors.as_ref().map(part).transpose()?,
                ..LayerAdapters::clone(&layer)
            }))
        });
        Ok(Self(RefCell::new(sliced.transpose()?)))
    }
}

impl Clone for AdapterSlot {
    fn clone(&self) -> Self {
        Self(RefCell::new(self.get()))
    }
}

impl std::fmt::Debug for AdapterSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stacks = self.get().map_or(0, |layer| layer.stacks.len());
        f.debug_tuple("AdapterSlot").field(&stacks).finish()
    }
}

/// The adapters of one layer. Their number is N, including that of zeros.
#[derive(Clone, Debug)]
pub(crate) struct LayerAdapters {
    /// One for each dtype of the factors. Adapters of another dtype are zeros in it, so that an adapter is computed in
    /// the same way whichever others there are.
    stacks: Vec<Stack>,
    /// DoRA: the quotients of magnitude and length, F32 `[N, out]`, of experts `[N * experts, out]`. They are 1 without
    /// DoRA.
    factors: Option<Array>,
    /// The number of experts; 1 in other layers.
    experts: i32,
}

#[derive(Clone, Debug)]
struct Stack {
    dtype: DType,
    /// `[N, R, in]`; of experts `[N * experts, R, in]`.
    a: Array,
    /// `[N, out, R]`; of experts `[N * experts, out, R]`.
    b: Array,
    /// The factors alpha / rank: F32 `[N]`.
    scales: Array,
    /// For the lookups of an embedding, whose outputs are the tokens of the vocabulary: `a` as `[N, in, R]`.
    lookup: Option<Array>,
}

/// The adapter of each token of a computation.
///
/// ```
/// use std::collections::BTreeMap;
/// use mlx_core::{Array, DType, Result, ones, random};
/// use mlx_nn::lora::{self, RowAdapter, TokenAdapters};
/// use mlx_nn::{Linear, LoraConfig, Module};
///
/// # fn main() -> Result<()> {
/// #[derive(Module)]
/// struct Mlp { up: Linear }
/// let mlp = Mlp { up: Linear::new(8, 4, false)? };
/// let mut trained = Mlp { up: mlp.up.clone() };
/// lora::attach(&mut trained, &LoraConfig::default(), &random::Key::new(7)?, |_| true)?;
/// let adapter: BTreeMap<_, _> = lora::detach(&mut trained)?.into_iter().collect();
/// lora::set_row_adapters(&mlp, &[Some(&adapter)])?;
///
/// let x = ones(&[2, 8], DType::F32)?;
/// let first = RowAdapter { number: 0, scale: 1.0 };
/// let tokens = TokenAdapters::of(&[None, Some(first)])?;
/// let y = tokens.scope(|| mlp.up.forward(&x))?;
/// assert_eq!(y.shape(), [2, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TokenAdapters(Rc<Tokens>);

#[derive(Debug)]
struct Tokens {
    which: Which,
    /// The layers that were computed with these adapters, if that is recorded.
    seen: Option<RefCell<BTreeSet<usize>>>,
}

#[derive(Debug)]
enum Which {
    /// All tokens have this one.
    All(RowAdapter),
    /// One of these lists, which have different lengths: a layer computes all tokens of a step, or those that are read.
    Lists(Vec<TokenList>),
}

#[derive(Clone, Debug)]
struct TokenList {
    /// The index in the stack: I32 `[T]`.
    index: Array,
    /// The factors of rows, F32 `[T]`; `None` if all are 1.
    scale: Option<Array>,
}

impl TokenList {
    /// Each entry `times` times.
    fn repeated(&self, times: i32) -> Result<Self> {
        let all = |array: &Array| {
            let each = array.expand_dims(-1)?;
            let n = each.dim(0)?;
            each.broadcast_to(&[n, times])?.reshape(&[n * times])
        };
        Ok(Self {
            index: all(&self.index)?,
            scale: self.scale.as_ref().map(all).transpose()?,
        })
    }
}

thread_local! {
    static ACTIVE: RefCell<Option<Rc<Tokens>>> = const { RefCell::new(None) };
}

impl TokenAdapters {
    /// The adapters of a list of tokens.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn of(tokens: &[Option<RowAdapter>]) -> Result<Self> {
        Self::of_lists(&[tokens])
    }

    /// The adapters of the tokens of a step, from those of its rows; `None` if no row has one. To be called after the
    /// step was told which features are [read](Step::read_ends).
    ///
    /// # Errors
    /// The step has another number of rows.
    pub fn of_step(step: &Step<'_>, rows: &[Option<RowAdapter>]) -> Result<Option<Self>> {
        if rows.iter().all(Option::is_none) {
            return Ok(None);
        }
        if rows.len() != step.widths().len() {
            let (given, own) = (rows.len(), step.widths().len());
            let message = format!("adapters of {given} rows in a step of {own} rows");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let places = step.places().zip(rows);
        let tokens: Vec<Option<RowAdapter>> = places
            .flat_map(|(places, &row)| places.map(move |_| row))
            .collect();
        let read = step.reads().map(|places| {
            let read = places.iter().map(|&place| tokens[place]);
            read.collect::<Vec<_>>()
        });
        let mut lists = vec![&tokens[..]];
        lists.extend(read.as_deref());
        Self::of_lists(&lists).map(Some)
    }

    /// The adapters of the tokens of a computation, some of whose layers see only a part of the tokens. The lists have
    /// different lengths.
    ///
    /// # Errors
    /// No memory for a handle.
    fn of_lists(lists: &[&[Option<RowAdapter>]]) -> Result<Self> {
        let lists = lists.iter().map(|tokens| {
            let length = [tokens.len() as i32];
            let index = tokens
                .iter()
                .map(|token| token.map_or(0, |of| of.number as i32 + 1));
            let scales = tokens.iter().map(|token| token.map_or(1.0, |of| of.scale));
            let scales: Vec<f32> = scales.collect();
            let has_scale = scales.iter().any(|&scale| scale != 1.0);
            Ok(TokenList {
                index: Array::from_slice(&index.collect::<Vec<i32>>(), &length)?,
                scale: match has_scale {
                    true => Some(Array::from_slice(&scales, &length)?),
                    false => None,
                },
            })
        });
        Ok(Self::new(Which::Lists(lists.collect::<Result<_>>()?)))
    }

    /// One adapter for all tokens of any computation.
    pub fn all(adapter: RowAdapter) -> Self {
        Self::new(Which::All(adapter))
    }

    fn new(which: Which) -> Self {
        let seen = None;
        Self(Rc::new(Tokens { which, seen }))
    }

    /// The same adapters, which record the layers that use them, for [`missed`](Self::missed).
    #[must_use]
    pub fn recording(self) -> Self {
        let which = match &self.0.which {
            Which::All(adapter) => Which::All(*adapter),
            Which::Lists(lists) => Which::Lists(lists.clone()),
        };
        let seen = Some(RefCell::default());
        Self(Rc::new(Tokens { which, seen }))
    }

    /// The layers with adapters that no computation in the scope of these [recording](Self::recording) ones has used.
    ///
    /// # Errors
    /// None of its own.
    pub fn missed(&self, module: &dyn Module) -> Result<Vec<String>> {
        struct Missed<'a>(&'a BTreeSet<usize>, Vec<String>);
        impl Visit for Missed<'_> {
            fn adaptable(&mut self, path: &Path, layer: AdaptableLayer<'_>) -> Result<()> {
                let own = layer.by_row.and_then(AdapterSlot::get);
                if own.is_some_and(|own| !self.0.contains(&Rc::as_ptr(&own).addr())) {
                    self.1.push(path.as_str().to_owned());
                }
                Ok(())
            }
        }
        let seen = self.0.seen.as_ref().map(|seen| seen.borrow().clone());
        let seen = seen.unwrap_or_default();
        let mut missed = Missed(&seen, Vec::new());
        module.visit(&mut Path::default(), &mut missed)?;
        Ok(missed.1)
    }

    /// Calls `run`, which builds a computation on this thread. Its layers use the adapters of the tokens.
    pub fn scope<T>(&self, run: impl FnOnce() -> T) -> T {
        struct Restore(Option<Rc<Tokens>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                ACTIVE.set(self.0.take());
            }
        }
        let _restore = Restore(ACTIVE.replace(Some(self.0.clone())));
        run()
    }
}

/// [`TokenAdapters::scope`], if there are adapters.
pub fn with_adapters<T>(tokens: Option<&TokenAdapters>, run: impl FnOnce() -> T) -> T {
    match tokens {
        Some(tokens) => tokens.scope(run),
        None => run(),
    }
}

/// A layer's adapters, and those of the tokens.
pub(crate) struct ActiveAdapters {
    layer: Rc<LayerAdapters>,
    tokens: Rc<Tokens>,
}

impl ActiveAdapters {
    /// The adapters of the tokens of `x`, `[T, .., in]` or `[1, T, in]`, of which there are `tokens`.
    fn list(&self, x: &Array, is_flat: bool) -> Result<TokenList> {
        let shape = x.shape();
        let tokens = match (shape, is_flat) {
            (&[tokens, ..], true) | (&[1, tokens, _] | &[tokens, _], false) => Some(tokens),
            _ => None,
        };
        let lists = match &self.tokens.which {
            Which::All(RowAdapter { number, scale }) => {
                let tokens: i32 = match is_flat {
                    true => shape.first().copied().unwrap_or(1),
                    false => shape[..shape.len().max(1) - 1].iter().product(),
                };
                return Ok(TokenList {
                    index: full(&[tokens], *number as i32 + 1, DType::I32)?,
                    scale: match *scale {
                        1.0 => None,
                        scale => Some(full(&[tokens], scale, DType::F32)?),
                    },
                });
            }
            Which::Lists(lists) => lists,
        };
        let is_of = |list: &&TokenList| tokens.is_some_and(|n| list.index.size() == n as usize);
        lists.iter().find(is_of).cloned().ok_or_else(|| {
            let known: Vec<usize> = lists.iter().map(|list| list.index.size()).collect();
            let message = format!(
                "adapters by row: a layer's input is {shape:?}, in a step of {known:?} tokens"
            );
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// The output of a linear layer, `[.., out]`, from its input `x [.., in]` and its output `y` without adapters and
    /// bias.
    pub(crate) fn add_to(&self, x: &Array, y: &Array) -> Result<Array> {
        if x.size() == 0 {
            return Ok(y.clone());
        }
        let list = self.list(x, false)?;
        let tokens = list.index.size() as i32;
        let mut y = y.clone();
        for stack in &self.layer.stacks {
            let [a, b, flat] = stack.in_one_dtype(x)?;
            let flat = flat.reshape(&[tokens, 1, -1])?;
            let inner = fast::experts_linear(&flat, &a, &list.index)?;
            let inner = inner.multiply(stack.scale(&list, &[tokens, 1, 1], inner.dtype())?)?;
            let z = fast::experts_linear(&inner, &b, &list.index)?;
            y = y.add(z.reshape(y.shape())?.astype(x.dtype())?)?;
        }
        match &self.layer.factors {
            Some(factors) => {
                let factor = factors.take(&list.index, 0)?.reshape(y.shape())?;
                y.multiply(factor.astype(y.dtype())?)
            }
            None => Ok(y),
        }
    }

    /// Rows of an embedding, `[.., E]`, from their `tokens [..]` and the table's rows `y`.
    pub(crate) fn add_to_rows(&self, tokens: &Array, y: &Array) -> Result<Array> {
        // A token may have several rows: [1, T, n].
        let list = match tokens.shape() {
            &[1, _, each] => self.list(tokens, false)?.repeated(each)?,
            _ => self.list(&tokens.expand_dims(-1)?, false)?,
        };
        let count = list.index.size() as i32;
        let ids = tokens.reshape(&[count])?.astype(DType::I32)?;
        let mut y = y.clone();
        for stack in &self.layer.stacks {
            let (Some(lookup), &[_, vocab, rank]) = (&stack.lookup, stack.b.shape()) else {
                continue;
            };
            let at = list.index.multiply(vocab)?.add(&ids)?;
            let inner = stack.b.reshape(&[-1, rank])?.take(&at, 0)?;
            let inner = inner.reshape(&[count, 1, rank])?;
            let z = fast::experts_linear(&inner, lookup, &list.index)?;
            let z = z.multiply(stack.scale(&list, &[count, 1, 1], z.dtype())?)?;
            y = y.add(z.reshape(y.shape())?.astype(y.dtype())?)?;
        }
        match &self.layer.factors {
            Some(factors) => {
                let vocab = factors.dim(1)?;
                let at = list.index.multiply(vocab)?.add(&ids)?;
                let factor = factors.flatten()?.take(&at, 0)?;
                let factor = factor.reshape(tokens.shape())?.expand_dims(-1)?;
                y.multiply(factor.astype(y.dtype())?)
            }
            None => Ok(y),
        }
    }

    /// The output of experts, `[T, K, 1, out]`, from their input `x [T, .., 1, in]`, their output `y`, and the experts of
    /// each token, `[T, K]`.
    pub(crate) fn add_to_experts(&self, x: &Array, y: &Array, experts: &Array) -> Result<Array> {
        let list = self.list(experts, true)?;
        let tokens = list.index.size() as i32;
        let of_token = list.index.multiply(self.layer.experts)?;
        let of_token = of_token.reshape(&[tokens, 1])?;
        let experts = experts.astype(DType::I32)?.add(of_token)?;
        let mut y = y.clone();
        for stack in &self.layer.stacks {
            let [a, b, x] = stack.in_one_dtype(x)?;
            let z = fast::experts_linear(&x, &a, &experts)?;
            let z = fast::experts_linear(&z, &b, &experts)?;
            let z = z.multiply(stack.scale(&list, &[tokens, 1, 1, 1], z.dtype())?)?;
            y = y.add(z.astype(y.dtype())?)?;
        }
        match &self.layer.factors {
            Some(factors) => {
                let factor = factors.take(&experts, 0)?.expand_dims(-2)?;
                y.multiply(factor.astype(y.dtype())?)
            }
            None => Ok(y),
        }
    }
}

impl Stack {
    /// A, B and `x` in the dtype of their products, which is that of a single [`Lora`].
    fn in_one_dtype(&self, x: &Array) -> Result<[Array; 3]> {
        let dtype = if x.dtype() == self.dtype {
            x.dtype()
        } else {
            DType::F32
        };
        Ok([
            self.a.astype(dtype)?,
            self.b.astype(dtype)?,
            x.astype(dtype)?,
        ])
    }

    /// The factor of each token.
    fn scale(&self, list: &TokenList, shape: &[i32], dtype: DType) -> Result<Array> {
        let own = self.scales.take(&list.index, 0)?;
        let scale = match &list.scale {
            Some(scale) => own.multiply(scale)?,
            None => own,
        };
        scale.reshape(shape)?.astype(dtype)
    }
}

/// Fills the stacks of all layers with these adapters, each a [`Lora`] by the path of its layer. A [`RowAdapter`] names
/// one by its index; `None` stands for an index that no row uses. Earlier stacks are replaced. An error leaves them as
/// they are.
///
/// # Errors
/// An adapter does not fit its layer, the layer has an [attached](super::attach) one, or it keeps its matrix in a form
/// that has no adapters by row.
pub fn set_row_adapters(
    module: &dyn Module,
    adapters: &[Option<&BTreeMap<String, Lora>>],
) -> Result<()> {
    struct Make<'a> {
        adapters: &'a [Option<&'a BTreeMap<String, Lora>>],
        made: BTreeMap<String, Rc<LayerAdapters>>,
    }
    impl Visit for Make<'_> {
        fn adaptable(&mut self, path: &Path, layer: AdaptableLayer<'_>) -> Result<()> {
            let name = path.as_str();
            let of = |all: &Option<&'_ BTreeMap<String, Lora>>| {
                all.and_then(|all| all.get(name)).cloned()
            };
            let own: Vec<Option<Lora>> = self.adapters.iter().map(of).collect();
            if own.iter().all(Option::is_none) {
                return Ok(());
            }
            let made = stacked(&own, &layer).map_err(|error| error.context(name))?;
            self.made.insert(name.to_owned(), Rc::new(made));
            Ok(())
        }
    }
    struct Set(BTreeMap<String, Rc<LayerAdapters>>);
    impl Visit for Set {
        fn adaptable(&mut self, path: &Path, layer: AdaptableLayer<'_>) -> Result<()> {
            if let Some(slot) = layer.by_row {
                slot.set(self.0.remove(path.as_str()));
            }
            Ok(())
        }
    }
    let mut make = Make {
        adapters,
        made: BTreeMap::new(),
    };
    module.visit(&mut Path::default(), &mut make)?;
    let strangers = adapters.iter().flatten().flat_map(|all| all.keys());
    if let Some(name) = strangers
        .into_iter()
        .find(|name| !make.made.contains_key(*name))
    {
        let message = format!("{name}: no layer of the model has this name");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let arrays = make.made.values().flat_map(|layer| {
        let stacks = layer.stacks.iter();
        let of_stacks =
            stacks.flat_map(|of| [&of.a, &of.b, &of.scales].into_iter().chain(&of.lookup));
        of_stacks.chain(&layer.factors)
    });
    eval(arrays)?;
    module.visit(&mut Path::default(), &mut Set(make.made))
}

/// The adapters of a layer in one stack for each dtype.
fn stacked(adapters: &[Option<Lora>], layer: &AdaptableLayer<'_>) -> Result<LayerAdapters> {
    let refuse = |message: &str| Err(Error::new(ErrorKind::Unsupported, message.to_owned()));
    if layer.by_row.is_none() {
        return refuse("this layer keeps its matrix in a form that has no adapters by request");
    }
    if layer.lora.is_some() {
        return refuse(
            "this layer has an adapter of its own; adapters by request need a model without it",
        );
    }
    let shape = layer.weight.shape();
    let mut groups: Vec<DType> = Vec::new();
    for lora in adapters.iter().flatten() {
        // It also checks the shapes.
        lora.check(&shape)?;
        let dtype = lora.dtype();
        if !groups.contains(&dtype) {
            groups.push(dtype);
        }
    }
    let stacks = groups.iter().map(|&dtype| {
        let own = |lora: &&Lora| lora.dtype() == dtype;
        let members: Vec<Option<&Lora>> = adapters
            .iter()
            .map(|lora| lora.as_ref().filter(own))
            .collect();
        stack(&members, layer.layout, &shape, dtype)
    });
    let has_factors = adapters.iter().flatten().any(|lora| lora.m.is_some());
    Ok(LayerAdapters {
        stacks: stacks.collect::<Result<_>>()?,
        factors: match has_factors {
            true => Some(factors(adapters, layer)?),
            false => None,
        },
        experts: match layer.layout {
            Layout::Experts => shape[0],
            Layout::Linear | Layout::Embedding => 1,
        },
    })
}

fn stack(members: &[Option<&Lora>], layout: Layout, shape: &[i32], dtype: DType) -> Result<Stack> {
    let ranks = members.iter().flatten().filter_map(|lora| lora.rank());
    let most = ranks.max().unwrap_or(1);
    let (outputs, inputs) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let experts = match layout {
        Layout::Experts => shape[0],
        Layout::Linear | Layout::Embedding => 1,
    };
    let nothing = [
        zeros(&[experts, most, inputs], dtype)?,
        zeros(&[experts, outputs, most], dtype)?,
    ];
    let (mut a, mut b) = (vec![nothing[0].clone()], vec![nothing[1].clone()]);
    let mut scales = vec![0.0];
    for member in members {
        let Some(lora) = member else {
            a.push(nothing[0].clone());
            b.push(nothing[1].clone());
            scales.push(0.0);
            continue;
        };
        let (own_a, own_b) = (lora.lora_a.value(), lora.lora_b.value());
        let [own_a, own_b] = match layout {
            Layout::Linear => [own_a.t()?.expand_dims(0)?, own_b.t()?.expand_dims(0)?],
            // As a tied head its input is a row of the table, and its outputs are the tokens.
            Layout::Embedding => [own_b.expand_dims(0)?, own_a.expand_dims(0)?],
            Layout::Experts => [own_a.clone(), own_b.clone()],
        };
        let missing = most - own_a.dim(1)?;
        let padded = |array: &Array, axis: i32, padding: &[i32]| match missing {
            0 => array.astype(dtype),
            _ => concat(&[array.astype(dtype)?, zeros(padding, dtype)?], axis),
        };
        a.push(padded(&own_a, 1, &[experts, missing, inputs])?);
        b.push(padded(&own_b, 2, &[experts, outputs, missing])?);
        scales.push(lora.scale);
    }
    let a = concat(&a, 0)?.contiguous()?;
    Ok(Stack {
        dtype,
        lookup: match layout {
            Layout::Embedding => Some(a.swapaxes(-1, -2)?.contiguous()?),
            Layout::Linear | Layout::Experts => None,
        },
        a,
        b: concat(&b, 0)?.contiguous()?,
        scales: Array::from_slice(&scales, &[scales.len() as i32])?,
    })
}

/// The quotients of magnitude and length of each row of the matrix, for each adapter.
fn factors(adapters: &[Option<Lora>], layer: &AdaptableLayer<'_>) -> Result<Array> {
    let shape = layer.weight.shape();
    let rows = &shape[..shape.len() - 1];
    let own = |lora: Option<&Lora>| -> Result<Array> {
        let with_m = lora.and_then(|lora| Some((lora, lora.m.as_ref()?)));
        let factor = match with_m {
            Some((lora, m)) => quotient(m.value(), &row_lengths(&lora.adapted(layer.weight)?)?)?,
            None => full(rows, 1.0f32, DType::F32)?,
        };
        match layer.layout {
            Layout::Experts => Ok(factor),
            Layout::Linear | Layout::Embedding => factor.expand_dims(0),
        }
    };
    let mut all = vec![own(None)?];
    for lora in adapters {
        all.push(own(lora.as_ref())?);
    }
    concat(&all, 0)
}
