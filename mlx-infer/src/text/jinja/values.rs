//! Values of templates: the Python values that can occur in a template, with dictionaries and their keys.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::{Rc, Weak};

use super::limits::{self, MAX_DEPTH};
use super::scope::Scope;
use super::{Fail, Result};

/// A value. Lists, tuples and dictionaries do not change once they are made: the sandbox forbids it.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Undefined, with the error message for its use.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Str),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    Range(Range),
    /// The result of `dict.keys()`, `values()` and `items()`.
    View(View, Rc<Dict>),
    /// A generator or iterator. Its items can be read only once.
    Iter(Rc<Iter>),
    Object(Rc<Object>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Keys,
    Values,
    Items,
}

/// A text; `safe` is markupsafe's `Markup`.
#[derive(Clone, Debug)]
pub(super) struct Str(Rc<Text>);

#[derive(Debug)]
struct Text {
    text: Box<str>,
    safe: bool,
}

impl Str {
    pub(super) fn new(text: impl Into<Box<str>>) -> Result<Self> {
        Self::with(text.into(), false)
    }

    pub(super) fn with(text: Box<str>, safe: bool) -> Result<Self> {
        limits::text(text.len())?;
        limits::copy(text.len())?;
        limits::hold(text.len())?;
        Ok(Self(Rc::new(Text { text, safe })))
    }

    pub(super) fn is_safe(&self) -> bool {
        self.0.safe
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Str {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.text
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        limits::release(self.text.len());
    }
}

/// The items of a list or tuple.
#[derive(Debug)]
pub(super) struct Seq {
    items: Vec<Value>,
    depth: u32,
    /// Whether it is a group of `groupby`, whose two items have names.
    pub(super) is_group: bool,
}

impl Seq {
    pub(super) fn new(items: Vec<Value>) -> Result<Rc<Self>> {
        Self::with(items, false)
    }

    pub(super) fn with(items: Vec<Value>, is_group: bool) -> Result<Rc<Self>> {
        limits::items(items.len())?;
        let depth = depth_above(items.iter())?;
        limits::hold(Self::bytes(&items))?;
        Ok(Rc::new(Self {
            items,
            depth,
            is_group,
        }))
    }

    fn bytes(items: &[Value]) -> usize {
        48 + size_of_val(items)
    }
}

impl Deref for Seq {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

impl Drop for Seq {
    fn drop(&mut self) {
        limits::release(Self::bytes(&self.items));
    }
}

/// One more than the depth of the deepest value. More than [`MAX_DEPTH`] is an error.
pub(super) fn depth_above<'a>(values: impl Iterator<Item = &'a Value>) -> Result<u32> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > MAX_DEPTH {
        return Err(Fail::Limit(format!(
            "nests values more than {MAX_DEPTH} deep"
        )));
    }
    Ok(depth)
}

/// `range(start, stop, step)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: i128,
    pub(super) stop: i128,
    pub(super) step: i128,
}

impl Range {
    pub(super) fn len(&self) -> usize {
        let span = if self.step > 0 {
            self.stop.saturating_sub(self.start)
        } else {
            self.start.saturating_sub(self.stop)
        };
        let step = i128::try_from(self.step.unsigned_abs()).unwrap_or(i128::MAX);
        usize::try_from(span.max(0) / step + i128::from(span.max(0) % step > 0))
            .unwrap_or(usize::MAX)
    }

    pub(super) fn at(&self, index: usize) -> i128 {
        self.start
            .saturating_add(self.step.saturating_mul(index as i128))
    }
}

/// Items that can be read once.
///
/// In jinja2 a filter that is a generator does its work when its result is read. Here it works at
/// once, and its error is raised where the generator's would be: after the items before it.
#[derive(Debug)]
pub(super) struct Iter {
    items: Rc<Seq>,
    /// The number of items that were read.
    next: Cell<usize>,
    fail: RefCell<Option<Fail>>,
}

impl Iter {
    /// The next item; none at the end.
    ///
    /// # Errors
    /// That of the generator. It has ended then.
    pub(super) fn take(&self) -> Result<Option<Value>> {
        let at = self.next.get();
        match self.items.get(at) {
            Some(item) => {
                self.next.set(at + 1);
                Ok(Some(item.clone()))
            }
            None => self.fail.take().map_or(Ok(None), Err),
        }
    }

    /// All other items.
    fn rest(&self) -> Result<Vec<Value>> {
        let from = self.next.replace(self.items.len());
        limits::work((self.items.len() - from) as u64)?;
        match self.fail.take() {
            Some(fail) => Err(fail),
            None => Ok(self.items[from..].to_vec()),
        }
    }
}

/// A value with an identity.
#[derive(Debug)]
pub(super) enum Object {
    Namespace(RefCell<Vec<(Str, Value)>>),
    Loop(Loop),
    Macro(BoundMacro),
    Function(Function),
    /// A method of a value.
    Method(Value, &'static str),
    Cycler(Rc<Seq>, Cell<usize>),
    Joiner(Str, Cell<bool>),
}

/// A macro, or the `caller` of a call block.
#[derive(Debug)]
pub(super) struct BoundMacro {
    /// Its index in the template.
    pub(super) at: usize,
    /// The scope of its definition.
    pub(super) scope: Weak<Scope>,
    /// None for a `caller`.
    pub(super) name: Option<Str>,
    /// The names of its parameters.
    pub(super) parameters: Rc<Seq>,
    /// Which of `varargs`, `kwargs` and `caller` its body uses.
    pub(super) uses: [bool; 3],
}

/// Functions that every template has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
    Lipsum,
}

/// A `for` loop in progress.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<Seq>,
    pub(super) index: Cell<usize>,
    pub(super) depth: u32,
    /// The index of the loop in the template and its scope, if it may be called.
    pub(super) recursive: Option<(usize, Weak<Scope>)>,
    pub(super) changed: RefCell<Option<Value>>,
}

impl Value {
    pub(super) fn text(text: &str) -> Result<Self> {
        Str::new(text).map(Self::Str)
    }

    pub(super) fn list(items: Vec<Self>) -> Result<Self> {
        Seq::new(items).map(Self::List)
    }

    pub(super) fn tuple(items: Vec<Self>) -> Result<Self> {
        Seq::new(items).map(Self::Tuple)
    }

    pub(super) fn iter(items: Vec<Self>) -> Result<Self> {
        Self::generator(|all| {
            *all = items;
            Ok(())
        })
    }

    /// The items that `work` adds. An error of `work` is raised when the items are read; a limit is
    /// an error at once.
    pub(super) fn generator(work: impl FnOnce(&mut Vec<Self>) -> Result<()>) -> Result<Self> {
        let mut items = Vec::new();
        let fail = match work(&mut items) {
            Ok(()) => None,
            Err(fail @ Fail::Error(..)) => Some(fail),
            Err(fail) => return Err(fail),
        };
        Ok(Self::Iter(Rc::new(Iter {
            items: Seq::new(items)?,
            next: Cell::new(0),
            fail: RefCell::new(fail),
        })))
    }

    pub(super) fn object(object: Object) -> Self {
        Self::Object(Rc::new(object))
    }

    pub(super) fn undefined(what: impl Into<Rc<str>>) -> Self {
        Self::Undefined(what.into())
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// How deep its lists and dictionaries nest.
    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::List(items) | Self::Tuple(items) => items.depth,
            Self::Dict(dict) | Self::View(_, dict) => dict.depth(),
            Self::Iter(iter) => iter.items.depth,
            Self::Object(object) => match &**object {
                Object::Method(of, _) => of.depth() + 1,
                Object::Cycler(items, _) => items.depth,
                _ => 1,
            },
            _ => 0,
        }
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(text) if text.is_safe() => "Markup",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Range(_) => "range",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Iter(_) => "generator",
            Self::Object(object) => match &**object {
                Object::Namespace(_) => "Namespace",
                Object::Loop(_) => "LoopContext",
                Object::Macro(..) => "Macro",
                Object::Function(_) => "function",
                Object::Method(..) => "method",
                Object::Cycler(..) => "Cycler",
                Object::Joiner(..) => "Joiner",
            },
        }
    }

    /// `bool(value)`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Object(object) => match &**object {
                Object::Loop(state) => !state.items.is_empty(),
                _ => true,
            },
            other => other.len().is_none_or(|len| len > 0),
        }
    }

    /// `len(value)`, in characters; none for values without a length.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Undefined(_) => Some(0),
            Self::Str(text) if text.is_ascii() => Some(text.len()),
            Self::Str(text) => Some(text.chars().count()),
            Self::List(items) | Self::Tuple(items) => Some(items.len()),
            Self::Dict(dict) | Self::View(_, dict) => Some(dict.entries().len()),
            Self::Range(range) => Some(range.len()),
            Self::Object(object) => match &**object {
                Object::Loop(state) => Some(state.items.len()),
                _ => None,
            },
            _ => None,
        }
    }

    /// The items of an iterable value. The items of an iterator are consumed.
    pub(super) fn items(&self) -> Result<Vec<Self>> {
        let items = match self {
            Self::Undefined(_) => Vec::new(),
            Self::Str(text) => {
                limits::items(text.len())?;
                let mut chars = Vec::new();
                for c in text.chars() {
                    // The characters of a safe text are plain, as in markupsafe.
                    chars.push(Self::text(c.encode_utf8(&mut [0; 4]))?);
                }
                chars
            }
            Self::List(items) | Self::Tuple(items) => {
                limits::work(items.len() as u64)?;
                items.to_vec()
            }
            Self::Dict(dict) => keys(dict)?,
            Self::View(View::Keys, dict) => keys(dict)?,
            Self::View(View::Values, dict) => {
                limits::work(dict.entries().len() as u64)?;
                dict.entries()
                    .iter()
                    .map(|(_, value)| value.clone())
                    .collect()
            }
            Self::View(View::Items, dict) => {
                let pair =
                    |(key, value): &(Self, Self)| Self::tuple(vec![key.clone(), value.clone()]);
                dict.entries().iter().map(pair).collect::<Result<_>>()?
            }
            Self::Range(range) => {
                limits::items(range.len())?;
                (0..range.len()).map(|at| Self::Int(range.at(at))).collect()
            }
            Self::Iter(iter) => iter.rest()?,
            other => {
                return Err(Fail::error(format!(
                    "a value of type {} is not iterable",
                    other.type_name()
                )));
            }
        };
        Ok(items)
    }

    /// Whether [`Value::items`] would give items.
    pub(super) fn is_iterable(&self) -> bool {
        !matches!(
            self,
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Object(_)
        )
    }
}

fn keys(dict: &Dict) -> Result<Vec<Value>> {
    limits::work(dict.entries().len() as u64)?;
    Ok(dict.entries().iter().map(|(key, _)| key.clone()).collect())
}

/// A dictionary, in the order of insertion.
#[derive(Debug, Default)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    /// The index of each key that is a text, and of the other keys.
    texts: HashMap<TextKey, usize>,
    others: HashMap<Key, usize>,
    depth: u32,
}

/// The approximate size of an entry and its index.
const ENTRY_BYTES: usize = 128;

impl Dict {
    pub(super) fn new(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Rc<Self>> {
        let mut dict = Self::default();
        for (key, value) in pairs {
            dict.insert(key, value)?;
        }
        limits::items(dict.entries.len())?;
        let values = dict.entries.iter().flat_map(|(key, value)| [key, value]);
        dict.depth = depth_above(values)?;
        Ok(Rc::new(dict))
    }

    /// Sets a key. An existing key keeps its position.
    fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        limits::work(2)?;
        let next = self.entries.len();
        let at = match &key {
            Value::Str(text) => {
                limits::copy(text.len())?;
                *self.texts.entry(TextKey(text.clone())).or_insert(next)
            }
            other => *self.others.entry(Key::of(other)?).or_insert(next),
        };
        if at == next {
            limits::hold(ENTRY_BYTES)?;
            self.entries.push((key, value));
        } else {
            self.entries[at].1 = value;
        }
        Ok(())
    }

    /// The value of a key. It is an error if the value cannot be a key.
    pub(super) fn get(&self, key: &Value) -> Result<Option<&Value>> {
        let at = match key {
            Value::Str(text) => return Ok(self.get_text(text)),
            other => self.others.get(&Key::of(other)?),
        };
        Ok(at.map(|at| &self.entries[*at].1))
    }

    pub(super) fn get_text(&self, key: &str) -> Option<&Value> {
        self.texts.get(key).map(|at| &self.entries[*at].1)
    }

    /// How deep its lists and dictionaries nest.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        limits::release(self.entries.len() * ENTRY_BYTES);
    }
}

#[derive(Debug)]
struct TextKey(Str);

impl PartialEq for TextKey {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl Eq for TextKey {}

impl Hash for TextKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (*self.0).hash(state);
    }
}

impl Borrow<str> for TextKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The identity of values for hashing, as in Python: 1, 1.0 and True are one key.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Undefined,
    None,
    Int(i128),
    Float(u64),
    Text(Rc<str>),
    Tuple(Vec<Self>),
    /// The length of a range, its start if it has items, and its step if it has several.
    Range(usize, i128, i128),
    Object(usize),
}

impl Key {
    pub(super) fn of(value: &Value) -> Result<Self> {
        limits::work(1)?;
        Ok(match value {
            Value::Undefined(_) => Self::Undefined,
            Value::None => Self::None,
            Value::Bool(flag) => Self::Int(i128::from(*flag)),
            Value::Int(number) => Self::Int(*number),
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e38 => {
                Self::Int(*number as i128)
            }
            Value::Float(number) => Self::Float(number.to_bits()),
            Value::Str(text) => {
                limits::copy(text.len())?;
                Self::Text(Rc::from(&**text))
            }
            Value::Tuple(items) => Self::Tuple(items.iter().map(Self::of).collect::<Result<_>>()?),
            Value::Range(range) => match range.len() {
                0 => Self::Range(0, 0, 0),
                1 => Self::Range(1, range.start, 0),
                count => Self::Range(count, range.start, range.step),
            },
            Value::Iter(iter) => Self::Object(Rc::as_ptr(iter).addr()),
            Value::Object(object) => Self::Object(Rc::as_ptr(object).addr()),
            other => {
                return Err(Fail::error(format!(
                    "a value of type {} cannot be a key",
                    other.type_name()
                )));
            }
        })
    }
}
