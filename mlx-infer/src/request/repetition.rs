//! The end of an answer that repeats itself.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The largest size of a pattern.
const LARGEST: usize = 1024;

/// When an answer that repeats itself ends: its last tokens are a pattern that comes `min_count`
/// times, one after the other. It then ends with
/// [`FinishReason::Repetition`](crate::FinishReason::Repetition).
///
/// ```
/// use mlx_infer::{GenerateOptions, RepetitionDetection};
/// let options = GenerateOptions {
///     repetition_detection: Some(RepetitionDetection { max_pattern_size: 20, min_pattern_size: 1, min_count: 4 }),
///     ..Default::default()
/// };
/// assert!(options.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepetitionDetection {
    /// The most tokens of a pattern.
    pub max_pattern_size: usize,
    /// The fewest tokens of a pattern.
    #[serde(default = "one")]
    pub min_pattern_size: usize,
    /// How often the pattern comes, at least 2.
    pub min_count: usize,
}

fn one() -> usize {
    1
}

impl RepetitionDetection {
    /// Checks all values.
    ///
    /// # Errors
    /// A value is outside its range; the message names it, the range and the value.
    pub(crate) fn check(&self) -> Result<()> {
        let Self {
            max_pattern_size: most,
            min_pattern_size: least,
            min_count,
        } = *self;
        let message = if !(1..=LARGEST).contains(&most) {
            format!("max_pattern_size must be in 1..={LARGEST}, given {most}")
        } else if !(1..=most).contains(&least) {
            format!("min_pattern_size must be in 1..=max_pattern_size, {most}, given {least}")
        } else if min_count < 2 {
            format!("min_count must be at least 2, given {min_count}")
        } else {
            return Ok(());
        };
        Err(Error::argument(format!("repetition_detection: {message}")))
    }

    /// Whether `ids` end with a pattern that comes often enough.
    pub(crate) fn ends(&self, ids: &[u32]) -> bool {
        (self.min_pattern_size..=self.max_pattern_size).any(|size| {
            let before = size.saturating_mul(self.min_count - 1);
            let Some(start) = ids.len().checked_sub(before.saturating_add(size)) else {
                return false;
            };
            // The last tokens are compared first: most often these differ.
            let (last, earlier) = (&ids[start + size..], &ids[start..ids.len() - size]);
            last.iter().rev().eq(earlier.iter().rev())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_at_the_end_are_found() {
        let detection = RepetitionDetection {
            max_pattern_size: 3,
            min_pattern_size: 2,
            min_count: 3,
        };
        for (ids, ends) in [
            (&[1, 2, 1, 2, 1, 2][..], true),
            (&[9, 1, 2, 1, 2, 1, 2], true),
            (&[1, 2, 1, 2, 1, 2, 9], false),
            (&[1, 2, 1, 2], false),
            (&[1, 2, 3, 1, 2, 3, 1, 2, 3], true),
            (&[1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], false),
            // Two of the same token are a pattern of two tokens.
            (&[5, 5, 5, 5, 5, 5], true),
            (&[5, 5, 5, 5, 5], false),
            (&[], false),
        ] {
            assert_eq!(detection.ends(ids), ends, "{ids:?}");
        }
        for (change, what) in [
            (
                RepetitionDetection {
                    max_pattern_size: 0,
                    ..detection
                },
                "max_pattern_size must be in 1..=1024, given 0",
            ),
            (
                RepetitionDetection {
                    min_pattern_size: 4,
                    ..detection
                },
                "min_pattern_size must be in 1..=max_pattern_size, 3, given 4",
            ),
            (
                RepetitionDetection {
                    min_count: 1,
                    ..detection
                },
                "min_count must be at least 2, given 1",
            ),
        ] {
            let error = change.check().unwrap_err().to_string();
            assert_eq!(error, format!("repetition_detection: {what}"));
        }
    }
}
