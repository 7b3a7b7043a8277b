//! Calls whose parameters are written in XML (Qwen3-Coder, GLM).

use serde_json::Value;

use super::super::parser::Out;
use super::super::{ToolFormat, values};
use super::{Block, MAX_NAME, Progress, Stage, Tools};

impl Block {
    /// The name of a call in XML.
    pub(super) fn xml_head(
        &mut self,
        text: &mut String,
        tools: &Tools,
        out: &mut Out,
    ) -> Option<Progress> {
        let (name, end) = if tools.format == ToolFormat::Glm {
            let ends = ["\n", "<arg_key>", "</tool_call>"];
            let begun = text.len() - text.trim_start().len();
            let found = ends.iter().filter_map(|end| text[begun..].find(end)).min();
            let Some(at) = found else {
                let is_long = text.len() > MAX_NAME;
                return Some(if is_long {
                    Progress::NotACall
                } else {
                    Progress::Wait
                });
            };
            (text[begun..begun + at].trim().to_owned(), begun + at)
        } else {
            const FUNCTION: &str = "<function=";
            let mut begun = text.len() - text.trim_start().len();
            if self.open != FUNCTION {
                let rest = &text[begun..];
                if !rest.starts_with(FUNCTION) {
                    let may_be = FUNCTION.starts_with(rest);
                    return Some(if may_be {
                        Progress::Wait
                    } else {
                        Progress::NotACall
                    });
                }
                begun += FUNCTION.len();
            }
            let Some(at) = text[begun..].find('>') else {
                let is_long = text.len() > MAX_NAME;
                return Some(if is_long {
                    Progress::NotACall
                } else {
                    Progress::Wait
                });
            };
            (text[begun..begun + at].trim().to_owned(), begun + at + 1)
        };
        if !tools.has(&name) {
            return Some(Progress::NotACall);
        }
        self.begin(&name, out);
        text.drain(..end);
        self.stage = Stage::Parameters {
            tool: name,
            given: 0,
        };
        None
    }

    /// The next parameter in XML, or the end of them.
    pub(super) fn parameters(
        &mut self,
        text: &mut String,
        tools: &Tools,
        out: &mut Out,
    ) -> Option<Progress> {
        let Stage::Parameters { tool, given } = &mut self.stage else {
            return Some(Progress::NotACall);
        };
        let is_glm = tools.format == ToolFormat::Glm;
        let (open, close) = match is_glm {
            true => ("<arg_key>", "</tool_call>"),
            false => ("<parameter=", "</function>"),
        };
        let rest = text.trim_start();
        if let Some(behind) = rest.strip_prefix(open) {
            let pair = match is_glm {
                true => glm_pair(behind),
                false => coder_pair(behind),
            };
            let Some((key, value, end)) = pair else {
                return Some(Progress::Wait);
            };
            let value = values::by_schema(tools.schema(tool, &key), &value);
            let begin = if *given == 0 { "{" } else { ", " };
            out.arguments(&format!("{begin}{}: {value}", Value::from(key)));
            *given += 1;
            let start = text.len() - behind.len();
            text.drain(..start + end);
            return None;
        }
        let is_closed = rest.starts_with(close);
        if !is_closed && (open.starts_with(rest) || close.starts_with(rest)) {
            return Some(Progress::Wait);
        }
        out.arguments(if *given == 0 { "{}" } else { "}" });
        out.end();
        let taken = text.len() - rest.len() + if is_closed { close.len() } else { 0 };
        text.drain(..taken);
        if is_glm {
            return Some(Progress::Done);
        }
        self.stage = Stage::Tail;
        None
    }
}

/// `k</arg_key><arg_value>v</arg_value>`, and its length.
fn glm_pair(text: &str) -> Option<(String, String, usize)> {
    const END: &str = "</arg_value>";
    let (key, behind) = text.split_once("</arg_key>")?;
    let value = behind.trim_start().strip_prefix("<arg_value>")?;
    let (value, rest) = value.split_once(END)?;
    Some((
        key.trim().to_owned(),
        value.to_owned(),
        text.len() - rest.len(),
    ))
}

/// `k>v</parameter>`, and its length. A parameter that is not closed ends at the next one.
fn coder_pair(text: &str) -> Option<(String, String, usize)> {
    const END: &str = "</parameter>";
    let (key, value) = text.split_once('>')?;
    let ends = [END, "<parameter=", "</function>"];
    let at = ends.iter().filter_map(|end| value.find(end)).min()?;
    let is_closed = value[at..].starts_with(END);
    let end = text.len() - value.len() + at + if is_closed { END.len() } else { 0 };
    let value = &value[..at];
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    Some((key.trim().to_owned(), value.to_owned(), end))
}
