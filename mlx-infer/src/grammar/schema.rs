//! JSON schemas in the form that the grammar engine reads exactly.
//!
//! An object with `properties` and without `additionalProperties` is closed. Schemas that apply to
//! the same value (`allOf`, `$ref` and other keywords beside each other) are closed together, over
//! the properties of all of them, as with `unevaluatedProperties: false`. A number that the engine
//! would round is refused, and the error names its keyword.

mod formats;
mod numbers;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use serde_json::{Map, Value};

pub(super) use self::numbers::{MULTIPLE, MULTIPLES, divides};

/// The most subschemas of a JSON schema, before and after its references are followed.
pub(super) const SUBSCHEMAS: usize = 16_384;

/// The most names of properties that are collected for schemas which apply together.
const NAMES: usize = 1_000_000;

/// A schema, and the keywords in it that have no effect.
pub(super) struct Prepared {
    pub(super) schema: Map<String, Value>,
    pub(super) ignored: Vec<String>,
}

/// Rewrites a schema. Unless `strict`, keywords that are not supported have no effect.
///
/// # Errors
/// A number is outside the range of exact numbers, or the schema is too large.
pub(super) fn prepare(schema: &Map<String, Value>, strict: bool) -> Result<Prepared, String> {
    let root = Value::Object(schema.clone());
    let mut rewriter = Rewriter {
        root: &root,
        strict,
        ignored: Vec::new(),
        subschemas: 0,
        defined: HashMap::new(),
        names: Map::new(),
        queue: VecDeque::new(),
        known: HashMap::new(),
        collected: 0,
    };
    let alone = Scope::default();
    let Value::Object(mut schema) = rewriter.rewritten(&root, &alone)? else {
        unreachable!("an object stays an object");
    };
    let mut definitions = Map::new();
    while let Some((name, definition, scope)) = rewriter.queue.pop_front() {
        let definition = rewriter.rewritten(definition, &scope)?;
        definitions.insert(name, definition);
    }
    if !definitions.is_empty() {
        schema.insert("$defs".to_owned(), Value::Object(definitions));
    }
    let ignored = rewriter.ignored;
    Ok(Prepared { schema, ignored })
}

/// Properties that a schema declares, in order. The values of the maps are `true`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Declared {
    names: Map<String, Value>,
    patterns: Map<String, Value>,
    /// Whether the schema says that an object may have other properties.
    is_open: bool,
}

impl Declared {
    fn len(&self) -> usize {
        self.names.len() + self.patterns.len()
    }

    fn add(&mut self, other: &Self) {
        let all = |map: &Map<String, Value>| map.clone().into_iter();
        self.names.extend(all(&other.names));
        self.patterns.extend(all(&other.patterns));
        self.is_open |= other.is_open;
    }
}

/// What other schemas declare about the value that a schema describes.
type Scope = Rc<Declared>;

/// A schema that describes the same value as the schemas beside it.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Own,
    Reference,
    /// The element of `allOf` with this index.
    All(usize),
    Any,
    One,
    /// A schema with a condition (`then`, `else`, `dependentSchemas`). It has no effect, but the
    /// properties that it names may occur.
    Conditional,
}

struct Rewriter<'s> {
    root: &'s Value,
    strict: bool,
    ignored: Vec<String>,
    subschemas: usize,
    /// The name of the definition for a reference in a scope.
    defined: HashMap<(String, String), String>,
    /// The names that definitions have got.
    names: Map<String, Value>,
    /// Definitions that are referred to and not yet rewritten.
    queue: VecDeque<(String, &'s Value, Scope)>,
    /// What the targets of references declare; `None` while that is computed.
    known: HashMap<String, Option<Rc<Declared>>>,
    /// The number of names that were collected for schemas that apply together.
    collected: usize,
}

impl<'s> Rewriter<'s> {
    fn rewritten(&mut self, schema: &'s Value, scope: &Scope) -> Result<Value, String> {
        let Value::Object(entries) = schema else {
            return Ok(schema.clone());
        };
        self.subschemas += 1;
        if self.subschemas > SUBSCHEMAS {
            return Err(format!(
                "with its references followed it has more than {SUBSCHEMAS} subschemas"
            ));
        }
        let parts = self.parts(entries)?;
        let scope_of = |part: Part| -> Scope {
            let others = parts.iter().filter(|(other, _)| *other != part);
            let mut others = others.map(|(_, declared)| declared).peekable();
            if others.peek().is_none() {
                return scope.clone();
            }
            let mut all = Declared::clone(scope);
            others.for_each(|declared| all.add(declared));
            Rc::new(all)
        };
        let mut out = Map::new();
        for (key, value) in entries {
            let value = match (key.as_str(), value) {
                // The definitions that are used are added at the end.
                ("$defs" | "definitions", _) => continue,
                ("properties" | "patternProperties", Value::Object(map)) => {
                    let mut all = Map::new();
                    for (name, schema) in map {
                        all.insert(name.clone(), self.alone(schema)?);
                    }
                    Value::Object(all)
                }
                ("items" | "prefixItems", Value::Array(list)) => {
                    let list = list.iter().map(|schema| self.alone(schema));
                    Value::Array(list.collect::<Result<_, _>>()?)
                }
                ("additionalProperties" | "items" | "additionalItems", schema) => {
                    self.alone(schema)?
                }
                ("allOf", Value::Array(list)) => {
                    let list = (list.iter().enumerate())
                        .map(|(at, schema)| self.rewritten(schema, &scope_of(Part::All(at))));
                    Value::Array(list.collect::<Result<_, _>>()?)
                }
                ("anyOf" | "oneOf", Value::Array(list)) => {
                    let part = match key.as_str() {
                        "anyOf" => Part::Any,
                        _ => Part::One,
                    };
                    let scope = scope_of(part);
                    let list = list.iter().map(|schema| self.rewritten(schema, &scope));
                    Value::Array(list.collect::<Result<_, _>>()?)
                }
                ("$ref", Value::String(reference)) => {
                    self.reference(reference, &scope_of(Part::Reference))
                }
                _ => value.clone(),
            };
            out.insert(key.clone(), value);
        }
        close(&mut out, &scope_of(Part::Own), is_open(entries));
        self.number(&mut out)?;
        self.format(&mut out);
        Ok(Value::Object(out))
    }

    /// A schema whose value no other schema describes.
    fn alone(&mut self, schema: &'s Value) -> Result<Value, String> {
        self.rewritten(schema, &Scope::default())
    }

    /// The schemas in `entries` that describe the same value, and what they declare. A single one needs no list.
    fn parts(&mut self, entries: &'s Map<String, Value>) -> Result<Vec<(Part, Declared)>, String> {
        let mut found: Vec<(Part, Vec<&'s Value>)> = Vec::new();
        for (key, value) in entries {
            let list = || value.as_array().into_iter().flatten();
            match key.as_str() {
                "allOf" => found.extend(
                    list()
                        .enumerate()
                        .map(|(at, schema)| (Part::All(at), vec![schema])),
                ),
                "anyOf" => found.push((Part::Any, list().collect())),
                "oneOf" => found.push((Part::One, list().collect())),
                "then" | "else" => found.push((Part::Conditional, vec![value])),
                "dependentSchemas" => {
                    let schemas = value.as_object().into_iter().flat_map(Map::values);
                    found.push((Part::Conditional, schemas.collect()));
                }
                _ => {}
            }
        }
        let own = own(entries);
        let has_own = own != Declared::default();
        let reference = entries.get("$ref").and_then(Value::as_str);
        if found.len() + usize::from(has_own) + usize::from(reference.is_some()) < 2 {
            return Ok(Vec::new());
        }
        let mut parts = Vec::new();
        for (part, schemas) in found {
            let mut declared = Declared::default();
            for schema in schemas {
                self.declared(schema, &mut declared)?;
            }
            parts.push((part, declared));
        }
        if let Some(reference) = reference {
            let mut declared = Declared::default();
            self.declared_by(reference, &mut declared)?;
            parts.push((Part::Reference, declared));
        }
        if has_own {
            parts.push((Part::Own, own));
        }
        // Each part gets the names of the others.
        let names = parts.iter().map(|(_, declared)| declared.len());
        self.count(parts.len() * names.sum::<usize>())?;
        Ok(parts)
    }

    /// Adds what a schema declares about its value.
    fn declared(&mut self, schema: &'s Value, into: &mut Declared) -> Result<(), String> {
        let Value::Object(entries) = schema else {
            return Ok(());
        };
        into.add(&own(entries));
        for (key, value) in entries {
            match (key.as_str(), value) {
                ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                    for schema in list {
                        self.declared(schema, into)?;
                    }
                }
                ("then" | "else", schema) => self.declared(schema, into)?,
                ("$ref", Value::String(reference)) => self.declared_by(reference, into)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the declarations of a reference's target.
    fn declared_by(&mut self, reference: &str, into: &mut Declared) -> Result<(), String> {
        if !self.known.contains_key(reference) {
            // A reference within its own target adds nothing.
            self.known.insert(reference.to_owned(), None);
            let mut declared = Declared::default();
            if let Some(target) = target(self.root, reference) {
                self.declared(target, &mut declared)?;
            }
            self.count(declared.len())?;
            self.known
                .insert(reference.to_owned(), Some(Rc::new(declared)));
        }
        if let Some(Some(declared)) = self.known.get(reference) {
            into.add(declared);
        }
        Ok(())
    }

    /// Counts names that are collected.
    fn count(&mut self, names: usize) -> Result<(), String> {
        self.collected += names;
        match self.collected > NAMES {
            true => Err(format!(
                "the schemas that apply together repeat more than {NAMES} properties"
            )),
            false => Ok(()),
        }
    }

    /// The reference to the definition for the target of `reference` in a scope.
    fn reference(&mut self, reference: &str, scope: &Scope) -> Value {
        let Some(target) = target(self.root, reference) else {
            // The compiler reports what is wrong with it.
            return reference.into();
        };
        let scope_key = match **scope == Declared::default() {
            true => String::new(),
            false => format!("{scope:?}"),
        };
        let key = (reference.to_owned(), scope_key);
        if let Some(name) = self.defined.get(&key) {
            return format!("#/$defs/{name}").into();
        }
        let last = reference.rsplit('/').next().unwrap_or_default();
        let base = match last.trim_matches('#') {
            "" => "root",
            name => name,
        };
        let mut name = base.to_owned();
        let mut number = 1;
        while self.names.contains_key(&name) {
            number += 1;
            name = format!("{base} {number}");
        }
        self.names.insert(name.clone(), Value::Null);
        self.defined.insert(key, name.clone());
        self.queue.push_back((name.clone(), target, scope.clone()));
        format!("#/$defs/{name}").into()
    }

    fn ignore(&mut self, name: &str) {
        if !self.ignored.iter().any(|known| known == name) {
            self.ignored.push(name.to_owned());
        }
    }
}

/// What the schema's own keywords declare. A property that is required and not described may have any value.
fn own(entries: &Map<String, Value>) -> Declared {
    let names = |key: &str| {
        let names = entries.get(key).and_then(Value::as_object);
        names.into_iter().flat_map(Map::keys).cloned()
    };
    let any = |name: String| (name, Value::Bool(true));
    Declared {
        names: names("properties")
            .chain(required(entries))
            .map(any)
            .collect(),
        patterns: names("patternProperties").map(any).collect(),
        is_open: is_open(entries),
    }
}

/// The names of the required properties.
fn required(entries: &Map<String, Value>) -> impl Iterator<Item = String> {
    let names = entries.get("required").and_then(Value::as_array);
    let names = names.into_iter().flatten();
    names.filter_map(|name| name.as_str().map(str::to_owned))
}

/// Whether a schema says that an object may have other properties.
fn is_open(entries: &Map<String, Value>) -> bool {
    ["additionalProperties", "unevaluatedProperties"]
        .iter()
        .filter_map(|key| entries.get(*key))
        .any(|value| *value != Value::Bool(false))
}

/// Closes an object that names its properties and does not say whether it may have others. It may
/// also have the properties of the schemas that apply to the same value.
fn close(entries: &mut Map<String, Value>, beside: &Declared, is_open: bool) {
    if is_open || beside.is_open || entries.contains_key("additionalProperties") {
        return;
    }
    let required: Vec<String> = required(entries).collect();
    let Some(Value::Object(properties)) = entries.get_mut("properties") else {
        return;
    };
    for name in required.iter().chain(beside.names.keys()) {
        properties.entry(name.clone()).or_insert(Value::Bool(true));
    }
    // The three keywords stand together, because the compiler reads the keywords in groups.
    let patterns = entries.shift_remove("patternProperties");
    let at = entries.keys().position(|key| key == "properties");
    let behind = at.map_or(0, |at| at + 1);
    let patterns = match (patterns, beside.patterns.is_empty()) {
        (None, true) => None,
        (Some(Value::Object(mut own)), _) => {
            for (pattern, any) in &beside.patterns {
                own.entry(pattern.clone()).or_insert_with(|| any.clone());
            }
            Some(Value::Object(own))
        }
        (None, false) => Some(Value::Object(beside.patterns.clone())),
        (other, _) => other,
    };
    entries.shift_insert(behind, "additionalProperties".to_owned(), false.into());
    if let Some(patterns) = patterns {
        entries.shift_insert(behind, "patternProperties".to_owned(), patterns);
    }
}

/// The target of a reference within the schema.
fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    let path = reference.strip_prefix('#')?;
    if path.is_empty() || path == "/" {
        return Some(root);
    }
    let mut found = root;
    for segment in path.strip_prefix('/')?.split('/') {
        let written = || segment.replace("~1", "/").replace("~0", "~");
        found = match found {
            Value::Array(list) => list.get(segment.parse::<usize>().ok()?)?,
            Value::Object(map) => map.get(segment).or_else(|| map.get(&written()))?,
            _ => return None,
        };
    }
    Some(found)
}
