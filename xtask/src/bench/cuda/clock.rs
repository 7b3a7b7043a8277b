//! The time of a run.

use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

/// The time limit of a run.
pub struct Clock {
    started: Instant,
    /// No work begins after it; the rest of the time is for work in progress and for the record.
    limit: Duration,
}

/// The fraction of the time in which work may begin.
const WORKING: f64 = 0.85;

impl Clock {
    /// Starts the clock, and ends this program after this many minutes. Sessions end when their
    /// input ends.
    pub fn start(minutes: u16) -> Self {
        let all = Duration::from_secs(60 * u64::from(minutes));
        thread::spawn(move || {
            thread::sleep(all);
            eprintln!("error: the benchmark has not ended after {minutes} minutes");
            exit(1);
        });
        Self {
            started: Instant::now(),
            limit: all.mul_f64(WORKING),
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The time that is left for work to begin.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.elapsed())
    }

    /// The fraction of that time that has passed.
    pub fn used(&self) -> f64 {
        self.elapsed().as_secs_f64() / self.limit.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_left_behind_the_limit() {
        let clock = |elapsed: u64| Clock {
            started: Instant::now() - Duration::from_secs(elapsed),
            limit: Duration::from_secs(10),
        };
        assert!(clock(20).left().is_zero());
        assert!(clock(20).used() > 1.9);
        assert!((9.0..=10.0).contains(&clock(0).left().as_secs_f64()));
    }
}
