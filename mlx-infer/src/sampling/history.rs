//! The tokens of a row.

use std::collections::BTreeMap;

/// A row's tokens, and how often each was generated.
#[derive(Clone, Debug)]
pub(crate) struct History {
    ids: Vec<u32>,
    prompt: usize,
    counts: BTreeMap<u32, u32>,
}

impl History {
    /// The history of a row whose prompt is `prompt`.
    pub(crate) fn new(prompt: Vec<u32>) -> Self {
        Self {
            prompt: prompt.len(),
            ids: prompt,
            counts: BTreeMap::new(),
        }
    }

    /// Adds a generated token.
    pub(crate) fn push(&mut self, id: u32) {
        self.ids.push(id);
        *self.counts.entry(id).or_default() += 1;
    }

    /// The history before the last token, which must be a generated one.
    pub(crate) fn without_last(&self) -> Self {
        let mut before = self.clone();
        if before.ids.len() > before.prompt
            && let Some(last) = before.ids.pop()
            && let Some(n) = before.counts.get_mut(&last)
        {
            *n -= 1;
            if *n == 0 {
                before.counts.remove(&last);
            }
        }
        before
    }

    /// All tokens, the prompt's first.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The generated tokens.
    pub(crate) fn generated(&self) -> &[u32] {
        &self.ids[self.prompt..]
    }

    /// The number of the prompt's tokens.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt
    }

    /// How often each token was generated.
    pub(super) fn counts(&self) -> &BTreeMap<u32, u32> {
        &self.counts
    }
}
