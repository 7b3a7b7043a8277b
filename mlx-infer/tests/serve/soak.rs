//! More clients than the server can take. Half of them disconnect early, and some send malformed
//! requests.
//!
//! CI runs it for three seconds; `MLX_INFER_SOAK=600 cargo test --release -p mlx-infer --test serve soak -- --nocapture` for ten minutes.

use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mlx_infer::{GenerateOptions, LoadedModel, SamplingParams};
use serde_json::{Value, json};

use crate::client::TestServer;

/// The number of concurrent requests that the server takes, and the number of clients.
const CAPACITY: usize = 8;
const CLIENTS: usize = 4 * CAPACITY;
/// Prompts of about 3 to 400 tokens, and the tokens of their answers.
const ASKED: [Asked; 5] = [
    asked("The red fox", 1, 60),
    asked("The old man", 1, 7),
    asked("A small boat", 10, 60),
    asked("In the garden", 40, 30),
    asked("The old man and the red fox", 60, 90),
];
const MALFORMED: [&str; 5] = [
    "{",
    "[]",
    "{\"prompt\": 3.5}",
    "{\"prompt\": \"x\", \"temperature\": -1}",
    "{\"prompt\": \"x\", \"model\": \"other\"}",
];

/// A text, how often the prompt repeats it, and the tokens of the answer.
struct Asked {
    text: &'static str,
    times: usize,
    max_tokens: usize,
}

const fn asked(text: &'static str, times: usize, max_tokens: usize) -> Asked {
    Asked {
        text,
        times,
        max_tokens,
    }
}

impl Asked {
    fn prompt(&self) -> String {
        vec![self.text; self.times].join(" ")
    }
}

/// Counts of the outcomes.
#[derive(Default)]
struct Counts {
    whole: AtomicUsize,
    left: AtomicUsize,
    refused: AtomicUsize,
    malformed: AtomicUsize,
}

/// Numbers without a pattern (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}

fn request(asked: &Asked, seed: u64) -> Value {
    json!({
        "prompt": asked.prompt(), "max_tokens": asked.max_tokens, "ignore_eos": true, "temperature": 0.8, "seed": seed,
        "stream": true,
    })
}

/// The library's answers to each prompt with two seeds.
fn answers() -> Vec<[String; 2]> {
    let model = LoadedModel::load_default().unwrap();
    let answer = |asked: &Asked, seed| {
        let options = GenerateOptions {
            max_tokens: asked.max_tokens,
            ignore_eos: true,
            sampling: SamplingParams {
                temperature: 0.8,
                seed: Some(seed),
                ..Default::default()
            },
            ..Default::default()
        };
        let mut generation = model.generate(asked.prompt(), &options).unwrap();
        let end = generation.run(|_| std::ops::ControlFlow::Continue(()));
        end.unwrap().text.unwrap()
    };
    let both = |asked| [answer(asked, 0), answer(asked, 1)];
    ASKED.iter().map(both).collect()
}

#[test]
fn a_server_under_four_times_its_load_stays_whole() {
    let seconds = std::env::var("MLX_INFER_SOAK")
        .ok()
        .and_then(|n| n.parse().ok());
    let answers = answers();
    let server = TestServer::start(|options| {
        options.engine.max_requests = CAPACITY;
        options.engine.limits.rows = CAPACITY / 2;
        // Stored prefixes would count as memory that was not returned.
        options.engine.limits.prefix_bytes = 0;
    });
    // The first request allocates memory that stays allocated.
    server.ok(
        "/v1/completions",
        &json!({"prompt": "The red fox", "max_tokens": 60}),
    );
    // The last row's caches are freed a moment after its answer.
    let memory = || server.metric("mlx_memory_active_bytes");
    let mut start = f64::INFINITY;
    server.until(|| {
        std::thread::sleep(Duration::from_millis(50));
        std::mem::replace(&mut start, memory()) == start
    });
    let counts = Counts::default();
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    let is_over =
        |counts: &Counts| Instant::now() >= end && counts.whole.load(Ordering::Relaxed) > 0;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, answers, counts, is_over) = (&server, &answers, &counts, &is_over);
            scope.spawn(move || {
                let mut dice = Dice(client as u64);
                while !is_over(counts) {
                    visit(server, answers, counts, &mut dice);
                }
            });
        }
    });
    let idle = |name: &str| server.metric(name) == 0.0;
    server.until(|| idle("vllm:num_requests_running") && idle("vllm:num_requests_waiting"));
    server.until(|| memory() == start);
    let [whole, left, refused, malformed] = [
        &counts.whole,
        &counts.left,
        &counts.refused,
        &counts.malformed,
    ]
    .map(|count| count.load(Ordering::Relaxed));
    eprintln!("{whole} answered, {left} left, {refused} refused, {malformed} malformed");
    assert!(whole > 0 && left > 0 && refused > 0 && malformed > 0);
}

/// One request of a client.
fn visit(server: &TestServer, answers: &[[String; 2]], counts: &Counts, dice: &mut Dice) {
    const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];
    let count = |counter: &AtomicUsize| counter.fetch_add(1, Ordering::Relaxed);
    if dice.roll(8) == 0 {
        let body = MALFORMED[dice.roll(MALFORMED.len())];
        let status = server.send("POST", "/v1/completions", &JSON, body).status;
        assert!(status == 400 || status == 404, "{body}: {status}");
        count(&counts.malformed);
        return;
    }
    let (prompt, seed) = (dice.roll(ASKED.len()), dice.roll(2));
    let body = request(&ASKED[prompt], seed as u64);
    if dice.roll(2) == 0 {
        let mut stream = server.open("POST", "/v1/completions", &JSON, &body.to_string());
        for _ in 0..dice.roll(40) {
            let mut line = String::new();
            if stream.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
        }
        count(&counts.left);
        std::thread::sleep(Duration::from_millis(dice.roll(40) as u64));
        return;
    }
    let answer = server.post("/v1/completions", &body);
    if answer.status == 503 {
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&seconds));
        count(&counts.refused);
        // Less than the time that the server asks for, so that the load stays high.
        std::thread::sleep(Duration::from_millis(20));
        return;
    }
    assert_eq!(answer.status, 200, "{}", answer.body);
    let texts = answer.chunks();
    let texts = texts
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), answers[prompt][seed]);
    count(&counts.whole);
}
