//! Finds marks in text that arrives character by character.

/// Looks for marks. Text that may be the beginning of a mark is held back.
#[derive(Debug, Default)]
pub(super) struct Seek {
    held: String,
}

impl Seek {
    /// Takes the next character and appends to `free` the text that belongs to no mark. Returns the index of a mark
    /// that is now complete.
    pub(super) fn take(&mut self, c: char, marks: &[&str], free: &mut String) -> Option<usize> {
        self.held.push(c);
        loop {
            let held = self.held.as_str();
            if let Some(found) = marks.iter().position(|mark| *mark == held) {
                self.held.clear();
                return Some(found);
            }
            if marks.iter().any(|mark| mark.starts_with(held)) {
                return None;
            }
            free.push(self.held.remove(0));
            if self.held.is_empty() {
                return None;
            }
        }
    }

    /// Whether nothing is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The text that was held back, at the end of the text.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_behind_their_own_beginnings() {
        let mut seek = Seek::default();
        let (mut free, mut found) = (String::new(), Vec::new());
        for c in "a<<to<tool>b</tool><tool".chars() {
            found.extend(seek.take(c, &["<tool>", "</tool>"], &mut free));
        }
        assert_eq!((free.as_str(), found.as_slice()), ("a<<tob", &[0, 1][..]));
        assert_eq!(seek.finish(), "<tool");
        assert!(seek.is_empty());
    }
}
