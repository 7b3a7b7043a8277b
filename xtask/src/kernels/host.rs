//! The host code of the CUDA kernels: C++ that is part only of builds for CUDA. The compiler checks
//! it against the headers of the CPU's MLX, which include those of the CUDA back end.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::native::cuda::Toolkit;
use crate::native::{pins, tools};

/// The compiler's errors for the shim's CUDA sources, with the headers of mlx-c and of an installed
/// MLX.
pub fn faults(toolkit: &Toolkit, mlx: &Path, mlx_c: &Path, shim: &Path) -> Result<Vec<String>> {
    let mut flags = vec![
        "-std=c++20".into(),
        "-fsyntax-only".into(),
        "-DMLXRS_CUDA".into(),
    ];
    let mut folder = |flag: &str, folder: PathBuf| {
        flags.extend([PathBuf::from(flag), folder]);
    };
    folder("-I", shim.to_owned());
    folder("-I", mlx_c.to_owned());
    folder("-isystem", mlx.join("include"));
    folder("-isystem", toolkit.dir.join("include"));
    folder("-isystem", toolkit.dir.join("include/cccl"));
    // Searched after the compiler's own headers, which may have <format>.
    folder("-idirafter", shim.join("compat"));
    folder("-idirafter", shim.join("compat/cuda"));
    flags.extend(["-include".into(), "format".into()]);

    // All files are included in one translation unit, so that the common headers are read once.
    let (own, shared) = files();
    let all = shim.join("all.cpp");
    let includes: String = own
        .iter()
        .map(|path| format!("#include \"{path}\"\n"))
        .collect();
    std::fs::write(&all, includes)?;
    let sources = shared.iter().map(|path| shim.join(path)).chain([all]);
    let mut faults = Vec::new();
    for path in sources {
        faults.extend(refused(&path, &flags, shim)?);
    }
    Ok(faults)
}

/// The files in folders named `cuda`, and other files with lines for CUDA only.
fn files() -> (Vec<&'static str>, Vec<&'static str>) {
    let sources = pins::SHIM.iter().filter(|(path, _)| path.ends_with(".cpp"));
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for (path, text) in sources {
        if path.split('/').any(|part| part == "cuda") {
            own.push(&**path);
        } else if text.contains("MLXRS_CUDA") {
            shared.push(&**path);
        }
    }
    (own, shared)
}

fn refused(source: &Path, flags: &[PathBuf], shim: &Path) -> Result<Option<String>> {
    let compiler = &tools::Compiler::get().map_err(|e| anyhow!("{e}"))?.path;
    let output = Command::new(compiler)
        .args(flags)
        .arg(source)
        .output()
        .with_context(|| format!("cannot run {}", compiler.display()))?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Ok(Some(text.replace(&format!("{}/", shim.display()), "")))
}
