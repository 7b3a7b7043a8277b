//! Starts the processes of a ring on this machine.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// Set in a child: the name of its program.
pub const CHILD: &str = "MLX_CORE_TEST_RANK";

/// The addresses of a ring, in a file.
pub struct Ring {
    folder: tempfile::TempDir,
    size: usize,
    /// NCCL's port, if each rank has a GPU that NCCL connects besides.
    pub nccl: Option<u16>,
}

impl Ring {
    pub fn new(size: usize) -> Self {
        // Ports that are free now. They are all held until all are known, so that they differ.
        let held: Vec<TcpListener> = (0..size)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let ports = held.iter().map(|held| held.local_addr().unwrap());
        let hosts: Vec<[String; 1]> = ports.map(|port| [port.to_string()]).collect();
        let folder = tempfile::tempdir().unwrap();
        let text = serde_json::to_string(&hosts).unwrap();
        std::fs::write(folder.path().join("hosts.json"), text).unwrap();
        Self {
            folder,
            size,
            nccl: None,
        }
    }

    pub fn start_rank(&self, program: &str, rank: usize) -> Rank {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(port) = self.nccl {
            command
                .env("CUDA_VISIBLE_DEVICES", rank.to_string())
                .env("MLX_WORLD_SIZE", self.size.to_string())
                .env("NCCL_HOST_IP", "127.0.0.1")
                .env("NCCL_PORT", port.to_string());
        }
        let mut child = command
            .args(["--exact", "a_rank", "--nocapture", "--test-threads=1"])
            .env(CHILD, program)
            .env("MLX_RANK", rank.to_string())
            .env("MLX_HOSTFILE", self.folder.path().join("hosts.json"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Rank { child, lines }
    }

    pub fn start(&self, program: &str) -> Vec<Rank> {
        (0..self.size)
            .map(|rank| self.start_rank(program, rank))
            .collect()
    }

    /// What all ranks leave.
    pub fn run(&self, program: &str) -> Vec<Output> {
        let ranks = self.start(program);
        ranks.into_iter().map(Rank::output).collect()
    }
}

/// A child.
pub struct Rank {
    child: Child,
    lines: BufReader<ChildStdout>,
}

pub struct Output {
    status: ExitStatus,
    said: String,
}

impl Rank {
    pub fn wait_for_line(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no {text}");
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn output(mut self) -> Output {
        let mut said = String::new();
        // The children say little, so that neither pipe fills up.
        self.lines.read_to_string(&mut said).unwrap();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        Output { status, said }
    }
}

pub fn assert_ended_well(output: &Output, what: &str) {
    let Output { status, said } = output;
    assert!(status.success(), "{what}: {status}: {said}");
    assert!(said.contains("1 passed"), "{what}: {said}");
}
