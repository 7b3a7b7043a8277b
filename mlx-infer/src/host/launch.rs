//! `mlx-infer launch` and `mlx-train launch`: processes of this program that share a model or the batches of a run.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::console;
use crate::error::{Error, ErrorKind};
use gpus::Gpus;

mod gpus;

/// For how long the other ranks may end by themselves after one has died.
const GRACE: Duration = Duration::from_secs(6);

/// The variables that name this process's rank, from launchers that start processes of any kind.
const RANK: [&str; 5] = [
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
];

/// Why processes were not started.
#[derive(Debug)]
pub enum LaunchFault {
    /// The flags contradict each other, or the command is none that several ranks can run.
    Usage(String),
    /// A file or a process failed.
    Failed(Error),
}

impl From<Error> for LaunchFault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

type Result<T> = std::result::Result<T, LaunchFault>;

/// The flags of `launch`, a command of `mlx-infer` and of `mlx-train`. Needs the feature `cli`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct LaunchArgs {
    /// Number of processes, all on this machine
    #[arg(short = 'n', long = "ranks", value_name = "N", conflicts_with_all = ["hostfile", "rank"])]
    ranks: Option<usize>,
    /// JSON list with the list of addresses of each rank: [["10.0.0.1:5000"], ["10.0.0.2:5000"]]. This process becomes one of them
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// The rank of this process in the file [default: that of torchrun, mpirun or srun]
    #[arg(long, value_name = "N", requires = "hostfile")]
    rank: Option<usize>,
    /// What carries the sums of the layers [default: nccl where this program is built for CUDA and sees a GPU, else ring]
    #[arg(long, value_enum, value_name = "NAME")]
    backend: Option<Link>,
    /// The command of this program, with its flags
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What carries the sums of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    /// NVIDIA's NCCL: each process has one GPU
    Nccl,
    /// TCP connections, each process with the next one. Sums are computed on the CPU
    Ring,
}

const AFTER_HELP: &str = "\
The processes are connected by a ring over TCP, and their GPUs by NCCL besides. Examples:
  mlx-infer launch -n 2 -- generate --prompt 'The red fox'
  mlx-train launch -n 2 -- lora --data data

Processes that torchrun starts on one machine need neither flag: torchrun --no-python --nproc-per-node 2 mlx-infer launch -- generate --prompt 'The red fox'";

/// The place of each process to start.
struct Places {
    /// The addresses of the ring, in a file.
    hosts: PathBuf,
    ranks: Vec<usize>,
    /// The GPUs of the processes, if NCCL connects them.
    gpus: Option<Gpus>,
    /// Whether the file is removed at the end.
    is_own: bool,
}

impl Drop for Places {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.hosts);
        }
    }
}

/// A process and its rank.
struct Started {
    rank: usize,
    child: Child,
    ended: Option<ExitStatus>,
}

impl LaunchArgs {
    /// Starts the processes, each of which runs this program with one of the commands `known`, and waits for their end.
    /// Returns the exit status: 0, or that of the first process that fails.
    ///
    /// # Errors
    /// The flags are wrong, or a process cannot be started.
    pub fn run(self, known: &[&str]) -> std::result::Result<u8, LaunchFault> {
        let places = self.places(known)?;
        start(&places, &self.command)
    }

    fn places(&self, known: &[&str]) -> Result<Places> {
        let command = self.command.first().map(|name| name.to_string_lossy());
        let command = command.unwrap_or_default();
        if !known.contains(&&*command) {
            let message = format!(
                "{command:?} does not run on several ranks; these do: {}",
                known.join(", ")
            );
            return Err(LaunchFault::Usage(message));
        }
        if let Some(size) = self.ranks {
            if size < 2 {
                let message = format!("-n must be at least 2, given {size}");
                return Err(LaunchFault::Usage(message));
            }
            return here(size, self.backend);
        }
        let given = RANK
            .into_iter()
            .find_map(|name| Some((name, number(name)?)));
        if let Some(hosts) = &self.hostfile {
            let rank = self.rank.or(given.map(|(_, rank)| rank)).ok_or_else(|| {
                let message = "--hostfile needs --rank, or a launcher that sets RANK".to_owned();
                LaunchFault::Usage(message)
            })?;
            return Ok(Places {
                gpus: Gpus::of(self.backend, &read_hosts(hosts)?, &[rank], None)?,
                hosts: hosts.clone(),
                ranks: vec![rank],
                is_own: false,
            });
        }
        match (
            given,
            number("WORLD_SIZE"),
            number("LOCAL_WORLD_SIZE"),
            number("MASTER_PORT"),
        ) {
            (Some((_, rank)), Some(size), Some(local), Some(port)) if size == local && size > 1 => {
                // torchrun's own port is the first of a range that is free.
                let hosts = (0..size).map(|at| vec![format!("127.0.0.1:{}", port + 1 + at)]);
                let hosts = hosts.collect::<Vec<_>>();
                Ok(Places {
                    gpus: Gpus::of(self.backend, &hosts, &[rank], None)?,
                    hosts: write_hosts(&hosts, &format!("{port}-{rank}"))?,
                    ranks: vec![rank],
                    is_own: true,
                })
            }
            (Some((name, _)), ..) => Err(LaunchFault::Usage(format!(
                "{name} is set, but the addresses of the other ranks are not known: give --hostfile FILE"
            ))),
            (None, ..) => Err(LaunchFault::Usage(
                "give -n N or --hostfile FILE".to_owned(),
            )),
        }
    }
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Processes on this machine, at ports that are free now.
fn here(size: usize, link: Option<Link>) -> Result<Places> {
    // They are held until all are known, so that they differ. The last one is NCCL's.
    let held = (0..=size).map(|_| TcpListener::bind("127.0.0.1:0"));
    let held = held.collect::<std::io::Result<Vec<_>>>();
    let addresses = held.and_then(|held| {
        let each = held.iter().map(TcpListener::local_addr);
        each.collect::<std::io::Result<Vec<_>>>()
    });
    let mut addresses = addresses.map_err(|error| {
        Error::new(ErrorKind::Io, "no free port for the ring").with_source(error)
    })?;
    let port = addresses.pop().map(|address| address.port().into());
    let each = addresses.iter().map(|address| vec![address.to_string()]);
    let (hosts, ranks) = (each.collect::<Vec<_>>(), Vec::from_iter(0..size));
    Ok(Places {
        gpus: Gpus::of(link, &hosts, &ranks, port)?,
        hosts: write_hosts(&hosts, "all")?,
        ranks,
        is_own: true,
    })
}

/// The addresses of a file of hosts. The processes check them.
fn read_hosts(path: &Path) -> Result<Vec<Vec<String>>> {
    let fail = |error: &dyn std::fmt::Display| {
        let form = "expected a JSON list with a list of \"address:port\" for each rank";
        LaunchFault::Usage(format!("--hostfile {}: {form}: {error}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|error| fail(&error))?;
    serde_json::from_str(&text).map_err(|error| fail(&error))
}

fn write_hosts(hosts: &[Vec<String>], name: &str) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("mlx-ranks-{}-{name}.json", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .and_then(|mut file| file.write_all(serde_json::json!(hosts).to_string().as_bytes()));
    written.map_err(|error| {
        let message = format!("cannot write {}", path.display());
        LaunchFault::from(Error::new(ErrorKind::Io, message).with_source(error))
    })?;
    Ok(path)
}

/// Starts the processes and waits for their end. Returns the exit status.
fn start(places: &Places, command: &[OsString]) -> Result<u8> {
    let fail = |what: &str, error| Error::new(ErrorKind::Io, what.to_owned()).with_source(error);
    let ending = Arc::new(AtomicBool::new(false));
    // A terminal sends Ctrl-C to all processes; this one waits for the others.
    let interrupted = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, ending.clone())
        .and_then(|_| flag::register(SIGINT, interrupted))
        .map_err(|error| fail("cannot watch for signals", error))?;
    let program = std::env::current_exe().map_err(|error| fail("where is this program", error))?;
    let mut all = Vec::new();
    for (place, &rank) in places.ranks.iter().enumerate() {
        match begin(&program, places, place, command) {
            Ok(child) => all.push(Started {
                rank,
                child,
                ended: None,
            }),
            Err(error) => {
                all.iter_mut().for_each(Started::kill);
                return Err(fail(&format!("cannot start rank {rank}"), error).into());
            }
        }
    }
    wait(&mut all, &ending)
}

fn begin(
    program: &Path,
    places: &Places,
    place: usize,
    command: &[OsString],
) -> std::io::Result<Child> {
    let rank = places.ranks[place];
    let mut process = Command::new(program);
    process
        .args(command)
        .env("MLX_RANK", rank.to_string())
        .env("MLX_HOSTFILE", &places.hosts);
    if let Some(gpus) = &places.gpus {
        gpus.tell(&mut process, place);
    }
    let here = places.ranks.len();
    if here > 1 && std::env::var_os("MLX_CPU_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        process.env("MLX_CPU_THREADS", (cores / here).max(1).to_string());
    }
    if here > 1 && rank > 0 {
        process.stdin(Stdio::null()).stdout(Stdio::null());
    }
    process.spawn()
}

/// Waits until all processes have ended. If one fails, the others must end too.
fn wait(all: &mut [Started], ending: &AtomicBool) -> Result<u8> {
    let (mut code, mut deadline, mut told) = (0, None::<Instant>, false);
    loop {
        for started in all.iter_mut().filter(|started| started.ended.is_none()) {
            let ended = started.child.try_wait().map_err(|error| {
                let message = format!("cannot wait for rank {}", started.rank);
                Error::new(ErrorKind::Io, message).with_source(error)
            })?;
            let Some(status) = ended else { continue };
            started.ended = Some(status);
            if status.success() {
                continue;
            }
            let first = deadline.is_none();
            deadline.get_or_insert_with(|| Instant::now() + GRACE);
            // With 1 and 2 the process has said why, and 130 follows Ctrl-C. What follows the first failure is its
            // consequence.
            if first && !matches!(status.code(), Some(1 | 2 | 130)) {
                console::note(&format!("error: rank {} has ended: {status}", started.rank));
            }
            if code == 0 {
                code = status
                    .code()
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(1);
            }
        }
        if all.iter().all(|started| started.ended.is_some()) {
            return Ok(code);
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            all.iter_mut().for_each(Started::kill);
        }
        if ending.load(Ordering::Relaxed) && !told {
            told = true;
            all.iter_mut().for_each(Started::terminate);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Started {
    fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
        }
    }

    /// Asks the process to end, as this one was asked.
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    fn terminate(&mut self) {
        use rustix::process::{Pid, Signal, kill_process};
        if self.ended.is_none() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    fn terminate(&mut self) {
        self.kill();
    }
}
