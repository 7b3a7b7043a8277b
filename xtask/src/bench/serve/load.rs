//! Many concurrent requests: from clients that each wait for their answer, or arriving at random
//! times.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::client::{Client, Outcome};

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

/// Sends all jobs and waits for all answers. A failed job is an error.
pub fn run(client: &Client, jobs: &[Job], load: Load) -> Result<Answers> {
    let start = Instant::now();
    let answers: Vec<Result<Outcome>> = match load {
        Load::Clients(clients) => closed(client, jobs, clients),
        Load::Arrivals(rate) => open(client, jobs, rate, start),
    };
    Ok(Answers {
        outcomes: answers.into_iter().collect::<Result<_>>()?,
        seconds: start.elapsed().as_secs_f64(),
        cpu_s: None,
    })
}

fn closed(client: &Client, jobs: &[Job], clients: usize) -> Vec<Result<Outcome>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else {
                return answers;
            };
            answers.push((at, client.complete(&job.prompt, job.max_tokens)));
        }
    };
    let mut answers: Indexed = thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(joined).collect()
    });
    // Sorted into the order of the jobs.
    answers.sort_by_key(|&(at, _)| at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn open(client: &Client, jobs: &[Job], rate: f64, start: Instant) -> Vec<Result<Outcome>> {
    thread::scope(|scope| {
        let threads: Vec<_> = arrivals(rate, jobs.len())
            .into_iter()
            .zip(jobs)
            .map(|(at, job)| {
                scope.spawn(move || {
                    thread::sleep(at.saturating_sub(start.elapsed()));
                    vec![(0, client.complete(&job.prompt, job.max_tokens))]
                })
            })
            .collect();
        let answers = threads.into_iter().flat_map(joined);
        answers.map(|(_, answer)| answer).collect()
    })
}

/// Answers, each with the index of its job.
type Indexed = Vec<(usize, Result<Outcome>)>;

fn joined(thread: thread::ScopedJoinHandle<'_, Indexed>) -> Indexed {
    let panicked = |_| vec![(0, Err(anyhow!("a client panicked")))];
    thread.join().unwrap_or_else(panicked)
}

/// Times of a Poisson process: the gaps are exponential. They are the same at each call, so all
/// sides get the same.
fn arrivals(rate: f64, count: usize) -> Vec<Duration> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
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

/// The quantile `share` of the values, by the nearest rank.
pub fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
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
    }

    #[test]
    fn arrivals_come_at_their_rate() {
        let moments = arrivals(5.0, 4000);
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
