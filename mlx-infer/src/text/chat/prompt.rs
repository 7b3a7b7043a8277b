//! The prompt text of a conversation.

use super::reply::ReplyFormat;
use super::{ChatTemplate, Message, RenderOptions, merge_system, tools};
use crate::error::Result;

/// The prompt text of a conversation that was [prepared](super::prepare). If the template does not
/// show tools, a system message describes them. If it refuses system messages after the first
/// message, they are merged into the first. If it needs the description or the parameters of a
/// tool, which a tool may leave out, the tool gets empty ones.
///
/// # Errors
/// The template refuses the conversation.
pub fn prompt_text(
    template: &ChatTemplate,
    format: &ReplyFormat,
    messages: &[Message],
    render: &RenderOptions,
) -> Result<String> {
    let described = match &render.tools {
        Some(tools) if !tools.is_empty() && !format.seen().tools => {
            Some(tools::described(messages, tools, format))
        }
        _ => None,
    };
    let messages = described.as_deref().unwrap_or(messages);
    let refused = match template.render(messages, render) {
        Ok(text) => return Ok(text),
        Err(refused) => refused,
    };
    let merged = merge_system(messages);
    let completed = render.tools.as_deref().and_then(tools::completed);
    let completed = completed.map(|tools| RenderOptions {
        tools: Some(tools),
        ..render.clone()
    });
    let all = [
        (merged.as_deref(), None),
        (None, completed.as_ref()),
        (merged.as_deref(), completed.as_ref()),
    ];
    all.into_iter()
        .filter(|(merged, completed)| merged.is_some() || completed.is_some())
        .find_map(|(merged, completed)| {
            let messages = merged.unwrap_or(messages);
            template.render(messages, completed.unwrap_or(render)).ok()
        })
        .ok_or(refused)
}
