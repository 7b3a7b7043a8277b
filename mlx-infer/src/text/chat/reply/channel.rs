//! The heads of messages in Muse's replies, ` to=RECIPIENT<|message|>`. A message to `self` is reasoning; one to `user` or
//! `commentary` is content, and one to a tool holds its call.

/// Before a head. Prompts end with it.
pub(super) const START: &str = "<|start|>assistant";

const RECIPIENT: &str = "to=";
const MESSAGE: &str = "<|message|>";

/// The longest recipient, in bytes. A text with a longer one has no head.
const MAX_RECIPIENT: usize = 256;

/// What the beginning of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageHead {
    /// It may become a head.
    Begun,
    /// A head, behind which there is reasoning.
    Reasoning,
    /// A head, behind which there is content or a call.
    Content,
    /// No head.
    Absent,
}

/// The kind of the head that is this text.
pub(super) fn head(text: &str) -> MessageHead {
    let text = text.trim_start();
    let Some(rest) = text.strip_prefix(RECIPIENT) else {
        return match RECIPIENT.starts_with(text) {
            true => MessageHead::Begun,
            false => MessageHead::Absent,
        };
    };
    let end = rest.find(|c: char| c.is_whitespace() || c == '<');
    let (recipient, mark) = rest.split_at(end.unwrap_or(rest.len()));
    match (recipient, mark == MESSAGE) {
        _ if recipient.len() > MAX_RECIPIENT || !MESSAGE.starts_with(mark) => MessageHead::Absent,
        (_, false) => MessageHead::Begun,
        ("self", true) => MessageHead::Reasoning,
        (_, true) => MessageHead::Content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_have_a_recipient_and_a_mark() {
        for (text, kind) in [
            ("", MessageHead::Begun),
            (" t", MessageHead::Begun),
            (" to=functions.add", MessageHead::Begun),
            ("to=self<|mess", MessageHead::Begun),
            (" to=self<|message|>", MessageHead::Reasoning),
            (" to=functions.add<|message|>", MessageHead::Content),
            ("to", MessageHead::Begun),
            ("So", MessageHead::Absent),
            ("to=me and", MessageHead::Absent),
            ("to=a<b", MessageHead::Absent),
        ] {
            assert_eq!(head(text), kind, "{text:?}");
        }
    }
}
