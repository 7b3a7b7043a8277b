//! Many concurrent requests: from clients that each wait for their answer, or arriving at random
//! times.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::client::Outcome;

/// A request: a text and the number of tokens to generate.
pub struct Job {
    pub prompt: String,
    pub max_tokens: usize,
}

/// How jobs reach the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// A closed loop: this many clients, each of which sends its next job when the previous one is answered.
    Clients(usize),
    /// An open loop: a Poisson process with this many jobs for each second, whether or not earlier ones are answered.
    Arrivals(f64),
}

impl Load {
    /// The name in tables.
    pub fn name(self) -> String {
        match self {
            Self::Clients(1) => "1 client".to_owned(),
            Self::Clients(clients) => format!("{clients} clients"),
            Self::Arrivals(rate) => format!("{rate:.2} requests/s"),
        }
    }
}

/// The measurements of a run of all jobs.
pub struct Answers {
    pub outcomes: Vec<Outcome>,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// CPU seconds of the side's process and of this process in that time, if the system reports
    /// them.
    pub cpu_s: Option<[f64; 2]>,
}

impl Answers {
    /// Tokens of all answers a second.
    pub fn throughput(&self) -> f64 {
        self.tokens() / self.seconds
    }

    /// Milliseconds of CPU time for each token: of the side, or of this process.
    pub fn cpu_ms(&self, process: usize) -> f64 {
        self.cpu_s
            .map_or(f64::NAN, |seconds| 1e3 * seconds[process] / self.tokens())
    }

    fn tokens(&self) -> f64 {
        self.outcomes.iter().map(|one| one.tokens as f64).sum()
    }

    /// The fraction of requests whose first token, and whose tokens on average, came within these
    /// seconds.
    pub fn goodput(&self, first_s: f64, gap_s: f64) -> f64 {
        let good = |one: &&Outcome| {
            let mean = one.gaps_s.iter().sum::<f64>() / one.gaps_s.len().max(1) as f64;
            one.first_s <= first_s && mean <= gap_s
        };
        self.outcomes.iter().filter(good).count() as f64 / self.outcomes.len() as f64
    }
}

/// Does all tasks and waits for all results, in the order of the tasks, with the seconds from the
/// first to the last. A task that fails is an error. `seed` fixes the times of an open loop.
pub fn run<T: Sync, R: Send>(
    tasks: &[T],
    load: Load,
    seed: u64,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<(Vec<R>, f64)> {
    let start = Instant::now();
    let results = match load {
        Load::Clients(clients) => closed(tasks, clients, &work),
        Load::Arrivals(rate) => open(tasks, arrivals(rate, tasks.len(), seed), start, &work),
    };
    let results = results.into_iter().collect::<Result<_>>()?;
    Ok((results, start.elapsed().as_secs_f64()))
}

fn closed<T: Sync, R: Send>(
    tasks: &[T],
    clients: usize,
    work: &(impl Fn(&T) -> Result<R> + Sync),
) -> Vec<Result<R>> {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(at) else {
                return results;
            };
            results.push((at, work(task)));
        }
    };
    let mut results: Indexed<R> = thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().flat_map(joined).collect()
    });
    // Sorted into the order of the tasks.
    results.sort_by_key(|&(at, _)| at);
    results.into_iter().map(|(_, result)| result).collect()
}

fn open<T: Sync, R: Send>(
    tasks: &[T],
    moments: Vec<Duration>,
    start: Instant,
    work: &(impl Fn(&T) -> Result<R> + Sync),
) -> Vec<Result<R>> {
    thread::scope(|scope| {
        let threads: Vec<_> = moments
            .into_iter()
            .zip(tasks)
            .map(|(at, task)| {
                scope.spawn(move || {
                    thread::sleep(at.saturating_sub(start.elapsed()));
                    vec![(0, work(task))]
                })
            })
            .collect();
        let results = threads.into_iter().flat_map(joined);
        results.map(|(_, result)| result).collect()
    })
}

/// Results, each with the index of its task.
type Indexed<R> = Vec<(usize, Result<R>)>;

fn joined<R>(thread: thread::ScopedJoinHandle<'_, Indexed<R>>) -> Indexed<R> {
    let panicked = |_| vec![(0, Err(anyhow!("a client panicked")))];
    thread.join().unwrap_or_else(panicked)
}

/// Times of a Poisson process: the gaps are exponential. They are the same for the same seed, so
/// all sides get the same.
fn arrivals(rate: f64, count: usize, seed: u64) -> Vec<Duration> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    // 0 is the only state that xorshift does not leave.
    state = state.max(1);
    let mut at = 0.0;
    let mut moments = Vec::with_capacity(count);
    for _ in 0..count {
        moments.push(Duration::from_secs_f64(at));
        // A step of xorshift64 (Marsaglia 2003), and its upper 53 bits as a number in (0, 1].
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let uniform = ((state >> 11) + 1) as f64 / (1u64 << 53) as f64;
        at -= uniform.ln() / rate;
    }
    moments
}

/// The quantile `share` of the values that are numbers, by the nearest rank.
pub fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    match sorted.len() {
        0 => f64::NAN,
        len => sorted[rank.clamp(1, len) - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let values = || [4.0, 1.0, 3.0, 2.0].into_iter();
        assert_eq!(quantile(values(), 0.5), 2.0);
        assert_eq!(quantile(values(), 0.95), 4.0);
        assert_eq!(quantile([7.0].into_iter(), 0.01), 7.0);
        assert_eq!(quantile([f64::NAN, 3.0].into_iter(), 0.99), 3.0);
    }

    #[test]
    fn arrivals_depend_on_the_seed_only() {
        assert_eq!(arrivals(2.0, 50, 7), arrivals(2.0, 50, 7));
        assert_ne!(arrivals(2.0, 50, 7), arrivals(2.0, 50, 8));
    }

    #[test]
    fn results_come_in_the_order_of_the_tasks() {
        for load in [Load::Clients(3), Load::Arrivals(1e4)] {
            let tasks: Vec<u64> = (0..20).collect();
            let double = |&task: &u64| {
                thread::sleep(Duration::from_micros(700 * (task % 3)));
                Ok(2 * task)
            };
            let (results, _) = run(&tasks, load, 1, double).unwrap();
            assert_eq!(results, (0..20).map(|task| 2 * task).collect::<Vec<_>>());
            let fails = |&task: &u64| match task {
                7 => Err(anyhow!("seven")),
                _ => Ok(()),
            };
            assert!(run(&tasks, load, 1, fails).is_err());
        }
    }

    #[test]
    fn arrivals_come_at_their_rate() {
        let moments = arrivals(5.0, 4000, 0);
        let seconds = moments[3999].as_secs_f64();
        assert!((4000.0 / seconds - 5.0).abs() < 0.3, "{seconds}");
        let short = moments
            .windows(2)
            .filter(|pair| (pair[1] - pair[0]).as_secs_f64() < 0.2);
        // A fraction of 1 - 1/e of the gaps is shorter than the mean gap.
        assert!((short.count() as f64 / 3999.0 - 0.632).abs() < 0.03);
    }

    #[test]
    fn goodput_counts_requests_within_both_limits() {
        let outcome = |first_s, gap| Outcome {
            first_s,
            gaps_s: vec![gap; 3],
            whole_s: 1.0,
            tokens: 4,
            text: String::new(),
        };
        let answers = Answers {
            outcomes: vec![outcome(0.1, 0.01), outcome(0.9, 0.01), outcome(0.1, 0.5)],
            seconds: 2.0,
            cpu_s: Some([0.6, 0.3]),
        };
        assert_eq!(answers.throughput(), 6.0);
        assert_eq!([answers.cpu_ms(0), answers.cpu_ms(1)], [50.0, 25.0]);
        assert!((answers.goodput(0.5, 0.1) - 1.0 / 3.0).abs() < 1e-9);
    }
}
