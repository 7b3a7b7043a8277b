//! Runs a packed program in a root folder that has only the C and C++ libraries of the system.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::formats::{all_files, copy_all, fresh};

/// The libraries that a program may expect of a system.
const OF_SYSTEM: [&str; 8] = [
    "ld-linux",
    "libc.",
    "libm.",
    "libdl.",
    "libpthread.",
    "librt.",
    "libgcc_s.",
    "libstdc++.",
];

/// Whether this machine gives a process a root of its own; says so where it does not.
pub fn possible() -> bool {
    let allowed = Command::new("unshare")
        .args(["--map-root-user", "true"])
        .output();
    let possible = allowed.is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("left out: this machine gives no process a root of its own");
    }
    possible
}

/// A root with a packed program, the libraries that it needs of the system, and nothing else. Dropping it removes it.
pub struct Root {
    folder: PathBuf,
    /// The path of the program in the root.
    program: PathBuf,
}

impl Root {
    /// The folder `packed`, whose program is at `place`, in a root of its own below `to`.
    pub fn new(packed: &Path, place: &str, to: &Path) -> Result<Self> {
        let folder = fresh(&to.join("bare"))?;
        let root = Self {
            folder,
            program: Path::new("/packed").join(place),
        };
        copy_all(packed, &root.folder.join("packed"))?;
        for file in all_files(packed)? {
            for library in of_system(&file)? {
                let name = library.file_name().context("a library has a name")?;
                // The loader is named by its whole path.
                for to in [
                    root.folder.join("lib64").join(name),
                    root.folder.join(library.strip_prefix("/")?),
                ] {
                    super::copy(&library, &to)?;
                }
            }
        }
        Ok(root)
    }

    /// Copies a folder to `/place`.
    pub fn add(&self, from: &Path, place: &str) -> Result<()> {
        copy_all(from, &self.folder.join(place))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--map-root-user", "--root"])
            .arg(&self.folder)
            .arg(&self.program)
            .args(arguments)
            .env_clear()
            .env("LD_LIBRARY_PATH", "/lib64");
        command
    }

    /// What the program prints; a failure is an error with its messages.
    pub fn output(&self, arguments: &[&str]) -> Result<String> {
        let output = self
            .command(arguments)
            .output()
            .context("cannot run unshare")?;
        if !output.status.success() {
            bail!(
                "{} {} fails in a bare root: {}",
                self.program.display(),
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs the program and compares what it prints.
    pub fn prints(&self, arguments: &[&str], expected: &str) -> Result<()> {
        let printed = self.output(arguments)?;
        if printed != expected {
            bail!(
                "{} {} prints {printed:?} in a bare root, expected {expected:?}",
                self.program.display(),
                arguments.join(" "),
            );
        }
        Ok(())
    }

    /// Starts the program's server and posts `body` to `path`; returns the answer with its head ([`post`]).
    pub fn serves(&self, arguments: &[&str], path: &str, body: &str) -> Result<String> {
        let mut server = Server(
            self.command(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .context("cannot run unshare")?,
        );
        let errors = server.0.stderr.take().context("the errors have a pipe")?;
        let mut said = String::new();
        let mut lines = BufReader::new(errors).lines();
        let address = loop {
            let Some(line) = lines.next().transpose()? else {
                bail!("the server ends in a bare root: {}", said.trim());
            };
            if let Some((_, address)) = line.split_once("listening at http://") {
                break address.trim().to_owned();
            }
            said += &format!("{line}\n");
        };
        post(&address, path, "", body)
    }
}

/// Posts JSON to a server that starts, over HTTP; returns the answer with its head. Waits for at most a minute until the
/// server listens and has loaded its model. `more` are further lines of the request's head, each with its line end.
pub fn post(address: &str, path: &str, more: &str, body: &str) -> Result<String> {
    let start = Instant::now();
    loop {
        let answer = post_once(address, path, more, body);
        let wait = match &answer {
            Ok(answer) => answer.starts_with("HTTP/1.1 503 "),
            Err(_) => true,
        };
        if !wait || start.elapsed() > Duration::from_secs(60) {
            return answer;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn post_once(address: &str, path: &str, more: &str, body: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("cannot reach {address}"))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{more}\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .with_context(|| format!("no answer of {path}"))?;
    if answer.is_empty() {
        bail!("{address} closes the connection without an answer");
    }
    Ok(answer)
}

impl Drop for Root {
    fn drop(&mut self) {
        // What cannot be removed stays among the other results of the build.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A process that ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The libraries of the system that a program or a library needs.
fn of_system(file: &Path) -> Result<Vec<PathBuf>> {
    if !is_elf(file)? {
        return Ok(Vec::new());
    }
    let output = Command::new("ldd")
        .arg(file)
        .output()
        .context("cannot run ldd")?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let paths = listed.lines().filter_map(|line| {
        let path = line.split("=> ").last()?.trim().split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    let is_wanted = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| OF_SYSTEM.iter().any(|start| name.starts_with(start)))
    };
    Ok(paths.filter(is_wanted).collect())
}

/// Whether a file is a program or a library.
pub fn is_elf(file: &Path) -> Result<bool> {
    let mut head = Vec::new();
    fs::File::open(file)
        .and_then(|file| file.take(4).read_to_end(&mut head))
        .with_context(|| file.display().to_string())?;
    Ok(head == b"\x7fELF")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_with_the_libraries_of_the_system_only() {
        if !possible() {
            return;
        }
        let work = tempfile::tempdir().unwrap();
        let packed = work.path().join("packed");
        fs::create_dir_all(packed.join("bin")).unwrap();
        fs::copy("/usr/bin/env", packed.join("bin/said")).unwrap();
        let root = Root::new(&packed, "bin/said", work.path()).unwrap();
        root.prints(&[], "LD_LIBRARY_PATH=/lib64\n").unwrap();
        let error = root.prints(&[], "something else").unwrap_err().to_string();
        assert!(
            error.contains("LD_LIBRARY_PATH") && error.contains("something else"),
            "{error}"
        );
        // There is no shell, and nothing else, in the root.
        let error = root
            .prints(&["/bin/sh", "-c", "true"], "")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/bin/sh"), "{error}");
        let error = root.serves(&["/bin/sh"], "/", "").unwrap_err().to_string();
        assert!(error.contains("the server ends"), "{error}");
        let folder = root.folder.clone();
        drop(root);
        assert!(!folder.exists());
    }
}
