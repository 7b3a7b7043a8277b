//! The exact inputs of the native build: versions, hashes and patches. They are embedded in the program, except for the
//! shim's sources, which are read from its folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::instances;

/// The MLX release. The reason for this one, and what differs in others, is in ARCHITECTURE.md.
pub const MLX: &str = "0.32.4";
/// The mlx-c release.
pub const MLX_C: &str = "0.7.0";
/// The oldest CMake that `shim/CMakeLists.txt` works with.
pub const CMAKE_MIN: (u32, u32) = (3, 20);

/// pip requirement files with the hashes of the wheels.
pub const REQUIRE_MLX_CPU: &str = include_str!("../requirements/mlx-cpu.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_MLX_CUDA_12: &str = include_str!("../requirements/mlx-cuda-12.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_MLX_CUDA_13: &str = include_str!("../requirements/mlx-cuda-13.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_MLX_METAL: &str = include_str!("../requirements/mlx-metal.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_CUDA_TOOLKIT_13: &str = include_str!("../requirements/cuda-toolkit-13.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_CMAKE: &str = include_str!("../requirements/cmake.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_NINJA: &str = include_str!("../requirements/ninja.txt");
/// See [`REQUIRE_MLX_CPU`].
pub const REQUIRE_LIBCLANG: &str = include_str!("../requirements/libclang.txt");

/// The wheels of libmlxc in releases: see `prebuilt.rs`.
pub const PREBUILT: &str = include_str!("../requirements/prebuilt.txt");

/// The manifest, and its lock file with checksums, whose only dependency carries the mlx-c sources.
pub const SOURCE_MANIFEST: &str = include_str!("../mlx-c-source/manifest.toml");
/// See [`SOURCE_MANIFEST`].
pub const SOURCE_LOCK: &str = include_str!("../mlx-c-source/manifest.lock");
/// The package of [`SOURCE_MANIFEST`] that carries the sources.
pub const SOURCE_PACKAGE: &str = "mlx-sys";
/// Where in that package they are.
pub const SOURCE_FOLDER: &str = "src/mlx-c";

/// Our changes to mlx-c: file name, text.
pub const PATCHES: &[(&str, &str)] = &[(
    "gather-qmm.patch",
    include_str!("../patches/gather-qmm.patch"),
)];

/// The shim: the path of each file under `shim/`, and its text, in the order of paths. With the sources that its list of
/// instances describes.
pub static SHIM: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let mut files = Vec::new();
    read_folder(&shim_folder(), "", &mut files);
    let list = files.iter().find(|(path, _)| path == instances::LIST);
    let list = list.map_or("", |(_, text)| text);
    let sources = instances::sources(list).unwrap_or_else(|e| panic!("{}: {e}", instances::LIST));
    if let Some((path, _)) = files
        .iter()
        .find(|(path, _)| sources.iter().any(|(of_list, _)| of_list == path))
    {
        panic!("{path} is a file and in {}", instances::LIST);
    }
    files.extend(sources);
    files.sort();
    files
});

/// The folder of the shim's sources. This file is compiled into `mlx-c-sys` and into `xtask`, whose folders are siblings.
pub fn shim_folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let near = own.join("shim");
    if near.is_dir() {
        near
    } else {
        own.with_file_name("mlx-c-sys").join("shim")
    }
}

fn read_folder(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) {
    let failed = |path: &Path, error: std::io::Error| -> ! {
        panic!("cannot read {}: {error}", path.display())
    };
    for item in fs::read_dir(folder).unwrap_or_else(|e| failed(folder, e)) {
        let path = item.unwrap_or_else(|e| failed(folder, e)).path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{prefix}{name}");
        if path.is_dir() {
            read_folder(&path, &format!("{name}/"), files);
        } else {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| failed(&path, e));
            files.push((name, text));
        }
    }
}

/// A hash (FNV-1a, 64 bit) of this repository's inputs to the build.
pub fn inputs() -> String {
    let patches = PATCHES.iter().flat_map(|(name, text)| [*name, *text]);
    let shim = SHIM.iter().flat_map(|(name, text)| [&**name, &**text]);
    digest(patches.chain(shim).chain([SOURCE_MANIFEST, SOURCE_LOCK]))
}

/// A hash of everything that decides the bindings: mlx-c with its patches, the shim's headers, and how they are read.
pub fn headers() -> String {
    /// It must change when `bindings.rs` reads other bindings from the same headers.
    const READER: &str = "3";

    let patches = PATCHES.iter().flat_map(|(name, text)| [*name, *text]);
    let is_header = |name: &str| name.ends_with(".h") && !name.contains('/');
    let shim = SHIM.iter().filter(|(name, _)| is_header(name));
    let shim = shim.flat_map(|(name, text)| [&**name, &**text]);
    digest(
        patches
            .chain(shim)
            .chain([SOURCE_MANIFEST, SOURCE_LOCK, READER]),
    )
}

/// FNV-1a over the parts, each closed by a zero byte.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}
