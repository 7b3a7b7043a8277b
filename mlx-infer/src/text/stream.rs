//! Turns ids into the text that callers get.

use crate::error::{Error, Result};
use crate::text::detokenize::Detokenizer;
use crate::text::stop::StopStrings;
use crate::text::tokenizer::Tokenizer;

/// Detokenises and looks for stop strings.
pub(crate) struct TextStream {
    detokenizer: Option<Detokenizer>,
    stops: StopStrings,
}

impl TextStream {
    /// Without a tokenizer all texts are empty. Special tokens are not text, except for those in `kept_special` and in `stops`: a stop string
    /// that names one ends the text at it.
    ///
    /// # Errors
    /// There are stop strings and no tokenizer, or an empty stop string.
    pub(crate) fn new(
        tokenizer: Option<&Tokenizer>,
        stops: &[String],
        kept_special: &[u32],
    ) -> Result<Self> {
        if tokenizer.is_none() && !stops.is_empty() {
            let message =
                "stop strings need a tokenizer, and this checkpoint has none; stop at token ids";
            return Err(Error::argument(message));
        }
        Ok(Self {
            detokenizer: tokenizer.map(|tokenizer| {
                let kept = [kept_special, &tokenizer.special_in(stops)].concat();
                tokenizer.detokenizer(true).keeping(&kept)
            }),
            stops: StopStrings::new(stops)?,
        })
    }

    /// The text that is certain after the next id. Without `may_stop`, a stop string that the id
    /// completes is text.
    pub(crate) fn push(&mut self, id: u32, may_stop: bool) -> Result<String> {
        match &mut self.detokenizer {
            Some(detokenizer) => {
                let piece = detokenizer.push(id)?;
                Ok(self.stops.take(&piece, may_stop))
            }
            None => Ok(String::new()),
        }
    }

    /// Whether a stop string was found.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stops.stopped().is_some()
    }

    /// The rest of the text, and whether a stop string was found in it (only if `may_stop`).
    pub(crate) fn finish(&mut self, may_stop: bool) -> Result<(String, bool)> {
        if self.is_stopped() {
            return Ok((String::new(), true));
        }
        let held = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.finish()?,
            None => String::new(),
        };
        let mut text = self.stops.take(&held, may_stop);
        let stopped = self.is_stopped();
        if !stopped {
            text.push_str(&self.stops.finish());
        }
        Ok((text, stopped))
    }
}
