//! Compiles the CUDA kernels, each file for each architecture by itself, and puts the results into
//! a source file of libmlxc. No GPU is needed.
//!
//! A result is stored in the user's cache, under a digest of all its inputs. So a build compiles only
//! what has changed, and `cargo xtask kernels` finds the results of a build.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::cuda::{Architecture, Toolkit};
use super::pins;
use super::report::{Failure, Result};
use super::tools;

/// `-allow-unsupported-compiler`: the host's compiler is only the preprocessor here.
const FLAGS: [&str; 7] = [
    "-std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    "-allow-unsupported-compiler",
    "-Xptxas=-v",
    "-I.",
    "-m64",
];

/// A file of kernels: `ops/<op>/cuda/<stem>.cu` is called `<op>/<stem>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit {
    /// Its name in the library.
    pub name: String,
    /// Its path in the shim.
    pub path: String,
}

/// One file for one architecture.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The source.
    pub unit: Unit,
    /// The cards.
    pub architecture: Architecture,
    /// The cubin or PTX.
    pub file: PathBuf,
    /// The report of the assembler: registers, spills, shared memory.
    pub log: String,
}

/// The files of kernels among the shim's.
pub fn units(files: &[(String, String)]) -> Result<Vec<Unit>> {
    let mut units = Vec::new();
    for (path, _) in files {
        let Some(stem) = path.strip_suffix(".cu") else {
            continue;
        };
        let parts: Vec<&str> = stem.split('/').collect();
        let ["ops", operation, "cuda", stem] = parts[..] else {
            return Err(Failure::new(format!("{path} is not where kernels are"))
                .sought("ops/<operation>/cuda/<name>.cu")
                .fix("move it there"));
        };
        units.push(Unit {
            name: format!("{operation}/{stem}"),
            path: path.clone(),
        });
    }
    units.sort();
    Ok(units)
}

/// Compiles every file of kernels in `folder` for every architecture, unless `cache` already has the result. `files`
/// has the texts of the files.
pub fn compile(
    toolkit: &Toolkit,
    cache: &Path,
    folder: &Path,
    files: &[(String, String)],
    architectures: &[Architecture],
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Compiled>> {
    fs::create_dir_all(cache).map_err(|e| Failure::io("create", cache, &e))?;
    let mut made = Vec::new();
    for unit in units(files)? {
        let digest = digest(files, &unit.path);
        for architecture in architectures {
            let ending = if architecture.ptx { "ptx" } else { "cubin" };
            let stem = unit.name.replace('/', "-");
            made.push(Compiled {
                file: cache.join(format!("{stem}-{architecture}-{digest}.{ending}")),
                unit: unit.clone(),
                architecture: architecture.clone(),
                log: String::new(),
            });
        }
    }
    // Both files are renamed into place when they are complete, the log first.
    let missing: Vec<&Compiled> = made.iter().filter(|one| !one.file.is_file()).collect();
    let jobs = std::env::var("NUM_JOBS")
        .ok()
        .and_then(|jobs| jobs.parse().ok());
    let cores = || thread::available_parallelism().map_or(1, usize::from);
    let jobs = jobs.unwrap_or_else(cores).clamp(1, missing.len().max(1));
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs {
            let (sender, missing, next) = (sender.clone(), &missing, &next);
            scope.spawn(move || {
                while let Some(one) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = one.make(toolkit, folder);
                    let failed = result.is_err();
                    if sender.send((one, result)).is_err() || failed {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (done, (one, result)) in receiver.iter().enumerate() {
            if result.is_err() {
                next.store(missing.len(), Ordering::Relaxed);
            }
            result?;
            let (name, target) = (&one.unit.name, one.architecture.target());
            say(&format!(
                "[{}/{}] {name} for {target}",
                done + 1,
                missing.len()
            ));
        }
        Ok(())
    })?;
    for one in &mut made {
        let log = one.log_file();
        one.log = fs::read_to_string(&log).map_err(|e| Failure::io("read", &log, &e))?;
    }
    Ok(made)
}

impl Compiled {
    fn log_file(&self) -> PathBuf {
        self.file.with_extension("log")
    }

    fn make(&self, toolkit: &Toolkit, folder: &Path) -> Result<()> {
        let ending = format!("partial-{}", std::process::id());
        let partial = self.file.with_extension(&ending);
        let mut command = Command::new(toolkit.program("nvcc"));
        command
            .args(FLAGS)
            .arg(if self.architecture.ptx {
                "-ptx"
            } else {
                "-cubin"
            })
            .arg(format!("-arch={}", self.architecture.target()))
            .arg("-ccbin")
            .arg(&tools::Compiler::get()?.path)
            .arg("-o")
            .arg(&partial)
            .arg(&self.unit.path)
            .current_dir(folder);
        let output = run(&mut command)?;
        let Unit { path, .. } = &self.unit;
        if !output.status.success() {
            let target = self.architecture.target();
            return Err(Failure::command(
                &format!("{path} does not compile for {target}"),
                &output,
            ));
        }
        let log_file = self.log_file();
        let log = log_file.with_extension(format!("log-{ending}"));
        fs::write(&log, &output.stderr).map_err(|e| Failure::io("write", &log, &e))?;
        fs::rename(&log, &log_file).map_err(|e| Failure::io("move into place", &log, &e))?;
        fs::rename(&partial, &self.file).map_err(|e| Failure::io("move into place", &partial, &e))
    }
}

/// Runs a program of the toolkit without the environment variables that change its output.
fn run(command: &mut Command) -> Result<std::process::Output> {
    for name in [
        "NVCC_PREPEND_FLAGS",
        "NVCC_APPEND_FLAGS",
        "NVCC_CCBIN",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
    ] {
        command.env_remove(name);
    }
    let program = PathBuf::from(command.get_program());
    command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::io("run", &program, &e))
}

/// A digest of the inputs of a file of kernels: its text, those of this repository's headers that
/// it includes, and the compiler with its flags.
pub fn digest(files: &[(String, String)], path: &str) -> String {
    let mut seen = BTreeSet::new();
    collect(files, path, &mut seen);
    let texts = files
        .iter()
        .filter(|(path, _)| seen.contains(path))
        .flat_map(|(path, text)| [&**path, &**text]);
    pins::digest(texts.chain([pins::REQUIRE_CUDA_TOOLKIT_13]).chain(FLAGS))
}

fn collect(files: &[(String, String)], path: &str, seen: &mut BTreeSet<String>) {
    let Some((path, text)) = files.iter().find(|(known, _)| known == path) else {
        return;
    };
    if !seen.insert(path.clone()) {
        return;
    }
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix('#') else {
            continue;
        };
        let Some(rest) = rest.trim_start().strip_prefix("include") else {
            continue;
        };
        let Some((name, _)) = rest
            .trim_start()
            .strip_prefix('"')
            .and_then(|name| name.split_once('"'))
        else {
            continue;
        };
        // The file is next to the one that includes it, or at the top of the shim. For a digest it
        // does not matter which.
        collect(files, &beside(path, name), seen);
        collect(files, name, seen);
    }
}

/// `name` from the folder of `path`, without "..".
fn beside(path: &str, name: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in name.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Links the results for all architectures of a file together. Writes `embedded.cpp` to `out`,
/// which holds them all under the declarations of `shim/cuda/embedded.h`.
pub fn embed(toolkit: &Toolkit, compiled: &[Compiled], out: &Path) -> Result<()> {
    fs::create_dir_all(out).map_err(|e| Failure::io("create", out, &e))?;
    let units: BTreeSet<&Unit> = compiled.iter().map(|one| &one.unit).collect();
    let mut assembly = String::new();
    let mut symbols = String::new();
    let mut rows = String::new();
    for (index, unit) in units.iter().enumerate() {
        let fat = out.join(format!("{index}.fatbin"));
        let mut command = Command::new(toolkit.program("fatbinary"));
        command
            .arg("-64")
            .arg(format!("--create={}", fat.display()));
        for one in compiled.iter().filter(|one| one.unit == **unit) {
            let kind = if one.architecture.ptx { "ptx" } else { "elf" };
            let (number, file) = (one.architecture.number(), one.file.display());
            command.arg(format!("--image3=kind={kind},sm={number},file={file}"));
        }
        let output = run(&mut command)?;
        if !output.status.success() {
            return Err(Failure::command(
                &format!("fatbinary fails for {}", unit.path),
                &output,
            ));
        }
        let symbol = format!("mlxrs_kernels_{index}");
        let _ = write!(
            assembly,
            "        \".balign 64\\n.globl {symbol}\\n.hidden {symbol}\\n{symbol}:\\n\"\n        \
             \".incbin \\\"{}\\\"\\n.globl {symbol}_end\\n.hidden {symbol}_end\\n{symbol}_end:\\n\"\n",
            fat.display()
        );
        let _ = writeln!(
            symbols,
            "extern const unsigned char {symbol}[], {symbol}_end[];"
        );
        let _ = writeln!(
            rows,
            "    {{\"{}\", {symbol}, size_t({symbol}_end - {symbol})}},",
            unit.name
        );
    }
    let text = format!(
        "// Written by the build.\n#include \"cuda/embedded.h\"\n\n\
         __asm__(\".pushsection .rodata\\n\"\n{assembly}        \".popsection\\n\");\n\n\
         extern \"C\" {{\n{symbols}}}\n\nnamespace mlxrs::cuda {{\n\n\
         // The last one ends an array that would else be empty without kernels.\n\
         const Embedded embedded[] = {{\n{rows}    {{nullptr, nullptr, 0}},\n}};\n\
         const size_t embedded_count = {};\n\n}}  // namespace mlxrs::cuda\n",
        units.len()
    );
    let path = out.join("embedded.cpp");
    fs::write(&path, text).map_err(|e| Failure::io("write", &path, &e))
}
