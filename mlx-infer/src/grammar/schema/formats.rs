//! Formats of strings. A format for which neither this file nor the compiler has a regular
//! expression is an annotation without effect, which is JSON Schema's default.

use serde_json::{Map, Value, json};

use super::Rewriter;

/// Formats for which the compiler has a regular expression.
const COMPILED: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];

/// RFC 6901, section 3.
const POINTER: &str = "(/([^/~]|~[01])*)*";

/// RFC 3986, appendix A: a reference without a scheme, whose host is a name.
const RELATIVE: &str = concat!(
    "(//",
    "(([a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?",
    "([a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*(:[0-9]*)?",
    "(/([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})*)*",
    "|/(([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})+(/([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})*)*)?",
    "|([a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+(/([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})*)*",
    "|)",
    "(\\?([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})*)?",
    "(#([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})*)?",
);

impl Rewriter<'_> {
    /// Rewrites the format of a schema.
    pub(super) fn format(&mut self, entries: &mut Map<String, Value>) {
        let Some(Value::String(format)) = entries.get("format") else {
            return;
        };
        if COMPILED.contains(&format.as_str()) {
            return;
        }
        let format = format.clone();
        let pattern = |expression: &str| json!({"pattern": format!("^({expression})$")});
        let held = match format.as_str() {
            "json-pointer" => pattern(POINTER),
            "relative-json-pointer" => pattern(&format!("(0|[1-9][0-9]*)(#|{POINTER})")),
            "uri-reference" => json!({"anyOf": [{"format": "uri"}, pattern(RELATIVE)]}),
            _ => {
                entries.shift_remove("format");
                let may_be_text = match entries.get("type") {
                    Some(Value::String(kind)) => kind == "string",
                    Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
                    _ => true,
                };
                if may_be_text {
                    self.ignore(&format!("format {format}"));
                }
                return;
            }
        };
        entries.shift_remove("format");
        match entries.get_mut("allOf").and_then(Value::as_array_mut) {
            Some(list) => list.push(held),
            None => {
                entries.insert("allOf".to_owned(), vec![held].into());
            }
        }
    }
}
