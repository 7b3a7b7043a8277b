//! The finished folder: libmlxc with our shim, its headers, and which MLX it belongs to.

use std::fs;
use std::path::{Path, PathBuf};

use super::Options;
use super::cuda;
use super::host;
use super::machine;
use super::pins;
use super::report::{Failure, Result};
use super::store::{Entry, MARKER};
use super::tools;

/// A folder to link with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The machine that it is for.
    pub target: String,
    /// `include/`, and `lib/` with libmlxc.
    pub dir: PathBuf,
    /// The MLX it belongs to: `include/`, `lib/`.
    pub mlx: PathBuf,
    /// The compiler that makes libmlxc, and its flags.
    pub compiler: String,
    /// The compiler of its CUDA kernels, and for which cards; empty without them.
    pub kernels: String,
}

impl Prefix {
    /// The folder for these options, built or not. Without a compiler it is a finished one that another compiler has
    /// made from the same inputs.
    ///
    /// # Errors
    /// There is neither a compiler nor a finished folder.
    pub fn find(options: &Options, mlx: Option<&Path>) -> Result<Self> {
        let missing = match tools::compiler_and_flags() {
            Ok(compiler) => return Ok(Self::planned(options, mlx, &compiler)),
            Err(missing) => missing,
        };
        let stem = Self::stem(options, mlx);
        fs::read_dir(&options.root)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|item| item.file_name().to_string_lossy().starts_with(&stem))
            .find_map(|item| Self::given(&item.path(), &options.target).ok())
            .ok_or(missing)
    }

    /// The folder that `compiler` fills.
    pub fn planned(options: &Options, mlx: Option<&Path>, compiler: &str) -> Self {
        let kernels = cuda::fact(options);
        let inputs = pins::inputs();
        let key = match &*kernels {
            "" => pins::digest([&*inputs, compiler]),
            kernels => pins::digest([&*inputs, compiler, kernels]),
        };
        let dir = options
            .root
            .join(format!("{}-{key}", Self::stem(options, mlx)));
        Self {
            target: options.target.clone(),
            mlx: mlx.map_or_else(|| dir.clone(), Path::to_owned),
            dir,
            compiler: compiler.to_owned(),
            kernels,
        }
    }

    /// The part of the folder's name that tells back end and versions.
    fn stem(options: &Options, mlx: Option<&Path>) -> String {
        let backend = options.backend.name();
        let kind = match (&options.mlx_dir, mlx) {
            (Some(_), Some(mlx)) => {
                format!("{backend}-at-{}", pins::digest([&*mlx.to_string_lossy()]))
            }
            (_, None) => format!("{backend}-source"),
            _ => backend.to_owned(),
        };
        format!("{kind}-{}-{}", pins::MLX, pins::MLX_C)
    }

    /// The folder's inputs, and the files that it must have.
    pub fn entry(&self) -> Entry {
        let (location, mlx, inputs) = (
            self.dir.to_string_lossy(),
            self.mlx.to_string_lossy(),
            pins::inputs(),
        );
        let facts = [
            ("compiler", self.compiler.as_str()),
            ("inputs", inputs.as_str()),
            // On macOS the library calls itself by its absolute path (see CMakeLists.txt), so the folder cannot be moved.
            ("location", &*location),
            ("mlx", pins::MLX),
            ("mlx-c", pins::MLX_C),
            ("mlx-dir", &*mlx),
        ];
        let library = host::library_of(&self.target, "mlxc");
        let files = [
            Path::new("lib").join(&library),
            PathBuf::from("include/mlx/c/mlx.h"),
            PathBuf::from("include/mlxrs.h"),
        ];
        let mut entry = Entry::new(self.dir.clone(), facts, files);
        if !self.kernels.is_empty() {
            entry.facts.insert("kernels".into(), self.kernels.clone());
        }
        if self.mlx == self.dir {
            // MLX was built too.
            entry
                .files
                .push(Path::new("lib").join(host::library_of(&self.target, "mlx")));
            entry.files.push("include/mlx/version.h".into());
        }
        entry
    }

    /// The folder that a user names in `MLX_C_DIR`, for a target.
    pub fn given(dir: &Path, target: &str) -> Result<Self> {
        let refused = |found: String| {
            Failure::new(format!("MLX_C_DIR={} cannot be used", dir.display()))
                .sought("a finished folder of `cargo xtask build-mlx`, at the place where it was built")
                .found(found)
                .fix("set MLX_C_DIR to the folder that `cargo xtask build-mlx` prints at its end, or unset it")
        };
        let dir = fs::canonicalize(dir).map_err(|e| refused(e.to_string()))?;
        let library = host::library_of(target, "mlxc");
        let Ok(marker) = fs::read_to_string(dir.join(MARKER)) else {
            let stock = ["lib", "lib64", ""]
                .iter()
                .any(|lib| dir.join(lib).join(&library).is_file());
            return Err(refused(if stock {
                format!(
                    "a {library} that this build has not made: it lacks the mlxrs_* functions (errors that are safe to report, updates in place, CPU kernels), so a stock mlx-c does not do"
                )
            } else {
                format!("no file \"{MARKER}\" there: not made by this build, or not to the end")
            }));
        };
        let fact = |key: &str| {
            marker
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .unwrap_or_default()
                .to_owned()
        };
        let prefix = Self {
            target: target.to_owned(),
            dir,
            mlx: fact("mlx-dir").into(),
            compiler: fact("compiler"),
            kernels: fact("kernels"),
        };
        // The other system's name first: a library of this name that is missing would be told as a build that did not end.
        for name in ["libmlxc.so", "libmlxc.dylib", &library] {
            let file = prefix.lib().join(name);
            let fault = file.is_file().then(|| machine::fault(&file, target));
            if let Some(reason) = fault.flatten() {
                return Err(refused(reason));
            }
        }
        if let Some(reason) = prefix.entry().unfinished() {
            return Err(refused(reason));
        }
        mlx_of(&prefix.mlx, target).map_err(|e| refused(e.what().to_owned()))?;
        Ok(prefix)
    }

    /// Folder of the headers.
    pub fn include(&self) -> PathBuf {
        self.dir.join("include")
    }

    /// Folder of libmlxc.
    pub fn lib(&self) -> PathBuf {
        self.dir.join("lib")
    }
}

/// The MLX in `dir`: an installation prefix, the `mlx` folder of a Python package, its site-packages, or a whole
/// Python environment.
pub fn installed_mlx(dir: &Path) -> Result<PathBuf> {
    mlx_of(dir, &host::triple())
}

/// The same for another machine.
fn mlx_of(dir: &Path, target: &str) -> Result<PathBuf> {
    let library = Path::new("lib").join(host::library_of(target, "mlx"));
    let header = Path::new("include/mlx/version.h");
    let refused = || {
        Failure::new(format!("there is no usable MLX in {}", dir.display()))
            .sought(format!(
                "{} and {}, there, in mlx/ or in a Python environment",
                library.display(),
                header.display()
            ))
            .fix(format!(
                "set MLX_DIR to an MLX {}: a prefix, or the mlx folder of a Python environment",
                pins::MLX
            ))
            .fix("or unset MLX_DIR to have the wheel downloaded")
    };
    let mut places = vec![dir.to_owned(), dir.join("mlx")];
    let pythons = fs::read_dir(dir.join("lib"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|item| item.path());
    places.extend(pythons.map(|python| python.join("site-packages/mlx")));
    let has_all = |place: &&PathBuf| place.join(&library).is_file() && place.join(header).is_file();
    let Some(found) = places.iter().find(has_all) else {
        return Err(refused().found("neither"));
    };
    let version = version(&fs::read_to_string(found.join(header)).unwrap_or_default());
    if version.as_deref() != Some(pins::MLX) {
        let version = version.unwrap_or_else(|| "that does not say which".into());
        return Err(refused().found(format!(
            "MLX {version} in {}; this needs {}",
            found.display(),
            pins::MLX
        )));
    }
    fs::canonicalize(found).map_err(|e| Failure::io("resolve", found, &e))
}

/// The version that MLX's version.h defines.
pub fn version(header: &str) -> Option<String> {
    let number = |name: &str| {
        let line = header
            .lines()
            .find(|line| line.starts_with(&format!("#define MLX_VERSION_{name} ")))?;
        line.split_whitespace().nth(2)?.parse::<u32>().ok()
    };
    Some(format!(
        "{}.{}.{}",
        number("MAJOR")?,
        number("MINOR")?,
        number("PATCH")?
    ))
}
