//! Reports a forward pass that takes far longer than usual, while it still runs.
//!
//! The engine's thread waits for the device in the middle of a pass, so a second thread watches. It
//! reads the times twice a second.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlx_core::memory;

/// A pass is reported when it has taken this many times its usual time, and at least `LEAST`.
const TIMES: u32 = 100;
const LEAST: Duration = Duration::from_secs(1);
/// The same for a pass of a kind that has not run yet: a GPU's driver compiles kernels then.
const FIRST: Duration = Duration::from_secs(120);
/// The time between two checks.
const PERIOD: Duration = Duration::from_millis(500);

/// What a forward pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Prompts, or parts of them, of this number of tokens together.
    Prompts(usize),
    /// The next tokens of this number of rows.
    Rows(usize),
}

impl Pass {
    /// The number of units of the pass, for its usual time: the tokens of prompts, or 1 for a step
    /// of rows.
    fn units(self) -> u64 {
        match self {
            Self::Prompts(tokens) => tokens.max(1) as u64,
            Self::Rows(_) => 1,
        }
    }

    /// The usual time of a unit.
    fn usual(self, times: &mut Times) -> &mut u64 {
        match self {
            Self::Prompts(_) => &mut times.token,
            Self::Rows(_) => &mut times.step,
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompts(tokens) => write!(f, "prompts of {tokens} tokens"),
            Self::Rows(rows) => write!(f, "a step of {rows} rows"),
        }
    }
}

#[derive(Debug, Default)]
struct Times {
    /// The running pass, and when it began, in nanoseconds since the start.
    running: Option<(Pass, u64)>,
    /// The usual nanoseconds of a prompt's token, and of a step of rows; 0 before the first pass.
    token: u64,
    step: u64,
}

/// The passes of one worker, for the thread that watches them.
#[derive(Debug)]
pub(crate) struct Passes {
    start: Instant,
    times: Mutex<Times>,
}

impl Default for Passes {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            times: Mutex::default(),
        }
    }
}

impl Passes {
    /// Notes that a pass begins. It ends when the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>, pass: Pass) -> RunningPass {
        self.times().running = Some((pass, self.now()));
        RunningPass(self.clone())
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn end(&self) {
        let mut times = self.times();
        let Some((pass, since)) = times.running.take() else {
            return;
        };
        let took = self.now().saturating_sub(since) / pass.units();
        let before = *pass.usual(&mut times);
        // A longer pass changes the usual time by at most a sixteenth of it.
        let usual = match before {
            0 => took,
            _ => before - before / 16 + took.min(2 * before) / 16,
        };
        *pass.usual(&mut times) = usual.max(1);
    }

    /// The report on the running pass, if it is late, and when it began.
    fn late_report(&self) -> Option<(u64, String)> {
        let mut times = self.times();
        let (pass, since) = times.running?;
        let took = Duration::from_nanos(self.now().saturating_sub(since));
        let usual = *pass.usual(&mut times) * pass.units();
        drop(times);
        let usual = Duration::from_nanos(usual);
        let most = match usual.is_zero() {
            true => FIRST,
            false => (usual * TIMES).max(LEAST),
        };
        if took < most {
            return None;
        }
        let usual = match usual.is_zero() {
            true => "it is the first of its kind".to_owned(),
            false => format!("usually {:.3} s", usual.as_secs_f64()),
        };
        let gigabytes = |bytes: mlx_core::Result<usize>| bytes.unwrap_or(0) as f64 / 1e9;
        let report = format!(
            "the engine has computed {pass} for {:.1} s ({usual}) and waits for the device; arrays take {:.1} GB, free buffers {:.1} GB, the limit is {:.1} GB",
            took.as_secs_f64(),
            gigabytes(memory::active()),
            gigabytes(memory::cached()),
            gigabytes(memory::memory_limit()),
        );
        Some((since, report))
    }
}

/// A pass that runs.
pub(crate) struct RunningPass(Arc<Passes>);

impl Drop for RunningPass {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The thread that watches the passes of an engine's workers.
#[derive(Debug)]
pub(crate) struct Watchdog {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches until it is dropped. Each late pass is reported once, and again each time when it has taken twice as long.
    pub(crate) fn start(passes: Vec<Arc<Passes>>, report: impl Fn(&str) + Send + 'static) -> Self {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let flag = ended.clone();
        let thread = std::thread::Builder::new()
            .name("mlx-watchdog".to_owned())
            .spawn(move || {
                let mut reported = vec![(0, Duration::ZERO); passes.len()];
                let (lock, changed) = &*flag;
                let mut is_over = lock.lock().unwrap_or_else(PoisonError::into_inner);
                while !*is_over {
                    let waited = changed.wait_timeout(is_over, PERIOD);
                    is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
                    for (passes, (since, next)) in passes.iter().zip(&mut reported) {
                        let Some((began, text)) = passes.late_report() else {
                            continue;
                        };
                        let took = Duration::from_nanos(passes.now().saturating_sub(began));
                        if began != *since || took >= *next {
                            report(&text);
                            (*since, *next) = (began, took * 2);
                        }
                    }
                }
            });
        // If the thread cannot be started, nothing is reported, and everything else works.
        Self {
            ended,
            thread: thread.ok(),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let (lock, changed) = &*self.ended;
        *lock.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(passes: &Arc<Passes>, wait: Duration) -> Vec<String> {
        let (sender, reports) = std::sync::mpsc::channel();
        let watchdog = Watchdog::start(vec![passes.clone()], move |text| {
            let _ = sender.send(text.to_owned());
        });
        std::thread::sleep(wait);
        drop(watchdog);
        reports.try_iter().collect()
    }

    #[test]
    fn a_step_of_a_hundred_times_its_usual_time_is_reported() {
        let passes = Arc::new(Passes::default());
        for _ in 0..8 {
            let _running = passes.begin(Pass::Rows(64));
            std::thread::sleep(Duration::from_millis(2));
        }
        let running = passes.begin(Pass::Rows(64));
        let told = reports(&passes, Duration::from_millis(2600));
        drop(running);
        // The first report comes after a second, the next when the pass has taken twice as long.
        assert!((1..=2).contains(&told.len()), "{told:?}");
        assert!(told[0].contains("a step of 64 rows"), "{told:?}");
        assert!(reports(&passes, Duration::from_millis(700)).is_empty());
    }

    #[test]
    fn a_long_prompt_is_not_late() {
        let passes = Arc::new(Passes::default());
        for _ in 0..4 {
            let _running = passes.begin(Pass::Prompts(10));
            std::thread::sleep(Duration::from_millis(1));
        }
        let _running = passes.begin(Pass::Prompts(2000));
        assert!(reports(&passes, Duration::from_millis(1600)).is_empty());
    }
}
