//! [`Encoder`]: a model that turns texts into features and generates none, and [`Texts`], its
//! input.

use std::ops::Range;

use mlx_core::{Array, Error, ErrorKind, Result, fast};

/// A model whose tokens see those before and after them: the features of texts, without a cache.
///
/// [`Model::encoder`](super::Model::encoder) returns it.
pub trait Encoder {
    /// The features of all tokens, `[T, E]`, in the order of [`Texts`].
    ///
    /// # Errors
    /// A text has more tokens than the model has positions, or an id is not in the vocabulary.
    fn encode(&self, texts: &Texts) -> Result<Array>;

    /// The number of classes of the classification head; 0 without a head. With one class it is the
    /// relevance of a pair of texts.
    fn classes(&self) -> usize;

    /// The logits of the classification head, `[B, classes]`, from the features `[T, E]` of
    /// [`encode`](Self::encode).
    ///
    /// # Errors
    /// The checkpoint has no classification head.
    fn classify(&self, features: &Array, texts: &Texts) -> Result<Array>;
}

/// The tokens of several texts on one axis of `T` tokens, one text after the other, without
/// padding. What is computed of whole texts at the end ([`reduce`](Self::reduce)) is computed for
/// neighbours of the same length together, so texts that are sorted by length need the fewest
/// operations.
///
/// ```
/// use mlx_models::Texts;
///
/// # fn main() -> mlx_core::Result<()> {
/// let texts = Texts::new(&[&[2u32, 9, 3], &[2, 4, 3], &[2, 3]])?;
/// assert_eq!((texts.count(), texts.tokens()), (3, 8));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Texts {
    ids: Vec<u32>,
    types: Vec<u32>,
    groups: Vec<TextGroup>,
    longest: i32,
    /// I32 `[B + 1]`
    starts: Array,
    /// I32 `[1, T]`
    positions: Array,
}

/// Neighbouring texts of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextGroup {
    /// The place of the first token.
    pub start: i32,
    /// The number of texts.
    pub rows: i32,
    /// The number of tokens of each text.
    pub len: i32,
}

impl TextGroup {
    /// The places of the tokens.
    pub fn range(&self) -> Range<i32> {
        self.start..self.start + self.rows * self.len
    }

    /// The group's tokens of `x` `[T, F]`, as `[rows, len, F]`.
    ///
    /// # Errors
    /// `x` has fewer tokens.
    pub fn of(&self, x: &Array) -> Result<Array> {
        let range = self.range();
        x.slice_axis(0, range.start, range.end)?
            .reshape(&[self.rows, self.len, -1])
    }
}

impl Texts {
    /// Texts of these token ids. Every token is of type 0.
    ///
    /// # Errors
    /// There is no text, a text is empty, or there are 2^31 tokens.
    pub fn new(texts: &[&[u32]]) -> Result<Self> {
        let types: Vec<Vec<u32>> = texts.iter().map(|ids| vec![0; ids.len()]).collect();
        let with_types = texts.iter().copied().zip(types.iter().map(Vec::as_slice));
        Self::with_types(&with_types.collect::<Vec<_>>())
    }

    /// Texts of these token ids and token types. Types distinguish the texts of a pair.
    ///
    /// # Errors
    /// There is no text, a text is empty or has another number of types, or there are 2^31 tokens.
    pub fn with_types(texts: &[(&[u32], &[u32])]) -> Result<Self> {
        let (mut ids, mut types) = (Vec::new(), Vec::new());
        let mut groups: Vec<TextGroup> = Vec::new();
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        for (index, (text, text_types)) in texts.iter().enumerate() {
            if text.is_empty() {
                return invalid(format!("text {index} has no tokens"));
            }
            if text.len() != text_types.len() {
                let (tokens, found) = (text.len(), text_types.len());
                return invalid(format!(
                    "text {index} has {tokens} tokens, and {found} token types"
                ));
            }
            let (Ok(start), Ok(len)) = (i32::try_from(ids.len()), i32::try_from(text.len())) else {
                return invalid("the texts have 2^31 tokens or more".to_owned());
            };
            match groups.last_mut() {
                Some(last) if last.len == len => last.rows += 1,
                _ => groups.push(TextGroup {
                    start,
                    rows: 1,
                    len,
                }),
            }
            ids.extend_from_slice(text);
            types.extend_from_slice(text_types);
        }
        if ids.is_empty() {
            return invalid("there are no texts".to_owned());
        }
        let lens = groups
            .iter()
            .flat_map(|group| (0..group.rows).map(|_| group.len));
        let positions: Vec<i32> = lens.clone().flat_map(|len| 0..len).collect();
        let ends = lens.clone().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        let starts: Vec<i32> = [0].into_iter().chain(ends).collect();
        Ok(Self {
            longest: lens.max().unwrap_or(0),
            starts: Array::from_slice(&starts, &[starts.len() as i32])?,
            positions: Array::from_slice(&positions, &[1, positions.len() as i32])?,
            ids,
            types,
            groups,
        })
    }

    /// The number of texts.
    pub fn count(&self) -> usize {
        self.groups.iter().map(|group| group.rows as usize).sum()
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// The texts in their order, in groups of one length.
    pub fn groups(&self) -> &[TextGroup] {
        &self.groups
    }

    /// The most tokens of a text.
    pub fn longest(&self) -> i32 {
        self.longest
    }

    /// The texts as rows of the axis of all tokens.
    pub fn rows(&self) -> fast::RaggedRows<'_> {
        fast::RaggedRows {
            starts: &self.starts,
            longest: self.longest,
        }
    }

    /// The place of each token in its text, I32 `[1, T]`.
    pub fn positions(&self) -> &Array {
        &self.positions
    }

    /// The ids of all tokens.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The types of all tokens.
    pub fn types(&self) -> &[u32] {
        &self.types
    }

    /// The features of one token of each text, `[B, F]`, from those of all tokens, `[T, F]`.
    /// `place` is the place in a text of the given length.
    ///
    /// # Errors
    /// `x` has another number of tokens.
    pub fn pick(&self, x: &Array, place: impl Fn(usize) -> usize) -> Result<Array> {
        let places = self.groups.iter().flat_map(|group| {
            let place = place(group.len as usize) as i32;
            (0..group.rows).map(move |row| group.start + row * group.len + place)
        });
        let places: Vec<i32> = places.collect();
        x.take(&Array::from_slice(&places, &[places.len() as i32])?, 0)
    }

    /// A feature of each text, `[B, F]`, by a function from the features `[rows, len, F]` of a
    /// group to `[rows, F]`. `x` is `[T, F]`.
    ///
    /// # Errors
    /// Those of `each`; or `x` has another number of tokens.
    pub fn reduce(&self, x: &Array, each: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
        let groups = self.groups.iter().map(|group| each(&group.of(x)?));
        joined(groups.collect::<Result<Vec<_>>>()?)
    }
}

/// Arrays one after the other along the first axis.
fn joined(arrays: Vec<Array>) -> Result<Array> {
    match arrays.as_slice() {
        [one] => Ok(one.clone()),
        many => mlx_core::ops::concat(&many.iter().collect::<Vec<_>>(), 0),
    }
}
