//! Parameters of a request that the engine's options do not have: how its prompt is truncated, and
//! which tokens are forbidden.

use std::sync::Arc;

use crate::model::frontend::Frontend;
use crate::request::generation::GenerateOptions;
use crate::request::processor::Processor;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;

/// Most words of `bad_words`.
const MAX_WORDS: usize = 1024;

/// vLLM's `truncate_prompt_tokens`, `allowed_token_ids` and `bad_words`.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    truncate: Option<Truncate>,
    allowed: Option<Vec<u32>>,
    bad_words: Vec<String>,
}

/// How many of a prompt's last tokens are kept.
#[derive(Clone, Copy, Debug)]
enum Truncate {
    To(usize),
    /// As many tokens as the model's context has room for besides the answer.
    ToContext,
}

/// A filter of the next token.
#[derive(Debug)]
pub(crate) struct Filter {
    /// Whether each token is allowed; `None` for all.
    allowed: Option<Vec<bool>>,
    /// The tokens of forbidden texts.
    bad: Vec<Vec<u32>>,
}

impl Edits {
    /// Takes the three keys.
    ///
    /// # Errors
    /// A value has another type or is out of range.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let truncate = match fields.take::<i64>("truncate_prompt_tokens")? {
            None => None,
            Some(-1) => Some(Truncate::ToContext),
            Some(n @ 1..) => Some(Truncate::To(usize::try_from(n).unwrap_or(usize::MAX))),
            Some(n) => {
                let message = format!(
                    "truncate_prompt_tokens must be at least 1, or -1 for the model's context length, given {n}"
                );
                return Err(ApiError::bad("truncate_prompt_tokens", message));
            }
        };
        let allowed: Option<Vec<u32>> = fields.take("allowed_token_ids")?;
        if allowed.as_ref().is_some_and(Vec::is_empty) {
            let message = "allowed_token_ids is empty, expected at least one id";
            return Err(ApiError::bad("allowed_token_ids", message));
        }
        let bad_words: Vec<String> = fields.take("bad_words")?.unwrap_or_default();
        if bad_words.len() > MAX_WORDS {
            let message = format!(
                "bad_words has {} texts, at most {MAX_WORDS}",
                bad_words.len()
            );
            return Err(ApiError::bad("bad_words", message));
        }
        if let Some(at) = bad_words.iter().position(|word| word.trim().is_empty()) {
            return Err(ApiError::bad(
                "bad_words",
                format!("bad_words[{at}] is empty"),
            ));
        }
        Ok(Self {
            truncate,
            allowed,
            bad_words,
        })
    }

    /// Whether a prompt may be longer than the context, because its beginning is left out.
    pub(crate) fn truncates(&self) -> bool {
        self.truncate.is_some()
    }

    /// Truncates a prompt from its beginning. `answer` is the number of tokens that the answer
    /// needs. Returns whether tokens were left out.
    pub(crate) fn truncate(&self, frontend: &Frontend, ids: &mut Vec<u32>, answer: usize) -> bool {
        let most = match (self.truncate, frontend.info().max_positions) {
            (Some(Truncate::To(most)), _) => most,
            (Some(Truncate::ToContext), Some(max)) => max.saturating_sub(answer).max(1),
            _ => return false,
        };
        let cut = ids.len().saturating_sub(most);
        ids.drain(..cut);
        cut > 0
    }

    /// The filter of the next tokens, if there is one.
    ///
    /// # Errors
    /// An id is outside the vocabulary, no token is allowed, or the request has a grammar.
    pub(crate) fn filter(
        &self,
        frontend: &Frontend,
        options: &GenerateOptions,
    ) -> Result<Option<Arc<Filter>>, ApiError> {
        let name = match (&self.allowed, &self.bad_words[..]) {
            (None, []) => return Ok(None),
            (Some(_), _) => "allowed_token_ids",
            _ => "bad_words",
        };
        if options.grammar.is_some() {
            let message = format!(
                "{name} cannot be combined with structured output or tools, where a grammar decides which tokens are allowed"
            );
            return Err(ApiError::bad(name, message));
        }
        let vocab = frontend.info().vocab as usize;
        let allowed = match &self.allowed {
            None => None,
            Some(ids) => {
                let mut allowed = vec![false; vocab];
                for &id in ids {
                    let Some(place) = allowed.get_mut(id as usize) else {
                        let message = format!(
                            "{name}: token id {id} is outside the model's vocabulary of {vocab}"
                        );
                        return Err(ApiError::bad(name, message));
                    };
                    *place = true;
                }
                if let Some(budget) = &options.reasoning_budget {
                    let mark = frontend.tokenizer()?.encode(&budget.forced(), false)?;
                    if mark.iter().any(|id| !ids.contains(id)) {
                        let message = format!(
                            "{name} lacks tokens of {:?}, which ends reasoning after its budget",
                            budget.forced()
                        );
                        return Err(ApiError::bad(name, message));
                    }
                }
                let ends = options.ending(frontend.eos_ids());
                if options.min_tokens > 0 && ids.iter().all(|id| ends.contains(id)) {
                    let message = format!(
                        "{name} has only tokens that end the answer, and min_tokens forbids these"
                    );
                    return Err(ApiError::bad(name, message));
                }
                Some(allowed)
            }
        };
        let mut bad: Vec<Vec<u32>> = Vec::new();
        for word in &self.bad_words {
            // Each text is forbidden as the beginning of a text and as a word within it, as in
            // vLLM.
            for text in [
                word.trim_start().to_owned(),
                format!(" {}", word.trim_start()),
            ] {
                let ids = frontend.tokenizer()?.encode(&text, false)?;
                if !ids.is_empty() && !bad.contains(&ids) {
                    bad.push(ids);
                }
            }
        }
        Ok(Some(Arc::new(Filter { allowed, bad })))
    }
}

impl Filter {
    /// The filter of a row whose prompt has this many tokens.
    pub(crate) fn processor(self: &Arc<Self>, prompt: usize) -> Processor {
        let filter = Arc::clone(self);
        Box::new(move |ids, logits| {
            filter.apply(ids.get(prompt..).unwrap_or_default(), logits);
            match logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
                true => Ok(()),
                false => Err("bad_words and allowed_token_ids leave no token".into()),
            }
        })
    }

    /// Forbids the tokens that may not follow `said`, the tokens of the answer so far.
    fn apply(&self, said: &[u32], logits: &mut [f32]) {
        if let Some(allowed) = &self.allowed {
            for (logit, is_allowed) in logits.iter_mut().zip(allowed) {
                if !is_allowed {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for ids in &self.bad {
            if let [before @ .., last] = &ids[..]
                && said.ends_with(before)
                && let Some(logit) = logits.get_mut(*last as usize)
            {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_forbidden() {
        let left = |filter: &Filter, said: &[u32]| {
            let mut logits = [0.0; 5];
            filter.apply(said, &mut logits);
            (0..5).filter(|&id| logits[id] == 0.0).collect::<Vec<_>>()
        };
        let filter = Filter {
            allowed: Some(vec![true, true, false, true, true]),
            bad: vec![vec![4], vec![1, 3]],
        };
        assert_eq!(left(&filter, &[]), [0, 1, 3]);
        assert_eq!(left(&filter, &[3, 1]), [0, 1]);
        assert_eq!(left(&filter, &[1, 3]), [0, 1, 3]);
        let filter = Arc::new(Filter {
            allowed: None,
            bad: (0..5).map(|id| vec![id]).collect(),
        });
        assert!(filter.processor(0)(&[], &mut [0.0; 5]).is_err());
    }
}
