//! `bindings`: writes `mlx-c-sys/src/bindings.rs` from the headers, or checks that it belongs to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::native::{LEFT_OUT, pins};

/// The file of the bindings.
pub const FILE: &str = "mlx-c-sys/src/bindings.rs";

const NOTE: &str = "// Written by `cargo xtask bindings`, not by hand.";

/// Whether to write.
#[derive(clap::Args)]
pub struct Arguments {
    /// Generate the bindings and compare them with the kept ones, without writing
    #[arg(long)]
    check: bool,
}

/// Generates the bindings by the feature `bindgen` of `mlx-c-sys`, which needs libclang and no MLX.
pub fn run(arguments: &Arguments) -> Result<()> {
    let kept = cargo::repository().join(FILE);
    // The crate contains the old bindings only without the feature, but cargo wants the file to be there.
    let old = fs::read_to_string(&kept).unwrap_or_default();
    let text = with_head(&generated()?);
    match (arguments.check, old == text) {
        (_, true) => eprintln!("{FILE} is up to date"),
        (true, false) => {
            bail!("{FILE} differs from what the headers give: run `cargo xtask bindings`")
        }
        (false, false) => {
            fs::write(&kept, text).with_context(|| kept.display().to_string())?;
            eprintln!("{FILE} is written");
        }
    }
    Ok(())
}

fn generated() -> Result<String> {
    let output = cargo::command(["check", "--package", "mlx-c-sys", "--features", "bindgen"])
        .arg("--message-format=json-render-diagnostics")
        .env(LEFT_OUT, "1")
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo: {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let folder = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of_crate = message["package_id"].as_str()?.contains("mlx-c-sys");
        let folder = message["out_dir"].as_str().filter(|_| of_crate)?;
        Some(PathBuf::from(folder))
    });
    let file = folder
        .context("cargo names no folder of the build script of mlx-c-sys")?
        .join("bindings.rs");
    fs::read_to_string(&file).with_context(|| file.display().to_string())
}

/// The text with lines in front that say what it was made from, so that a check needs no libclang.
fn with_head(text: &str) -> String {
    let (headers, own) = (pins::headers(), pins::digest([text]));
    format!("{NOTE}\n// headers {headers}\n// text {own}\n{text}")
}

/// Why the kept bindings are not those of the headers, if they are not.
pub fn fault(root: &Path) -> Option<String> {
    fault_in(&fs::read_to_string(root.join(FILE)).unwrap_or_default())
}

fn fault_in(kept: &str) -> Option<String> {
    // Without the three lines of the head.
    let text = kept.splitn(4, '\n').nth(3).unwrap_or_default();
    let why = match with_head(text) == kept {
        true => return None,
        false if kept.contains(&format!("\n// headers {}\n", pins::headers())) => {
            "it was changed by hand"
        }
        false => "the headers, or how they are read, have changed since it was written",
    };
    Some(format!("{FILE}: {why}: run `cargo xtask bindings`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_of_other_headers_and_changed_ones_are_refused() {
        let text = "pub fn mlx_add();\n";
        let kept = with_head(text);
        assert_eq!(fault_in(&kept), None);
        let changed = fault_in(&kept.replace("add", "sub")).unwrap();
        assert!(changed.contains("by hand"), "{changed}");
        let stale = fault_in(&kept.replace(&pins::headers(), "0123")).unwrap();
        assert!(stale.contains("headers"), "{stale}");
        assert!(fault_in("").is_some() && fault_in(text).is_some());
        assert_eq!(fault(cargo::repository()), None);
    }
}
