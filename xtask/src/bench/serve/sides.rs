//! The sides: this project's server, the library without HTTP, and other servers, all with one
//! checkpoint.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::client::Outcome;
use super::load::{self, Answers, Job, Load};
use super::server::Server;
use super::{Arguments, TOKENS, text};
use crate::bench::session::Session;
use crate::bench::{build, build_session, machine, scripts, work};
use crate::{cargo, python};

/// One side, with its checkpoint loaded.
pub enum Side {
    Server(Server),
    Library(Session),
}

impl Side {
    /// The name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Server(server) => server.name,
            Self::Library(_) => LIBRARY,
        }
    }

    /// Answers all jobs. The library has no open loop: a batch begins with all of its requests.
    pub fn run(&mut self, jobs: &[Job], load: Load) -> Result<Option<Answers>> {
        let before = cpu_seconds(self.process());
        let answers = match (&mut *self, load) {
            (Self::Server(server), _) => {
                let answer = |job: &Job| {
                    let prompt = job.prompt.as_str().into();
                    server.client.complete(&prompt, job.max_tokens)
                };
                let (outcomes, seconds) = load::run(jobs, load, 0, answer)?;
                if outcomes.iter().any(|one| one.first_s.is_nan()) {
                    bail!("{}: an answer without text", server.name);
                }
                Some(Answers {
                    outcomes,
                    seconds,
                    cpu_s: None,
                })
            }
            (Self::Library(session), Load::Clients(rows)) => Some(batch(session, jobs, rows)?),
            (Self::Library(_), Load::Arrivals(_)) => None,
        };
        let cpu_s = before.zip(cpu_seconds(self.process()));
        let cpu_s = cpu_s.map(|(before, after)| [0, 1].map(|at| after[at] - before[at]));
        Ok(answers.map(|answers| Answers { cpu_s, ..answers }))
    }

    fn process(&self) -> u32 {
        match self {
            Self::Server(server) => server.process(),
            Self::Library(session) => session.process(),
        }
    }
}

/// CPU seconds of a process, and of this one.
pub fn cpu_seconds(process: u32) -> Option<[f64; 2]> {
    let [side, clients] = [process, std::process::id()].map(machine::cpu_seconds);
    Some([side?, clients?])
}

pub const LIBRARY: &str = "library";
pub const MLX_LM: &str = "mlx_lm.server";

/// The library's answers. At most `rows` are computed at a time, the number of clients.
fn batch(library: &mut Session, jobs: &[Job], rows: usize) -> Result<Answers> {
    let prompts: Vec<&str> = jobs.iter().map(|job| job.prompt.as_str()).collect();
    let answered = library.answer_all(&prompts, TOKENS, rows)?;
    if answered.answers.len() != jobs.len() {
        let n = answered.answers.len();
        bail!("{LIBRARY}: {} prompts got {n} answers", jobs.len());
    }
    let outcomes = answered.answers.into_iter().map(|answer| {
        let (first_s, whole_s) = answer.times.unwrap_or((f64::NAN, f64::NAN));
        Outcome {
            first_s,
            whole_s,
            gaps_s: Vec::new(),
            tokens: answer.tokens,
            text: answer.text,
        }
    });
    Ok(Answers {
        outcomes: outcomes.collect(),
        seconds: answered.seconds,
        cpu_s: None,
    })
}

/// All sides: this project's server, the library, then the others. Each server has answered one
/// request.
pub fn start(python: &Path, checkpoint: &Path, arguments: &Arguments) -> Result<Vec<Side>> {
    let (binary, session) = match &arguments.built {
        Some(folder) => (
            folder.join("mlx-infer"),
            folder.join("examples/bench_session"),
        ),
        None => (build("mlx-infer")?, build_session()?),
    };
    let log = |name: &str| work().map(|folder| folder.join(format!("serve-{name}.log")));
    let ours = |port: u16| {
        let mut command = Command::new(&binary);
        command
            .args(["serve", "--port", &port.to_string(), "--model"])
            .arg(checkpoint);
        command
    };
    let extra = json!({"ignore_eos": true});
    let ours = Server::start("ours", ours, extra, &log("ours")?)?;
    let mut library = Command::new(session);
    library.arg(checkpoint);
    let mut sides = vec![
        Side::Server(ours),
        Side::Library(Session::start(LIBRARY, library)?),
    ];
    if !arguments.alone {
        let mlx_lm = |port: u16| {
            let mut command = python::command(python);
            command
                .args(["-m", "mlx_lm", "server", "--port", &port.to_string()])
                .arg("--model")
                .arg(checkpoint);
            command
        };
        let server = Server::start(MLX_LM, mlx_lm, json!({}), &log("mlx-lm")?)?;
        sides.push(Side::Server(server));
    }
    if let Some(llama) = &arguments.llama_python {
        let gguf = work()?.join("serve.gguf");
        cargo::run(
            python::command(llama)
                .arg(scripts().join("gguf_with_vocabulary.py"))
                .arg(checkpoint)
                .arg(&gguf),
        )?;
        let llama_cpp = |port: u16| {
            let mut command = python::command(llama);
            command
                .args(["-m", "llama_cpp.server", "--port", &port.to_string()])
                .args(["--n_threads", &machine::threads().to_string()])
                // By default a new request of this server ends the one before.
                .args(["--interrupt_requests", "False", "--n_ctx", "512"])
                .arg("--model")
                .arg(&gguf);
            command
        };
        let server = Server::start("llama_cpp.server", llama_cpp, json!({}), &log("llama-cpp")?)?;
        sides.push(Side::Server(server));
    }
    for side in &mut sides {
        let job = Job {
            prompt: text(0),
            max_tokens: TOKENS,
        };
        let first = side.run(&[job], Load::Clients(1));
        first.with_context(|| format!("{}: the first request", side.name()))?;
    }
    Ok(sides)
}
