//! Stop strings in text that arrives in pieces.

use crate::error::{Error, Result};

/// Looks for stop strings in text that comes piece by piece.
///
/// Text is released as soon as it cannot be part of a stop string. The first complete stop string ends the text,
/// wherever the pieces were cut; if several end at the same place, the longest one counts. The stop string and the text
/// after it are not released.
///
/// ```
/// let mut stops = mlx_infer::StopStrings::new(["\nUser:"])?;
/// assert_eq!(stops.push("fine.\nUs"), "fine.");
/// assert_eq!(stops.push("ed"), "\nUsed");
/// assert_eq!(stops.push("\nUser: and you?"), "");
/// assert_eq!(stops.stopped(), Some("\nUser:"));
/// # Ok::<(), mlx_infer::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Text that may be the start of a stop string.
    held: String,
    hit: Option<usize>,
}

#[derive(Clone, Debug)]
struct Stop {
    text: String,
    /// For each length of a matched beginning, the length to fall back to when the next byte differs.
    fallback: Vec<usize>,
    matched: usize,
}

impl StopStrings {
    /// Looks for these strings. The list may be empty.
    ///
    /// # Errors
    /// When one of them is empty, which would stop before the first character.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self> {
        let stops: Vec<Stop> = stops
            .into_iter()
            .map(|text| Stop::new(text.into()))
            .collect();
        if let Some(at) = stops.iter().position(|stop| stop.text.is_empty()) {
            return Err(Error::argument(format!(
                "stop string {at} is empty; expected at least one character"
            )));
        }
        Ok(Self {
            stops,
            held: String::new(),
            hit: None,
        })
    }

    /// Adds a piece and returns the text that is certain now. After a stop string it returns nothing.
    pub fn push(&mut self, piece: &str) -> String {
        self.take(piece, true)
    }

    /// The same, but without `may_stop` a stop string that ends in this piece is text. A stop
    /// string that starts in the piece can still be completed by the next one.
    pub(crate) fn take(&mut self, piece: &str, may_stop: bool) -> String {
        if self.hit.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return piece.to_owned();
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for at in before..self.held.len() {
            let byte = self.held.as_bytes()[at];
            let mut longest: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                let length = stop.text.len();
                if !stop.advance(byte) {
                    continue;
                }
                if !may_stop {
                    stop.matched = stop.fallback[length];
                } else if longest.is_none_or(|(best, _)| best < length) {
                    longest = Some((length, index));
                }
            }
            if let Some((length, index)) = longest {
                self.hit = Some(index);
                self.held.truncate(at + 1 - length);
                return std::mem::take(&mut self.held);
            }
        }
        // A match starts with the first byte of a stop string, so this cut is between characters.
        let keep = self
            .stops
            .iter()
            .map(|stop| stop.matched)
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// The text that was held back, at the end of the text. The search can then be used for another text.
    pub fn finish(&mut self) -> String {
        self.hit = None;
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// The stop string that ended the text.
    pub fn stopped(&self) -> Option<&str> {
        self.hit.map(|index| self.stops[index].text.as_str())
    }
}

impl Stop {
    /// Knuth, Morris and Pratt's search, which never looks back into the text.
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at + 1] = length;
        }
        Self {
            text,
            fallback,
            matched: 0,
        }
    }

    /// Takes one byte; true when it completes the stop string.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        self.matched == bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every end position behind `passed` in order, the longest stop string at it first.
    fn naive(text: &str, stops: &[String], passed: usize) -> (String, Option<String>) {
        for end in (passed + 1..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let hits = stops
                .iter()
                .filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(stop) = hits.max_by_key(|stop| stop.len()) {
                return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn pieces_do_not_matter(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            passed in 0..4usize,
        ) {
            let passed = passed.min(pieces.len());
            let (expected, stop) = naive(&pieces.concat(), &stops, pieces[..passed].concat().len());
            let mut search = StopStrings::new(stops.clone()).unwrap();
            let mut found = String::new();
            for (count, piece) in pieces.iter().enumerate() {
                found.push_str(&search.take(piece, count >= passed));
                // Text that could become part of a stop string is held back; all other text is
                // released.
                prop_assert!(expected.starts_with(&found));
                if search.stopped().is_none() {
                    let sofar = pieces[..=count].concat();
                    let held = &sofar[found.len()..];
                    prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)));
                }
            }
            prop_assert_eq!(search.stopped().map(str::to_owned), stop);
            found.push_str(&search.finish());
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn edges() {
        assert!(StopStrings::new(["a", ""]).is_err());
        let mut none = StopStrings::new(Vec::<String>::new()).unwrap();
        assert_eq!(none.push("abc"), "abc");
        let mut one = StopStrings::new(["abc", "b"]).unwrap();
        assert_eq!(one.push("xab"), "xa");
        assert_eq!(one.stopped(), Some("b"));
        assert_eq!(one.push("more"), "");
        assert_eq!(one.finish(), "");
        assert_eq!(one.push("x"), "x");
    }
}
