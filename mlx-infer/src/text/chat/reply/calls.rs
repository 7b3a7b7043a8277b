//! The parts that a parser has found, and the calls among them.

use serde_json::Value;

use super::Part;

/// The number of bytes of a call's arguments that are held back. A shorter call is returned when it
/// is complete, so that a text that turns out not to be a call stays content. The arguments of a
/// longer call are returned while the model writes them.
const HELD_BYTES: usize = 128;

/// The offered tools.
#[derive(Debug, Default)]
pub(super) struct Tools(Vec<(String, Value)>);

impl Tools {
    /// Reads tools in OpenAI's form, `{"type": "function", "function": {..}}`, or the inner object
    /// of that form.
    pub(super) fn new(tools: &[Value]) -> Self {
        let tool = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name")?.as_str()?.to_owned();
            Some((
                name,
                function.get("parameters").cloned().unwrap_or_default(),
            ))
        };
        Self(tools.iter().filter_map(tool).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// The schema of a parameter, if the tool has one of that name.
    pub(super) fn parameter(&self, tool: &str, name: &str) -> Option<&Value> {
        let (_, schema) = self.0.iter().find(|(known, _)| known == tool)?;
        schema.get("properties")?.get(name)
    }
}

/// The parts of a reply.
#[derive(Debug, Default)]
pub(super) struct ReplyParts {
    parts: Vec<Part>,
    /// The number of calls that were returned, at least in part.
    calls: usize,
    open: Option<Open>,
    /// Whether a part of a call was returned since the last [`ReplyParts::moved`].
    has_moved: bool,
}

/// A call that is not complete.
#[derive(Debug)]
struct Open {
    name: String,
    /// Arguments that are held back.
    held: String,
    is_given: bool,
}

impl ReplyParts {
    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }

    pub(super) fn content(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Content(said)) => said.push_str(text),
            _ => self.parts.push(Part::Content(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Reasoning(said)) => said.push_str(text),
            _ => self.parts.push(Part::Reasoning(text.to_owned())),
        }
    }

    /// Whether a call was returned.
    pub(super) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether a part of a call was returned since the last call of this method.
    pub(super) fn moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Begins a call.
    pub(super) fn start(&mut self, name: &str) {
        self.open = Some(Open {
            name: name.to_owned(),
            held: String::new(),
            is_given: false,
        });
    }

    /// Adds to the arguments of the call that was begun.
    pub(super) fn arguments(&mut self, text: &str) {
        if let Some(open) = &mut self.open {
            open.held.push_str(text);
            if open.is_given || open.held.len() >= HELD_BYTES {
                self.give();
            }
        }
    }

    /// Records that the call is complete.
    pub(super) fn end(&mut self) {
        self.give();
        if self.open.take().is_some() {
            self.parts.push(Part::CallEnd {
                index: self.calls - 1,
            });
        }
    }

    /// Ends a call that is not complete. Returns whether its beginning was returned to the caller.
    /// With `force` it is returned now if it has arguments.
    pub(super) fn cut(&mut self, force: bool) -> bool {
        if force && self.open.as_ref().is_some_and(|open| !open.held.is_empty()) {
            self.give();
        }
        self.open.take().is_some_and(|open| open.is_given)
    }

    fn give(&mut self) {
        let Some(open) = &mut self.open else { return };
        if !open.is_given {
            open.is_given = true;
            self.calls += 1;
            let (index, name) = (self.calls - 1, open.name.clone());
            self.parts.push(Part::CallStart { index, name });
        }
        let text = std::mem::take(&mut open.held);
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::CallArguments { json, .. }) => json.push_str(&text),
            _ => self.parts.push(Part::CallArguments {
                index: self.calls - 1,
                json: text,
            }),
        }
        self.has_moved = true;
    }
}
