//! A server as a process of its own, stopped when it is dropped.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::client::Client;

/// A server that answers.
pub struct Server {
    child: Child,
    pub client: Client,
    pub name: &'static str,
}

/// The longest time of a start: a large checkpoint and a slow import.
const START: Duration = Duration::from_secs(120);

impl Server {
    /// Starts the command that `command` returns for a free port, and waits until the server
    /// answers. Its output goes to `log`.
    pub fn start(
        name: &'static str,
        command: impl FnOnce(u16) -> Command,
        extra: Value,
        log: &Path,
    ) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = command(port);
        let output =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {:?}", command.get_program()))?;
        let client = Client::new(port, extra);
        let mut server = Self {
            child,
            client,
            name,
        };
        let start = Instant::now();
        while !server.client.is_ready() {
            if let Some(status) = server.child.try_wait()? {
                bail!(
                    "{name} ended at its start ({status}), see {}",
                    log.display()
                );
            }
            if start.elapsed() > START {
                bail!(
                    "{name} does not answer after {START:?}, see {}",
                    log.display()
                );
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Server {
    /// The process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
