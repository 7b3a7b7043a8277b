//! Fake bridges for the mlx-lm back end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mlx_infer::{MlxLm, MlxLmOptions, Result};

/// A fake bridge with the given behaviour, in a temporary folder.
pub struct Fake {
    folder: tempfile::TempDir,
    python: PathBuf,
}

impl Fake {
    pub fn new(behaviour: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join(behaviour);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bridge/fake.py");
        // A link, not a copy: a file that was just written may still be open for writing in a process that another
        // thread starts.
        std::os::unix::fs::symlink(script, &python).unwrap();
        Self { folder, python }
    }

    /// The lines that the bridge's processes have written.
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn options(&self) -> MlxLmOptions {
        MlxLmOptions {
            python: Some(self.python.clone()),
            timeout: Duration::from_secs(60),
            ..Default::default()
        }
    }

    /// A model with the tokenizer and template of the built-in model, and with this bridge.
    pub fn load(&self) -> Result<MlxLm> {
        MlxLm::load(mlx_infer::default_model_files(), self.options())
    }
}
