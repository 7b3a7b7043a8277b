//! Dictionaries, and hashing of values.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use super::value::{Str, Value, depth_above};
use super::{Fail, Result, budget};

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
        budget::items(dict.entries.len())?;
        let values = dict.entries.iter().flat_map(|(key, value)| [key, value]);
        dict.depth = depth_above(values)?;
        Ok(Rc::new(dict))
    }

    /// Sets a key. An existing key keeps its position.
    fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        budget::work(2)?;
        let next = self.entries.len();
        let at = match &key {
            Value::Str(text) => {
                budget::copy(text.len())?;
                *self.texts.entry(TextKey(text.clone())).or_insert(next)
            }
            other => *self.others.entry(Key::of(other)?).or_insert(next),
        };
        if at == next {
            budget::hold(ENTRY_BYTES)?;
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
        budget::release(self.entries.len() * ENTRY_BYTES);
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
        budget::work(1)?;
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
                budget::copy(text.len())?;
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
