//! The vocabulary of RWKV: a text file in which each line has an id, a literal of Python (a text or
//! bytes), and its length in bytes.

use serde_json::{Map, Value, json};

use super::super::classes::Class;
use super::super::config::TokenizerConfig;
use super::super::trie::Trie;
use super::Converted;
use super::ranks::letters;

/// The token with id 0, unless the configuration names another.
const END: &str = "<|rwkv_tokenizer_end_of_text|>";

/// Converts the file. The tokens are written as their bytes spell them in byte-level vocabularies.
/// The token that ends a text has id 0, which the file does not have.
pub(super) fn convert(bytes: &[u8], config: &TokenizerConfig) -> Result<Converted, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "the file is no UTF-8".to_owned())?;
    let mut tokens: Vec<(Vec<u8>, u32)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let token = token_of(line).map_err(|what| format!("line {}: {what}", number + 1))?;
        tokens.push(token);
    }
    let trie = Trie::new(tokens.iter().map(|(token, id)| (token.as_slice(), *id)))?;
    let letters = letters();
    let spelled = |token: &[u8]| -> String {
        token
            .iter()
            .map(|&byte| letters[usize::from(byte)])
            .collect()
    };
    let mut vocab = Map::new();
    let mut ids = std::collections::HashSet::new();
    for (token, id) in &tokens {
        if !ids.insert(*id) {
            return Err(format!("the id {id} is there twice"));
        }
        vocab.insert(spelled(token), Value::from(*id));
    }
    let named = |name| config.named_content(name);
    let end = named("bos_token").or(named("eos_token")).unwrap_or(END);
    if ids.insert(0) {
        vocab.entry(end).or_insert(Value::from(0));
    }
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        // The trie finds the tokens of a text. The model only knows their names.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": end},
    });
    let names = ["bos_token", "eos_token", "unk_token"];
    Ok(Converted {
        json: json.to_string(),
        class: Class::Serialized,
        added: Vec::new(),
        named: names.map(|name| (name, end.to_owned())).to_vec(),
        extra: Vec::new(),
        has_ends: false,
        trie: Some(trie),
    })
}

/// The token of a line, and its id.
fn token_of(line: &str) -> Result<(Vec<u8>, u32), String> {
    let expected = || "expected an id, a literal and its length, separated by spaces".to_owned();
    let (id, rest) = line.split_once(' ').ok_or_else(expected)?;
    let (literal, len) = rest.rsplit_once(' ').ok_or_else(expected)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| expected());
    let (id, len) = (number(id)?, number(len)?);
    let token = literal_of(literal).ok_or_else(|| format!("{literal} is no text and no bytes"))?;
    match token.len() == len as usize {
        true => Ok((token, id)),
        false => Err(format!("{literal} has {} bytes, not {len}", token.len())),
    }
}

/// The bytes of a literal of Python, `'…'`, `"…"`, or one of these after `b`.
fn literal_of(literal: &str) -> Option<Vec<u8>> {
    let (is_bytes, quoted) = match literal.strip_prefix('b') {
        Some(rest) => (true, rest),
        None => (false, literal),
    };
    let quote = quoted.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    let inside = quoted.get(1..)?.strip_suffix(quote)?;
    let (mut chars, mut found) = (inside.chars(), Vec::new());
    while let Some(c) = chars.next() {
        let code = match c {
            '\\' => escaped(&mut chars, is_bytes)?,
            c if c == quote => return None,
            c => u32::from(c),
        };
        match is_bytes {
            true => found.push(u8::try_from(code).ok()?),
            false => {
                let c = char::from_u32(code)?;
                found.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    Some(found)
}

/// The code of what follows a backslash.
fn escaped(chars: &mut std::str::Chars<'_>, is_bytes: bool) -> Option<u32> {
    let digits = match chars.next()? {
        'n' => return Some(0x0a),
        't' => return Some(0x09),
        'r' => return Some(0x0d),
        c @ ('\\' | '\'' | '"') => return Some(u32::from(c)),
        'x' => 2,
        'u' if !is_bytes => 4,
        'U' if !is_bytes => 8,
        _ => return None,
    };
    let rest = chars.as_str();
    let code = rest.get(..digits)?;
    let is_hex = code.bytes().all(|byte| byte.is_ascii_hexdigit());
    *chars = rest[digits..].chars();
    is_hex.then(|| u32::from_str_radix(code, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_literals_of_python() {
        let token = |line: &str| token_of(line).map(|(token, _)| token);
        assert_eq!(token_of(r"261 '\n\n' 2"), Ok((b"\n\n".to_vec(), 261)));
        assert_eq!(token(r"7 ' ' 1"), Ok(b" ".to_vec()));
        assert_eq!(token(r#"7 "it's" 4"#), Ok(b"it's".to_vec()));
        assert_eq!(token(r"7 '\'\\\t\r\x7f' 5"), Ok(b"'\\\t\r\x7f".to_vec()));
        assert_eq!(token(r"7 b'\xe4\xb8' 2"), Ok(vec![0xe4, 0xb8]));
        assert_eq!(
            token(r"7 '\u3000\xe9' 5"),
            Ok("\u{3000}é".as_bytes().to_vec())
        );
        assert_eq!(token("7 '世' 3"), Ok("世".as_bytes().to_vec()));
        let wrong = [
            ("", "expected an id"),
            ("x 'a' 1", "expected an id"),
            ("7 'a'", "expected an id"),
            ("7 'ab' 1", "'ab' has 2 bytes, not 1"),
            ("7 a 1", "a is no text"),
            ("7 'a 1", "'a is no text"),
            (r"7 '\' 1", r"'\' is no text"),
            (r"7 '\xg0' 1", r"'\xg0' is no text"),
            (r"7 '\ud800' 3", r"'\ud800' is no text"),
            (r"7 b'\u3000' 3", r"b'\u3000' is no text"),
            ("7 b'世' 3", "b'世' is no text"),
        ];
        for (line, words) in wrong {
            let error = token(line).unwrap_err();
            assert!(error.starts_with(words), "{line}: {error}");
        }
    }
}
