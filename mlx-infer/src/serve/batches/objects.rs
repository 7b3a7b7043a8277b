//! Files and batches as clients see them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::sequence::random_seed;

/// A file of requests, or of answers.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FileObject {
    pub(crate) id: String,
    pub(crate) object: String,
    pub(crate) bytes: u64,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    pub(crate) filename: String,
    /// `batch`, or `batch_output`.
    pub(crate) purpose: String,
    pub(crate) status: String,
}

impl FileObject {
    pub(crate) fn new(id: &str, filename: String, purpose: &str, bytes: u64, now: u64) -> Self {
        Self {
            id: id.to_owned(),
            object: "file".to_owned(),
            bytes,
            created_at: now,
            filename,
            purpose: purpose.to_owned(),
            status: "processed".to_owned(),
        }
    }
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BatchState {
    /// Its file is checked, or it waits for an earlier batch.
    Validating,
    /// Its file has lines that are no requests.
    Failed,
    InProgress,
    /// Its files are made.
    Finalizing,
    Completed,
    /// Its time was over before all requests were computed.
    Expired,
    Cancelling,
    Cancelled,
}

impl BatchState {
    /// Whether it does not change any more.
    pub(crate) fn is_final(self) -> bool {
        use BatchState::{Cancelled, Completed, Expired, Failed};
        matches!(self, Failed | Completed | Expired | Cancelled)
    }
}

/// Counts of a batch's requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct RequestCounts {
    pub(crate) total: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
}

/// A batch. Times are seconds since 1970.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct BatchObject {
    pub(crate) id: String,
    pub(crate) object: String,
    pub(crate) endpoint: String,
    pub(crate) errors: Option<Value>,
    pub(crate) input_file_id: String,
    pub(crate) completion_window: String,
    pub(crate) status: BatchState,
    pub(crate) output_file_id: Option<String>,
    pub(crate) error_file_id: Option<String>,
    pub(crate) created_at: u64,
    pub(crate) in_progress_at: Option<u64>,
    pub(crate) expires_at: u64,
    pub(crate) finalizing_at: Option<u64>,
    pub(crate) completed_at: Option<u64>,
    pub(crate) failed_at: Option<u64>,
    pub(crate) expired_at: Option<u64>,
    pub(crate) cancelling_at: Option<u64>,
    pub(crate) cancelled_at: Option<u64>,
    pub(crate) request_counts: RequestCounts,
    pub(crate) metadata: Option<Value>,
}

impl BatchObject {
    /// Enters a state, and records the time.
    pub(crate) fn enter(&mut self, state: BatchState, now: u64) {
        self.status = state;
        let at = match state {
            BatchState::Validating => return,
            BatchState::Failed => &mut self.failed_at,
            BatchState::InProgress => &mut self.in_progress_at,
            BatchState::Finalizing => &mut self.finalizing_at,
            BatchState::Completed => &mut self.completed_at,
            BatchState::Expired => &mut self.expired_at,
            BatchState::Cancelling => &mut self.cancelling_at,
            BatchState::Cancelled => &mut self.cancelled_at,
        };
        at.get_or_insert(now);
    }
}

/// Seconds of a window such as `24h`, `30m`, `7d` or `90s`, from a second to 30 days.
pub(crate) fn window_seconds(text: &str) -> Option<u64> {
    let unit = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 60 * 60,
        b'd' => 24 * 60 * 60,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = is_number
        .then(|| number.parse::<u64>().ok())??
        .checked_mul(unit)?;
    (1..=30 * 24 * 60 * 60)
        .contains(&seconds)
        .then_some(seconds)
}

/// A new id, later in the alphabet than those of earlier milliseconds.
pub(crate) fn ordered_id(prefix: &str) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = since.map_or(0, |since| since.as_millis() as u64);
    let random = random_seed() & 0xffff_ffff_ffff;
    format!("{prefix}{millis:012x}{random:012x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_units() {
        for (text, seconds) in [
            ("24h", Some(86_400)),
            ("1s", Some(1)),
            ("30d", Some(2_592_000)),
            ("31d", None),
            ("0h", None),
            ("h", None),
            ("+1h", None),
            ("24", None),
            ("", None),
            ("24é", None),
            ("99999999999999999999d", None),
        ] {
            assert_eq!(window_seconds(text), seconds, "{text}");
        }
    }
}
