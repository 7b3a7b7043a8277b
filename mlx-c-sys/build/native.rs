//! The native part of the build: MLX from its wheel, mlx-c through CMake with our patches and shim, in one folder.
//!
//! One implementation with two entries: the build script of `mlx-c-sys` and `cargo xtask build-mlx`. Where MLX comes
//! from, in this order: `MLX_C_DIR`, a finished folder of this build; `MLX_DIR`, an installed MLX; the pinned wheel;
//! or, only when asked (`MLX_FROM_SOURCE=1`), MLX's own sources. libmlxc comes from a wheel if there is one for these
//! inputs (`prebuilt.rs`). The results live in the user's cache (`cache.rs`), so
//! that all projects, profiles and target folders share them, and installed programs find them. Network is used here
//! and nowhere else.
#![allow(
    dead_code,
    reason = "compiled into the build script, xtask and the tests, and each uses its part"
)]

use std::path::{Path, PathBuf};

pub mod cache;
pub mod cmake;
pub mod cuda;
pub mod host;
pub mod instances;
pub mod kernels;
pub mod machine;
pub mod pins;
pub mod pip;
pub mod prebuilt;
pub mod prefix;
pub mod report;
pub mod source;
pub mod store;
pub mod tools;

use host::Backend;
use prefix::Prefix;
use report::{Failure, Result};

/// The variables that [`Options::from_env`] reads.
pub const VARIABLES: [&str; 7] = [
    "MLX_BACKEND",
    "MLX_DIR",
    "MLX_C_DIR",
    "MLX_FROM_SOURCE",
    cache::VARIABLE,
    cuda::VARIABLE,
    prebuilt::VARIABLE,
];

/// The variable by which a build leaves MLX out: `1` for a documentation or a check of types.
pub const LEFT_OUT: &str = "MLX_NO_NATIVE";

/// Whether the build leaves MLX out: then it uses no network, no compiler and no library, and what it makes can be
/// checked and documented. `DOCS_RS` is what the builders of documentation set.
pub fn is_left_out() -> Result<bool> {
    if std::env::var_os("DOCS_RS").is_some() {
        return Ok(true);
    }
    switch(LEFT_OUT)
}

/// A variable that is 0, 1 or not set.
fn switch(name: &str) -> Result<bool> {
    let value = std::env::var_os(name).unwrap_or_default();
    match &*value.to_string_lossy() {
        "" | "0" => Ok(false),
        "1" => Ok(true),
        other => Err(Failure::new(format!("{name} is neither 0 nor 1"))
            .found(other)
            .fix("set it to 1, or unset it")),
    }
}

/// What to build.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine that it is for.
    pub target: String,
    /// The folder that holds all native builds: the user's cache.
    pub root: PathBuf,
    /// Which MLX.
    pub backend: Backend,
    /// A finished folder of this build, used as it is.
    pub mlx_c_dir: Option<PathBuf>,
    /// An installed MLX, or the Python environment that has it.
    pub mlx_dir: Option<PathBuf>,
    /// A folder with libmlxc in wheels.
    pub prebuilt_dir: Option<PathBuf>,
    /// Build MLX itself too.
    pub from_source: bool,
    /// For which cards our CUDA kernels are compiled, where the back end has them.
    pub architectures: Vec<cuda::Architecture>,
}

impl Options {
    /// Reads the variables.
    pub fn from_env(target: &str) -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let backend = match set("MLX_BACKEND") {
            Some(name) => Backend::parse(&name.to_string_lossy(), target)?,
            None => Backend::default_for(target),
        };
        let from_source = switch("MLX_FROM_SOURCE")?;
        let (mlx_c_dir, mlx_dir) = (
            set("MLX_C_DIR").map(PathBuf::from),
            set("MLX_DIR").map(PathBuf::from),
        );
        let architectures = match set(cuda::VARIABLE) {
            Some(text) => text.to_string_lossy().into_owned(),
            None => String::new(),
        };
        let architectures = cuda::Architecture::list(&architectures)?;
        Ok(Self {
            target: target.to_owned(),
            root: cache_folder()?,
            backend,
            mlx_c_dir,
            mlx_dir,
            prebuilt_dir: set(prebuilt::VARIABLE).map(PathBuf::from),
            from_source,
            architectures,
        })
    }
}

/// The folder with everything to link with. It is built if it has to be. `say` is called for every step that takes
/// time, and within the compilation for every file ("[3/31] …").
pub fn ensure(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Prefix> {
    if let Some(dir) = &options.mlx_c_dir {
        return Prefix::given(dir, &options.target);
    }
    if let Some(why) = cuda::left_out(options.backend) {
        say(&format!("kernels for {}: {why}", options.backend.name()));
    }
    let mlx = mlx(options, say)?;
    let found = Prefix::find(options, mlx.as_deref());
    let is_finished = |prefix: &Prefix| prefix.entry().unfinished().is_none();
    if !found.as_ref().is_ok_and(is_finished)
        && let Some(prefix) = prebuilt::ensure(options, mlx.as_deref(), say)?
    {
        return Ok(prefix);
    }
    let prefix = found?;
    prefix
        .entry()
        .ensure(|partial| cmake::build(options, &prefix, partial, say))?;
    Ok(prefix)
}

/// The folder of compiled CUDA kernels.
pub fn kernel_cache(root: &Path) -> PathBuf {
    root.join("kernels")
}

/// The MLX to build against; nothing when MLX is to be built too.
fn mlx(options: &Options, say: &mut dyn FnMut(&str)) -> Result<Option<PathBuf>> {
    if let Some(dir) = &options.mlx_dir {
        return prefix::installed_mlx(dir).map(Some);
    }
    if options.from_source {
        return Ok(None);
    }
    let backend = options.backend;
    let what = format!("MLX {} for {}", pins::MLX, backend.name());
    let file = Path::new("mlx/lib").join(host::library("mlx"));
    let header = PathBuf::from("mlx/include/mlx/version.h");
    let wheel = wheel_dir(options);
    let dir = pip::unpack(wheel, &what, backend.requirements(), [file, header], say)?;
    prefix::installed_mlx(&dir).map(Some)
}

/// The user's cache. Its path must be absolute, because libmlxc finds MLX by it.
fn cache_folder() -> Result<PathBuf> {
    let fix = format!(
        "set {} to a folder for MLX and libmlxc, by its absolute path",
        cache::VARIABLE
    );
    match cache::folder() {
        Some(folder) if folder.is_absolute() => Ok(folder),
        Some(folder) => Err(
            Failure::new(format!("{} is a relative path", cache::VARIABLE))
                .found(folder.display().to_string())
                .fix(fix),
        ),
        None => Err(Failure::new("there is no folder to keep MLX in")
            .sought(format!(
                "{}, XDG_CACHE_HOME or HOME, with an absolute path",
                cache::VARIABLE
            ))
            .fix(fix)),
    }
}

/// Where the wheel of the back end is unpacked.
pub fn wheel_dir(options: &Options) -> PathBuf {
    options
        .root
        .join(format!("wheel-{}-{}", options.backend.name(), pins::MLX))
}
