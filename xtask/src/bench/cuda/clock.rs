//! The time of a run.

use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

/// The time that a run has.
pub struct Clock {
    started: Instant,
    /// Nothing begins after it; the rest is for what is under way, and for the record.
    limit: Duration,
}

/// The part of the time in which work may begin.
const WORKING: f64 = 0.85;

impl Clock {
    /// Starts the clock, and ends this program when so many minutes are over. Sessions end at the end of their input.
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

    /// The time in which work may still begin.
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.elapsed())
    }

    /// The part of that time that is over.
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
