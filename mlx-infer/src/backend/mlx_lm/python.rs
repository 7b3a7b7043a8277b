//! The choice of the Python that runs mlx_lm, and its packages.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

/// The variable that names a Python.
pub(super) const VARIABLE: &str = "MLX_INFER_PYTHON";
/// How long Python may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Prints the version of mlx_lm, or null, without importing it.
const PROBE: &str = "\
import importlib.metadata as metadata, json
try: version = metadata.version('mlx-lm')
except metadata.PackageNotFoundError: version = None
print(json.dumps({'mlx_lm': version}))";

#[derive(Deserialize)]
struct Found {
    mlx_lm: Option<String>,
}

/// The Python to run: the program or virtual environment `given`, else that of `MLX_INFER_PYTHON`,
/// else that of an active virtual environment, else `python3` of `PATH`.
pub(in crate::backend) fn choose(given: Option<&Path>) -> PathBuf {
    let named = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    let active = || {
        let environment = std::env::var_os("VIRTUAL_ENV")?;
        let python = Path::new(&environment).join("bin").join("python");
        python.is_file().then_some(python)
    };
    let of_folder = |python: PathBuf| match python.is_dir() {
        true => python.join("bin").join("python"),
        false => python,
    };
    given
        .map(Path::to_owned)
        .or_else(|| named().map(PathBuf::from))
        .map(of_folder)
        .or_else(active)
        .unwrap_or_else(|| PathBuf::from("python3"))
}

/// The version of mlx_lm that a Python has, or the reason why there is none.
pub(in crate::backend) fn version(python: &Path) -> Result<String, String> {
    let shown = python.display();
    let cannot = |error| format!("cannot run {shown}: {error}");
    let mut child = Command::new(python)
        .args(["-c", PROBE])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(cannot)?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(cannot)? {
            Some(status) => break status,
            None if began.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "{shown} has not answered within {} s",
                    PATIENCE.as_secs()
                ));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout
            .take(1 << 16)
            .read_to_end(&mut printed)
            .map_err(cannot)?;
    }
    let found = serde_json::from_slice::<Found>(&printed);
    match found {
        Ok(found) if status.success() => found
            .mlx_lm
            .ok_or_else(|| format!("{shown} has no mlx_lm: {shown} -m pip install mlx-lm")),
        _ => Err(format!("{shown} is no Python that works ({status})")),
    }
}
