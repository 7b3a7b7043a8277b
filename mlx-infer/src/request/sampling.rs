//! Sampling settings, and the tokens that they choose.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How tokens are chosen. The default is greedy.
///
/// ```
/// use mlx_infer::SamplingParams;
/// let params = SamplingParams { temperature: 0.7, top_p: 1.7, ..Default::default() };
/// assert_eq!(params.check().unwrap_err().to_string(), "top_p must be in (0, 1], given 1.7");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// The divisor of the logits before the draw; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps the likeliest tokens that reach this probability together; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps tokens whose probability is at least this fraction of the likeliest token's; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens (CTRL, arXiv:1909.05858); 1 has no effect.
    pub repeat_penalty: f32,
    /// The number of last tokens, including the prompt's, that `repeat_penalty` looks at.
    pub repeat_context: usize,
    /// Subtracted from the logits of tokens that were generated before (as OpenAI defines it).
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time it was generated (as OpenAI defines it).
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens; minus infinity forbids one.
    #[serde(with = "bits")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// Keeps tokens whose logit is at most this many standard deviations below the largest
    /// (arXiv:2411.07641); 0 keeps all. It comes before the other filters.
    pub top_n_sigma: f32,
    /// The probability with which XTC is applied to a token's choice; 0 is never.
    pub xtc_probability: f32,
    /// XTC forbids all tokens of at least this probability but the least likely of them, if there
    /// are several. It comes after the other filters. Above 0.5 it has no effect.
    pub xtc_threshold: f32,
    /// The penalty of DRY on a token that would make a repetition one token longer than
    /// `dry_allowed_length`; 0 is none.
    pub dry_multiplier: f32,
    /// The factor by which each further token of the repetition raises the penalty.
    pub dry_base: f32,
    /// The length of the shortest repetition whose next token is penalised.
    pub dry_allowed_length: usize,
    /// The number of last tokens, including the prompt's, in which DRY looks for repetitions.
    pub dry_last_n: usize,
    /// Tokens over which no repetition reaches.
    pub dry_breakers: BTreeSet<u32>,
    /// The seed of the draws: the same seed gives the same tokens. `None` takes a new seed each time.
    pub seed: Option<u64>,
}

/// Numbers as their bits, because JSON has no infinity.
mod bits {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(of: &BTreeMap<u32, f32>, to: S) -> Result<S::Ok, S::Error> {
        let pairs = of.iter().map(|(&id, bias)| (id, bias.to_bits()));
        pairs.collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<u32, f32>, D::Error> {
        let pairs = Vec::<(u32, u32)>::deserialize(from)?;
        Ok(pairs
            .into_iter()
            .map(|(id, bits)| (id, f32::from_bits(bits)))
            .collect())
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_context: 20,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_last_n: u32::MAX as usize,
            dry_breakers: BTreeSet::new(),
            seed: None,
        }
    }
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its id.
    pub id: u32,
    /// Its log probability after bias, penalties and the mask of a grammar, and before filters and temperature, if it
    /// was asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens of that distribution and their log probabilities, best first, without tokens that a grammar
    /// or bias forbids.
    pub top: Vec<(u32, f32)>,
}

/// The largest penalty or bias that is accepted. Logits are far smaller, and single precision
/// represents far larger numbers.
const MAX_SHIFT: f32 = 1e4;

impl SamplingParams {
    /// Whether the likeliest token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether generated tokens are penalised.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether the choice of a token depends on the tokens before it.
    pub(crate) fn reads_history(&self) -> bool {
        self.repeat_penalty != 1.0 || self.counts_tokens() || self.penalises_repetitions()
    }

    /// Whether repetitions are penalised. The host then has to read each token before the next is
    /// chosen.
    pub(crate) fn penalises_repetitions(&self) -> bool {
        self.dry_multiplier != 0.0
    }

    /// Whether XTC may have an effect.
    pub(crate) fn excludes_top(&self) -> bool {
        self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5
    }

    /// Whether the model's logits are used unchanged: no bias, no penalty, and no filter before the
    /// draw.
    pub(crate) fn keeps_logits(&self) -> bool {
        self.logit_bias.is_empty()
            && !self.reads_history()
            && self.top_n_sigma == 0.0
            && !self.excludes_top()
    }

    /// Checks all values.
    ///
    /// # Errors
    /// A value is outside its range; the message names it, the range and the value.
    pub fn check(&self) -> Result<()> {
        let within = |name: &str, value: f32, ok: bool, range: &str| match ok {
            true => Ok(()),
            false => Err(Error::argument(format!(
                "{name} must be {range}, given {value}"
            ))),
        };
        let t = self.temperature;
        within(
            "temperature",
            t,
            t == 0.0 || (1e-4..=1e4).contains(&t),
            "0 (greedy) or in [0.0001, 10000]",
        )?;
        within(
            "top_p",
            self.top_p,
            self.top_p > 0.0 && self.top_p <= 1.0,
            "in (0, 1]",
        )?;
        within(
            "min_p",
            self.min_p,
            (0.0..=1.0).contains(&self.min_p),
            "in [0, 1]",
        )?;
        let penalty = self.repeat_penalty;
        within(
            "repeat_penalty",
            penalty,
            penalty > 0.0 && penalty <= MAX_SHIFT,
            "in (0, 10000]",
        )?;
        for (name, value, most, range) in [
            ("top_n_sigma", self.top_n_sigma, MAX_SHIFT, "in [0, 10000]"),
            ("xtc_probability", self.xtc_probability, 1.0, "in [0, 1]"),
            ("xtc_threshold", self.xtc_threshold, 1.0, "in [0, 1]"),
            (
                "dry_multiplier",
                self.dry_multiplier,
                MAX_SHIFT,
                "in [0, 10000]",
            ),
        ] {
            within(name, value, (0.0..=most).contains(&value), range)?;
        }
        let base = self.dry_base;
        let is_base = (1.0..=MAX_SHIFT).contains(&base);
        within("dry_base", base, is_base, "in [1, 10000]")?;
        if self.dry_allowed_length == 0 {
            let message = "dry_allowed_length must be at least 1, given 0";
            return Err(Error::argument(message));
        }
        for (name, penalty) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            within(
                name,
                penalty,
                penalty.abs() <= MAX_SHIFT,
                "in [-10000, 10000]",
            )?;
        }
        if self.repeat_context == 0 {
            let message = "repeat_context must be at least 1, given 0; repeat_penalty 1 switches the penalty off";
            return Err(Error::argument(message));
        }
        for (id, &bias) in &self.logit_bias {
            let name = format!("logit_bias of token {id}");
            let ok = bias.abs() <= MAX_SHIFT || bias == f32::NEG_INFINITY;
            within(&name, bias, ok, "in [-10000, 10000] or minus infinity")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut SamplingParams);

    #[test]
    fn ranges_are_checked() {
        let check = |change: Change| {
            let mut params = SamplingParams::default();
            change(&mut params);
            params.check().unwrap_err().to_string()
        };
        let cases: [(Change, &str); 13] = [
            (
                |p| p.top_n_sigma = -1.0,
                "top_n_sigma must be in [0, 10000], given -1",
            ),
            (
                |p| p.xtc_threshold = 1.5,
                "xtc_threshold must be in [0, 1], given 1.5",
            ),
            (
                |p| p.dry_base = 0.5,
                "dry_base must be in [1, 10000], given 0.5",
            ),
            (
                |p| p.dry_allowed_length = 0,
                "dry_allowed_length must be at least 1, given 0",
            ),
            (
                |p| p.temperature = -1.0,
                "temperature must be 0 (greedy) or in [0.0001, 10000], given -1",
            ),
            (
                |p| p.temperature = f32::NAN,
                "temperature must be 0 (greedy) or in [0.0001, 10000], given NaN",
            ),
            (|p| p.top_p = 1.7, "top_p must be in (0, 1], given 1.7"),
            (|p| p.top_p = 0.0, "top_p must be in (0, 1], given 0"),
            (|p| p.min_p = -0.1, "min_p must be in [0, 1], given -0.1"),
            (
                |p| p.repeat_penalty = 0.0,
                "repeat_penalty must be in (0, 10000], given 0",
            ),
            (
                |p| p.presence_penalty = f32::INFINITY,
                "presence_penalty must be in [-10000, 10000], given inf",
            ),
            (
                |p| p.frequency_penalty = f32::NAN,
                "frequency_penalty must be in [-10000, 10000], given NaN",
            ),
            (
                |p| p.logit_bias.extend([(3, f32::NAN)]),
                "logit_bias of token 3 must be in [-10000, 10000] or minus infinity, given NaN",
            ),
        ];
        for (change, message) in cases {
            assert_eq!(check(change), message);
        }
    }
}
