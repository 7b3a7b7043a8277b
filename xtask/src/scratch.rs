//! A folder outside the repository for the time of a command.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A folder of this process below the system's folder for temporary files. Dropping it removes it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder, which did not exist before.
    pub fn new(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to the system.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_new_and_goes_with_its_content() {
        let scratch = Scratch::new("test").unwrap();
        let path = scratch.path().to_owned();
        fs::write(path.join("a"), "a").unwrap();
        assert!(Scratch::new("test").is_err(), "it exists");
        drop(scratch);
        assert!(!path.exists());
    }
}
