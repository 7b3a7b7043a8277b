//! The user's cache: where native builds are kept, and where programs look for them.
//!
//! The build and the loader of `mlx-c-sys` both compile this file.

use std::env;
use std::path::PathBuf;

/// The variable that names another folder.
pub const VARIABLE: &str = "MLX_CACHE_DIR";

/// The folder of the environment, if it names one: that of `MLX_CACHE_DIR`, else `mlx-rust` in the
/// platform's cache folder (`XDG_CACHE_HOME` or `~/.cache` on Linux, `~/Library/Caches` on macOS).
pub fn folder() -> Option<PathBuf> {
    if let Some(given) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(given));
    }
    let absolute = |name: &str| {
        let path = PathBuf::from(env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let platform = if cfg!(target_os = "macos") {
        absolute("HOME")?.join("Library/Caches")
    } else {
        match absolute("XDG_CACHE_HOME") {
            Some(cache) => cache,
            None => absolute("HOME")?.join(".cache"),
        }
    };
    Some(platform.join("mlx-rust"))
}
