//! `encrypted_content` of reasoning. Clients that let nothing be stored, such as Codex, leave the
//! text of reasoning out when they send a conversation again, and send this in its place. The
//! server has no secret from its users, so it is not encrypted: a mark, and the text in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The value of `include` that asks for it.
pub(super) const ASKED: &str = "reasoning.encrypted_content";

const MARK: &str = "mlx-infer:";

pub(super) fn sealed(text: &str) -> String {
    MARK.to_owned() + &STANDARD.encode(text)
}

/// The text of reasoning; `None` for that of another server, which only that server can read.
///
/// # Errors
/// It has this server's mark, and was changed.
pub(super) fn opened(content: &str) -> Result<Option<String>, String> {
    let Some(digits) = content.strip_prefix(MARK) else {
        return Ok(None);
    };
    let bytes = STANDARD.decode(digits).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let fault = || "its encrypted_content is not as this server has written it".to_owned();
    text.map(Some).ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back() {
        for text in ["", "So.", "é \"x\" 日本\n"] {
            assert_eq!(opened(&sealed(text)), Ok(Some(text.to_owned())));
        }
        assert_eq!(opened("gAAAAAB-other"), Ok(None));
        for changed in ["mlx-infer:%", "mlx-infer:/w=="] {
            assert!(opened(changed).is_err(), "{changed}");
        }
    }
}
