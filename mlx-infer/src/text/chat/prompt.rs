//! The prompt text of a conversation.

use super::reply::ReplyFormat;
use super::{ChatTemplate, Message, RenderOptions, merge_system, tools};
use crate::error::Result;

/// The prompt text of a conversation that was [prepared](super::prepare). Tools that the template does not show are described in a system
/// message. Where the template refuses system messages behind others, they are merged in front.
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
    let text = template.render(messages, render);
    let merged = match &text {
        Ok(_) => None,
        Err(_) => merge_system(messages),
    };
    merged.map_or(text, |merged| template.render(&merged, render))
}
