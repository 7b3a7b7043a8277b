//! Finds out which parts of a conversation a chat template shows to its model.

#[cfg(feature = "clock")]
use jiff::civil::DateTime;
use serde_json::{Value, json};

use crate::text::chat::{ChatTemplate, Message, RenderOptions};

/// The parts of a conversation that the model sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text::chat) struct Seen {
    /// The offered tools.
    pub(in crate::text::chat) tools: bool,
    /// Calls and their results in messages.
    pub(in crate::text::chat) calls: bool,
    /// System messages. A template that does not show them refuses them.
    pub(in crate::text::chat) system: bool,
    /// Calls and results whose ids are not 9 letters or digits, as other servers make them. Mistral's templates refuse
    /// them.
    pub(in crate::text::chat) long_ids: bool,
}

/// Words that no template contains.
const NAME: &str = "probe_of_a_name";
const RESULT: &str = "probe_of_a_result";

impl Seen {
    #[cfg(test)]
    pub(super) const ALL: Self = Self {
        tools: true,
        calls: true,
        system: true,
        long_ids: true,
    };

    /// Renders small conversations.
    pub(super) fn by(template: &ChatTemplate) -> Self {
        let tool = json!({"type": "function", "function": {
            "name": NAME, "description": "", "parameters": {"type": "object", "properties": {}},
        }});
        let text = |messages: &[Message], tools: Option<Vec<Value>>| {
            let options = RenderOptions {
                tools,
                add_generation_prompt: true,
                #[cfg(feature = "clock")]
                now: Some(DateTime::constant(2026, 1, 1, 0, 0, 0, 0)),
                ..Default::default()
            };
            template.render(messages, &options).ok()
        };
        let question = Message::new("user", "x");
        let shows_calls = |id: &str, arguments: Value| {
            let call = json!({"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}});
            let conversation = [
                question.clone(),
                Message::new("assistant", "").with("tool_calls", vec![call]),
                Message::new("tool", RESULT)
                    .with("tool_call_id", id)
                    .with("name", NAME),
            ];
            // Without offered tools, so that the name can only come from the call.
            text(&conversation, None)
                .or_else(|| text(&conversation, Some(vec![tool.clone()])))
                .is_some_and(|text| text.contains(NAME) && text.contains(RESULT))
        };
        let shows_ids = |id: &str| shows_calls(id, json!({})) || shows_calls(id, json!("{}"));
        let calls = shows_ids("call00001");
        let system = [Message::new("system", RESULT), question.clone()];
        let [with, without] = [Some(vec![tool.clone()]), None]
            .map(|tools| text(std::slice::from_ref(&question), tools));
        Self {
            // A template that refuses the conversation does not show tools.
            tools: without.is_none() || with != without,
            calls,
            long_ids: !calls || shows_ids("call_of_another_server"),
            system: text(&system, None).is_some_and(|text| text.contains(RESULT)),
        }
    }
}
