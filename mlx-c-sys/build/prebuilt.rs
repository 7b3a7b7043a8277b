//! A libmlxc that was built on another machine from the same inputs, as a wheel: pip compares its hash, and whether it is
//! for this system.
//!
//! A wheel comes from the folder `MLX_PREBUILT_DIR`, or from the address that `requirements/prebuilt.txt` has for these
//! inputs. `cargo xtask build-mlx --pack DIR` makes one. Where there is none, or it cannot be used, libmlxc is built here.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::cuda;
use super::host::Backend;
use super::pins;
use super::pip;
use super::prefix::Prefix;
use super::report::{Failure, Result};
use super::{Options, host};

/// The variable that names a folder with wheels.
pub const VARIABLE: &str = "MLX_PREBUILT_DIR";

/// The project that the wheels belong to, and the beginning of their file names.
pub const PROJECT: &str = "mlxrs-native";
const FILE: &str = "mlxrs_native";

/// A wheel: where it is, and its SHA-256.
#[derive(Debug, PartialEq, Eq)]
pub struct Wheel {
    /// `https:` or `file:`.
    pub address: String,
    /// 64 hexadecimal digits.
    pub sha256: String,
}

/// The version of the wheel for these options: that of mlx-c, then back end and inputs.
pub fn version(options: &Options) -> String {
    let inputs = match &*cuda::fact(options) {
        "" => pins::inputs(),
        kernels => pins::digest([&*pins::inputs(), kernels]),
    };
    format!("{}+{}.{inputs}", pins::MLX_C, options.backend.name())
}

/// The name of a wheel's file for a platform such as `manylinux_2_35_x86_64`.
pub fn file_name(options: &Options, platform: &str) -> String {
    format!("{FILE}-{}-py3-none-{platform}.whl", version(options))
}

/// The finished folder with the library of a wheel, or `None` if none can be used; `say` tells why.
pub fn ensure(
    options: &Options,
    mlx: Option<&Path>,
    say: &mut dyn FnMut(&str),
) -> Result<Option<Prefix>> {
    // The library looks for MLX where the wheel of MLX is in the cache. On macOS it has an absolute path in it.
    if options.mlx_dir.is_some() || mlx.is_none() || !options.target.contains("linux") {
        return Ok(None);
    }
    let wheel = match find(options) {
        Ok(Some(wheel)) => wheel,
        Ok(None) => return Ok(None),
        Err(reason) => {
            say(&format!("{reason}; libmlxc is built here"));
            return Ok(None);
        }
    };
    let prefix = Prefix::planned(options, mlx, &format!("prebuilt {}", wheel.sha256));
    let made = prefix.entry().ensure(|partial| {
        say(&format!("taking libmlxc from {}", wheel.address));
        let line = format!(
            "{PROJECT} @ {} --hash=sha256:{}\n",
            wheel.address, wheel.sha256
        );
        pip::install(partial, "libmlxc", &line, &["--no-index"])?;
        usable(partial, options)
    });
    match made {
        Ok(()) => Ok(Some(prefix)),
        Err(failure) => {
            say(&format!("{failure}\nlibmlxc is built here"));
            Ok(None)
        }
    }
}

/// The wheel for these options, if there is one.
///
/// # Errors
/// A folder is named that has no such wheel, or the wheel's file with the hash is not usable.
pub fn find(options: &Options) -> Result<Option<Wheel>, String> {
    match &options.prebuilt_dir {
        Some(folder) => in_folder(options, folder).map(Some),
        None => Ok(pinned(options, pins::PREBUILT)),
    }
}

fn in_folder(options: &Options, folder: &Path) -> Result<Wheel, String> {
    let start = format!("{FILE}-{}-py3-none-", version(options));
    let end = format!("_{}.whl", architecture(options));
    let failed = |e: std::io::Error| format!("{VARIABLE}={}: {e}", folder.display());
    let folder = fs::canonicalize(folder).map_err(failed)?;
    let mut names: Vec<String> = fs::read_dir(&folder)
        .map_err(failed)?
        .flatten()
        .map(|item| item.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&start) && name.ends_with(&end))
        .collect();
    names.sort();
    let name = names
        .pop()
        .ok_or_else(|| format!("{} has no {start}…{end}", folder.display()))?;
    let wheel = folder.join(&name);
    let beside = folder.join(format!("{name}.sha256"));
    let text = fs::read_to_string(&beside).map_err(|e| format!("{}: {e}", beside.display()))?;
    let sha256 = text.split_whitespace().next().unwrap_or_default();
    let is_digest = sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_digest {
        return Err(format!(
            "{} does not begin with a SHA-256 of 64 hexadecimal digits",
            beside.display()
        ));
    }
    Ok(Wheel {
        address: format!("file://{}", wheel.display()),
        sha256: sha256.to_lowercase(),
    })
}

/// The line of `list` for these options: version, processor, SHA-256, address.
pub fn pinned(options: &Options, list: &str) -> Option<Wheel> {
    let version = version(options);
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_ours =
            words.next() == Some(&*version) && words.next() == Some(architecture(options));
        let (sha256, address) = (words.next()?, words.next()?);
        is_ours.then(|| Wheel {
            address: address.to_owned(),
            sha256: sha256.to_owned(),
        })
    })
}

fn architecture(options: &Options) -> &str {
    options.target.split('-').next().unwrap_or_default()
}

/// Whether the library in `partial` can be loaded here and is of these inputs. That of a GPU's back end may need a driver
/// that this machine does not have, so it is not loaded.
fn usable(partial: &Path, options: &Options) -> Result<()> {
    const PROGRAM: &str = "import ctypes, sys\n\
        library = ctypes.CDLL(sys.argv[1])\n\
        library.mlxrs_inputs.restype = ctypes.c_char_p\n\
        print(library.mlxrs_inputs().decode())";
    if options.backend != Backend::Cpu {
        return Ok(());
    }
    let library = partial
        .join("lib")
        .join(host::library_of(&options.target, "mlxc"));
    let output = Command::new(pip::python())
        .args(["-c", PROGRAM])
        .arg(&library)
        .output()
        .map_err(|e| Failure::io("run", Path::new(&pip::python()), &e))?;
    if !output.status.success() {
        return Err(Failure::command(
            "the prebuilt libmlxc cannot be loaded",
            &output,
        ));
    }
    let inputs = String::from_utf8_lossy(&output.stdout);
    if inputs.trim() != pins::inputs() {
        let found = format!("{}, wanted {}", inputs.trim(), pins::inputs());
        return Err(Failure::new("the prebuilt libmlxc is of other inputs").found(found));
    }
    Ok(())
}
