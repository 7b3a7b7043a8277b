//! The command on several ranks of one machine.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

#[path = "ranks/wider.rs"]
mod wider;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-infer"));
    command
        .args(args)
        .env_remove("MLX_INFER_API_KEY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a command that succeeds.
fn stdout(args: &[&str]) -> String {
    let output = run(args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// A ring of two, in a file.
fn hostfile(folder: &tempfile::TempDir) -> String {
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let hosts = held.map(|held| [held.local_addr().unwrap().to_string()]);
    let path = folder.path().join("hosts.json");
    std::fs::write(&path, json!(hosts).to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn ranks_generate_what_one_process_generates() {
    let fox = ["generate", "--prompt", "The red fox", "--max-tokens", "24"];
    let expected = stdout(&fox);
    assert!(expected.len() > 20, "{expected}");
    assert_eq!(
        stdout(&[&["launch", "-n", "2", "--"], &fox[..]].concat()),
        expected
    );
    let drawn = [&fox[..], &["--temperature", "0.9", "--seed", "5"]].concat();
    let of_two = stdout(&[&["launch", "-n", "2", "--"], &drawn[..]].concat());
    assert_eq!(of_two, stdout(&drawn));
    // Without a seed the ranks agree on one, and with drafts on their number.
    let any = [&fox[..], &["--temperature", "1", "--speculative", "2"]].concat();
    assert!(stdout(&[&["launch", "-n", "2", "--"], &any[..]].concat()).len() > 5);
}

#[test]
fn wrong_numbers_and_commands_are_refused() {
    for (args, status, part) in [
        (
            &["launch", "-n", "3", "--", "generate", "--prompt", "a"][..],
            1,
            "numbers of ranks that work: 2, 4",
        ),
        (
            &["launch", "-n", "1", "--", "generate", "--prompt", "a"],
            2,
            "-n must be at least 2, given 1",
        ),
        (
            &["launch", "-n", "2", "--", "bench"],
            2,
            "these do: generate, serve, classify, embed, score",
        ),
        (
            &["launch", "--", "generate", "--prompt", "a"],
            2,
            "give -n N or --hostfile FILE",
        ),
    ] {
        let output = run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
    let output = command(&["bench"]).env("MLX_RANK", "0").output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains("bench runs in one process only, and MLX_RANK is set"),
        "{said}"
    );
}

/// The environment of torchrun, and a file of hosts with the rank of mpirun.
#[test]
fn ranks_of_other_launchers_are_known() {
    let expected = stdout(&["generate", "--prompt", "The red fox", "--max-tokens", "4"]);
    let folder = tempfile::tempdir().unwrap();
    let hosts = hostfile(&folder);
    let of_torch = |rank: &str, port: &str| {
        let mut rank_ = command(&[
            "launch",
            "--",
            "generate",
            "--prompt",
            "The red fox",
            "--max-tokens",
            "4",
        ]);
        rank_.envs([
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_PORT", port),
        ]);
        rank_.spawn().unwrap()
    };
    let of_mpi = |rank: &str| {
        let args = [
            "launch",
            "--hostfile",
            &hosts,
            "--",
            "generate",
            "--prompt",
            "The red fox",
            "--max-tokens",
            "4",
        ];
        command(&args)
            .env("OMPI_COMM_WORLD_RANK", rank)
            .spawn()
            .unwrap()
    };
    let port = free_ports(3).to_string();
    for pair in [
        [of_torch("0", &port), of_torch("1", &port)],
        [of_mpi("0"), of_mpi("1")],
    ] {
        let [first, second] = pair.map(|rank| rank.wait_with_output().unwrap());
        assert!(first.status.success(), "{}", text(&first.stderr));
        assert_eq!(text(&first.stdout), expected);
        assert!(
            second.status.success() && second.stdout.is_empty(),
            "{}",
            text(&second.stderr)
        );
    }
}

/// The first of so many free ports in a row.
fn free_ports(n: u16) -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let begin = 20_000 + (std::process::id() % 10_000) as u16;
    let mut ports = (begin..begin + 5000).step_by(usize::from(n));
    ports.find(|&port| (port..port + n).all(is_free)).unwrap()
}

#[test]
fn ranks_that_differ_end_with_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = hostfile(&folder);
    let start = |rank: &str, tokens: &str| {
        let args = [
            "launch",
            "--hostfile",
            &hosts,
            "--rank",
            rank,
            "--",
            "generate",
            "--prompt",
            "a",
            "--max-tokens",
            tokens,
        ];
        command(&args).spawn().unwrap()
    };
    let ranks = [start("0", "3"), start("1", "4")];
    let [first, second] = ranks.map(|rank| rank.wait_with_output().unwrap());
    let said = text(&first.stderr);
    assert!(
        said.contains("the ranks differ in their options (command line)"),
        "{said}"
    );
    assert!(
        said.contains("--max-tokens 3") && said.contains("--max-tokens 4"),
        "{said}"
    );
    assert_eq!(text(&second.stderr), "");
    assert!(!first.status.success() && !second.status.success());
}

/// `launch -n 2 -- serve`.
struct Served {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Served {
    fn start(ranks: &[&str]) -> Self {
        Self::with(ranks, &[])
    }

    /// A server with these flags.
    fn with(ranks: &[&str], flags: &[&str]) -> Self {
        let args = [ranks, &["serve", "--port", "0", "--quiet"], flags].concat();
        let mut child = command(&args).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut address = String::new();
        loop {
            let mut line = String::new();
            assert!(
                stderr.read_line(&mut line).unwrap() > 0,
                "the server has ended"
            );
            if let Some(found) = line.strip_prefix("listening at http://") {
                address = found.trim().to_owned();
            }
            if line.starts_with("ready:") {
                break;
            }
        }
        Self {
            child,
            stderr,
            address,
        }
    }

    fn post(&self, path: &str, body: &Value) -> String {
        let mut answer = String::new();
        let _ = self.send(path, body).read_to_string(&mut answer);
        answer
    }

    /// Sends a request, and leaves without reading its answer.
    fn leave(&self, path: &str, body: &Value) {
        let stream = self.send(path, body);
        std::thread::sleep(Duration::from_millis(300));
        drop(stream);
    }

    fn send(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// Ends the server by SIGTERM.
    fn stop(mut self) {
        let id = self.child.id().to_string();
        let ended = Command::new("kill").arg(id).status().unwrap();
        assert!(ended.success());
        assert!(self.child.wait().unwrap().success());
    }

    fn complete(&self, body: &Value) -> String {
        let answer = self.post("/v1/completions", body);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        let body: Value = serde_json::from_str(body).unwrap();
        body["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// The processes that share the model, by their ranks.
    fn ranks(&self) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).unwrap();
        let mut ids: Vec<u32> = children
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        ids.sort_unstable();
        ids
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // `launch` that is killed leaves its ranks behind.
        let ranks = self.ranks();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for rank in ranks {
            let _ = Command::new("kill")
                .args(["-KILL", &rank.to_string()])
                .status();
        }
    }
}

fn bodies() -> Vec<Value> {
    let mut bodies: Vec<Value> = [
        "The red fox",
        "The old man",
        "47 + 38 =",
        "Once upon a time",
    ]
    .iter()
    .enumerate()
    .map(|(at, prompt)| json!({"prompt": prompt, "max_tokens": 12 + 9 * at, "temperature": 0}))
    .collect();
    bodies.push(json!({"prompt": "The red fox", "max_tokens": 20, "temperature": 0.8, "seed": 11}));
    bodies.push(json!({"prompt": "The red fox is", "max_tokens": 8, "temperature": 0, "guided_choice": [" hungry", " asleep"]}));
    bodies
}

#[test]
fn a_server_on_two_ranks_answers_as_one_process() {
    let alone = Served::start(&[]);
    let expected: Vec<String> = bodies().iter().map(|body| alone.complete(body)).collect();
    drop(alone);
    let mut shared = Served::start(&["launch", "-n", "2", "--"]);
    // One after the other, which reuses prefixes, and then all at a time.
    let found: Vec<String> = bodies().iter().map(|body| shared.complete(body)).collect();
    assert_eq!(found, expected);
    let found: Vec<String> = std::thread::scope(|scope| {
        let each: Vec<_> = bodies()
            .into_iter()
            .map(|body| {
                let shared = &shared;
                scope.spawn(move || shared.complete(&body))
            })
            .collect();
        each.into_iter().map(|each| each.join().unwrap()).collect()
    });
    assert_eq!(found, expected);
    // A client that leaves cancels its request; the others go on.
    let mut stream = TcpStream::connect(&shared.address).unwrap();
    let body = json!({"prompt": "The", "max_tokens": 400, "stream": true, "temperature": 0, "ignore_eos": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream.read_exact(&mut [0; 200]).unwrap();
    drop(stream);
    assert_eq!(shared.complete(&bodies()[0]), expected[0]);
    // SIGTERM ends all ranks.
    let ended = Command::new("kill")
        .arg(shared.child.id().to_string())
        .status()
        .unwrap();
    assert!(ended.success());
    let start = Instant::now();
    assert!(shared.child.wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Seconds of the processor's time that a process has used.
fn busy_seconds(process: u32) -> f64 {
    // The 14th and 15th number of a line whose second one is a name in parentheses, in hundredths.
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, numbers) = line.rsplit_once(')').unwrap();
    let times = numbers.split_whitespace().skip(11).take(2);
    times.map(|time| time.parse::<f64>().unwrap() / 100.0).sum()
}

#[test]
fn a_rank_that_dies_ends_the_service_with_its_name() {
    for dies in [1, 0] {
        let shared = Served::start(&["launch", "-n", "2", "--"]);
        shared.complete(&bodies()[0]);
        let ranks = shared.ranks();
        assert_eq!(ranks.len(), 2);
        // Ranks without work sleep.
        let busy = || [0, 1].map(|rank: usize| busy_seconds(ranks[rank]));
        let before = busy();
        std::thread::sleep(Duration::from_secs(1));
        for (after, before) in busy().iter().zip(before) {
            assert!(after - before < 0.25, "{}", after - before);
        }
        let start = Instant::now();
        let killed = Command::new("kill")
            .args(["-KILL", &ranks[dies].to_string()])
            .status()
            .unwrap();
        assert!(killed.success());
        let (code, said) = shared.end();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        assert!(code.is_some_and(|code| code != 0), "{code:?}");
        assert!(said.contains(&format!("rank {dies}")), "{said}");
    }
}
