//! [`Trie`]: the longest token with which a text goes on, again and again.

use std::collections::HashMap;

use tokenizers::{Encoding, OffsetType, Token};

/// A vocabulary of bytes in which each single byte is a token.
pub(super) struct Trie {
    /// The node after a node and a byte. The root is node 0.
    next: HashMap<(u32, u8), u32>,
    /// The token that ends at each node.
    tokens: Vec<Option<u32>>,
}

impl Trie {
    /// The vocabulary of these tokens.
    ///
    /// # Errors
    /// A token is empty or there twice, or a byte is no token.
    pub(super) fn new<'a>(
        tokens: impl IntoIterator<Item = (&'a [u8], u32)>,
    ) -> Result<Self, String> {
        let mut trie = Self {
            next: HashMap::new(),
            tokens: vec![None],
        };
        for (bytes, id) in tokens {
            let mut node = 0;
            for &byte in bytes {
                let new = trie.tokens.len() as u32;
                node = *trie.next.entry((node, byte)).or_insert(new);
                if node == new {
                    trie.tokens.push(None);
                }
            }
            let end = &mut trie.tokens[node as usize];
            if node == 0 || end.replace(id).is_some() {
                return Err(format!("token {id} is empty, or there twice"));
            }
        }
        let is_token = |byte: &u8| trie.longest(&[*byte]).is_some();
        match (0..=u8::MAX).find(|byte| !is_token(byte)) {
            Some(byte) => Err(format!("no token is the byte 0x{byte:02x}")),
            None => Ok(trie),
        }
    }

    /// The longest token with which `bytes` begin: its length and its id.
    fn longest(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        let (mut node, mut found) = (0, None);
        for (at, &byte) in bytes.iter().enumerate() {
            match self.next.get(&(node, byte)) {
                Some(&next) => node = next,
                None => break,
            }
            if let Some(id) = self.tokens[node as usize] {
                found = Some((at + 1, id));
            }
        }
        found
    }

    /// The tokens of a text.
    fn split(&self, text: &str) -> Vec<Token> {
        let (bytes, mut at) = (text.as_bytes(), 0);
        let mut tokens = Vec::new();
        // Every byte is a token, so there is always a longest one.
        while let Some((len, id)) = self.longest(&bytes[at..]) {
            tokens.push(Token::new(id, String::new(), (at, at + len)));
            at += len;
        }
        tokens
    }

    /// The encoding of a text in which the added tokens of `inner` are tokens of their own.
    pub(super) fn encode(
        &self,
        inner: &tokenizers::Tokenizer,
        text: &str,
    ) -> tokenizers::Result<Encoding> {
        let added = inner.get_added_vocabulary();
        let mut parts = added.extract_and_normalize(inner.get_normalizer(), text);
        parts.tokenize(|part| Ok(self.split(part.get())))?;
        parts.into_encoding(None, 0, OffsetType::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_token_is_taken() {
        let single: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let bytes = single.iter().map(|byte| (&byte[..], u32::from(byte[0])));
        let others: [(&[u8], u32); 3] = [(b"ab", 300), (b"abcd", 301), ("é".as_bytes(), 302)];
        let trie = Trie::new(bytes.clone().chain(others)).unwrap();
        let ids = |text: &str| {
            trie.split(text)
                .iter()
                .map(|token| token.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids("abcabcdé"), [300, 99, 301, 302]);
        assert_eq!(ids("è"), [0xc3, 0xa8]);
        assert!(ids("").is_empty());
        let twice: [(&[u8], u32); 1] = [(b"a", 400)];
        let error = Trie::new(bytes.clone().chain(twice)).err().unwrap();
        assert_eq!(error, "token 400 is empty, or there twice");
        let error = Trie::new(bytes.skip(1)).err().unwrap();
        assert_eq!(error, "no token is the byte 0x00");
    }
}
