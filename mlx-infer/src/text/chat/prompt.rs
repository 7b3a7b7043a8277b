//! The prompt text of a conversation.

use super::reply::ReplyFormat;
use super::{ChatTemplate, Message, RenderOptions, merge_system, tools};
use crate::error::Result;

/// The prompt text of a conversation that was [prepared](super::prepare). Tools that the template does not show are described in a system
/// message. Where the template refuses system messages behind others, they are merged in front. Where it needs what a tool may leave out (its
/// description or its parameters), the tool gets an empty one.
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
