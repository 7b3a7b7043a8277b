//! How long a model stays in memory after its last request.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;

/// How long a model stays in memory after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// For this time.
    For(Duration),
    /// Until its memory is needed for another model.
    Forever,
}

/// The units of a time, in seconds. `ms` stands before `m` and `s`.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];

impl KeepAlive {
    /// Takes a request's `keep_alive`.
    ///
    /// # Errors
    /// It is no time.
    pub(super) fn take(fields: &mut Fields) -> std::result::Result<Option<Self>, ApiError> {
        const NAME: &str = "keep_alive";
        let value: Option<Value> = fields.take(NAME)?;
        let read = value.as_ref().map(Self::from_json).transpose();
        read.map_err(|error| ApiError::from(error).with_param(NAME))
    }

    /// The value of a request's `keep_alive`: a number of seconds, or a text.
    ///
    /// # Errors
    /// It is neither.
    pub(super) fn from_json(value: &Value) -> Result<Self> {
        match value {
            Value::Number(seconds) => Self::of_seconds(seconds.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => text.parse(),
            other => Err(Error::argument(format!(
                "keep_alive must be a number of seconds or a text such as \"5m\", given {other}"
            ))),
        }
    }

    /// A negative number stands for ever.
    fn of_seconds(seconds: f64) -> Result<Self> {
        match seconds {
            s if s < 0.0 => Ok(Self::Forever),
            s => Duration::try_from_secs_f64(s)
                .map(Self::For)
                .map_err(|_| Error::argument(format!("keep_alive is out of range, given {s} s"))),
        }
    }
}

impl FromStr for KeepAlive {
    type Err = Error;

    /// Reads a time as Ollama does: `5m`, `1h30m`, `300ms`, `-1` for ever. A number without a unit
    /// is in seconds.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            let message = format!(
                "keep_alive must be a time such as 5m, 1h30m, 90s or 90, or -1 for ever, given {text:?}"
            );
            Error::argument(message)
        };
        let (is_negative, mut rest) = match text.trim().strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.trim()),
        };
        if rest.is_empty() {
            return Err(bad());
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            let (number, after) = rest.split_at(end.unwrap_or(rest.len()));
            let number: f64 = number.parse().map_err(|_| bad())?;
            let unit = UNITS.iter().find(|(unit, _)| after.starts_with(unit));
            (seconds, rest) = match unit {
                Some((unit, factor)) => (seconds + number * factor, &after[unit.len()..]),
                // Only a number that stands alone has no unit.
                None if after.is_empty() && seconds == 0.0 => (number, after),
                None => return Err(bad()),
            };
        }
        match is_negative && seconds > 0.0 {
            true => Ok(Self::Forever),
            false => Self::of_seconds(seconds),
        }
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(time) => write!(f, "{}s", time.as_secs_f64()),
            Self::Forever => f.write_str("-1"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_read_as_ollama_reads_them() {
        let seconds = |s| KeepAlive::For(Duration::from_secs_f64(s));
        for (value, kept) in [
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("1.5h"), seconds(5400.0)),
            (json!("300ms"), seconds(0.3)),
            (json!("90"), seconds(90.0)),
            (json!(90), seconds(90.0)),
            (json!(0), seconds(0.0)),
            (json!("0"), seconds(0.0)),
            (json!("-0s"), seconds(0.0)),
            (json!(-1), KeepAlive::Forever),
            (json!("-1m"), KeepAlive::Forever),
        ] {
            assert_eq!(KeepAlive::from_json(&value).unwrap(), kept, "{value}");
            let written = kept.to_string();
            assert_eq!(written.parse::<KeepAlive>().unwrap(), kept, "{written}");
        }
        for value in [
            json!(""),
            json!("-"),
            json!("5x"),
            json!("5m3"),
            json!("m"),
            json!("1..5s"),
            json!(true),
            json!(1e300),
        ] {
            let error = KeepAlive::from_json(&value).unwrap_err().to_string();
            assert!(error.starts_with("keep_alive"), "{value}: {error}");
        }
    }
}
